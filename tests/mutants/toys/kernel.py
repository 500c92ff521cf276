"""Toys without a matrix of scores: kernels with sums as state, a projection of the positions, a maximum."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.bias import ScoreBias
from regard.core import Attended, Attention, Heads, State, Summary, generator
from regard.errors import ConfigError
from regard.info import Info, Supports
from regard.state import slot_bytes
from tests.mutants.toys.dense import allowed_pairs, expanded


class ToyKernel(Attention):
    """Linear attention, phi = elu + 1, in chunks, with sums as state."""

    info = Info(
        title="Toy kernel attention",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
    )
    chunk = 16

    def features(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Summary:
        exact = torch.promote_types(dtype or torch.float32, torch.float32)
        shape = (batch, self.heads.kv_heads, self.heads.key_dim, self.heads.value_width + 1)
        return Summary({"sum": torch.zeros(shape, device=device, dtype=exact)})

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        exact = torch.promote_types(dtype, torch.float32)
        return slot_bytes(self.heads.kv_heads * self.heads.key_dim * (self.heads.value_width + 1), 1, exact, batch)

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return Summary({"sum": total}, state.length + keys)

    def divide(self, out: Tensor) -> Tensor:
        return out[..., :-1] / out[..., -1:].clamp_min(1e-9)

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
        dtype, exact, keys = q.dtype, torch.promote_types(q.dtype, torch.float32), k.shape[2]
        with torch.autocast("cpu", enabled=False):
            fq, fk, v = self.features(q.to(exact)), self.features(k.to(exact)), v.to(exact)
            if key_mask is not None:
                fk = fk * key_mask[:, None, :, None]
            v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the normaliser is one more column
            past = (
                state["sum"] if isinstance(state, Summary) else fk.new_zeros(*fk.shape[:2], fk.shape[-1], v.shape[-1])
            )
            out, total = self.walk(fq, fk, v, past) if self.heads.causal else self.all_keys(fq, fk, v, past)
            values = self.divide(out).to(dtype)
        return Attended(values, None if state is None else self.grown(state, total, keys), {})

    def all_keys(self, fq: Tensor, fk: Tensor, v: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        total = past + fk.mT @ v
        return fq @ expanded(total, fq.shape[1]), total

    def walk(self, fq: Tensor, fk: Tensor, v: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        lead, queries = fk.shape[2] - fq.shape[2], fq.shape[2]
        past = past + fk[:, :, :lead].mT @ v[:, :, :lead]
        pad = (0, 0, 0, -queries % self.chunk)
        fq, fk, v = (F.pad(x, pad).unflatten(2, (-1, self.chunk)) for x in (fq, fk[:, :, lead:], v[:, :, lead:]))
        inside = (fq @ expanded(fk, fq.shape[1]).mT).tril() @ expanded(v, fq.shape[1])
        total = past[:, :, None] + self.running(fk.mT @ v)
        before = torch.cat([past[:, :, None], total[:, :, :-1]], 2)
        out = inside + fq @ expanded(before, fq.shape[1])
        return out.flatten(2, 3)[:, :, :queries], total[:, :, -1]

    def running(self, sums: Tensor) -> Tensor:
        return sums.cumsum(2)

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
        fq, fk = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
        weight = torch.einsum("bhif,bhjf->bhij", fq, fk)
        weight = weight * allowed_pairs(q.shape[2], k.shape[2], self.heads.causal, key_mask)
        total = weight.sum(-1, keepdim=True)
        return weight / torch.where(total == 0, 1, total) @ v


class ToyFeatures(ToyKernel):
    """Positive random features of the exponential: an approximation of softmax."""

    samples = ({"num_features": 24},)
    info = Info(
        title="Toy random features",
        source="written for the mutants",
        supports=ToyKernel.info.supports,
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
        stochastic=True,
        approximates="softmax",
        knob="num_features",
    )
    omega: Tensor

    def __init__(self, heads: Heads, *, num_features: int = 24) -> None:
        super().__init__(heads)
        self.num_features = num_features
        self.register_buffer(
            "omega", torch.randn(heads.key_dim, num_features, generator=generator(heads.seed, "omega"))
        )

    def features(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return torch.exp((x @ self.omega.to(x.dtype) - x.square().sum(-1, keepdim=True) / 2).clamp(-40, 40)) + 1e-12

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Summary:
        exact = torch.promote_types(dtype or torch.float32, torch.float32)
        shape = (batch, self.heads.kv_heads, self.num_features, self.heads.value_width + 1)
        return Summary({"sum": torch.zeros(shape, device=device, dtype=exact)})

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        exact = torch.promote_types(dtype, torch.float32)
        return slot_bytes(self.heads.kv_heads * self.num_features * (self.heads.value_width + 1), 1, exact, batch)

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
        fq, fk = (self._definition(x / q.shape[-1] ** 0.25) for x in (q, k))
        weight = torch.einsum("bhif,bhjf->bhij", fq, fk)
        weight = weight * allowed_pairs(q.shape[2], k.shape[2], self.heads.causal, key_mask)
        total = weight.sum(-1, keepdim=True)
        return weight / torch.where(total == 0, 1, total) @ v

    def _definition(self, x: Tensor) -> Tensor:
        return torch.exp(torch.einsum("bhid,df->bhif", x, self.omega) - x.pow(2).sum(-1, keepdim=True) / 2) + 1e-12


class ToyProjection(Attention):
    """Keys and values projected to a few slots: not causal, not normalised, signed weights, plus a constant."""

    info = Info(
        title="Toy projection",
        source="written for the mutants",
        supports=Supports(bidirectional=True, cross=True, key_mask=True),
        time=1,
        rows_sum_to_one=False,
        nonnegative=False,
        linear_in_value=False,
        anchored=True,
    )

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        if heads.max_length is None:
            raise ConfigError("toy_projection needs Heads.max_length: its weights belong to slots")
        drawn = generator(heads.seed, "projection")
        self.down = nn.Parameter(torch.randn(4, heads.max_length, generator=drawn) * 0.5)
        self.offset = nn.Parameter(torch.randn(heads.value_width, generator=drawn))

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
        self.require_length(k.shape[2])
        dtype, exact = q.dtype, torch.promote_types(q.dtype, torch.float32)
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(exact) for x in (q, expanded(k, q.shape[1]), expanded(v, q.shape[1])))
            down = self.down[:, : k.shape[2]].to(exact)
            out = (q @ (down @ k).mT * q.shape[-1] ** -0.5).softmax(-1) @ (down @ v) + self.offset.to(exact)
            if key_mask is not None:
                out = out * key_mask.any(1)[:, None, None, None]
        return Attended(out.to(dtype), None, {})

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
        real = torch.ones(k.shape[0], k.shape[2]) if key_mask is None else key_mask
        k, v = (x * real[:, None, :, None] for x in (k, v))
        fewer, lower = (torch.einsum("rj,bhjd->bhrd", self.down[:, : k.shape[2]], x) for x in (k, v))
        weight = torch.softmax(torch.einsum("bhid,bhrd->bhir", q, fewer) / q.shape[-1] ** 0.5, -1)
        return (weight @ lower + self.offset) * (real.sum(1) > 0)[:, None, None, None]


class ToyMaximum(Attention):
    """The channel-wise maximum over the visible values: not affine in them; looks at no query and no key."""

    info = Info(
        title="Toy maximum",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, prefix=True),
        reads="v",
        memory=2,
        linear_in_value=False,
        affine_in_value=False,
        sees_content_only=True,
    )

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
        pairs = allowed_pairs(q.shape[2], v.shape[2], self.heads.causal, key_mask)
        seen = expanded(v, q.shape[1])[:, :, None].masked_fill(~pairs[..., None], float("-inf"))
        out = seen.amax(3)
        return Attended(out.masked_fill(out.isneginf(), 0), None, {})

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
        pairs = allowed_pairs(q.shape[2], v.shape[2], self.heads.causal, key_mask).expand(v.shape[0], 1, -1, -1)
        out = v.new_zeros(*q.shape[:3], v.shape[-1])
        for b in range(v.shape[0]):
            for i in range(q.shape[2]):
                seen = pairs[b, 0, i].nonzero()[:, 0]
                if len(seen):
                    out[b, :, i] = v[b, :, seen].amax(1)
        return out


class ToyMarked(Attention):
    """The mean of the last two visible values and of every marked one before them."""

    info = Info(
        title="Toy marks",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, marks=True, prefix=True),
        reads="v",
        memory=2,
    )

    def seen(self, pairs: Tensor, marks: Tensor | None) -> Tensor:
        queries, keys = pairs.shape[-2:]
        shift = keys - queries if self.heads.causal else 0
        near = (torch.arange(queries)[:, None] + shift - torch.arange(keys)[None]).abs() < 2
        return pairs & (near if marks is None else near | (marks != 0)[:, None, None, :])

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
        exact = torch.promote_types(v.dtype, torch.float32)
        seen = self.seen(allowed_pairs(q.shape[2], v.shape[2], self.heads.causal, key_mask), marks).to(exact)
        with torch.autocast("cpu", enabled=False):
            total = seen @ expanded(v, q.shape[1]).to(exact)
        return Attended((total / seen.sum(-1, keepdim=True).clamp_min(1)).to(v.dtype), None, {})

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
        rows = []
        for b in range(v.shape[0]):
            for i in range(q.shape[2]):
                at = i + (v.shape[2] - q.shape[2] if self.heads.causal else 0)
                near = [j for j in range(v.shape[2]) if abs(at - j) < 2 or (marks is not None and marks[b, j] != 0)]
                near = [j for j in near if not self.heads.causal or j <= at]
                near = [j for j in near if key_mask is None or key_mask[b, j]]
                rows.append(v[b, :, near].sum(1) / max(len(near), 1))
        return torch.stack(rows).unflatten(0, (v.shape[0], q.shape[2])).transpose(1, 2)
