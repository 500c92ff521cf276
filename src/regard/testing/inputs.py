"""The subject and the inputs of a check: one mechanism with one option set, and signed random inputs that fit it."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from regard.core.attention import Attended, Attention, Heads, generator
from regard.core.info import Info, Input
from regard.testing.compare import largest_error
from regard.testing.sizes import growing, largest_size

LENGTH = 13
"""positions of most inputs: odd, prime, more than a sample's blocks and windows"""

LONG = 150
"""positions where a check must cross the tiles of an engine; not a multiple of any tile"""

BOUND_MARGIN = 0.02
"""how far declared inputs keep from their bounds"""


_HERE: ContextVar[str] = ContextVar("device of the checks", default="cpu")


def here() -> torch.device:
    """The device of the checks that run now: what they build and draw lies on it."""
    return torch.device(_HERE.get())


@contextmanager
def on(device: str) -> Iterator[None]:
    """Within it, checks build and draw on this device, the CPU's numbers; torch's global generators are put back."""
    with torch.random.fork_rng([] if device.startswith("cpu") else [device], device_type=torch.device(device).type):
        before = _HERE.set(device)
        try:
            yield
        finally:
            _HERE.reset(before)


@dataclass(frozen=True)
class Inputs:
    """Every tensor of a call, each (batch, heads, slots, width)."""

    q: Tensor
    k: Tensor
    v: Tensor
    more: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """the inputs that the mechanism declares in `info.inputs`"""
    asking: frozenset[str] = frozenset({"q"})
    """names of those with one slot per query; the others have one per key"""

    def named(self) -> dict[str, Tensor]:
        """Every tensor by name."""
        return {"q": self.q, "k": self.k, "v": self.v, **self.more}

    @property
    def of_keys(self) -> dict[str, Tensor]:
        """The declared ones with one slot per key."""
        return {name: x for name, x in self.more.items() if name not in self.asking}

    def replaced(self, **tensors: Tensor) -> Self:
        """With other tensors of some names."""
        every = {**self.named(), **tensors}
        q, k, v = (every.pop(name) for name in "qkv")
        assert every.keys() == self.more.keys(), f"{sorted(tensors)} are not all of q, k, v, {sorted(self.more)}"
        return replace(self, q=q, k=k, v=v, more=every)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """With every tensor changed."""
        return self.replaced(**{name: change(x) for name, x in self.named().items()})

    def to(self, dtype: torch.dtype) -> Self:
        return self.map(lambda x: x.to(dtype))

    def clone(self) -> Self:
        return self.map(torch.Tensor.clone)

    def leaves(self) -> Self:
        """The same tensors, which from now on record gradients."""
        return self.map(torch.Tensor.requires_grad_)

    def queries(self, first: int, stop: int | None = None) -> Self:
        """Only some of the queries, on all keys."""
        return self.replaced(**{name: x[:, :, first:stop] for name, x in self.named().items() if name in self.asking})

    def keys(self, first: int, stop: int | None = None) -> Self:
        """Only some of the keys, for all queries."""
        of_keys = {name: x for name, x in self.named().items() if name not in self.asking}
        return self.replaced(**{name: x[:, :, first:stop] for name, x in of_keys.items()})

    def slots(self, first: int, stop: int) -> Self:
        """The positions [first, stop) of a sequence that asks at every one."""
        assert self.q.shape[2] == self.k.shape[2]
        return self.queries(first, stop).keys(first, stop)

    def rows(self, picked: slice | Tensor) -> Self:
        """Some rows of the batch."""
        return self.map(lambda x: x[picked])

    @staticmethod
    def joined(parts: "list[Inputs]", axis: int) -> "Inputs":
        """Rows (axis 0) or slots (axis 2) of several, one behind the other."""
        return parts[0].replaced(**{n: torch.cat([x.named()[n] for x in parts], axis) for n in parts[0].named()})


