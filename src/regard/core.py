"""The protocol: what every attention mechanism receives, promises and returns.

Tensors are (batch, heads, length, dim). Causal means lower-right: the queries are the last positions, and extra leading
keys are the past. In masks True means keep.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.bias import ScoreBias
from regard.errors import ConfigError, LimitError, ShapeError, UnsupportedError
from regard.info import Heads, Info, Supports
from regard.state import Slots, State, Summary

__all__ = [
    "Attended",
    "Attention",
    "Heads",
    "Info",
    "ScoreBias",
    "Slots",
    "State",
    "Summary",
    "Supports",
    "generator",
    "merge",
    "recomputing",
    "registered_name",
]


class Attended(NamedTuple):
    """Always the same three, whatever was asked.

    values: (batch, heads, queries, value). state: only if one was passed. losses: unweighted, exactly `info.losses` in
    training, empty in evaluation.
    """

    values: Tensor
    state: State | None
    losses: dict[str, Tensor]


class Attention(nn.Module, ABC):
    """An attention mechanism: for each query, score every key, keep the allowed ones, normalise, average the values.

    A mechanism is a final subclass in a file of its own. It sets `info`, stores its options in `__init__` (whose
    keyword-only signature is its configuration), and writes `attend` (the algorithm) and `reference` (the definition,
    explicit and slow, sharing no code with `attend`).

    Args:
        heads: what to serve.

    Raises:
        UnsupportedError: `heads` asks for what `info.supports` does not list.
        ConfigError: options for a mechanism that has none.
    """

    info: Info

    def __init__(self, heads: Heads, **options: object) -> None:
        super().__init__()
        self.heads = heads
        self.info = type(self).facts(**options)
        supports = self.info.supports
        name = self._name
        if options and type(self).__init__ is Attention.__init__:
            raise ConfigError(f"{name} has no options, got {sorted(options)}")
        if heads.causal and not supports.causal:
            self.refuse("causal=True", "causal")
        if not heads.causal and not supports.bidirectional:
            self.refuse("causal=False", "bidirectional")
        if heads.dropout and not supports.dropout:
            self.refuse(f"dropout={heads.dropout}", "dropout")
        if heads.query_width != heads.key_dim and not self.compares_widths:
            raise UnsupportedError(
                f"{name} compares queries with keys of the same width, got query_dim={heads.query_dim}, "
                f"key_dim={heads.key_dim}. Mechanisms that compare different widths: additive, bilinear"
            )

    compares_widths: ClassVar[bool] = False
    """whether the score takes queries and keys of different widths"""

    @classmethod
    def facts(cls, **options: object) -> Info:
        """The facts under these options. Overridden where a capability depends on an option."""
        del options
        return cls.info

    def refuse(self, what: str, capability: str) -> None:
        """Raise the error for a request outside `info.supports`."""
        raise UnsupportedError(
            f"{registered_name(type(self))} does not support {what}"
            f"{': ' + self.reasons[capability] if capability in self.reasons else ''}. "
            f"Mechanisms that do: regard list --supports {capability}"
        )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    """option sets that the conformance suite checks, small enough for sequences of a dozen positions"""

    reasons: ClassVar[Mapping[str, str]] = {}
    """why a capability is missing, for the error message: {"causal": "its projection mixes all positions"}"""

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
        state: State | None = None,
    ) -> Attended:
        """Attend.

        Args:
            q, k, v: queries, keys, values. Causal: the queries are the last positions.
            key_mask: True = real token, for this call's keys. Masked keys have no influence even when they hold NaN; a
                query without any key returns exactly 0.
            bias: added to the logits.
            marks: integer labels of tokens whose meaning the mechanism declares.
            state: the past; never modified.

        Returns:
            Attended(values (batch, heads, queries, value), state, losses).

        Raises:
            UnsupportedError: an argument that `info.supports` does not list; left padding where `info.anchored`.
            ShapeError: shapes or dtypes that do not fit.
            LimitError: longer than `heads.max_length` where weights depend on it.
        """
        self._check(q, k, v, key_mask, bias, marks, state)
        if not q.shape[2] and not k.shape[2]:
            losses = {name: q.new_zeros(()) for name in self.info.losses} if self.training else {}
            return Attended(v.new_empty(*q.shape[:3], v.shape[3]), state, losses)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]
            k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)  # NaN under the mask must not survive a product
        if self.info.grouped == "expanded" and self.heads.group > 1:
            k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        answer = self.attend(q, k, v, key_mask=key_mask, bias=bias, marks=marks, state=state)
        if answer.values.dtype == q.dtype:
            return answer
        return answer._replace(values=answer.values.to(q.dtype))  # autocast leaves the dtype of its last product

    @property
    def _name(self) -> str:
        return registered_name(type(self))

    @abstractmethod
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
        """The algorithm. Arguments are validated; keys and values under the mask are 0."""

    @abstractmethod
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
        """The definition, explicit and slow, for float64: values (batch, heads, queries, value)."""

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first key.

        Raises:
            UnsupportedError: unless `info.supports.state`.
        """
        del batch, device, dtype
        self.refuse("state", "state")
        raise AssertionError

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Bytes of the state after `length` unmasked slots: the mechanism's stated formula."""
        del batch, length, dtype
        self.refuse("state", "state")
        raise AssertionError

    def reach(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        """Lowest and highest distance (query slot - key slot) at which the mechanism reads a bias in such a call."""
        past = 0 if state is None else state.length
        return (0 if self.heads.causal else 1 - keys - past if keys + past else 0), max(past + keys, queries, 1) - 1

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the random features again, where the mechanism has any."""
        del generator

    def _check(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        state: State | None,
    ) -> None:
        heads, supports = self.heads, self.info.supports
        wanted = {
            "q": (q, heads.count, heads.query_width),
            "k": (k, heads.kv_heads, heads.key_dim),
            "v": (v, heads.kv_heads, heads.value_width),
        }
        for label, (x, count, width) in wanted.items():
            if x.ndim != 4 or x.shape[1] != count or x.shape[3] != width or x.shape[0] != q.shape[0]:
                raise ShapeError(
                    f"{self._name}: {label} must be (batch={q.shape[0]}, heads={count}, length, dim={width}), "
                    f"got {tuple(x.shape)}"
                )
            if not x.is_floating_point() or x.dtype != q.dtype:
                raise ShapeError(
                    f"{self._name}: q, k, v must share one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}"
                )
        queries, keys = q.shape[2], k.shape[2]
        if v.shape[2] != keys:
            raise ShapeError(f"{self._name}: k has {keys} positions, v has {v.shape[2]}; they must agree")
        if key_mask is not None:
            if not supports.key_mask:
                self.refuse("key_mask", "key_mask")
            if key_mask.dtype != torch.bool or key_mask.shape != (q.shape[0], keys):
                raise ShapeError(
                    f"{self._name}: key_mask must be bool (batch={q.shape[0]}, keys={keys}), True = keep, "
                    f"got {key_mask.dtype} {tuple(key_mask.shape)}"
                )
            if self.info.anchored and (state is None or state.length == 0) and not torch.compiler.is_compiling():
                self._refuse_left_padding(key_mask)
        if bias is not None and not supports.bias:
            self.refuse("bias", "bias")
        if marks is not None:
            if not supports.marks:
                self.refuse("marks", "marks")
            if marks.is_floating_point() or marks.shape != (q.shape[0], keys):
                raise ShapeError(
                    f"{self._name}: marks must be integers (batch={q.shape[0]}, keys={keys}), "
                    f"got {marks.dtype} {tuple(marks.shape)}"
                )
        if state is not None and not supports.state:
            self.refuse("state", "state")
        if heads.causal:
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
            self._check_bias(bias, q, keys + (0 if state is None else state.length), self._name)

    def _refuse_left_padding(self, key_mask: Tensor) -> None:
        if bool((~key_mask[:, :1] & key_mask.any(1, keepdim=True)).any()):
            raise UnsupportedError(
                f"{registered_name(type(self))} does not support left padding: its weights or pattern belong to "
                "absolute positions. Pad on the right, or run rows of unequal length one by one"
            )

    def _check_bias(self, bias: ScoreBias, q: Tensor, keys: int, name: str) -> None:
        batch, count, queries = q.shape[:3]
        for label, x, axis in (("curve", bias.curve, 0), ("relative", bias.relative, 0), ("query", bias.query, 1)):
            if x is not None and x.shape[axis] not in (1, count):
                raise ShapeError(f"{name}: bias.{label} has {x.shape[axis]} heads, must be 1 or {count}")
        table = bias.table
        if table is not None and (
            table.ndim != 4
            or table.shape[0] not in (1, batch)
            or table.shape[1] not in (1, count)
            or table.shape[2:] != (queries, keys)
        ):
            raise ShapeError(
                f"{name}: bias.table must be (1 or {batch}, 1 or {count}, queries={queries}, keys={keys}), "
                f"got {tuple(table.shape)}"
            )

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


def registered_name(cls: type) -> str:
    """The catalog name of a mechanism class: `DenseSynthesizer` -> `dense_synthesizer`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()


def merge(
    parts: Sequence[tuple[Float[Tensor, "*rows value"], Float[Tensor, "*rows"]]],
) -> tuple[Float[Tensor, "*rows value"], Float[Tensor, "*rows"]]:
    """One softmax from parts over disjoint sets of keys: Z = logsumexp_r z_r, o = sum_r exp(z_r - Z) o_r.

    Args:
        parts: (values, lse) each; lse is the log-sum-exp of the part's logits, -inf for a row without keys.

    Returns:
        (values, lse) over the union; a row without any key has value 0 and lse -inf.

    Example:
        >>> import torch
        >>> v = torch.ones(1, 2)
        >>> merge([(v, torch.zeros(1)), (3 * v, torch.zeros(1))])[0]
        tensor([[2., 2.]])
    """
    values, lse = (torch.stack(x) for x in zip(*parts, strict=True))
    highest = lse.amax(0).detach()
    weight = torch.exp(lse - torch.where(highest.isinf(), 0.0, highest))
    total = weight.sum(0)
    safe = torch.where(total == 0, 1.0, total)
    merged = (weight[..., None] * values).sum(0) / safe[..., None]
    return merged, torch.where(total == 0, float("-inf"), torch.log(safe) + highest)


def recomputing() -> bool:
    """Whether this forward pass repeats an earlier one, inside a backward pass: checkpointing and reversible layers do.

    A mechanism that updates buffers in training then leaves them alone. torch keeps the id of the running backward pass
    per thread, -1 outside one (torch.utils.checkpoint reads it too); a compiled graph does its own bookkeeping.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


def generator(seed: int, *parts: int | str) -> torch.Generator:
    """A generator for one use, named by `parts`, so that uses of the same seed draw independently."""
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") & (2**63 - 1))
