import pytest
import torch
from safetensors.torch import load, save

import regard
from regard.core.composite import States
from regard.core.errors import ShapeError
from regard.core.state import Slots, Summary, constant, per_slot


def rows(count, seed, batch=2):
    draw = torch.Generator().manual_seed(seed)
    return {
        "k": torch.randn(batch, 3, count, 4, generator=draw),
        "v": torch.randn(batch, 3, count, 5, generator=draw),
        "positions": torch.arange(count),
    }


def empty(batch=2):
    return Slots.empty(
        k=torch.zeros(batch, 3, 0, 4), v=torch.zeros(batch, 3, 0, 5), positions=torch.zeros(0, dtype=torch.int64)
    )


@torch.no_grad()
def test_appending_equals_concatenation_and_shares_one_tape():
    state, parts = empty(), []
    for at in range(50):
        parts.append(rows(1 + at % 3, at))
        state = state.append(**parts[-1])
    for name, axis in (("k", 2), ("v", 2), ("positions", 0)):
        assert torch.equal(state.view()[name], torch.cat([p[name] for p in parts], axis))
    assert state.length == state.kept == sum(p["k"].shape[2] for p in parts)
    grown = state.append(**rows(1, 99))
    assert grown.tape is state.tape


@torch.no_grad()
def test_a_branch_copies_and_leaves_the_other_branch_alone():
    root = empty().append(**rows(5, 0))
    left = root.append(**rows(2, 1))
    right = root.append(**rows(2, 2))
    assert torch.equal(left.view()["k"][:, :, 5:], rows(2, 1)["k"])
    assert torch.equal(right.view()["k"][:, :, 5:], rows(2, 2)["k"])
    assert torch.equal(root.view()["k"], rows(5, 0)["k"])
    assert left.tape is not right.tape


def test_gradients_flow_through_appended_slots():
    new = {name: x.requires_grad_() if x.is_floating_point() else x for name, x in rows(2, 0).items()}
    state = empty().append(**new).append(**rows(1, 1))
    state.view()["k"].sum().backward()
    assert torch.equal(new["k"].grad, torch.ones_like(new["k"]))


@torch.no_grad()
def test_a_mask_given_late_fills_the_past_with_true():
    state = empty().append(**rows(2, 0)).append(key_mask=torch.tensor([[False], [True]]), **rows(1, 1))
    state = state.append(**rows(1, 2))
    assert state.view()["key_mask"].tolist() == [[True, True, False, True], [True, True, True, True]]


@torch.no_grad()
def test_drop_and_keep_count_what_is_stored():
    state = empty().append(**rows(6, 0))
    tail = state.drop(2)
    assert torch.equal(tail.view()["positions"], torch.arange(2, 6))
    assert tail.length == 6
    assert tail.nbytes == 2 * 3 * 4 * (4 + 5) * 4 + 4 * 8
    picked = tail.keep(torch.tensor([0, 3]))
    assert picked.view()["positions"].tolist() == [2, 5]
    more = picked.append(k=rows(1, 3)["k"], v=rows(1, 3)["v"], positions=torch.tensor([6]))
    assert more.view()["positions"].tolist() == [2, 5, 6]
    assert more.length == 7


@pytest.mark.parametrize("kind", ["slots", "summary"])
@torch.no_grad()
def test_select_detach_and_file_round_trip(kind):
    if kind == "slots":
        state = empty().append(**rows(3, 0)).with_steady(total=torch.randn(2, 3))
        start = empty().with_steady(total=torch.zeros(2, 3))
    else:
        state, start = Summary({"s": torch.randn(2, 4)}, 9), Summary({"s": torch.zeros(2, 4)})
    back = start.load(load(save(state.dump())))
    assert back.length == state.length
    assert back.tensors().keys() == state.tensors().keys()
    for name, x in state.tensors().items():
        assert torch.equal(x, back.tensors()[name])
    swapped = state.select(torch.tensor([1, 0, 1]))
    for name, x in state.tensors().items():
        want = x if name == "positions" else x[[1, 0, 1]]
        assert torch.equal(swapped.tensors()[name], want)
    assert swapped.length == state.length


def test_inference_tensors_do_not_block_a_later_append():
    with torch.inference_mode():
        state = empty().append(**rows(2, 0))
    with torch.no_grad():
        grown = state.append(**rows(1, 1))
    assert grown.kept == 3


@torch.no_grad()
def test_digits_are_never_lost_silently():
    wide = {name: x.double() if x.is_floating_point() else x for name, x in rows(1, 0).items()}
    with pytest.raises(ShapeError, match="initial_state"):
        empty().append(**wide)
    narrow = {name: x.bfloat16() if x.is_floating_point() else x for name, x in rows(1, 0).items()}
    assert empty().append(**narrow).view()["k"].dtype == torch.float32


def test_a_state_without_slots_gives_back_nothing():
    state = regard.build("linear", regard.Heads(count=1, key_dim=2, causal=True)).initial_state(1)
    assert state.rewind(0) is state
    assert States({}).length == 0


def test_entries_are_kept_in_their_own_dtype():
    assert per_slot(1, 2).dtype_of(torch.bfloat16) == torch.bfloat16
    assert per_slot(1, 2, dtype="accumulation").dtype_of(torch.bfloat16) == torch.float32
    assert constant(3).nbytes(2, 7, torch.float32) == 3 * 2 * 4
    assert per_slot(1, 3).nbytes(2, 7, torch.float32) == 3 * 2 * 7 * 4
