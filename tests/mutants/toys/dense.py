"""Toys that look at every pair of positions: dense, windowed, quantized, bucketed, with weights per slot."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.bias import ScoreBias
from regard.core import Attended, Attention, Heads, Slots, State, generator, recomputing
from regard.errors import ConfigError
from regard.info import Info, Supports
from regard.state import slot_bytes


def expanded(x: Tensor, heads: int) -> Tensor:
    """One copy of keys or values per query head."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def allowed_pairs(queries: int, keys: int, causal: bool, key_mask: Tensor | None) -> Tensor:
    """(batch or 1, 1, queries, keys): the last queries of a sequence, hidden keys removed."""
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)[None]
    pairs = (j <= i if causal else torch.ones_like(j <= i))[None, None]
    return pairs if key_mask is None else pairs & key_mask[:, None, None]


def definition(logits: Tensor, pairs: Tensor, v: Tensor) -> Tensor:
    """softmax over the allowed pairs, by torch; a row without any is 0."""
    logits = logits.masked_fill(~pairs, float("-inf"))
    empty = logits.isneginf().all(-1, keepdim=True)
    return logits.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ v


class ToyDense(Attention):
    """softmax(q k^T / sqrt(d) + bias) v with every capability, all pairs at once."""

    info = Info(
        title="Toy dense attention",
        source="written for the mutants",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            bias=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        memory=2,
        state="length",
        grouped="native",
        sees_content_only=True,
    )

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Slots:
        h, like = self.heads, {"device": device, "dtype": dtype}
        k, v = (torch.empty(batch, h.kv_heads, 0, width, **like) for width in (h.key_dim, h.value_width))
        return Slots.empty(k=k, v=v)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        return slot_bytes(self.heads.kv_heads * (self.heads.key_dim + self.heads.value_width), length, dtype, batch)

    def remember(self, state: State, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Slots:
        assert isinstance(state, Slots)
        return state.append(key_mask, k=k, v=v)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * q.shape[-1] ** -0.5

    def allowed(self, queries: int, keys: int, key_mask: Tensor | None) -> Tensor:
        return allowed_pairs(queries, keys, self.heads.causal, key_mask)

    def biased(self, logits: Tensor, bias: ScoreBias | None) -> Tensor:
        if bias is None:
            return logits
        queries, keys = logits.shape[-2:]
        shift = keys - queries if self.heads.causal else 0
        return logits + bias.logits(torch.arange(queries) + shift, torch.arange(keys))

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        logits = logits.masked_fill(~pairs, float("-inf"))
        top = logits.amax(-1, keepdim=True).detach()
        weight = (logits - top.masked_fill(top.isneginf(), 0)).exp()
        total = weight.sum(-1, keepdim=True)
        return weight / total.masked_fill(total == 0, 1)

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
        if state is not None:
            state = self.remember(state, k, v, key_mask)
            kept = state.view()
            k, v, key_mask = kept["k"], kept["v"], kept.get("key_mask")
        dtype, exact = q.dtype, torch.promote_types(q.dtype, torch.float32)
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(exact) for x in (q, expanded(k, q.shape[1]), expanded(v, q.shape[1])))
            if k.shape[2] == 0:
                return Attended(v.new_zeros(*q.shape[:3], v.shape[-1]).to(dtype), state, {})
            logits = self.biased(self.score(q, k), bias)
            weight = self.normalise(logits, self.allowed(q.shape[2], k.shape[2], key_mask))
            weight = F.dropout(weight, self.heads.dropout, self.training)
            return Attended((weight @ v).to(dtype), state, {})

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
        queries, keys = q.shape[2], k.shape[2]
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        if bias is not None:
            shift = keys - queries if self.heads.causal else 0
            logits = logits + bias.logits(torch.arange(queries) + shift, torch.arange(keys))
        return definition(logits, allowed_pairs(queries, keys, self.heads.causal, key_mask), v)


