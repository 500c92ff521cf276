"""Different mechanisms on different heads of one layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, final

import torch
from torch import Tensor, nn

from regard.core.attention import Attended, Attention, Call, generator
from regard.core.composite import States
from regard.core.errors import ConfigError, ShapeError
from regard.core.info import Heads, Info, Input, Supports
from regard.core.mechanism import Mechanism
from regard.core.randomness import drawn_on_cpu
from regard.core.state import Entry, State
from regard.core.types_of import typed

GROWTH: tuple[Literal["none", "constant", "window", "length"], ...] = ("none", "constant", "window", "length")


def mixed_info(infos: Sequence[Info]) -> Info:
    """The facts of mechanisms side by side: the support of all, the reads of any, the worst cost.

    A loss of one name and weight in several parts is one loss, their sum: each acts on its own heads as it would alone.
    Where the weights differ they cannot be added up, so there the name carries the number of the part.
    """

    def all_have(fact: str) -> bool:
        return all(getattr(info, fact) for info in infos)

    def any_has(fact: str) -> bool:
        return any(getattr(info, fact) for info in infos)

    targets = {(info.approximates, info.knob) for info in infos}
    approximates, knob = targets.pop() if len(targets) == 1 else (None, None)
    supports = {
        name: all(getattr(info.supports, name) for info in infos)
        for name in Supports.__dataclass_fields__
        if name != "marks"
    }
    read = {letter: [info for info in infos if letter in info.reads] for letter in "qkv"}
    growth = max(GROWTH.index(info.state) for info in infos)
    return Info(
        title=" + ".join(info.title for info in infos),
        source="; ".join(dict.fromkeys(info.source for info in infos)),
        supports=Supports(**supports),
        reads="".join(letter for letter, readers in read.items() if readers),
        time=max(info.time for info in infos),
        memory=max(info.memory for info in infos),
        state=GROWTH[growth] if supports["state"] else "none",
        rows_sum_to_one=all_have("rows_sum_to_one"),
        nonnegative=all_have("nonnegative"),
        linear_in_value=all_have("linear_in_value"),
        affine_in_value=all_have("affine_in_value"),
        sees_content_only=all_have("sees_content_only"),
        shares_query_key=any_has("shares_query_key"),
        selects=any_has("selects"),
        replays_choices=any_has("replays_choices"),
        straight_through="".join(letter for letter in "qkv" if any(letter in info.straight_through for info in infos)),
        without_gradient="".join(
            letter
            for letter, readers in read.items()
            if readers and all(letter in info.without_gradient for info in readers)
        ),
        anchored=any_has("anchored"),
        stochastic=any_has("stochastic"),
        approximates=approximates,
        knob=knob,
        compiles_whole=all_have("compiles_whole"),
        leaks=any_has("leaks"),
        inputs={f"{at}.{name}": declared for at, info in enumerate(infos) for name, declared in info.inputs.items()},
        mixes_queries=any_has("mixes_queries"),
        losses={
            names[name]: weight
            for info, names in zip(infos, loss_names(infos), strict=True)
            for name, weight in info.losses.items()
        },
    )


def loss_names(infos: Sequence[Info]) -> list[dict[str, str]]:
    """For every part, the mix's name of each of its losses."""
    weights: dict[str, set[float]] = {}
    for info in infos:
        for name, weight in info.losses.items():
            weights.setdefault(name, set()).add(weight)
    return [
        {name: name if len(weights[name]) == 1 else f"{at}.{name}" for name in info.losses}
        for at, info in enumerate(infos)
    ]


