"""The protocol: what every attention mechanism receives, promises and returns.

Tensors are (batch, heads, length, dim). Causal means lower-right: the queries are the last positions, and extra leading
keys are the past. In masks True means keep.
"""
# pyright: reportUnnecessaryIsInstance=false
# Callers without a type checker are told what is wanted.

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.core.bias import ScoreBias
from regard.core.call import Attended, Call, by_definition, merge
from regard.core.errors import InputError, ShapeError, UnsupportedError, kind_of
from regard.core.info import Heads
from regard.core.mechanism import Mechanism
from regard.core.options import registered_name
from regard.core.precision import accumulation_dtype
from regard.core.randomness import generator, recomputing
from regard.core.state import State, Summary

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


class Attention(Mechanism, ABC):
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
            query_start: the slot of the first query. Not causal: where queries of another sequence stand; None: 0, and
                as many queries as keys are taken for the same tokens. Causal and `mergeable`: where they stand behind
                the last key of this part of the keys.
            state: the past; never modified.
            lse: also return the log-sum-exp of the logits, by which parts over disjoint keys are merged.

        Returns:
            Attended(values (batch, heads, queries, value), state, losses, lse).

        Raises:
            UnsupportedError: an argument that `info.supports` does not list; left padding where `info.anchored`.
            ShapeError: shapes or dtypes that do not fit; the state of another mechanism or of other options; inputs
                other than those declared; a negative `query_start`.
            InputError: an input out of its bounds.
            LimitError: longer than `heads.max_length` where weights depend on it.
        """
        if inputs is None:
            inputs = {}
        elif not isinstance(inputs, (dict, Mapping)):  # dict first: an abstract class is asked in Python
            raise ShapeError(f"{self._name} takes the inputs {sorted(self.info.inputs)} by name, got {kind_of(inputs)}")
        info = self.info
        self._check_call(q, k, v, key_mask, bias, marks, state, query_start)
        if state is not None:
            self.check_state(state, k)
        past = 0 if state is None else state.length
        if inputs or info.inputs:
            self._check_inputs(inputs, q, k, query_start, past)
        if lse and not info.mergeable:
            raise UnsupportedError(f"{self._name} has no log-sum-exp: it is no single softmax over its keys")
        if not k.shape[2] and not (q.shape[2] and past):
            losses = {name: q.new_zeros(()) for name in info.losses} if self.training else {}
            none = q.new_full(q.shape[:3], float("-inf"), dtype=accumulation_dtype(q.dtype)) if lse else None
            return Attended(v.new_zeros(*q.shape[:3], v.shape[3]), state, losses, none)
        if key_mask is not None:
            k, v, inputs = self._without_hidden(k, v, inputs, key_mask)
        if inputs:
            self._check_bounds(inputs)
        call = self._call(q, k, key_mask, bias, marks, inputs, query_start, state, lse)
        self.check_length(call.past + k.shape[2])
        run = self.attend
        if self.impl == "reference":
            run = self._define
        elif info.grouped == "expanded" and self.heads.group > 1:
            k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        answer = run(q, k, v, call)
        if answer.state is not None:
            answer.state.set_tag(self.spec_tag)
        # Autocast leaves the dtype of its last product. Anew, since torch 2.11 compiles no answer that `_replace` made.
        return Attended(answer.values.to(q.dtype), answer.state, answer.losses, answer.lse)

    def _check_inputs(
        self,
        inputs: Mapping[str, Tensor],
        q: Tensor,
        k: Tensor,
        query_start: int | None,
        past: int,
    ) -> None:
        """Refuse inputs other than those declared, of other shapes, or out of their bounds.

        Raises:
            ShapeError, InputError: as `Attention.forward`.
        """
        declared = self.info.inputs
        if set(inputs) != set(declared):
            raise ShapeError(f"{self._name} takes the inputs {sorted(declared)}, got {sorted(inputs)}")
        slots = {"queries": q.shape[2], "keys": k.shape[2]}
        if self.heads.causal and query_start is not None:
            slots["keys"] = max(k.shape[2], query_start + q.shape[2] - past)
        for name, each in declared.items():
            x, (heads, width) = inputs[name], each.shape(self.heads)
            wanted = (q.shape[0], heads, slots[each.slots], width)
            if not isinstance(x, Tensor) or x.shape != wanted or not x.is_floating_point():
                raise ShapeError(
                    f"{self._name}: input {name} must be floating (batch, heads, {each.slots}, width) = {wanted}, "
                    f"got {kind_of(x)}"
                )

    def _check_bounds(self, inputs: Mapping[str, Tensor]) -> None:
        """Refuse inputs out of their bounds. NaN stays NaN where it belongs.

        Raises:
            InputError: as `Attention.forward`.
        """
        if torch.compiler.is_compiling():
            return
        for name, each in self.info.inputs.items():
            x = inputs[name].detach()
            outside = (x < each.low) | (x > each.high)
            if outside.any():
                raise InputError(
                    f"{self._name}: input {name} must lie in [{each.low}, {each.high}], got {float(x[outside][0])}; "
                    "`activate` makes it from raw projections"
                )

    def _check_call(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        state: State | None,
        query_start: int | None,
    ) -> None:
        """Refuse tensors that do not fit each other or the mechanism, and whatever it does not support.

        Raises:
            UnsupportedError, ShapeError: as `Attention.forward`.
        """
        if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
            raise ShapeError(f"{self._name}: q, k and v must be tensors, got {', '.join(map(kind_of, (q, k, v)))}")
        heads, supports = self.heads, self.info.supports
        shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
        batch = shapes[0][0]
        for label, shape in zip("qkv", shapes, strict=True):
            count, width = self.widths[label]
            if len(shape) != 4 or shape[1] != count or shape[3] != width or shape[0] != batch:
                wanted = f"(batch={batch}, heads={count}, length, dim={width})"
                raise ShapeError(f"{self._name}: {label} must be {wanted}, got {tuple(shape)}")
        if not q.is_floating_point() or k.dtype != dtype or v.dtype != dtype:
            raise ShapeError(
                f"{self._name}: q, k, v must share one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}"
            )
        if k.device != q.device or v.device != q.device:
            raise ShapeError(f"{self._name}: q, k, v must be on one device, got {q.device}, {k.device}, {v.device}")
        queries, keys = shapes[0][2], shapes[1][2]
        if shapes[2][2] != keys:
            raise ShapeError(f"{self._name}: k has {keys} positions, v has {v.shape[2]}; they must agree")
        if key_mask is not None:
            if not supports.key_mask:
                self.refuse("key_mask", "key_mask")
            if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool or key_mask.shape != (batch, keys):
                raise ShapeError(
                    f"{self._name}: key_mask must be bool (batch={batch}, keys={keys}), True = keep, "
                    f"got {kind_of(key_mask)}"
                )
            if self.info.anchored and (state is None or state.length == 0):
                self.refuse_left_padding(key_mask)
        if bias is not None and not supports.bias:
            self.refuse("bias", "bias")
        if marks is not None:
            if not supports.marks:
                self.refuse("marks", "marks")
            if not isinstance(marks, Tensor) or marks.is_floating_point() or marks.shape != (q.shape[0], keys):
                raise ShapeError(
                    f"{self._name}: marks must be integers (batch={q.shape[0]}, keys={keys}), got {kind_of(marks)}"
                )
        if state is not None and not supports.state:
            self.refuse("state", "state")
        if query_start is not None:
            counts = hasattr(query_start, "__index__") and not isinstance(query_start, bool | type | Tensor)
            if not counts or getattr(query_start, "ndim", 0) or not 0 <= query_start < 1 << 62:
                raise ShapeError(f"{self._name}: query_start is a slot, so at least 0; got {query_start!r}")
        if heads.causal and query_start is not None:
            if not self.info.mergeable:
                raise UnsupportedError(
                    f"{self._name}: causal queries are the last slots, so query_start is theirs already; only a "
                    "mechanism that is mergeable takes keys that end before"
                )
        elif heads.causal:
            if queries > keys:
                raise ShapeError(
                    f"{self._name}: causal queries are the last positions, so there are at least as many keys; "
                    f"got {queries} queries and {keys} keys"
                )
            if queries < keys and not supports.prefix:
                self.refuse(f"leading keys ({queries} queries, {keys} keys)", "prefix")
        elif not supports.cross:
            if state is not None:
                self.refuse("state with causal=False", "cross")
            if queries != keys:
                self.refuse(f"{queries} queries on {keys} keys", "cross")
        if bias is not None:
            self._check_bias(bias, q, keys + (0 if state is None else state.length))

    def _check_bias(self, bias: ScoreBias, q: Tensor, keys: int) -> None:
        if not isinstance(bias, ScoreBias):
            raise ShapeError(f"{self._name}: bias must be a ScoreBias(table=...), got {kind_of(bias)}")
        batch, count, queries = q.shape[:3]
        for label, x, axis in (("curve", bias.curve, 0), ("relative", bias.relative, 0), ("query", bias.query, 1)):
            if x is not None and x.shape[axis] not in (1, count):
                raise ShapeError(f"{self._name}: bias.{label} has {x.shape[axis]} heads, must be 1 or {count}")
        table = bias.table
        if table is not None and (
            table.ndim != 4
            or table.shape[0] not in (1, batch)
            or table.shape[1] not in (1, count)
            or table.shape[2:] != (queries, keys)
        ):
            raise ShapeError(
                f"{self._name}: bias.table must be (1 or {batch}, 1 or {count}, queries={queries}, keys={keys}), "
                f"got {tuple(table.shape)}"
            )

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
        paired = not causal and query_start is None and q.shape[2] == past + k.shape[2]
        if query_start is None:
            query_start = past + k.shape[2] - q.shape[2] if causal else 0
        return Call(key_mask, bias, marks, inputs, state, causal, past, query_start, lse, paired)

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
        inputs = inputs or {}
        if key_mask is not None:
            k, v, inputs = self._without_hidden(k, v, inputs, key_mask)
        call = self._call(q, k, key_mask, bias, marks, inputs, query_start)
        return by_definition(self.reference, q, k, v, call, **({} if decisions is None else {"decisions": decisions}))

    def _without_hidden(
        self, k: Tensor, v: Tensor, inputs: Mapping[str, Tensor], key_mask: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Keys and values with 0 under the mask, inputs with their neutral value: no NaN there survives a product."""
        hidden = ~key_mask[:, None, :, None]
        more = {name: self._neutral(name, x, hidden) for name, x in inputs.items()}
        return k.masked_fill(hidden, 0), v.masked_fill(hidden, 0), more

    def _neutral(self, name: str, x: Tensor, hidden: Tensor) -> Tensor:
        """An input with its neutral value under the mask."""
        declared = self.info.inputs[name]
        if declared.slots == "keys":
            return x.masked_fill(F.pad(hidden, (0, 0, 0, x.shape[2] - hidden.shape[2])), declared.neutral)
        rows = hidden[:, :, hidden.shape[2] - x.shape[2] :] if self.heads.causal else None
        return x if rows is None else x.masked_fill(rows, declared.neutral)

    def _define(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The definition over every key so far, summed in at least float32."""
        if call.state is not None:
            new = {name: x for name, x in call.inputs.items() if self.info.inputs[name].slots == "keys"}
            if self.info.supports.marks:
                new["marks"] = (
                    k.new_zeros(k.shape[0], k.shape[2], dtype=torch.long) if call.marks is None else call.marks
                )
            kept, call = call.remember(k=k, v=v, **new)
            k, v, inputs = kept["k"], kept["v"], {name: kept.get(name, x) for name, x in call.inputs.items()}
            call = call._replace(marks=kept.get("marks"), inputs=inputs, past=0)
        wide = accumulation_dtype(q.dtype)
        weights = {f"of.{name}": x.to(wide) for name, x in self.named_parameters() if x.dtype != wide}
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (x.to(wide) for x in (q, k, v))
            if weights:
                values = torch.func.functional_call(_Definition(self), weights, (q, k, v, call))
            else:
                values = by_definition(self.reference, q, k, v, call)
        return Attended(values, call.state)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The algorithm. Arguments are validated; keys and values under the mask are 0."""

    @abstractmethod
    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The definition, explicit and slow, for float64: values (batch, heads, queries, value)."""

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """Lowest and highest distance (query slot - key slot) at which the mechanism reads a bias in such a call."""
        past = 0 if state is None else state.length
        return (0 if self.heads.causal else 1 - keys - past if keys + past else 0), max(past + keys, queries, 1) - 1

    def check_length(self, length: int) -> None:
        """Refuse more slots than the mechanism can serve; by default it serves any number.

        Raises:
            LimitError: `length` slots are too many.
        """


class _Definition(nn.Module):
    """The definition of a mechanism as a module, so that its weights can be exchanged for a call."""

    def __init__(self, mechanism: Attention) -> None:
        super().__init__()
        self.of = mechanism

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return by_definition(self.of.reference, q, k, v, call)
