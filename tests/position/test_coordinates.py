"""Rows and columns of images: by loops, on the tables, and what is refused."""

import pytest
import torch

from regard.core.errors import ConfigError, LimitError
from regard.core.info import Heads
from regard.models import LanguageModel, ModelConfig
from regard.position import build_position

HEADS = Heads(count=2, key_dim=4, max_length=72, seed=3)


@pytest.mark.parametrize(("width", "channels", "block"), [(6, 3, (2, 3)), (6, 1, (4, 2)), (8, 1, None), (4, 2, (1, 1))])
def test_every_slot_has_the_vectors_of_its_row_and_column(
    width: int, channels: int, block: tuple[int, int] | None
) -> None:
    scheme = build_position(f"coordinates(width={width}, channels={channels}, query_block={block})", HEADS, 7)
    rows, columns = block or (1, width)
    places = [
        (row, column * channels + channel)
        for top in range(0, 80, rows)
        for left in range(0, width, columns)
        for row in range(top, top + rows)
        for column in range(left, left + columns)
        for channel in range(channels)
    ][:72]
    tables = dict(scheme.named_parameters())
    x = torch.randn(2, 72, 7, generator=torch.Generator().manual_seed(0))
    found = scheme.embed(x, torch.arange(72)) - x
    for slot, (row, column) in enumerate(places):
        wanted = torch.cat([tables["rows"][row], tables["columns"][column]])
        torch.testing.assert_close(found[0, slot], wanted, rtol=0, atol=1e-6)
    later = torch.tensor([[5, 7], [71, 0]])
    assert torch.equal(scheme.embed(x[:, :2], later), x[:, :2] + (scheme.embed(0 * x[:1], torch.arange(72)))[0][later])


def test_its_table_ends_and_the_model_knows() -> None:
    scheme = build_position("coordinates(width=6)", HEADS, 8)
    with pytest.raises(LimitError, match="12 rows of 6 slots, got position 72"):
        scheme.embed(torch.zeros(1, 1, 8), torch.tensor([72]))
    model = LanguageModel(ModelConfig(dim=16, position="coordinates(width=6)", max_length=24))
    assert model.limit == 24
    assert model.embeddings.placed


@pytest.mark.parametrize("options", ["width=0", "channels=0", "width=6, query_block=(1, 4)", "query_block=(0, 2)"])
def test_shapes_that_make_no_sense_are_refused(options: str) -> None:
    with pytest.raises(ConfigError, match="position coordinates needs width, channels and query_block"):
        build_position(f"coordinates({options})", HEADS, 8)


def test_it_needs_a_length() -> None:
    with pytest.raises(ConfigError, match="position coordinates needs max_length"):
        build_position("coordinates", Heads(count=1, key_dim=4), 8)