def randn(*shape: int, seed: int | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Signed random numbers of a seed, the same in every dtype up to rounding."""
    return torch.randn(*shape, generator=generator(0, str(seed)), dtype=torch.float64).to(here()).to(dtype)


@dataclass(frozen=True)
class Subject:
    """A mechanism class with one option set, as the checks see it."""

    cls: type[Attention]
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def info(self) -> Info:
        return self.cls.describe(self.options)

    @property
    def modes(self) -> tuple[bool, ...]:
        """The values of `causal` that the mechanism accepts."""
        supports = self.info.supports
        return tuple(causal for causal, served in ((True, supports.causal), (False, supports.bidirectional)) if served)

    @property
    def size(self) -> int:
        """The largest option, which may count slots; what needs more slots than `LENGTH` shows behind it."""
        return largest_size(self.cls.filled(self.options, "mechanism"))

    def growing(self, causal: bool, first: int = LENGTH) -> "Iterator[tuple[Attention, Inputs]]":
        """The mechanism and inputs in float64 of growing lengths, for what must show at one of them."""
        for length in growing(first, self.size):
            mechanism = self.build(causal, dtype=torch.float64, max_length=max(length, 32))
            yield mechanism, draw(mechanism.heads, self.info, length, length, 2, "growing").to(torch.float64)

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
        options: dict[str, Any] = dict(self.options)
        return self.cls(self.heads(causal, **changes), **options).eval().to(here())

    def build(self, causal: bool, *, dtype: torch.dtype = torch.float32, **changes: int | float | None) -> Attention:
        """The mechanism in evaluation mode with its parameters moved off their initial values.

        A bias that starts at 0 or a gain that starts at 1 would hide whether it is used.
        """
        mechanism = self.fresh(causal, **changes)
        with torch.no_grad():
            for name, parameter in mechanism.named_parameters():
                parameter.add_(0.1 * randn(*parameter.shape, seed=name, dtype=parameter.dtype))
        return mechanism.to(dtype)

    def case(self, causal: bool, dtype: torch.dtype = torch.float64) -> tuple[Attention, Inputs]:
        """The mechanism and inputs."""
        mechanism = self.build(causal, dtype=dtype)
        return mechanism, self.inputs(mechanism, dtype=dtype)

    def cases(self, dtype: torch.dtype = torch.float64) -> Iterator[tuple[bool, Attention, Inputs]]:
        """`causal`, the mechanism and inputs, for each value of `causal` that the mechanism accepts."""
        for causal in self.modes:
            yield causal, *self.case(causal, dtype)

    def drawn(
        self, causal: bool, length: int, seed: str, *, batch: int = 2, dtype: torch.dtype = torch.float64
    ) -> tuple[Attention, Inputs]:
        """The mechanism built for a length, and inputs of it whatever they make the mechanism choose."""
        mechanism = self.build(causal, dtype=dtype, max_length=max(length, 32))
        return mechanism, draw(mechanism.heads, self.info, length, length, batch, seed).to(dtype)

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
        are too many choices for any input to keep clear of (`info.replays_choices`), they are replayed instead.
        """
        keys = queries if keys is None else keys
        needed = (
            self.info.selects
            and not self.info.replays_choices
            and (dtype != torch.float64 if margin is None else margin)
        )
        for attempt in range(20):
            x = draw(mechanism.heads, self.info, queries, keys, batch, f"{seed}.{attempt}", scale).to(dtype)
            if not needed or has_margin(mechanism, x):
                return x
        raise AssertionError("20 seeds, and on none is the selection stable under a relative change of 1e-4")


def draw(heads: Heads, info: Info, queries: int, keys: int, batch: int, seed: str, scale: float = 1.0) -> Inputs:
    """Signed random inputs, the same leading numbers at every length; declared ones inside their bounds."""

    def drawn(name: str, count: int, length: int, width: int) -> Tensor:
        return randn(batch, count, max(length, LONG), width, seed=f"{name}.{seed}")[:, :, :length]

    k = scale * drawn("k", heads.kv_heads, keys, heads.key_dim)
    v = drawn("v", heads.kv_heads, keys, heads.value_width)
    shared = info.shares_query_key
    q = as_queries(k, heads, queries) if shared else scale * drawn("q", heads.count, queries, heads.query_width)
    more: dict[str, Tensor] = {}
    for name, each in info.inputs.items():
        count, width = each.shape(heads)
        more[name] = bounded(drawn(name, count, queries if each.slots == "queries" else keys, width), each)
    return Inputs(q, k, v, more, asking_names(info))


def raw_inputs(mechanism: Attention, x: Inputs, scale: float = 1.0) -> dict[str, Tensor]:
    """What a layer's projections could give to `activate` beside q, k and v: signed random numbers of any size."""
    raw: dict[str, Tensor] = {}
    for name, each in mechanism.raw_inputs.items():
        count, width = each.shape(mechanism.heads)
        slots = x.q.shape[2] if each.slots == "queries" else x.k.shape[2]
        raw[name] = scale * randn(x.q.shape[0], count, slots, width, seed=f"raw {name}", dtype=x.q.dtype)
    return raw


def projected(mechanism: Attention, x: Inputs, scale: float = 1.0) -> Inputs:
    """The inputs of a layer that has projected them: what `activate` takes in place of the declared ones."""
    asking = frozenset({"q", *(name for name, each in mechanism.raw_inputs.items() if each.slots == "queries")})
    return replace(x, more=raw_inputs(mechanism, x, scale), asking=asking)


def activated(mechanism: Attention, x: Inputs) -> Inputs:
    """The inputs of a call from `projected` ones, as a layer makes them."""
    if not x.more:
        return x
    return replace(x, more=dict(mechanism.activate(x.more)), asking=asking_names(mechanism.info))


def asking_names(info: Info) -> frozenset[str]:
    """Names of the tensors with one slot per query."""
    return frozenset({"q", *(name for name, each in info.inputs.items() if each.slots == "queries")})


def bounded(x: Tensor, each: Input, scale: float = 1.0) -> Tensor:
    """Signed random numbers brought inside the bounds of an input: uniform between two, half normal beside one.

    Half of a deviation away from a single bound on average, so that decays leave something of a dozen slots.
    """
    if math.isinf(each.low) and math.isinf(each.high):
        return scale * x
    if math.isinf(each.low):
        return each.high - BOUND_MARGIN - 0.5 * scale * x.abs()
    if math.isinf(each.high):
        return each.low + BOUND_MARGIN + 0.5 * scale * x.abs()
    share = BOUND_MARGIN + (1 - 2 * BOUND_MARGIN) * torch.special.ndtr(x)
    return each.low + (each.high - each.low) * share


def as_queries(k: Tensor, heads: Heads, queries: int) -> Tensor:
    """The queries of a mechanism that uses one projection for both: its last keys, for every head of a group."""
    return k[:, :, k.shape[2] - queries :].repeat_interleave(heads.group, 1)


def has_margin(mechanism: Attention, x: Inputs) -> bool:
    """Whether the definition moves little under tiny changes of the inputs, so that no choice is about to flip."""
    exact, shares = x.to(torch.float64), mechanism.info.shares_query_key
    oracle = exact_copy(mechanism)
    still = definition(oracle, exact)
    for trial in range(2):
        moved = {
            name: y * (1 + 1e-4 * randn(*y.shape, seed=f"margin {trial} {at}").double())
            for at, (name, y) in enumerate(exact.named().items())
        }
        if shares:
            moved["q"] = as_queries(moved["k"], mechanism.heads, x.q.shape[2])
        if largest_error(definition(oracle, exact.replaced(**moved)), still) > 2e-3:
            return False
    return True


def exact_copy(mechanism: Attention) -> Attention:
    """The same mechanism, with the same (rounded) weights, in float64."""
    import copy

    return copy.deepcopy(mechanism).double()


def call(mechanism: Attention, x: Inputs, **given: Any) -> Attended:
    """Call the mechanism with every tensor of `x`; given: further arguments of the call, such as `key_mask`."""
    return mechanism(x.q, x.k, x.v, inputs=x.more, **given)


@torch.no_grad()
def run(mechanism: Attention, x: Inputs, **given: Any) -> Attended:
    """As `call`, without recording gradients."""
    return call(mechanism, x, **given)


def define(mechanism: Attention, x: Inputs, **given: Any) -> Tensor:
    """The values that the definition gives; given: further arguments of `Attention.definition`."""
    return mechanism.definition(x.q, x.k, x.v, inputs=x.more, **given)


@torch.no_grad()
def definition(mechanism: Attention, x: Inputs, **given: Any) -> Tensor:
    """As `define`, without recording gradients."""
    return define(mechanism, x, **given)


def changed(x: Inputs, where: Tensor | slice, heads: Heads, info: Info, seed: str, scale: float = 1.0) -> Inputs:
    """The inputs with other content at some positions, in every tensor alike (the same in q and k where they are one).

    Of keys of another sequence than the queries, only what belongs to the keys.
    """
    other = x.clone().named()
    for name, y in other.items():
        if name in x.asking and x.q.shape[2] != x.k.shape[2]:
            continue
        drawn = randn(*y[:, :, where].shape, seed=f"{name} {seed}", dtype=y.dtype)
        y[:, :, where] = bounded(drawn, info.inputs[name], scale) if name in info.inputs else scale * drawn
    if info.shares_query_key:
        other["q"] = as_queries(other["k"], heads, x.q.shape[2])
    return x.replaced(**other)


def under_mask(x: Inputs, keep: Tensor, content: float, info: Info) -> Inputs:
    """The inputs with some content in every hidden slot, as near to it as the bounds of declared inputs allow."""
    hidden = ~keep[:, None, :, None]
    other = {name: y.masked_fill(hidden, content) for name, y in x.named().items() if name not in x.asking}
    for name in x.more.keys() & other.keys():
        each = info.inputs[name]
        other[name] = torch.where(hidden, other[name].clamp(each.low, each.high), other[name])
    if info.shares_query_key:
        other["q"] = x.q.masked_fill(hidden[:, :, hidden.shape[2] - x.q.shape[2] :], content)
    return x.replaced(**other)


def mask_with_holes(batch: int, keys: int) -> Tensor:
    """A key mask that keeps slot 0 and hides other keys in every row, differently per row."""
    keep = torch.rand(batch, keys, generator=generator(0, "holes", keys)).to(here()) > 0.35
    keep[:, 0] = True
    keep[0, keys // 2] = False if keys > 1 else keep[0, 0]
    return keep


def two_way_splits(length: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a sequence in two, one token at a time, and a few uneven ways."""
    for first in range(1, length):
        yield (first, length - first)
    yield (1,) * length
    yield (length // 2, 1, 1, length - length // 2 - 2)
