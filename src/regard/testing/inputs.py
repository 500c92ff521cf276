"""What a check is given: one mechanism with one option set, and signed random inputs that fit it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention, Heads, State, generator
from regard.info import Info
from regard.testing.compare import largest_error

LENGTH = 13
"""positions of most inputs: odd, prime, more than a sample's blocks and windows"""

LONG = 150
"""positions where a check must cross the tiles of an engine; not a multiple of any tile"""


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """With every tensor changed."""
        return type(self)(*(change(x) for x in self))

    def to(self, dtype: torch.dtype) -> Self:
        return self.map(lambda x: x.to(dtype))

    def clone(self) -> Self:
        return self.map(torch.Tensor.clone)

    def slots(self, first: int, stop: int) -> Self:
        """Queries, keys and values at the positions [first, stop) of a sequence."""
        return type(self)(*(x[:, :, first:stop] for x in self))

    def rows(self, picked: slice | Tensor) -> Self:
        """Some rows of the batch."""
        return self.map(lambda x: x[picked])


def randn(*shape: int, seed: int | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Signed random numbers of a seed, the same in every dtype up to rounding."""
    return torch.randn(*shape, generator=generator(0, str(seed)), dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Subject:
    """A mechanism class with one option set, as the checks see it."""

    cls: type[Attention]
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def info(self) -> Info:
        return self.cls.facts(**self.options)

    @property
    def modes(self) -> tuple[bool, ...]:
        """The values of `causal` that the mechanism accepts."""
        supports = self.info.supports
        return tuple(causal for causal, served in ((True, supports.causal), (False, supports.bidirectional)) if served)

    def heads(self, causal: bool, **changes: int | float | None) -> Heads:
        """Two heads of width 8 with values of width 6, built for up to 32 positions, unless changed."""
        wanted: dict[str, int | float | None] = {
            "count": 2,
            "key_dim": 8,
            "value_dim": 6,
            "max_length": 32,
            "seed": 7,
            **changes,
        }
        return Heads(causal=causal, **wanted)  # pyright: ignore[reportArgumentType]

    def fresh(self, causal: bool, **changes: int | float | None) -> Attention:
        """The mechanism as built, in evaluation mode."""
        return self.cls(self.heads(causal, **changes), **self.options).eval()

    def build(self, causal: bool, *, dtype: torch.dtype = torch.float32, **changes: int | float | None) -> Attention:
        """The mechanism in evaluation mode with its parameters moved off their initial values.

        A bias that starts at 0 or a gain that starts at 1 would hide whether it is used.
        """
        mechanism = self.fresh(causal, **changes)
        with torch.no_grad():
            for name, parameter in mechanism.named_parameters():
                parameter.add_(0.1 * randn(*parameter.shape, seed=name, dtype=parameter.dtype))
        return mechanism.to(dtype)

    def inputs(
        self,
        mechanism: Attention,
        *,
        queries: int = LENGTH,
        keys: int | None = None,
        batch: int = 2,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        scale: float = 1.0,
        margin: bool | None = None,
    ) -> Inputs:
        """Signed random q, k, v; q is the last of k where one projection serves as both.

        Where the mechanism makes discrete choices the seed is the first at which every choice has a margin, so that
        rounding cannot flip one. In float64 nobody compares across a rounding that could, unless `margin`. Where there
        are too many choices for any input to keep clear of (`info.rounding`), they are replayed instead.
        """
        keys = queries if keys is None else keys
        needed = self.info.selects and not self.info.rounding and (dtype != torch.float64 if margin is None else margin)
        for attempt in range(20):
            x = draw(mechanism.heads, self.info, queries, keys, batch, f"{seed}.{attempt}", scale).to(dtype)
            if not needed or has_margin(mechanism, x):
                return x
        raise AssertionError("20 seeds, and on none is the selection stable under a relative change of 1e-4")


def draw(heads: Heads, info: Info, queries: int, keys: int, batch: int, seed: str, scale: float = 1.0) -> Inputs:
    """Signed random inputs, the same leading numbers at every length."""

    def one(name: str, count: int, length: int, width: int, times: float = 1.0) -> Tensor:
        long = randn(batch, count, max(length, LONG), width, seed=f"{name}.{seed}")
        return times * long[:, :, :length]

    k = one("k", heads.kv_heads, keys, heads.key_dim, scale)
    v = one("v", heads.kv_heads, keys, heads.value_width)
    if info.shares_query_key:
        return Inputs(as_queries(k, heads, queries), k, v)
    return Inputs(one("q", heads.count, queries, heads.query_width, scale), k, v)


def as_queries(k: Tensor, heads: Heads, queries: int) -> Tensor:
    """The queries of a mechanism that uses one projection for both: its last keys, for every head of a group."""
    return k[:, :, k.shape[2] - queries :].repeat_interleave(heads.group, 1)


def has_margin(mechanism: Attention, x: Inputs) -> bool:
    """Whether the definition moves little under tiny changes of the inputs, so that no choice is about to flip."""
    exact, shares = x.to(torch.float64), mechanism.info.shares_query_key
    oracle = exact_copy(mechanism)
    with torch.no_grad():
        still = oracle.reference(*exact)
        for trial in range(2):
            q, k, v = (
                y * (1 + 1e-4 * randn(*y.shape, seed=f"margin {trial} {i}").double()) for i, y in enumerate(exact)
            )
            q = as_queries(k, mechanism.heads, q.shape[2]) if shares else q
            if largest_error(oracle.reference(q, k, v), still) > 2e-3:
                return False
    return True


def exact_copy(mechanism: Attention) -> Attention:
    """The same mechanism, with the same (rounded) weights, in float64."""
    import copy

    return copy.deepcopy(mechanism).double()


def run(
    mechanism: Attention,
    x: Inputs,
    *,
    key_mask: Tensor | None = None,
    bias: ScoreBias | None = None,
    marks: Tensor | None = None,
    state: State | None = None,
) -> Attended:
    """Call the mechanism without recording gradients."""
    with torch.no_grad():
        return mechanism(*x, key_mask=key_mask, bias=bias, marks=marks, state=state)


def changed(x: Inputs, where: Tensor | slice, heads: Heads, info: Info, seed: str, scale: float = 1.0) -> Inputs:
    """The inputs with other content at some positions, in q, k and v alike (the same in q and k where they are one)."""
    q, k, v = x.clone()
    k[:, :, where] = scale * randn(*k[:, :, where].shape, seed=f"k {seed}", dtype=k.dtype)
    v[:, :, where] = scale * randn(*v[:, :, where].shape, seed=f"v {seed}", dtype=v.dtype)
    if info.shares_query_key:
        q = as_queries(k, heads, q.shape[2])
    else:
        q[:, :, where] = scale * randn(*q[:, :, where].shape, seed=f"q {seed}", dtype=q.dtype)
    return Inputs(q, k, v)


def mask_with_holes(batch: int, keys: int) -> Tensor:
    """A key mask that keeps slot 0 and hides other keys in every row, differently per row."""
    keep = torch.rand(batch, keys, generator=generator(0, "holes", keys)) > 0.35
    keep[:, 0] = True
    keep[0, keys // 2] = False if keys > 1 else keep[0, 0]
    return keep


def two_way_splits(length: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a sequence in two, one token at a time, and a few uneven ways."""
    for first in range(1, length):
        yield (first, length - first)
    yield (1,) * length
    yield (length // 2, 1, 1, length - length // 2 - 2)
