"""The protocol: what every attention mechanism receives, promises and returns.

Tensors are (batch, heads, length, dim). Causal means lower-right: the queries are the last positions, and extra leading
keys are the past. In masks True means keep.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.bias import ScoreBias
from regard.call import Attended, Call, merge
from regard.errors import LimitError, UnsupportedError
from regard.info import Heads, Info, Input
from regard.moved import follow
from regard.options import Configured, option, registered_name, weight
from regard.randomness import generator, recomputing
from regard.state import Entry, Slots, State, Summary, accumulation_dtype, begin, per_slot
from regard.validation import check_call, check_inputs

__all__ = [
    "Attended",
    "Attention",
    "Call",
    "Heads",
    "ScoreBias",
    "State",
    "Summary",
    "accumulation_dtype",
    "generator",
    "merge",
    "recomputing",
    "registered_name",
]


class Attention(Configured, ABC):
    """An attention mechanism: for each query, score every key, keep the allowed ones, normalise, average the values.

    A mechanism is a final subclass in a file of its own. It sets `default_info`, declares its options as annotated
    attributes, draws its weights in `setup`, and writes `attend` (the algorithm) and `reference` (the definition,
    explicit and slow, sharing no code with `attend`).

    Args:
        heads: what to serve.

    Raises:
        UnsupportedError: `heads` asks for what `info.supports` does not list.
        ConfigError: an unknown option, one of another type or out of bounds, or options that exclude each other.
    """

    default_info: ClassVar[Info]
    """the facts under default options, a literal"""
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    """option sets that the conformance suite checks, small enough for sequences of a dozen positions"""
    reasons: ClassVar[Mapping[str, str]] = {}
    """why a capability is missing, for the error message: {"causal": "its projection mixes all positions"}"""
    compares_widths: ClassVar[bool] = False
    """whether the score takes queries and keys of different widths"""

    heads: Heads = option(kw_only=False)
    info: Info = weight()
    """the facts of this instance"""
    widths: Mapping[str, tuple[int, int]] = weight()
    """heads and width of q, k and v"""
    impl: Literal["auto", "reference"] = "auto"
    """how: `reference` is the definition, whose state keeps every key and value"""

    if not TYPE_CHECKING:  # type checkers make the signature from the annotated attributes

        def __init__(self, heads, **options):
            super().__init__()
            self.serve(heads)
            self.configure(options, f"mechanism {self._name}")
            self.info = described(type(self), self.options)
            self._check_heads()
            self.check_options()
            self.setup()
            follow(self)

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

    def _check_heads(self) -> None:
        heads, supports = self.heads, self.info.supports
        if heads.causal and not supports.causal:
            self.refuse("causal=True", "causal")
        if not heads.causal and not supports.bidirectional:
            self.refuse("causal=False", "bidirectional")
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

    @final
    def forward(
        self,
        q: Float[Tensor, "batch heads queries query_dim"],
        k: Float[Tensor, "batch kv_heads keys key_dim"],
        v: Float[Tensor, "batch kv_heads keys value"],
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        bias: ScoreBias | None = None,
        marks: Int[Tensor, "batch keys"] | None = None,
        inputs: Mapping[str, Tensor] | None = None,
        query_start: int | None = None,
        state: State | None = None,
        lse: bool = False,
    ) -> Attended:
        """Attend.

        Args:
            q, k, v: queries, keys, values. Causal: the queries are the last positions.
            key_mask: True = real token, for this call's keys. Masked keys have no influence even when they hold NaN; a
                query without any key returns exactly 0.
            bias: added to the logits.
            marks: integer labels of tokens whose meaning the mechanism declares.
            inputs: the tensors (batch, heads, slots, width) that `info.inputs` names, effective ones (see `activate`).
                Where causal queries stand behind the last key, those of the keys go on to the last query.
            query_start: the slot of the first query. Not causal: where the queries come in pieces; None: 0. Causal and
                `mergeable`: where they stand behind the last key of this part of the keys.
            state: the past; never modified.
            lse: also return the log-sum-exp of the logits, by which parts over disjoint keys are merged.

        Returns:
            Attended(values (batch, heads, queries, value), state, losses, lse).

        Raises:
            UnsupportedError: an argument that `info.supports` does not list; left padding where `info.anchored`.
            ShapeError: shapes or dtypes that do not fit; inputs other than those declared; a negative `query_start`.
            InputError: an input out of its bounds.
            LimitError: longer than `heads.max_length` where weights depend on it.
        """
        given: Mapping[str, Tensor] = inputs or {}
        check_call(self, q, k, v, key_mask, bias, marks, state, query_start)
        if given or self.info.inputs:
            check_inputs(self, given, q, k, query_start, 0 if state is None else state.length)
        if lse and not self.info.mergeable:
            raise UnsupportedError(f"{self._name} has no log-sum-exp: it is no single softmax over its keys")
        if not q.shape[2] and not k.shape[2]:
            losses = {name: q.new_zeros(()) for name in self.info.losses} if self.training else {}
            empty = q.new_empty(q.shape[:3], dtype=accumulation_dtype(q.dtype)) if lse else None
            return Attended(v.new_empty(*q.shape[:3], v.shape[3]), state, losses, empty)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)  # NaN under the mask must not survive a product
            given = {name: self._neutral(name, x, hidden) for name, x in given.items()}
        call = self._call(q, k, key_mask, bias, marks, given, query_start, state, lse)
        self.check_length(call.past + k.shape[2])
        if self.impl == "reference":
            answer = self._define(q, k, v, call)
        else:
            if self.info.grouped == "expanded" and self.heads.group > 1:
                k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
            answer = self.attend(q, k, v, call)
        if answer.values.dtype == q.dtype:
            return answer
        return answer._replace(values=answer.values.to(q.dtype))  # autocast leaves the dtype of its last product

    def _call(
        self,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        inputs: Mapping[str, Tensor],
        query_start: int | None,
        state: State | None = None,
        lse: bool = False,
    ) -> Call:
        past, causal = 0 if state is None else state.length, self.heads.causal
        if query_start is None:
            query_start = past + k.shape[2] - q.shape[2] if causal else 0
        return Call(key_mask, bias, marks, inputs, state, causal, past, query_start, lse)

    @final
    def definition(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
        inputs: Mapping[str, Tensor] | None = None,
        query_start: int | None = None,
        decisions: object = None,
    ) -> Tensor:
        """`reference` on the arguments of `forward`; with what `decisions(q, k)` returned, its choices are replayed."""
        self.check_length(k.shape[2])
        call = self._call(q, k, key_mask, bias, marks, inputs or {}, query_start)
        replay: dict[str, Any] = {} if decisions is None else {"decisions": decisions}
        return self.reference(q, k, v, call, **replay)

    def _neutral(self, name: str, x: Tensor, hidden: Tensor) -> Tensor:
        """An input with its neutral value under the mask."""
        declared = self.info.inputs[name]
        if declared.slots == "keys":
            return x.masked_fill(F.pad(hidden, (0, 0, 0, x.shape[2] - hidden.shape[2])), declared.neutral)
        rows = hidden[:, :, hidden.shape[2] - x.shape[2] :] if self.heads.causal else None
        return x if rows is None else x.masked_fill(rows, declared.neutral)

    def _define(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The definition over every key so far, summed in at least float32."""
        state = call.state
        if state is not None:
            assert isinstance(state, Slots)
            new = {name: x for name, x in call.inputs.items() if self.info.inputs[name].slots == "keys"}
            if self.info.supports.marks:
                new["marks"] = (
                    k.new_zeros(k.shape[0], k.shape[2], dtype=torch.long) if call.marks is None else call.marks
                )
            state = state.append(call.key_mask, k=k, v=v, **new) if k.shape[2] else state
            kept = state.view()
            k, v, inputs = kept["k"], kept["v"], {name: kept.get(name, x) for name, x in call.inputs.items()}
            call = replace(call, key_mask=kept.get("key_mask"), marks=kept.get("marks"), inputs=inputs, past=0)
        wide = accumulation_dtype(q.dtype)
        weights = {f"of.{name}": x.to(wide) for name, x in self.named_parameters() if x.dtype != wide}
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (x.to(wide) for x in (q, k, v))
            if weights:
                values = torch.func.functional_call(_Definition(self), weights, (q, k, v, call))
            else:
                values = self.reference(q, k, v, call)
        return Attended(values, state)

    @property
    def _name(self) -> str:
        return registered_name(type(self))

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The algorithm. Arguments are validated; keys and values under the mask are 0."""

    @abstractmethod
    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The definition, explicit and slow, for float64: values (batch, heads, queries, value)."""

    @property
    def raw_inputs(self) -> Mapping[str, Input]:
        """What a layer projects for `activate`, by name; by default tensors like the declared inputs."""
        return self.info.inputs

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The declared inputs from a layer's projections of `raw_inputs`; by default these themselves."""
        return raw

    def state_layout(self) -> Mapping[str, Entry]:
        """What the state keeps, by name: `per_slot` and `constant` entries; by default every key and value."""
        heads = self.heads
        return {"k": per_slot(heads.kv_heads, heads.key_dim), "v": per_slot(heads.kv_heads, heads.value_width)}

    def kept_slots(self, length: int) -> int:
        """How many of `length` slots the state keeps, from the definition; by default all."""
        return length

    @final
    def layout(self) -> Mapping[str, Entry]:
        """What the state of this instance keeps.

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
        return {**Attention.state_layout(self), **more}

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first key.

        Raises:
            UnsupportedError: unless `info.supports.state`.
        """
        return begin(self.layout(), batch, device=device, dtype=dtype)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Bytes of the state after `length` unmasked slots: the layout with the slots that the definition keeps.

        Raises:
            UnsupportedError: unless `info.supports.state`.
        """
        layout = self.layout()
        slots = length if self.impl == "reference" else self.kept_slots(length)
        return sum(entry.nbytes(batch, slots, dtype) for entry in layout.values())

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """Lowest and highest distance (query slot - key slot) at which the mechanism reads a bias in such a call."""
        past = 0 if state is None else state.length
        return (0 if self.heads.causal else 1 - keys - past if keys + past else 0), max(past + keys, queries, 1) - 1

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the random features again, where the mechanism has any."""
        del generator

    def check_length(self, length: int) -> None:
        """Refuse more slots than the mechanism can serve; by default it serves any number.

        Raises:
            LimitError: `length` slots are too many.
        """

    def require_length(self, length: int) -> None:
        """Refuse a sequence longer than the weights were built for.

        Raises:
            LimitError: `length` > `heads.max_length`.
        """
        limit = self.heads.max_length
        if limit is not None and length > limit:
            raise LimitError(
                f"{registered_name(type(self))} was built for max_length={limit}, got {length} positions; "
                "build it with a larger max_length"
            )

    def extra_repr(self) -> str:
        return repr(self.heads)


class _Definition(nn.Module):
    """The definition of a mechanism as a module, so that its weights can be exchanged for a call."""

    def __init__(self, mechanism: Attention) -> None:
        super().__init__()
        self.of = mechanism

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return self.of.reference(q, k, v, call)


def described(cls: type[Attention], options: Mapping[str, Any]) -> Info:
    """The facts of a mechanism under all of its options; the definition makes every weight and has no training."""
    info = cls.facts(options)
    return info.explicit() if options["impl"] == "reference" else info
