"""Which blocks may be without their weights between their calls."""

import pytest

from regard.models import LanguageModel
from regard.models.apart import blocks_apart
from regard.models.config import ModelConfig


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"layers": 1}, 1),
        ({"layers": 3, "position": "learned"}, 3),
        ({"layers": 1, "position": "rotary"}, 1),
        ({"layers": 1, "position": "t5_bias"}, 0),
        ({"layers": 1, "position": "transformer_xl"}, 0),
        ({"layers": 2, "position": "shaw_keys(max_distance=4)"}, 0),
        ({"layers": 2, "block": "reversible"}, 0),
        ({"layers": 2, "memory": "recent(length=4)"}, 0),
        ({"layers": 2, "depth": "universal(steps=2)"}, 0),
        ({"layers": 2, "depth": "early_exit"}, 0),
    ],
)
def test_blocks_whose_weights_are_elsewhere_too_are_left_out(options, count):
    """A scheme of positions belongs to the embeddings as well, however few blocks there are."""
    model = LanguageModel(ModelConfig(dim=16, heads=2, vocab_size=8, max_length=8, **options))
    found = blocks_apart(model)
    assert found == list(model.blocks)[:count]
    inside = {x for block in found for x in block.parameters()}
    elsewhere = {
        x
        for name, x in model.named_parameters(remove_duplicate=False)
        if not any(name.startswith(f"blocks.{number}.") for number in range(len(model.blocks)))
    }
    assert not inside & elsewhere
