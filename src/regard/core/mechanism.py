"""A mechanism before it is called: its options, facts and weights, and the layout of its state."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, final

import torch
from torch import Tensor

from regard.core.compiling import require
from regard.core.dump import require_tag
from regard.core.errors import ConfigError, LimitError, ShapeError, UnsupportedError, room_for
from regard.core.info import Heads, Info, Input
from regard.core.options import Configured, option, registered_name, weight
from regard.core.randomness import drawn_on_cpu
from regard.core.state import Entry, Slots, State, Summary, begin, per_slot
from regard.core.types_of import typed


class Mechanism(Configured):
    """The declarations of a mechanism; `regard.Attention` attends."""

    default_info: ClassVar[Info]
    """the facts under default options, a literal"""
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    """option sets that the conformance suite checks, small enough for sequences of a dozen positions"""
    reasons: ClassVar[Mapping[str, str]] = {}
    """why a capability is missing, for the error message: {"causal": "its projection mixes all positions"}"""
    draws: ClassVar[str] = ""
    """what its random numbers are named by, beside the seed, where other mechanisms draw the same ones; empty: its own
    name"""
    _name: ClassVar[str]
    """for messages; a call asks for it often, so each class has its own"""
    row_sums: ClassVar[tuple[str, ...]] = ()
    """buffers that hold sums over the rows of the training call before: several processes add theirs up"""
    compares_widths: ClassVar[bool] = False
    """whether the score takes queries and keys of different widths"""

    heads: Heads = option(kw_only=False)
    info: Info = weight()
    """the facts of this instance"""
    spec_tag: str = weight()
    """tag of its states; as it was built, since a parametrization puts another class over it"""
    widths: Mapping[str, tuple[int, int]] = weight()
    """heads and width of q, k and v"""
    impl: Literal["auto", "reference"] = "auto"
    """how: `reference` is the definition, whose state keeps every key and value"""

    if not TYPE_CHECKING:  # type checkers make the signature from the annotated attributes

        @drawn_on_cpu
        def __init__(self, heads, **options):
            super().__init__()
            if not isinstance(heads, Heads):
                raise ConfigError(f"mechanism {self._name} serves Heads(count=..., key_dim=...), got {heads!r}")
            self.serve(heads)
            self.configure(options, f"mechanism {self._name}")
            self.spec_tag = self.tag_for(heads)
            self.info = described(type(self), self.options)
            self._check_heads()
            self.check_options()
            with room_for(f"mechanism {self._name}"):
                self.setup()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._name = registered_name(cls)

    def serve(self, heads: Heads) -> None:
        """Store what to serve, and the (heads, width) that q, k and v of a call must have."""
        self.heads = heads
        self.widths = {
            "q": (heads.count, heads.query_width),
            "k": (heads.kv_heads, heads.key_dim),
            "v": (heads.kv_heads, heads.value_width),
        }

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        return ("heads",)

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """The facts under these options (all of them, defaults filled in), `impl="reference"` apart."""
        del options
        return cls.default_info

    @classmethod
    @final
    def describe(cls, options: Mapping[str, object]) -> Info:
        """The facts under some options, without building.

        Raises:
            ConfigError: as building.
        """
        return described(cls, cls.filled(options, f"mechanism {registered_name(cls)}"))

    def check_options(self) -> None:
        """Refuse options that do not fit each other or `heads`.

        Raises:
            ConfigError: they do not; the message says what would.
        """

    def setup(self) -> None:
        """Draw the weights."""

    def share_weights(self, first: "Mechanism") -> None:
        """Take from `first`, another layer's mechanism of the same options, the weights that layers have in common.

        By default they have none.
        """

    def _check_heads(self) -> None:
        heads, supports = self.heads, self.info.supports
        if heads.causal and not supports.causal:
            self.refuse("causal=True", "causal")
        if not heads.causal and not supports.bidirectional:
            self.refuse("causal=False (a decoder's layer is built with causal=True)", "bidirectional")
        if heads.dropout and not supports.dropout:
            self.refuse(f"dropout={heads.dropout}", "dropout")
        if heads.query_width != heads.key_dim and not self.compares_widths:
            raise UnsupportedError(
                f"{self._name} compares queries with keys of the same width, got query_dim={heads.query_dim}, "
                f"key_dim={heads.key_dim}. Mechanisms that compare different widths: additive, bilinear"
            )

    def refuse(self, what: str, capability: str) -> NoReturn:
        """Raise the error for a request outside `info.supports`."""
        reason = self.reasons.get(capability)
        raise UnsupportedError(
            f"{self._name} does not support {what}{f': {reason}' if reason else ''}. "
            f"Mechanisms that do: regard list --supports {capability}"
        )

    @property
    def raw_inputs(self) -> Mapping[str, Input]:
        """The projections that a layer makes for `activate`, by name; by default tensors like the declared inputs."""
        return self.info.inputs

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The declared inputs, each slot from its own projections of `raw_inputs`; by default these themselves."""
        return raw

    def refuse_left_padding(self, key_mask: Tensor) -> None:
        """Refuse a mask whose first real key is not the first one, for patterns that depend on absolute slots.

        Raises:
            UnsupportedError: there is such a row.
        """
        require(
            key_mask[:, 0] | ~key_mask.any(1),
            f"{self._name} does not support left padding: its weights or pattern belong to absolute positions. "
            "Pad on the right, or run rows of unequal length one by one",
        )

    def state_layout(self) -> Mapping[str, Entry]:
        """Tensors of the state by name, `per_slot` and `constant` entries; by default every key and value."""
        heads = self.heads
        return {"k": per_slot(heads.kv_heads, heads.key_dim), "v": per_slot(heads.kv_heads, heads.value_width)}

    def kept_slots(self, length: int) -> int:
        """How many of `length` slots the state keeps, from the definition; by default all."""
        return length

    @final
    def layout(self) -> Mapping[str, Entry]:
        """Tensors of the state of this instance, by name.

        Raises:
            UnsupportedError: unless `info.supports.state`.
        """
        if not self.info.supports.state:
            self.refuse("state", "state")
        if self.impl != "reference":
            return self.state_layout()
        more = {
            name: per_slot(*each.shape(self.heads), dtype="accumulation")  # 8 bits of a log decay are too few to add up
            for name, each in self.info.inputs.items()
            if each.slots == "keys"
        }
        if self.info.supports.marks:
            more["marks"] = per_slot(dtype=torch.long)
        return {**Mechanism.state_layout(self), **more}

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        return self.layout()

    def check_state(self, state: State, q: Tensor) -> None:
        """Refuse a state that a call with these queries cannot go on from.

        Raises:
            ShapeError: the state of another mechanism or of other options, other tensors than this one keeps, other
                heads, another batch or device, or sums of a narrower dtype.
        """
        compiling = torch.compiler.is_compiling()  # which cannot enter the lock of a cached property
        entries, batch, dtype, device = self.layout() if compiling else self._entries, q.shape[0], q.dtype, q.device
        if state.spec_tag != self.spec_tag:
            require_tag(state.spec_tag, self.spec_tag, f"{self._name}: ")
        call = entries, batch, dtype, device
        tape = state.tape if not compiling and isinstance(state, Slots) and not state.steady else None
        if tape is not None and tape.fits == call:
            return
        tensors: Mapping[str, Tensor] = state.storage() if isinstance(state, (Slots, Summary)) else {}
        if len(tensors) - ("key_mask" in tensors) != len(entries) or not entries.keys() <= tensors.keys():
            raise ShapeError(
                f"{self._name}: this is the state of another mechanism: it has {sorted(tensors)}, must have "
                f"{sorted(entries)}; begin with initial_state"
            )
        for name, entry in entries.items():
            x = tensors[name]
            if not entry.holds(x, batch, dtype):
                raise ShapeError(
                    f"{self._name}: {name} of the state is {x.dtype} {tuple(x.shape)}, which does not fit a call of "
                    f"batch {batch} in {dtype} and these heads; begin with initial_state"
                )
            if x.device != device:
                raise ShapeError(
                    f"{self._name}: {name} of the state is on {x.device}, the call on {device}; move it with "
                    f"state.map(lambda x: x.to({str(device)!r}))"
                )
        if tape is not None:
            tape.fits = call

    @typed
    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first key.

        Raises:
            UnsupportedError: unless `info.supports.state`.
        """
        state = begin(self.layout(), batch, device=device, dtype=dtype)
        state.set_tag(self.spec_tag)
        return state

    @property
    def adds_states(self) -> bool:
        """Whether `added` makes the state behind several runs of slots from those of each, begun where it begins."""
        return False

    def added(self, states: Sequence[Summary]) -> Summary:
        """The state behind runs of slots that follow each other, each from an initial state of the length before it.

        By default the sum of every tensor. Only where `adds_states`, and at least one.
        """
        if not self.adds_states:
            raise UnsupportedError(
                f"{self._name}: its states do not add up; go on from one with the next slots instead"
            )
        content = {name: sum((x[name] for x in states[1:]), states[0][name]) for name in states[0].content}
        return replace(states[-1], content=content)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Bytes of the state after `length` unmasked slots: the layout with the slots that the definition keeps.

        Raises:
            UnsupportedError: unless `info.supports.state`.
        """
        layout = self.layout()
        slots = length if self.impl == "reference" else self.kept_slots(length)
        return sum(entry.nbytes(batch, slots, dtype) for entry in layout.values())

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the random features again, where the mechanism has any."""
        del generator

    def require_length(self, length: int) -> None:
        """Refuse a sequence longer than the weights were built for.

        Raises:
            LimitError: `length` > `heads.max_length`.
        """
        limit = self.heads.max_length
        if limit is not None and length > limit:
            raise LimitError(
                f"{self._name} was built for max_length={limit}, got {length} positions; "
                "build it with a larger max_length"
            )

    def extra_repr(self) -> str:
        return repr(self.heads)


def described(cls: type[Mechanism], options: Mapping[str, Any]) -> Info:
    """The facts of a mechanism under all of its options; the definition makes every weight and has no training."""
    info = cls.facts(options)
    return info.explicit() if options["impl"] == "reference" else info
