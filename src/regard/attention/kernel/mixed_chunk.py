"""FLASH: squared ReLU within a chunk, linear attention across chunks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn

from regard.core.attention import Attended, Attention, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.state import Entry, Summary, constant


class Projected(NamedTuple):
    quad: Float[Tensor, "batch kv_heads ... dim"]
    lin: Float[Tensor, "batch kv_heads ... dim"]


@final
class MixedChunk(Attention):
    """Squared ReLU weights within a chunk, linear ones across chunks: out_i = sum_j A_ij v_j, with no denominator.

    A_ij = relu(q'_i . k'_j / G + b_(i-j))^2 for j in the chunk of i (causal: j <= i), plus q''_i . k''_j / G for j in
    every chunk (causal: in earlier chunks); G = chunk_size. q', q'', k', k'' are a gain times q or k plus an offset
    (the paper's four per-dim scales and offsets, V_quad and V_lin). They start at 1 and 0; the paper draws gains near 0
    for one projection that serves as all four.

    Cost: O(length (chunk_size (dim + value) + dim value)) time, O(length chunk_size) memory. State, constant: the sum
    of k''_j v_j^T over whole chunks, and the keys and values of the current one. Lost: across chunks weights are plain
    inner products, which may be negative. Chunks begin at multiples of G, so left padding is refused.

    Raises:
        UnsupportedError: causal with normaliser="seq_len", which would divide early outputs by what follows.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> x = torch.ones(1, 1, 4, 1)
        >>> attention = MixedChunk(Heads(count=1, key_dim=1, causal=True), chunk_size=2)
        >>> weights(attention, x, x)[0, 0, 3].tolist()  # 1 / 2 in the chunk before, its square in its own
        [0.5, 0.5, 0.25, 0.25]

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3.2 and its code 1.
    """

    default_info = Info(
        title="Mixed chunk (FLASH)",
        source="Hua et al. 2022, Transformer Quality in Linear Time, arXiv:2202.10447, section 3.2",
        supports=Supports.all(but=("cross", "bias", "marks", "dropout")),
        time=1,
        memory=1,
        state="constant",
        rows_sum_to_one=False,
        nonnegative=False,
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"chunk_size": 4},
        {"chunk_size": 3, "normaliser": "visible", "toeplitz": True},
        {"chunk_size": 5, "normaliser": "seq_len"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its bias is its own, within the chunk: toeplitz=True",
        "causal": "normaliser='seq_len' divides by the length of the whole sequence; 'const' and 'visible' do not",
        "cross": "queries and keys share their chunks",
        "state": "normaliser='seq_len' divides by the length of the whole sequence",
    }

    chunk_size: Annotated[int, Ge(1)] = 256
    """G"""
    normaliser: Literal["const", "visible", "seq_len"] = "const"
    """what public codes disagree on. `const` divides by G, so that the linear part grows with the number of chunks.
    `visible` takes relu(q' . k' / sqrt(dim) + b)^2, and divides each part by the number of keys that the query sees in
    it. `seq_len` is `const` whose linear part is divided by the number of keys in the call: the paper's, for whole
    sequences only"""
    toeplitz: bool = False
    """learn b, a logit per head and distance within the chunk, from 0; without it b = 0"""
    query_gain: nn.Parameter = weight()
    query_offset: nn.Parameter = weight()
    key_gain: nn.Parameter = weight()
    key_offset: nn.Parameter = weight()
    """quadratic, then linear"""
    table: nn.Parameter = weight()
    """b"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """The paper's normaliser needs the whole sequence."""
        if options["normaliser"] != "seq_len":
            return cls.default_info
        supports = replace(cls.default_info.supports, causal=False, state=False, prefix=False)
        return replace(cls.default_info, supports=supports, state="none")

    def setup(self) -> None:
        heads = self.heads
        for name, count in (("query", heads.count), ("key", heads.kv_heads)):
            self.register_parameter(f"{name}_gain", nn.Parameter(torch.ones(2, count, 1, heads.key_dim)))
            self.register_parameter(f"{name}_offset", nn.Parameter(torch.zeros(2, count, 1, heads.key_dim)))
        if self.toeplitz:
            distances = self.chunk_size if heads.causal else 2 * self.chunk_size - 1
            self.table = nn.Parameter(torch.zeros(heads.count, distances))

    @property
    def counted(self) -> bool:
        """Whether real keys are counted."""
        return self.normaliser == "visible"

    @property
    def divisor(self) -> float:
        """Of the logits."""
        return self.heads.key_dim**0.5 if self.counted else float(self.chunk_size)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The chunks that hold queries against themselves, and against the sum over the chunks before."""
        state = call.state
        assert state is None or isinstance(state, Summary)
        real = k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if call.key_mask is None else call.key_mask
        if state is not None:
            kept = state.length % self.chunk_size
            k, v = (torch.cat([state[name][:, :, :kept], x], 2) for name, x in (("k", k), ("v", v)))
            early = state["real"][:, :kept] if self.counted else real.new_ones(len(real), kept)
            real = torch.cat([early, real], 1)
        with torch.autocast(q.device.type, enabled=False):
            values, later = self._averaged(q, k, v, real, state)
        if state is None:
            return Attended(values)
        rest = k.shape[2] % self.chunk_size
        free, done = self.chunk_size - rest, k.shape[2] - rest
        content = {**later, **{name: F.pad(x[:, :, done:], (0, 0, 0, free)) for name, x in (("k", k), ("v", v))}}
        if self.counted:
            content["real"] = F.pad(real[:, done:], (0, free))
        return Attended(values, Summary(content, state.length - kept + k.shape[2]))

    def _averaged(
        self, q: Tensor, k: Tensor, v: Tensor, real: Tensor, state: Summary | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The values, and the sums over whole chunks."""
        (queries, keys), size, kv_heads = (q.shape[2], k.shape[2]), self.chunk_size, k.shape[1]
        width = size if keys >= size else keys  # one chunk is as long as the call; no `min`, which a compiler keeps
        chunks, dtype = (keys + width - 1) // width, accumulation_dtype(q.dtype)
        spare = chunks * width - keys
        key = self._projected(k.to(dtype), self.key_gain, self.key_offset)
        # values beyond the end and under the mask are 0, which removes their keys
        columns = F.pad(v.to(dtype), (0, 0, 0, spare)).unflatten(2, (chunks, width))
        key = Projected(*(F.pad(x, (0, 0, 0, spare)).unflatten(2, (chunks, width)) for x in key))
        counts = F.pad(real.to(dtype), (0, spare)).unflatten(1, (chunks, width))
        sums, seen = key.lin.mT @ columns, counts.sum(-1)
        past = sums.new_zeros(sums[:, :, 0].shape), seen.new_zeros(seen[:, 0].shape)
        if state is not None:
            past = state["sum"].to(dtype), state["count"] if self.counted else past[1]
        if self.heads.causal:
            sums, seen = self._before(sums, past[0], 2), self._before(seen, past[1], 1)
            whole = keys // size
            later = {"sum": sums.select(2, whole), **({"count": seen.select(1, whole)} if self.counted else {})}
        else:
            sums, seen = (x.sum(axis, keepdim=True).expand_as(x) for x, axis in ((sums, 2), (seen, 1)))
            later = {}
        at = (keys - queries) // width, (keys - queries) % width  # chunk of the first query, and its place in it
        one = at[1] + queries <= width
        rows = queries if one else width
        of = slice(at[0], at[0] + 1 if one else chunks)
        query = self._projected(q.to(dtype), self.query_gain, self.query_offset)
        around = (0, 0, 0, 0) if one else (0, 0, at[1], spare)
        query = Projected(
            *(F.pad(x, around).unflatten(1, (kv_heads, -1)).unflatten(3, (of.stop - of.start, rows)) for x in query)
        )
        places = torch.arange(rows, device=q.device) + (at[1] if one else 0)
        weights = self._quadratic(query.quad, key.quad[:, :, None, of], places, counts[:, of])
        values = weights @ columns[:, :, None, of] + (query.lin @ sums[:, :, None, of]) / self._divisor(seen[:, of])
        values = values.flatten(1, 2).flatten(2, 3)
        first = 0 if one else at[1]
        return values[:, :, first : first + queries].to(q.dtype), later

    @staticmethod
    def _before(x: Tensor, past: Tensor, axis: int) -> Tensor:
        """The sum before each chunk, and behind the last one."""
        past = past.unsqueeze(axis)
        return torch.cat([past, past + x.cumsum(axis)], axis)

    def _quadratic(self, q: Tensor, k: Tensor, places: Tensor, counts: Tensor) -> Tensor:
        """relu(q' . k' / c + b)^2 within chunks: (batch, kv_heads, group, chunks, rows, keys)."""
        distance = places[:, None] - torch.arange(k.shape[-2], device=q.device)
        logits = q @ k.mT / self.divisor
        if self.toeplitz:
            column = distance.clamp_min(0) if self.heads.causal else distance + self.chunk_size - 1
            logits = logits + self.table.to(q.dtype)[:, column].unflatten(0, q.shape[1:3])[None, :, :, None]
        weights = torch.relu(logits).square()
        if self.heads.causal:
            weights = weights.masked_fill(distance < 0, 0)
        if not self.counted:
            return weights
        if self.heads.causal:
            counted = (counts[:, :, None] * (distance >= 0)).sum(-1, keepdim=True)
        else:
            counted = counts.sum(-1)[..., None, None]
        return weights / counted.clamp_min(1)[:, None, None]

    def _divisor(self, seen: Tensor) -> Tensor | float:
        """Of the linear part, (batch, 1, 1, chunks, 1, 1), from the number of real keys before each chunk."""
        return float(self.chunk_size) if self.normaliser == "const" else seen.clamp_min(1)[:, None, None, :, None, None]

    @staticmethod
    def _projected(x: Tensor, gain: Tensor, offset: Tensor) -> Projected:
        return Projected(*(torch.addcmul(o, x, g) for g, o in zip(gain.to(x.dtype), offset.to(x.dtype), strict=True)))

    def state_layout(self) -> dict[str, Entry]:
        """The sums over whole chunks, and the current one; `visible` counts real keys."""
        heads, size = self.heads, self.chunk_size
        layout = {
            "sum": constant(heads.kv_heads, heads.key_dim, heads.value_width, dtype="accumulation"),
            "k": constant(heads.kv_heads, size, heads.key_dim),
            "v": constant(heads.kv_heads, size, heads.value_width),
        }
        if self.counted:
            layout |= {"count": constant(dtype="accumulation"), "real": constant(size, dtype=torch.bool)}
        return layout

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """One materialised matrix."""
        group, size, seen = self.heads.group, self.chunk_size, call.visible(q, k)
        i = torch.arange(q.shape[2], device=q.device)[:, None] + call.query_start
        j = torch.arange(k.shape[2], device=q.device)
        same_chunk = seen & (i // size == j // size)
        earlier_chunks = seen & (j // size < i // size) if self.heads.causal else seen
        (q_quad, q_lin), (k_quad, k_lin) = (
            [torch.einsum("bhid,hd->bhid", x, g[:, 0]) + o for g, o in zip(gains, offsets, strict=True)]
            for x, gains, offsets in (
                (q, self.query_gain, self.query_offset),
                (
                    k.repeat_interleave(group, 1),
                    self.key_gain.repeat_interleave(group, 1),
                    self.key_offset.repeat_interleave(group, 1),
                ),
            )
        )
        logits = torch.einsum("bhid,bhjd->bhij", q_quad, k_quad)
        logits = logits / (q.shape[-1] ** 0.5 if self.normaliser == "visible" else size)
        if self.toeplitz:
            low = 0 if self.heads.causal else size - 1
            logits = logits + self.table[:, (i - j + low).clamp(0, self.table.shape[1] - 1)]
        near = logits.clamp_min(0) ** 2 * same_chunk
        far = torch.einsum("bhid,bhjd->bhij", q_lin, k_lin) * earlier_chunks
        if self.normaliser == "visible":
            shares = ((near, same_chunk), (far, earlier_chunks))
            near, far = (x / y.sum(-1, keepdim=True).clamp_min(1) for x, y in shares)
        else:
            far = far / (seen.sum(-1, keepdim=True).clamp_min(1) if self.normaliser == "seq_len" else size)
        return (near + far) @ v.repeat_interleave(group, 1)