@final
class HeadMix(Attention):
    """Head-wise concatenation of mechanisms: heads [0, c_1) go to the first, the next c_2 to the second, and so on.

    Losses of one name and weight are added up: each acts on its own heads as it would alone.

    Args:
        heads: all heads together.
        parts: (specification, mechanism) pairs; each mechanism was built with `HeadMix.share`.

    Raises:
        ConfigError: heads that do not add up to `heads.count`.
    """

    @typed
    @drawn_on_cpu
    def __init__(self, heads: Heads, parts: Sequence[tuple[str, Attention]]) -> None:
        if not len(parts):
            raise ConfigError("a mix over heads needs at least one part")
        nn.Module.__init__(self)
        self.serve(heads)
        self.configure({}, "a mix over heads")
        self.specs = tuple(spec for spec, _ in parts)
        self.parts = nn.ModuleList(part for _, part in parts)
        self.spec_tag = " + ".join(part.spec_tag for part in self.mechanisms)
        infos = [part.info for part in self.mechanisms]
        self.info = replace(mixed_info(infos), inputs=self._sized([info.inputs for info in infos]))
        self.loss_names = loss_names(infos)
        total = sum(part.heads.count for part in self.mechanisms)
        if total != heads.count:
            shares = " + ".join(str(part.heads.count) for part in self.mechanisms)
            raise ConfigError(f"the parts of the mix serve {shares} = {total} heads, the layer has {heads.count}")

    @property
    def mechanisms(self) -> list[Attention]:
        """The parts, in the order of their heads."""
        return [cast(Attention, part) for part in self.parts]

    def _sized(self, declared: Sequence[Mapping[str, Input]]) -> dict[str, Input]:
        """The inputs of every part, named `part.input`, as they are for the heads of the part."""
        sized: dict[str, Input] = {}
        for at, (part, inputs) in enumerate(zip(self.mechanisms, declared, strict=True)):
            for name, each in inputs.items():
                heads, width = each.shape(part.heads)
                sized[f"{at}.{name}"] = replace(each, heads=heads, width=width)
        return sized

    @property
    def raw_inputs(self) -> Mapping[str, Input]:
        """Those of every part, named `part.input`."""
        return self._sized([part.raw_inputs for part in self.mechanisms])

    @staticmethod
    def share(heads: Heads, count: int, spec: str, part: int | None = None) -> Heads:
        """The `Heads` of a part that serves `count` of the query heads.

        Args:
            heads: those of the mix.
            count: of the part.
            spec: for messages.
            part: its number, for a seed of its own; None: the seed of the mix. Parts that draw alike (one mechanism, or
                of one name in `draws`) need different seeds, or their random features and initial weights would be the
                same.
        """
        if count % heads.group:
            raise ConfigError(
                f"{spec!r}: {count} query heads do not fill groups of {heads.group} that share keys and values"
            )
        seed = heads.seed if part is None else generator(heads.seed, "part", part).initial_seed()
        kv_count = None if heads.kv_count is None else count // heads.group
        return replace(heads, count=count, kv_count=kv_count, seed=seed)

    def shares(self) -> Iterator[tuple[str, Attention, slice, slice]]:
        """(name, part, its query heads, its heads of keys and values) of every part."""
        first = 0
        for at, part in enumerate(self.mechanisms):
            start = first // self.heads.group
            yield str(at), part, slice(first, first + part.heads.count), slice(start, start + part.heads.kv_heads)
            first += part.heads.count

    def share_weights(self, first: Mechanism) -> None:
        """Part by part."""
        assert isinstance(first, HeadMix)
        for own, other in zip(self.mechanisms, first.mechanisms, strict=True):
            own.share_weights(other)

    def check_state(self, state: State, q: Tensor) -> None:
        """Refuse a state of other parts; each part looks at its own."""
        if not isinstance(state, States) or set(state.parts) != {name for name, *_ in self.shares()}:
            raise ShapeError(f"{self._name}: this is the state of another mechanism; begin with initial_state")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Each part attends with its own heads."""
        state = call.state
        assert state is None or isinstance(state, States)
        attended = {
            name: part(
                q[:, query_heads],
                k[:, key_heads],
                v[:, key_heads],
                key_mask=call.key_mask,
                bias=None if call.bias is None else call.bias.heads(query_heads),
                marks=call.marks,
                inputs=_below(call.inputs, name),
                query_start=None if call.causal or call.paired else call.query_start,
                state=None if state is None else state[name],
            )
            for name, part, query_heads, key_heads in self.shares()
        }
        losses: dict[str, Tensor] = {}
        for part, names in zip(attended.values(), self.loss_names, strict=True):
            for name, loss in part.losses.items():
                losses[names[name]] = losses[names[name]] + loss if names[name] in losses else loss
        mixed = None if state is None else States({name: part.state for name, part in attended.items()})
        values = torch.cat([part.values for part in attended.values()], 1)
        return Attended(values, mixed, losses)

    def decisions(self, q: Tensor, k: Tensor) -> Mapping[str, Any]:
        """The choices of every part that replays them, by its number."""
        return {
            name: cast(Any, part).decisions(q[:, query_heads], k[:, key_heads])
            for name, part, query_heads, key_heads in self.shares()
            if part.info.replays_choices
        }

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Mapping[str, Any] | None = None
    ) -> Tensor:
        """The definitions of the parts, head-wise; with `decisions`, under these choices."""
        values: list[Tensor] = []
        for name, part, query_heads, key_heads in self.shares():
            bias = None if call.bias is None else call.bias.heads(query_heads)
            inner = call._replace(bias=bias, inputs=_below(call.inputs, name))
            replay: dict[str, Any] = {"decisions": decisions[name]} if decisions and name in decisions else {}
            values.append(part.reference(q[:, query_heads], k[:, key_heads], v[:, key_heads], inner, **replay))
        return torch.cat(values, 1)

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Every part that has inputs activates its own, named `part.input`."""
        parts = {name: part.activate(_below(raw, name)) for name, part, *_ in self.shares() if part.info.inputs}
        return {f"{name}.{input_name}": x for name, inputs in parts.items() for input_name, x in inputs.items()}

    def state_layout(self) -> Mapping[str, Entry]:
        """The entries of every part behind its number."""
        parts = enumerate(self.mechanisms)
        return {f"{at}.{name}": entry for at, part in parts for name, entry in part.state_layout().items()}

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The initial states of the parts."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        return States({name: part.initial_state(batch, device=device, dtype=dtype) for name, part, *_ in self.shares()})

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """The sum over the parts."""
        return sum(part.state_nbytes(batch, length, dtype) for part in self.mechanisms)

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """The union over the parts."""
        assert state is None or isinstance(state, States)
        ranges = [
            part.bias_distances(queries, keys, None if state is None else state[name])
            for name, part, *_ in self.shares()
        ]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def check_length(self, length: int) -> None:
        """That of every part."""
        for part in self.mechanisms:
            part.check_length(length)

    def redraw(self, generator: torch.Generator) -> None:
        """Redraw every part."""
        for part in self.mechanisms:
            part.redraw(generator)


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