class ToyWindow(ToyDense):
    """Dense attention within `window` positions, with a state of so many slots."""

    samples = ({"window": 3},)
    info = Info(
        title="Toy window",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, bias=True, state=True, prefix=True),
        memory=2,
        state="window",
    )

    def __init__(self, heads: Heads, *, window: int = 3) -> None:
        super().__init__(heads)
        self.window = window

    def near(self, pairs: Tensor) -> Tensor:
        queries, keys = pairs.shape[-2:]
        shift = keys - queries if self.heads.causal else 0
        distance = torch.arange(queries)[:, None] + shift - torch.arange(keys)[None]
        return pairs & (distance.abs() <= self.window)

    def allowed(self, queries: int, keys: int, key_mask: Tensor | None) -> Tensor:
        return self.near(super().allowed(queries, keys, key_mask))

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        low, high = super().bias_distances(queries, keys, state)
        return max(low, -self.window), min(high, self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Attended:  # type: ignore[override]
        values, state, losses = super().attend(q, k, v, **given)  # type: ignore[arg-type]
        return Attended(values, None if state is None else self.forget(state), losses)

    def forget(self, state: State) -> State:
        assert isinstance(state, Slots)
        return state.drop(max(0, state.kept - self.window))

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        return super().state_nbytes(batch, min(length, self.window), dtype)

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
        far = torch.zeros(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
        shift = k.shape[2] - q.shape[2] if self.heads.causal else 0
        for i in range(q.shape[2]):
            for j in range(k.shape[2]):
                far[..., i, j] = abs(i + shift - j) > self.window
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        if bias is not None:
            logits = logits + bias.logits(torch.arange(q.shape[2]) + shift, torch.arange(k.shape[2]))
        pairs = allowed_pairs(q.shape[2], k.shape[2], self.heads.causal, key_mask)
        return definition(logits, pairs & ~far, v)


class ToyCodes(ToyDense):
    """Dense attention on keys replaced by their nearest code, straight through, with a commitment loss."""

    samples = ({"num_codes": 6},)
    info = Info(
        title="Toy vector quantization",
        source="written for the mutants",
        supports=Supports(
            causal=True, bidirectional=True, cross=True, key_mask=True, bias=True, state=True, prefix=True
        ),
        memory=2,
        state="length",
        selects=True,
        straight_through="k",
        sees_content_only=True,
        losses={"commitment": 0.1},
    )
    codes: Tensor
    steps: Tensor

    def __init__(self, heads: Heads, *, num_codes: int = 6) -> None:
        super().__init__(heads)
        self.num_codes = num_codes
        drawn = torch.randn(num_codes, heads.key_dim, generator=generator(heads.seed, "codes"))
        self.register_buffer("codes", drawn)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def decisions(self, q: Tensor, k: Tensor) -> Tensor:
        exact = k.detach().to(torch.promote_types(k.dtype, torch.float32))
        codes = self.codes.to(exact.dtype)
        return (exact.square().sum(-1, keepdim=True) - 2 * exact @ codes.mT + codes.square().sum(-1)).argmin(-1)

    def nearest(self, k: Tensor) -> Tensor:
        return self.codes[self.decisions(k, k)].to(k.dtype)

    def commitment(self, k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
        error = (k - code).square().mean((1, 3))
        return error.mean() if key_mask is None else (error * key_mask).sum() / key_mask.sum().clamp_min(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Attended:  # type: ignore[override]
        code = self.nearest(k)
        values, state, _ = super().attend(q, k + (code - k).detach(), v, **given)  # type: ignore[arg-type]
        if not self.training:
            return Attended(values, state, {})
        if not recomputing():
            self.steps.add_(1)
        return Attended(values, state, {"commitment": self.commitment(k, code, given["key_mask"])})  # type: ignore[arg-type]

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
        decisions: Tensor | None = None,
    ) -> Tensor:
        closest = (k.detach()[..., None, :] - self.codes.to(k.dtype)).pow(2).sum(-1).argmin(-1)
        closest = closest if decisions is None else decisions
        quantized = k + (self.codes.to(k.dtype)[closest] - k).detach()
        return super().reference(q, quantized, v, key_mask=key_mask, bias=bias)


class ToyBuckets(ToyDense):
    """Shared queries and keys: a query sees the keys of its own bucket, and itself."""

    info = Info(
        title="Toy buckets",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True),
        memory=2,
        state="length",
        selects=True,
        shares_query_key=True,
        sees_content_only=True,
        stochastic=True,
    )
    plane: Tensor

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self.register_buffer("plane", torch.randn(heads.key_dim, generator=generator(heads.seed, "plane")))

    def side(self, x: Tensor) -> Tensor:
        exact = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        return exact @ self.plane.to(exact.dtype) > 0

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.side(q), self.side(k)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        same = self.side(q)[..., :, None] == self.side(k)[..., None, :]
        i, j = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])[None]
        return super().score(q, k).masked_fill(~(same | (i == j)), float("-inf"))

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
        decisions: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        sides = (torch.einsum("bhid,d->bhi", x.detach(), self.plane.to(x.dtype)) > 0 for x in (q, k))
        left, right = sides if decisions is None else decisions
        seen = ~(left[..., :, None] ^ right[..., None, :]) | torch.eye(keys, dtype=torch.bool)[keys - queries :]
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        return definition(logits, seen & allowed_pairs(queries, keys, self.heads.causal, key_mask), v)


class ToyTable(ToyDense):
    """Logits from the query and a weight per absolute slot; the keys are not read."""

    info = Info(
        title="Toy table of slots",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        reads="qv",
        memory=2,
        state="length",
        anchored=True,
    )

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        if heads.max_length is None:
            raise ConfigError("toy_table needs Heads.max_length: its weights belong to slots")
        drawn = torch.randn(heads.key_dim, heads.max_length, generator=generator(heads.seed, "slots"))
        self.slots = nn.Parameter(drawn)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return F.gelu(q) @ self.slots[:, : k.shape[2]].to(q.dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **given: object) -> Attended:  # type: ignore[override]
        state = given["state"]
        self.require_length(k.shape[2] + (state.length if isinstance(state, State) else 0))
        return super().attend(q, k, v, **given)  # type: ignore[arg-type]

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
        logits = torch.einsum("bhid,dj->bhij", F.gelu(q), self.slots[:, : k.shape[2]])
        return definition(logits, allowed_pairs(q.shape[2], k.shape[2], self.heads.causal, key_mask), v)
