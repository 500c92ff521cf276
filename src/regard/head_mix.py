"""Different mechanisms on different heads of one layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, cast, final

import torch
from torch import Tensor, nn

from regard.bias import ScoreBias
from regard.core import Attended, Attention
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.state import State

GROWTH: tuple[Literal["none", "constant", "window", "length"], ...] = ("none", "constant", "window", "length")


def mixed_info(infos: Sequence[Info]) -> Info:
    """The facts of mechanisms side by side: what all support, what any reads, the worst cost."""
    first = infos[0]

    def every(fact: str) -> bool:
        return all(getattr(info, fact) for info in infos)

    def some(fact: str) -> bool:
        return any(getattr(info, fact) for info in infos)

    return Info(
        title=" + ".join(info.title for info in infos),
        source="; ".join(dict.fromkeys(info.source for info in infos)),
        supports=Supports(
            **{
                name: all(getattr(info.supports, name) for info in infos)
                for name in Supports.__dataclass_fields__
                if name != "marks"
            },
        ),
        reads="".join(letter for letter in "qkv" if any(letter in info.reads for info in infos)),
        time=max(info.time for info in infos),
        memory=max(info.memory for info in infos),
        state=GROWTH[max(GROWTH.index(info.state) for info in infos)],
        rows_sum_to_one=every("rows_sum_to_one"),
        nonnegative=every("nonnegative"),
        linear_in_value=every("linear_in_value"),
        affine_in_value=every("affine_in_value"),
        sees_content_only=every("sees_content_only"),
        shares_query_key=some("shares_query_key"),
        selects=some("selects"),
        rounding=some("rounding"),
        straight_through="".join(letter for letter in "qkv" if any(letter in info.straight_through for info in infos)),
        anchored=some("anchored"),
        stochastic=some("stochastic"),
        approximates=first.approximates if len({info.approximates for info in infos}) == 1 else None,
        compiles_whole=every("compiles_whole"),
        leaks=some("leaks"),
        losses={name: weight for info in infos for name, weight in info.losses.items()},
    )


@dataclass(frozen=True)
class MixState(State):
    """The states of the parts, in order."""

    parts: tuple[State, ...]

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.parts[0].length

    def tensors(self) -> dict[str, Tensor]:
        return {f"{at}.{name}": x for at, part in enumerate(self.parts) for name, x in part.tensors().items()}

    def shared(self) -> frozenset[str]:
        return frozenset(f"{at}.{name}" for at, part in enumerate(self.parts) for name in part.shared())

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tuple(part.with_tensors(_below(tensors, at)) for at, part in enumerate(self.parts)))

    def dump(self) -> dict[str, Tensor]:
        return {f"{at}.{name}": x for at, part in enumerate(self.parts) for name, x in part.dump().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        return type(self)(tuple(part.load(_below(tensors, at)) for at, part in enumerate(self.parts)))


def _below(tensors: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    prefix = f"{at}."
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


@final
class HeadMix(Attention):
    """Head-wise concatenation of mechanisms: heads [0, c_1) go to the first, the next c_2 to the second, and so on.

    Args:
        heads: all heads together.
        parts: (specification, mechanism) pairs; each mechanism was built with `HeadMix.share`.

    Raises:
        ConfigError: heads that do not add up to `heads.count`.
    """

    def __init__(self, heads: Heads, parts: Sequence[tuple[str, Attention]]) -> None:
        nn.Module.__init__(self)
        self.heads = heads
        self.specs = tuple(spec for spec, _ in parts)
        self.parts = nn.ModuleList(part for _, part in parts)
        self.info = mixed_info([part.info for part in self.mechanisms])
        total = sum(part.heads.count for part in self.mechanisms)
        if total != heads.count:
            shares = " + ".join(str(part.heads.count) for part in self.mechanisms)
            raise ConfigError(f"the parts of the mix serve {shares} = {total} heads, the layer has {heads.count}")

    @property
    def mechanisms(self) -> list[Attention]:
        """The parts, in the order of their heads."""
        return [cast(Attention, part) for part in self.parts]

    @staticmethod
    def share(heads: Heads, count: int, spec: str) -> Heads:
        """The `Heads` of a part that serves `count` of the query heads."""
        if count % heads.group:
            raise ConfigError(
                f"{spec!r}: {count} query heads do not fill groups of {heads.group} that share keys and values"
            )
        return replace(heads, count=count, kv_count=None if heads.kv_count is None else count // heads.group)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        state: State | None,
    ) -> Attended:
        """Each part attends with its own heads."""
        assert state is None or isinstance(state, MixState)
        values: list[Tensor] = []
        states: list[State] = []
        losses: dict[str, list[Tensor]] = {}
        first = 0
        for at, part in enumerate(self.mechanisms):
            some, few = part.heads.count, part.heads.kv_heads
            kv = slice(first // self.heads.group, first // self.heads.group + few)
            got = part(
                q[:, first : first + some],
                k[:, kv],
                v[:, kv],
                key_mask=key_mask,
                bias=None if bias is None else bias.heads(slice(first, first + some)),
                marks=marks,
                state=None if state is None else state.parts[at],
            )
            values.append(got.values)
            if got.state is not None:
                states.append(got.state)
            for name, loss in got.losses.items():
                losses.setdefault(name, []).append(loss)
            first += some
        mixed = MixState(tuple(states)) if state is not None else None
        return Attended(torch.cat(values, 1), mixed, {name: torch.stack(x).mean() for name, x in losses.items()})

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """The references of the parts, head-wise."""
        values: list[Tensor] = []
        first = 0
        for part in self.mechanisms:
            some = slice(first, first + part.heads.count)
            few = slice(first // self.heads.group, first // self.heads.group + part.heads.kv_heads)
            own = None if bias is None else bias.heads(some)
            values.append(part.definition(q[:, some], k[:, few], v[:, few], key_mask=key_mask, bias=own, marks=marks))
            first += part.heads.count
        return torch.cat(values, 1)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The initial states of the parts."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        return MixState(tuple(part.initial_state(batch, device=device, dtype=dtype) for part in self.mechanisms))

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """The sum over the parts."""
        return sum(part.state_nbytes(batch, length, dtype) for part in self.mechanisms)

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """The union over the parts."""
        reaches = [
            part.bias_distances(queries, keys, state.parts[at] if isinstance(state, MixState) else None)
            for at, part in enumerate(self.mechanisms)
        ]
        return min(low for low, _ in reaches), max(high for _, high in reaches)

    def redraw(self, generator: torch.Generator) -> None:
        """Redraw every part."""
        for part in self.mechanisms:
            part.redraw(generator)
