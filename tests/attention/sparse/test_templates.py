"""What the templates promise for every mechanism of the family: parts that merge, and the slots that a state keeps."""

from types import FunctionType

import pytest
import torch
from torch import Tensor

from regard import Attention, Heads, UnsupportedError, build
from regard.attention.sparse import Globals, Sparse
from regard.core.attention import merge

METHODS = FunctionType, classmethod, staticmethod, property
BACK = (tuple(range(-1, 8)), (0, -1, *range(1, 8)))
"""permutations of nine blocks of which none sees a later one"""
MERGEABLE = [
    "local(window=5)",
    "local(window=3, dilation=4, impl=torch)",
    "atrous(dilation=3)",
    "local_atrous(window=2, dilation=5)",
    "strided(stride=6)",
    "strided(stride=6, part=window)",
    "strided_union(stride=7)",
    "pattern(rule='window(9) & ~strided(2)')",
]
ANCHORED = [
    "fixed(stride=6, columns=2)",
    "fixed(stride=6, columns=2, part=block)",
    "fixed(stride=5, columns=2, part=summary)",
    "fixed_union(stride=6, columns=2)",
    "image_local_1d(block_size=9, memory=4)",
    "image_local_2d(width=6, query_block=(2, 3), flange=(3, 1))",
    "blockwise(blocks=9, block_size=9, shift=0)",
    "blockwise(blocks=1)",
    f"blockwise(blocks=9, block_size=9, permutations={BACK})",
    "pattern(rule='block(7) | first(3)')",
]
GLOBAL = ["longformer(window=3, dilation=(1, 2))", "longformer(window=2, num_global=7)", "bigbird(block_size=4)"]


def drawn(n: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, n, 8, generator=source, dtype=torch.float64) for heads in (4, 2, 2)]


def made(spec: str) -> Attention:
    return build(spec, Heads(count=4, key_dim=8, kv_count=2, causal=True, max_length=80))


def cut(x: list[Tensor], start: int, stop: int) -> list[Tensor]:
    return [y[:, :, start:stop] for y in x]


@pytest.mark.parametrize("spec", MERGEABLE)
@pytest.mark.parametrize("masked", [False, True])
def test_parts_over_disjoint_keys_merge(spec: str, masked: bool) -> None:
    """Keys that end before the queries begin, and the queries' own: values and gradients, bare and on a state."""
    mechanism, x = made(spec), [y.requires_grad_() for y in drawn(90)]
    q, keys = x[0][:, :, 60:], x[1:]
    keep = torch.rand(2, 90, generator=torch.Generator().manual_seed(1)) > 0.3 if masked else None
    whole = mechanism(q, *keys, key_mask=keep, lse=True)
    way = torch.randn(whole.values.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = torch.autograd.grad((whole.values * way).sum(), x)
    for stateful in (False, True):
        parts = []
        for start, stop in ((0, 31), (31, 32), (32, 60), (60, 90)):
            got = mechanism(
                q,
                *cut(keys, start, stop),
                key_mask=None if keep is None else keep[:, start:stop],
                query_start=60 - start,
                state=mechanism.initial_state(2, dtype=torch.float64) if stateful else None,
                lse=True,
            )
            assert got.lse is not None
            parts.append((got.values, got.lse))
        values, lse = merge(parts)
        torch.testing.assert_close(values, whole.values, rtol=0, atol=1e-12)
        torch.testing.assert_close(lse, whole.lse, rtol=0, atol=1e-12)
        for one, other in zip(torch.autograd.grad((values * way).sum(), x), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", MERGEABLE)
def test_a_step_on_a_state_has_the_log_sum_exp_of_the_whole(spec: str) -> None:
    mechanism, x = made(spec), drawn(70)
    whole = mechanism(*x, lse=True).lse
    assert whole is not None
    state = mechanism(*cut(x, 0, 60), state=mechanism.initial_state(2, dtype=torch.float64)).state
    found = mechanism(*cut(x, 60, 70), state=state, lse=True).lse
    torch.testing.assert_close(found, whole[:, :, 60:], rtol=0, atol=1e-12)
    assert mechanism(*x).lse is None


@pytest.mark.parametrize("spec", [*ANCHORED, *GLOBAL])
def test_what_is_tied_to_slots_does_not_merge(spec: str) -> None:
    mechanism, x = made(spec), drawn(9)
    with pytest.raises(UnsupportedError, match="no log-sum-exp"):
        mechanism(*x, lse=True)
    with pytest.raises(UnsupportedError, match="mergeable"):
        mechanism(*x, query_start=20)


@pytest.mark.parametrize("spec", [*MERGEABLE, *ANCHORED, *GLOBAL])
def test_the_state_has_the_slots_that_the_definition_counts(spec: str) -> None:
    mechanism, x = made(spec), drawn(80)
    state = mechanism.initial_state(2, dtype=torch.float64)
    with torch.no_grad():
        for at in range(80):
            state = mechanism(*cut(x, at, at + 1), state=state).state
            assert state is not None
            assert state.tensors()["k"].shape[2] == mechanism.kept_slots(at + 1), at + 1
            assert state.nbytes == mechanism.state_nbytes(2, at + 1, torch.float64)


@pytest.mark.parametrize("spec", ["local(window=6)", "fixed(stride=6, columns=2)", "longformer(window=3)"])
def test_the_state_of_the_definition_keeps_every_slot(spec: str) -> None:
    mechanism, x = build(spec, made(spec).heads, impl="reference"), drawn(40)
    whole, state = made(spec)(*x).values, mechanism.initial_state(2, dtype=torch.float64)
    for start, stop in ((0, 17), (17, 18), (18, 40)):
        values, state, *_ = mechanism(*cut(x, start, stop), state=state)
        torch.testing.assert_close(values, whole[:, :, start:stop], rtol=0, atol=1e-10)
        assert state is not None
        assert state.tensors()["k"].shape[2] == stop
        assert state.nbytes == mechanism.state_nbytes(2, stop, torch.float64)


@pytest.mark.parametrize("spec", [*MERGEABLE, *ANCHORED, *GLOBAL])
def test_a_mechanism_has_one_template_and_overrides_what_that_does_not(spec: str) -> None:
    cls = type(made(spec))
    assert issubclass(cls, Sparse) is not issubclass(cls, Globals)
    path = cls.__mro__[: cls.__mro__.index(Attention) + 1]
    for name in {name for each in path for name in vars(each) if not name.startswith("__")}:
        written = [vars(each)[name] for each in path if isinstance(vars(each).get(name), METHODS)]
        assert sum(not getattr(method, "__isabstractmethod__", False) for method in written) <= 2, name
