"""A learned table of positions for every layer: what enters each block, which rows learn, and where the table ends."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.core.errors import ConfigError, LimitError
from regard.models import LanguageModel, ModelConfig
from regard.models.encoder import Encoder
from regard.models.encoder_config import EncoderConfig
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard_lab.training.optimizer import decayed

SHAPE = {
    "vocab_size": 23,
    "dim": 16,
    "heads": 2,
    "layers": 3,
    "max_length": 12,
    "mlp_dim": 24,
    "attention": ("softmax",),
}
SCHEME = "learned(per_layer=True)"


def tokens_of(batch: int, length: int) -> Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(0))


def decoder(**fields: object) -> LanguageModel:
    return LanguageModel(ModelConfig(**{**SHAPE, "position": SCHEME, **fields})).double().eval()


def encoder(**fields: object) -> Encoder:
    return Encoder(EncoderConfig(**{**SHAPE, "position": SCHEME, **fields})).double().eval()


def translator(**fields: object) -> EncoderDecoder:
    return EncoderDecoder(EncoderDecoderConfig(**{**SHAPE, "position": SCHEME, **fields})).double().eval()


def tables(model: nn.Module) -> dict[str, Tensor]:
    return {name: x for name, x in model.named_parameters() if name.endswith("position.table")}


@pytest.mark.parametrize("block", ["residual", "parallel"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_layer_adds_its_own_rows_to_what_enters_it(norm: str, block: str) -> None:
    """x^(l) = block^(l)(x^(l-1) + P^(l)), written out with blocks that know no positions."""
    model, tokens = decoder(norm=norm, block=block), tokens_of(2, 9)
    names = ["embeddings.position.table", "blocks.1.position.table", "blocks.2.position.table"]
    assert list(tables(model)) == names
    drawn = [tables(model)[name] for name in names]
    assert all((one - other).abs().max() > 1e-3 for one, other in zip(drawn, [*drawn[1:], drawn[0]], strict=True))
    plain = copy.deepcopy(model.blocks)
    x = model.table.weight[tokens]
    for block_of, table in zip(plain, drawn, strict=True):
        block_of.position = None
        x = block_of(x + table[:9]).hidden
    expected = model.logits(x if model.norm is None else model.norm(x))
    torch.testing.assert_close(model(tokens).logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [decoder, encoder, translator])
def test_only_rows_that_were_used_learn(build: Callable[..., nn.Module]) -> None:
    model = build()
    tokens = tokens_of(2, 5)
    output = model(tokens, tokens) if isinstance(model, EncoderDecoder) else model(tokens)
    output[0].square().sum().backward()
    found = tables(model)
    assert len(found) == (6 if isinstance(model, EncoderDecoder) else 3)
    for name, table in found.items():
        assert table.grad is not None, name
        assert table.grad.abs().sum(1).nonzero().flatten().tolist() == [0, 1, 2, 3, 4], name


def test_positions_given_by_row_choose_the_rows_of_every_table() -> None:
    model, tokens = decoder(), tokens_of(2, 5)
    where = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
    model(tokens, positions=where)[0][1].square().sum().backward()
    for table in tables(model).values():
        assert table.grad is not None
        assert table.grad.abs().sum(1).nonzero().flatten().tolist() == [7, 8, 9, 10, 11]


def test_the_end_of_the_tables_is_an_error_also_while_decoding() -> None:
    model, tokens = decoder(), tokens_of(1, 13)
    with pytest.raises(LimitError, match="max_length=12"):
        model(tokens)
    state = model(tokens[:, :12], state=model.initial_state(1)).state
    with pytest.raises(LimitError, match="max_length=12"):
        model(tokens[:, 12:], state=state)
    with pytest.raises(LimitError, match="got positions 12 to 12"):
        model(tokens[:, :1], positions=torch.tensor([12]))
    with pytest.raises(ConfigError, match="memory"):
        decoder(memory="recent(length=4)")


def test_rows_in_front_stay_free() -> None:
    """With an offset of 2 (RoBERTa) slot 0 has row 2, in every table; cls has the first slot."""
    model = encoder(position_offset=2, cls_token=True)
    model(tokens_of(1, 3)).hidden.square().sum().backward()
    for name, table in tables(model).items():
        assert len(table) == 14, name
        assert table.grad is not None
        assert table.grad.abs().sum(1).nonzero().flatten().tolist() == [2, 3, 4, 5], name


def test_tables_are_not_decayed() -> None:
    model = decoder()
    flags = decayed(model)
    assert not any(flags[name] for name in tables(model))
    assert flags["blocks.1.mlp.up.weight"]
