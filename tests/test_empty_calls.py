"""A call without queries, without keys, or of an empty batch gives no values or 0, by definition too.

One without queries and keys leaves the state as it was.
"""

import math

import pytest
import torch

from regard import Heads, build, catalog, describe

NAMES = catalog.names()
STREAMING = [name for name in NAMES if describe(name).supports.causal and describe(name).supports.state]


def calls(name):
    """What a mechanism may be called with: causal or not, rows of the batch, queries, keys; one of these is 0."""
    supports = describe(name).supports
    for causal in (False, True):
        if supports.causal if causal else supports.bidirectional:
            yield from ((name, causal, *sizes) for sizes in ((2, 0, 0), (0, 6, 6)))
        if supports.causal and supports.prefix if causal else supports.cross:
            yield name, causal, 2, 0, 6
    if supports.cross:
        yield name, False, 2, 6, 0


CALLS = [call for name in NAMES for call in calls(name)]


def heads(causal):
    return Heads(count=2, key_dim=8, causal=causal, max_length=256)


def neutral(mechanism, q, k=None):
    """The declared inputs of the slots of queries and keys, as padding gets them."""
    slots = {"queries": q.shape[2], "keys": (q if k is None else k).shape[2]}
    shapes = {name: each.shape(mechanism.heads) for name, each in mechanism.info.inputs.items()}
    return {
        name: torch.full((len(q), shapes[name][0], slots[each.slots], shapes[name][1]), each.neutral)
        for name, each in mechanism.info.inputs.items()
    }


@pytest.mark.parametrize(("name", "causal", "batch", "queries", "keys"), CALLS)
@pytest.mark.parametrize("impl", ["default", "reference"])
def test_without_a_state(name, causal, batch, queries, keys, impl):
    options = {"impl": impl} if impl == "reference" else {}
    mechanism = build(name, heads(causal), **options).train()
    q, k = torch.randn(batch, 2, queries, 8), torch.randn(batch, 2, keys, 8)
    inputs = neutral(mechanism, q, k)
    answer = mechanism(q, k, k, inputs=inputs)
    for values in (answer.values, mechanism.definition(q, k, k, inputs=inputs)):
        assert torch.equal(values, torch.zeros(batch, 2, queries, 8))
    assert answer.state is None
    assert answer.lse is None
    assert set(answer.losses) == set(mechanism.info.losses)
    if not (batch and keys):
        assert all(loss.item() == 0 for loss in answer.losses.values())


@pytest.mark.parametrize("name", [name for name in NAMES if describe(name).mergeable and describe(name).supports.cross])
def test_the_log_sum_exp_of_no_keys(name):
    q, k = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 0, 8)
    assert torch.equal(build(name, heads(causal=False))(q, k, k, lse=True).lse, torch.full((2, 2, 3), -math.inf))


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
