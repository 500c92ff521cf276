"""What the templates promise for every mechanism of the family: parts that merge, and the slots that a state keeps."""

from types import FunctionType

import pytest
import torch
from torch import Tensor

from regard import Attention, Heads, UnsupportedError, build
from regard.attention.sparse import Globals, Sparse

METHODS = FunctionType, classmethod, staticmethod, property
BACK = (tuple(range(-1, 8)), (0, -1, *range(1, 8)))
"""permutations of nine blocks of which none sees a later one"""
MERGEABLE = [
    "local(window=5)",
    "local(window=3, dilation=4)",
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
