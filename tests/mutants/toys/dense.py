"""Toys that look at every pair of positions: dense, windowed, quantized, bucketed, with weights per slot, gated."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Attended, Attention, Call, accumulation_dtype, generator, recomputing
from regard.core.errors import ConfigError
from regard.core.info import Info, Input, Supports
from regard.core.options import weight
from regard.core.state import Entry, Slots, State, per_slot


def expanded(x: Tensor, heads: int) -> Tensor:
    """One copy of keys or values per query head."""
    return x.repeat_interleave(heads // x.shape[1], 1)


def positions(queries: int, keys: int, call: Call) -> tuple[Tensor, Tensor]:
    """Slots of the queries as a column, of the keys as a row."""
    return torch.arange(queries)[:, None] + call.query_start, torch.arange(keys)[None]


def allowed_pairs(queries: int, keys: int, call: Call) -> Tensor:
    """(batch or 1, 1, queries, keys): no later key in causal calls, hidden keys removed."""
    i, j = positions(queries, keys, call)
    pairs = (j <= i if call.causal else torch.ones_like(j <= i))[None, None]
    return pairs if call.key_mask is None else pairs & call.key_mask[:, None, None]


def defined(logits: Tensor, pairs: Tensor, v: Tensor) -> Tensor:
    """softmax over the allowed pairs, by torch; a row without any is 0."""
    logits = logits.masked_fill(~pairs, float("-inf"))
    empty = logits.isneginf().all(-1, keepdim=True)
    return logits.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ expanded(v, logits.shape[1])


def defined_logits(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """q k^T / sqrt(d) + bias."""
    logits = torch.einsum("bhid,bhjd->bhij", q, expanded(k, q.shape[1])) / q.shape[-1] ** 0.5
    if call.bias is None:
        return logits
    return logits + call.bias.logits(torch.arange(q.shape[2]) + call.query_start, torch.arange(k.shape[2]))


class ToyDense(Attention):
    """softmax(q k^T / sqrt(d) + bias) v with every capability, all pairs at once."""

    default_info = Info(
        title="Toy dense attention",
        source="written for the mutants",
        supports=Supports.all(but=("marks",)),
        memory=2,
        state="length",
        sees_content_only=True,
        mergeable=True,
    )

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        """Every key and value that is kept, and the call as these see it: slot 0 is the first that is kept."""
        if call.state is None:
            return k, v, call
        assert isinstance(call.state, Slots)
        state = call.state.append(call.key_mask, k=k, v=v)
        kept, gone, bias = state.view(), state.length - state.kept, call.bias
        if bias is not None and bias.table is not None:
            bias = replace(bias, table=bias.table[..., gone:])
        start = call.query_start - gone
        call = call._replace(state=state, key_mask=kept.get("key_mask"), query_start=start, bias=bias)
        return kept["k"], kept["v"], call

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * q.shape[-1] ** -0.5

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        return allowed_pairs(queries, keys, call)

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        if call.bias is None:
            return logits
        i, j = positions(logits.shape[-2], logits.shape[-1], call)
        return logits + call.bias.logits(i[:, 0], j[0])

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        logits = logits.masked_fill(~pairs, float("-inf"))
        top = logits.amax(-1, keepdim=True).detach()
        weight = (logits - top.masked_fill(top.isneginf(), 0)).exp()
        total = weight.sum(-1, keepdim=True)
        return weight / total.masked_fill(total == 0, 1)

    def log_sum(self, logits: Tensor, pairs: Tensor) -> Tensor:
        """log of the sum of exp(logits) over the allowed pairs, -inf for a row without any."""
        logits = logits.masked_fill(~pairs, float("-inf"))
        empty = logits.isneginf().all(-1)
        return logits.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, float("-inf"))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        k, v, call = self.remember(k, v, call)
        dtype, exact = q.dtype, accumulation_dtype(q.dtype)
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(exact) for x in (q, expanded(k, q.shape[1]), expanded(v, q.shape[1])))
            if k.shape[2] == 0:
                nothing = q.new_full(q.shape[:3], float("-inf")) if call.lse else None
                return Attended(v.new_zeros(*q.shape[:3], v.shape[-1]).to(dtype), call.state, lse=nothing)
            logits, pairs = self.biased(self.score(q, k), call), self.allowed(q.shape[2], k.shape[2], call)
            weight = F.dropout(self.normalise(logits, pairs), self.heads.dropout, self.training)
            lse = self.log_sum(logits, pairs) if call.lse else None
            return Attended((weight @ v).to(dtype), call.state, lse=lse)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return defined(defined_logits(q, k, call), call.visible(q, k), v)


class ToyWindow(ToyDense):
    """Dense attention within `window` positions, with a state of so many slots."""

    samples = ({"window": 3},)
    default_info = Info(
        title="Toy window",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, bias=True, state=True, prefix=True),
        memory=2,
        state="window",
    )

    window: Annotated[int, Ge(0)] = 3
    """each side; causal: that many past keys besides the query's own"""

    def near(self, pairs: Tensor, call: Call) -> Tensor:
        i, j = positions(pairs.shape[-2], pairs.shape[-1], call)
        return pairs & ((i - j).abs() <= self.window)

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        return self.near(super().allowed(queries, keys, call), call)

    def bias_distances(self, queries: int, keys: int, state: State | None = None) -> tuple[int, int]:
        low, high = super().bias_distances(queries, keys, state)
        return max(low, -self.window), min(high, self.window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer if answer.state is None else answer._replace(state=self.forget(answer.state))

    def forget(self, state: State) -> State:
        assert isinstance(state, Slots)
        return state.drop(max(0, state.kept - self.window))

    def kept_slots(self, length: int) -> int:
        return min(length, self.window)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        near = torch.zeros(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
        for i in range(q.shape[2]):
            for j in range(k.shape[2]):
                near[..., i, j] = abs(i + call.query_start - j) <= self.window
        return defined(defined_logits(q, k, call), call.visible(q, k) & near, v)


class ToyBranching(ToyDense):
    """Dense attention that looks at a number to choose its way, so that no graph holds it whole."""

    default_info = replace(ToyDense.default_info, compiles_whole=False)

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().normalise(logits - 1 if logits.numel() and logits.amax() > 1 else logits, pairs)


class ToyCodes(ToyDense):
    """Dense attention on keys replaced by their nearest code, straight through, with a commitment loss."""

    samples = ({"num_codes": 6},)
    default_info = Info(
        title="Toy vector quantization",
        source="written for the mutants",
        supports=Supports.all(but=("marks", "dropout")),
        memory=2,
        state="length",
        selects=True,
        straight_through="k",
        sees_content_only=True,
        losses={"commitment": 0.1},
    )

    num_codes: Annotated[int, Ge(1)] = 6
    """that a key may be replaced by"""
    codes: Tensor = weight()
    steps: Tensor = weight()

    def setup(self) -> None:
        heads = self.heads
        drawn = torch.randn(self.num_codes, heads.key_dim, generator=generator(heads.seed, "codes"))
        self.register_buffer("codes", drawn)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def decisions(self, q: Tensor, k: Tensor) -> Tensor:
        exact = k.detach().to(accumulation_dtype(k.dtype))
        codes = self.codes.to(exact.dtype)
        return (exact.square().sum(-1, keepdim=True) - 2 * exact @ codes.mT + codes.square().sum(-1)).argmin(-1)

    def nearest(self, k: Tensor) -> Tensor:
        return self.codes[self.decisions(k, k)].to(k.dtype)

    def commitment(self, k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
        error = (k - code).square().mean((1, 3))
        return error.mean() if key_mask is None else (error * key_mask).sum() / key_mask.sum().clamp_min(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        code = self.nearest(k)
        answer = super().attend(q, k + (code - k).detach(), v, call)
        if not self.training:
            return answer
        if not recomputing():
            self.steps.add_(1)
        return answer._replace(losses={"commitment": self.commitment(k, code, call.key_mask)})

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Tensor | None = None) -> Tensor:
        closest = (k.detach()[..., None, :] - self.codes.to(k.dtype)).pow(2).sum(-1).argmin(-1)
        closest = closest if decisions is None else decisions
        quantized = k + (self.codes.to(k.dtype)[closest] - k).detach()
        return super().reference(q, quantized, v, call)


class ToyBuckets(ToyDense):
    """Shared queries and keys: a query sees the keys of its own bucket, and itself."""

    default_info = Info(
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
    plane: Tensor = weight()

    def setup(self) -> None:
        drawn = torch.randn(self.heads.key_dim, generator=generator(self.heads.seed, "plane"))
        self.register_buffer("plane", drawn)

    def redraw(self, generator: torch.Generator) -> None:
        self.plane = torch.randn(self.plane.shape, generator=generator).to(self.plane)

    def side(self, x: Tensor) -> Tensor:
        exact = x.detach().to(accumulation_dtype(x.dtype))
        return exact @ self.plane.to(exact.dtype) > 0

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.side(q), self.side(k)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        same = self.side(q)[..., :, None] == self.side(k)[..., None, :]
        i, j = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])[None]
        return super().score(q, k).masked_fill(~(same | (i == j)), float("-inf"))

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        sides = (torch.einsum("bhid,d->bhi", x.detach(), self.plane.to(x.dtype)) > 0 for x in (q, k))
        left, right = sides if decisions is None else decisions
        right = expanded(right, q.shape[1])
        seen = ~(left[..., :, None] ^ right[..., None, :]) | torch.eye(keys, dtype=torch.bool)[keys - queries :]
        return defined(defined_logits(q, k, call), seen & call.visible(q, k), v)


class ToyTable(ToyDense):
    """Logits from the query and a weight per absolute slot; the keys are not read."""

    default_info = Info(
        title="Toy table of slots",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        reads="qv",
        memory=2,
        state="length",
        anchored=True,
    )
    slots: nn.Parameter = weight()

    def setup(self) -> None:
        heads = self.heads
        if heads.max_length is None:
            raise ConfigError("toy_table needs Heads.max_length: its weights belong to slots")
        drawn = torch.randn(heads.key_dim, heads.max_length, generator=generator(heads.seed, "slots"))
        self.slots = nn.Parameter(drawn)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return F.gelu(q) @ self.slots[:, : k.shape[2]].to(q.dtype)

    def check_length(self, length: int) -> None:
        self.require_length(length)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        logits = torch.einsum("bhid,dj->bhij", F.gelu(q), self.slots[:, : k.shape[2]].to(q.dtype))
        return defined(logits, call.visible(q, k), v)


class ToyGated(ToyDense):
    """softmax_j(q_i . k_j / sqrt(d) + sum of log gates of the slots j+1 .. i) v, one gate per query head and key."""

    default_info = Info(
        title="Toy forget gate",
        source="written for the mutants",
        supports=Supports(causal=True, key_mask=True, bias=True, state=True, prefix=True),
        inputs={"log_gate": Input(slots="keys", heads="query", high=0.0)},
        memory=2,
        state="length",
        mergeable=True,
    )
    openness: nn.Parameter = weight()

    def setup(self) -> None:
        self.openness = nn.Parameter(torch.full((self.heads.count, 1, 1), 1.0))

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"log_gate": F.logsigmoid(raw["log_gate"] + self.openness)}

    def state_layout(self) -> Mapping[str, Entry]:
        return {**super().state_layout(), "log_gate": per_slot(self.heads.count, dtype="accumulation")}

    def gates(self, call: Call) -> Tensor:
        """(batch, heads, slots from this call's first key on)."""
        x = call.inputs["log_gate"][..., 0]
        return x.to(accumulation_dtype(x.dtype))

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        state, gates = call.state, self.gates(call)
        if state is not None:
            assert isinstance(state, Slots)
            keys = k.shape[2]
            state = state.append(call.key_mask, k=k, v=v, log_gate=gates[..., :keys]) if keys else state
            kept, further = state.view(), gates[..., keys:]  # of queries behind the last key
            k, v, gates = kept["k"], kept["v"], torch.cat([kept["log_gate"], further], -1)
            call = call._replace(state=state, key_mask=kept.get("key_mask"))
        return k, v, call._replace(inputs={"log_gate": gates})

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        held = self.summed(call.inputs["log_gate"])
        asking = held[:, :, call.query_start : call.query_start + logits.shape[2]]
        return super().biased(logits, call) + asking[..., :, None] - held[..., None, : logits.shape[3]]

    def summed(self, gates: Tensor) -> Tensor:
        return gates.cumsum(-1)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        gates = call.inputs["log_gate"][..., 0].to(q.dtype)
        if call.key_mask is not None:
            hidden = F.pad(~call.key_mask, (0, gates.shape[2] - k.shape[2]))
            gates = gates.masked_fill(hidden[:, None], 0)
        rows = []
        for i in range(call.query_start, call.query_start + q.shape[2]):
            after = gates[:, :, : i + 1].flip(2).cumsum(2).flip(2) - gates[:, :, : i + 1]
            rows.append(F.pad(after, (0, max(k.shape[2] - i - 1, 0)))[:, :, : k.shape[2]])
        return defined(defined_logits(q, k, call) + torch.stack(rows, 2), call.visible(q, k), v)
