"""What a layer remembers, shares and cuts off the graph: masks, positions, mechanisms, weights."""

import pytest
import torch

import regard
from regard import AttentionLayer, ConfigError, UnsupportedError
from regard.memory import MemoryState
from regard.testing.compare import assert_close, assert_identical
from regard.testing.inputs import randn

LENGTH = 11
KEEP = torch.tensor([[True] * LENGTH, [False, False, True, True, True, False, True, True, True, True, True]])
AT = torch.stack([2 * torch.arange(LENGTH), (torch.arange(LENGTH) - 2).clamp_min(0)])


def layer(spec="softmax", **options):
    return AttentionLayer(16, spec, **{"heads": 4, "causal": True, "max_length": 64, **options}).double().eval()


def hidden(seed="x"):
    return randn(2, LENGTH, 16, seed=seed, dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("positions", [None, AT], ids=["slots", "positions"])
@pytest.mark.parametrize("scheme", ["rotary", "sinusoidal", "learned"])
def test_remembering_is_the_call(scheme, positions, first):
    """With a mask, with positions of each row, and behind what was remembered before."""
    attention, x, last = layer(position=scheme), hidden(), 9

    def given(start, stop):
        return {
            "key_mask": KEEP[:, start:stop],
            "positions": None if positions is None else positions[:, start:stop],
        }

    state = attention.initial_state(2)
    state = attention.remember(x[:, :first], **given(0, first), state=state) if first else state
    asked = attention(x[:, first:last], **given(first, last), state=state).state
    told = attention.remember(x[:, first:last], **given(first, last), state=state)
    whole = attention(x, **given(0, LENGTH)).hidden[:, last:]
    assert told.length == asked.length == last
    for name, tensor in asked.tensors().items():
        assert_close(told.tensors()[name], tensor, tolerance=1e-12, what=name)
    assert_identical(told.tensors()["key_mask"], KEEP[:, :last], what="the mask")
    rest = attention(x[:, last:], **given(last, LENGTH), state=told).hidden
    assert_close(rest, whole, tolerance=1e-10, what="the tokens behind what was remembered")


@pytest.mark.parametrize("scheme", ["alibi", "t5_bias", "shaw_keys", "rotary"])
def test_a_memory_has_slots_only(scheme):
    """A position scheme cannot place what a memory holds, whether it changes keys or adds a bias."""
    attention, x = layer(memory="recent", position=scheme), hidden()
    with pytest.raises(UnsupportedError, match="a memory has slots only; leave positions out"):
        attention(x, memory=MemoryState({"hidden": x}, LENGTH), positions=torch.arange(LENGTH))


@pytest.mark.parametrize(
    "other",
    [
        {"dropout": 0.1},
        {"causal": False},
        {"max_length": 63},
        {"key_dim": 5},
        {"value_dim": 5},
        {"count": 2, "kv_count": 2},
        {"kv_count": 2},
    ],
    ids=lambda other: " ".join(other),
)
def test_a_shared_mechanism_serves_what_the_layer_needs(other):
    needed = {"count": 4, "key_dim": 4, "causal": True, "max_length": 64}
    assert layer(regard.build("softmax", regard.Heads(**needed, seed=5))).attention.heads.seed == 5
    with pytest.raises(ConfigError, match="the shared mechanism serves"):
        layer(regard.build("softmax", regard.Heads(**{**needed, **other})))


@pytest.mark.parametrize("kind", ["all", "none"])
def test_detached_projections_give_no_gradient_to_their_weights(kind):
    attention, x = layer(projections=kind, **({} if kind == "none" else {"bias": True})), hidden().requires_grad_()
    for still, moving in zip(attention.projections.detached(x), attention.projections(x), strict=True):
        assert_identical(still.detach(), moving.detach(), what="keys or values of detached weights")
        weights = list(attention.projections.parameters())
        found = torch.autograd.grad(still.sum(), [x, *weights], allow_unused=True, retain_graph=True)
        assert found[0] is not None, "hidden states keep their gradient"
        assert all(gradient is None for gradient in found[1:])
