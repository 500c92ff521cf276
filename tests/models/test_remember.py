"""Blocks that are skipped and still take their keys, against the whole model written out."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch

from regard.models import LanguageModel, ModelConfig
from regard.models.blocks import names
from regard.models.depth import Depth, Looped
from regard.testing.compare import assert_close
from tests.models.block_formulas import TAKEN, decoder, moved

LENGTH, LAYERS = 9, 4


class Skipping(Depth):
    """Goes past the blocks of `skipped`."""

    skipped: Sequence[int] = ()

    def forward(self, blocks, x, threads, *, key_mask=None, positions=None, marks=None):
        states, x = [], blocks[0].enter(x)
        for at, (block, state) in enumerate(zip(blocks, threads.states, strict=True)):
            given = {"key_mask": key_mask, "positions": positions, "state": state}
            if at in self.skipped:
                states.append(block.remember(x, **given))
            else:
                x, state, _, _ = block(x, **given)
                states.append(state)
        return Looped(blocks[0].leave(x), states, list(threads.memories), [{} for _ in blocks])


def model_of(**options) -> LanguageModel:
    shape = {"dim": 16, "layers": LAYERS, "heads": 4, "vocab_size": 20, "mlp": "relu", "seed": 3, **options}
    if shape["mlp"] not in TAKEN[shape.get("block", "residual")][1]:
        shape["mlp"] = "none"
    return moved(LanguageModel(ModelConfig(**shape)))


def run(model: LanguageModel, tokens, skips, *, at=None, keep=None) -> torch.Tensor:
    """Token by token, with a state."""
    model.depth = Skipping(model.config)
    state, pieces = model.initial_state(len(tokens)), []
    with torch.no_grad():
        for slot in range(tokens.shape[1]):
            model.depth.skipped = skips[slot].nonzero()[:, 0].tolist()
            piece = slice(slot, slot + 1)
            mask, positions = (None if x is None else x[:, piece] for x in (keep, at))
            got = model(tokens[:, piece], state=state, key_mask=mask, positions=positions)
            state, _ = got.state, pieces.append(got.logits)
    return torch.cat(pieces, 1)


TOKENS = torch.randint(20, (2, LENGTH), generator=torch.Generator().manual_seed(1))
SKIPS = torch.rand(LENGTH, LAYERS, generator=torch.Generator().manual_seed(2)) < 0.5
SLOTS = torch.arange(LENGTH).expand(2, -1)
PLACES = torch.tensor([[0, 2, 3, 7, 8, 9, 20, 21, 30], [5, 6, 8, 9, 12, 1, 2, 14, 15]])
KEEP = torch.ones(2, LENGTH, dtype=torch.bool)
KEEP[0, [2, 5]] = KEEP[1, [0, 6]] = False


@pytest.mark.parametrize(
    ("block", "norm", "kind"),
    [(name, *each) for name in names() for each in product(TAKEN[name][0], ["layer", "rms"])],
)
def test_what_a_skipped_block_remembers(block, norm, kind):
    """Masked tokens, positions of one's own, norms with gains: each alone and together."""
    model = model_of(block=block, norm=norm, norm_kind=kind, norm_eps=0.03, kv_heads=2, bias=True)
    assert SKIPS.any(0).all()
    assert not SKIPS.all(0).any()
    for at, keep in ((None, None), (PLACES, None), (None, KEEP), (PLACES, KEEP)):
        got = run(model, TOKENS, SKIPS, at=at, keep=keep)
        real, placed = torch.ones_like(KEEP) if keep is None else keep, SLOTS if at is None else at
        wanted = decoder(model, TOKENS, at=placed, keep=real, skips=SKIPS)
        assert_close(got[real], wanted[real], tolerance=1e-12, what=f"positions {at}, mask {keep}")


@pytest.mark.parametrize("cut", [1, 4])
def test_several_tokens_skip_at_once(cut):
    """A prompt that goes past blocks in one call, with its mask and positions, and a text after it that does not."""
    model, skips = model_of(), torch.zeros(LENGTH, LAYERS, dtype=torch.bool)
    skips[:cut, [1, 3]] = True
    model.depth, pieces, state = Skipping(model.config), [], model.initial_state(2)
    with torch.no_grad():
        for piece, skipped in ((slice(0, cut), [1, 3]), (slice(cut, LENGTH), [])):
            model.depth.skipped = skipped
            got = model(TOKENS[:, piece], state=state, key_mask=KEEP[:, piece], positions=PLACES[:, piece])
            state, _ = got.state, pieces.append(got.logits)
    wanted = decoder(model, TOKENS, at=PLACES, keep=KEEP, skips=skips)
    assert_close(torch.cat(pieces, 1)[KEEP], wanted[KEEP], tolerance=1e-12, what="logits")


@pytest.mark.parametrize("block", names())
def test_the_decoder_is_its_formula(block):
    """Without skips: the reference that the others are compared with is itself compared with a call of its own."""
    model = model_of(block=block, mlp="swiglu")
    with torch.no_grad():
        got = model(TOKENS, key_mask=KEEP, positions=PLACES).logits
    none = torch.zeros(LENGTH, LAYERS, dtype=torch.bool)
    assert_close(got[KEEP], decoder(model, TOKENS, at=PLACES, keep=KEEP, skips=none)[KEEP], tolerance=1e-12, what="it")
