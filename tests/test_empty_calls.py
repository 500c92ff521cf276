"""A call without queries and keys, or of an empty batch, gives no values and leaves the state as it was."""

import pytest
import torch

from regard import Heads, build, catalog, describe

NAMES = catalog.names()
STREAMING = [name for name in NAMES if describe(name).supports.causal and describe(name).supports.state]


def heads(causal):
    return Heads(count=2, key_dim=8, causal=causal, max_length=256)


def neutral(mechanism, x):
    """The declared inputs of as many slots as x has, as padding gets them."""
    declared, heads = mechanism.info.inputs.items(), mechanism.heads
    return {name: torch.full((len(x), each.shape(heads)[0], x.shape[2], 1), each.neutral) for name, each in declared}


@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, 6)])
@pytest.mark.parametrize("impl", ["default", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_without_a_state(name, impl, batch, length):
    options = {"impl": impl} if impl == "reference" else {}
    mechanism = build(name, heads(causal=not describe(name).supports.bidirectional), **options).train()
    nothing = torch.zeros(batch, 2, length, 8)
    answer = mechanism(nothing, nothing, nothing, inputs=neutral(mechanism, nothing))
    assert answer.values.shape == (batch, 2, length, 8)
    assert answer.state is None
    assert answer.lse is None
    assert set(answer.losses) == set(mechanism.info.losses)
    assert all(loss.item() == 0 for loss in answer.losses.values())


@pytest.mark.parametrize("name", STREAMING)
def test_between_two_pieces(name):
    mechanism = build(name, heads(causal=True)).eval()
    x, nothing = torch.randn(3, 1, 2, 6, 8), torch.zeros(1, 2, 0, 8)
    state = mechanism.initial_state(1)
    state = mechanism(nothing, nothing, nothing, inputs=neutral(mechanism, nothing), state=state).state
    first = mechanism(*x[..., :4, :], inputs=neutral(mechanism, x[0, ..., :4, :]), state=state)
    middle = mechanism(nothing, nothing, nothing, inputs=neutral(mechanism, nothing), state=first.state)
    assert middle.values.shape == (1, 2, 0, 8)
    last = mechanism(*x[..., 4:, :], inputs=neutral(mechanism, x[0, ..., 4:, :]), state=middle.state)
    straight = mechanism(*x[..., 4:, :], inputs=neutral(mechanism, x[0, ..., 4:, :]), state=first.state)
    assert last.state.length == 6
    assert torch.equal(last.values, straight.values)
