"""Toys without a matrix of scores: kernels with sums as state, a projection of the positions, a maximum."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Attended, Attention, Call, Summary, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Input, Supports
from regard.core.options import weight
from regard.core.state import Entry, State, constant
from tests.mutants.toys.dense import allowed_pairs, expanded


def weighed(weight: Tensor, v: Tensor) -> Tensor:
    """Averages under weights of pairs; a row of zeros gives 0."""
    total = weight.sum(-1, keepdim=True)
    return weight / torch.where(total == 0, 1, total) @ expanded(v, weight.shape[1])


class ToyKernel(Attention):
    """Linear attention, phi = elu + 1, in chunks, with sums as state."""

    default_info = Info(
        title="Toy kernel attention",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
    )
    chunk: ClassVar[int] = 16

    def features(self, x: Tensor) -> Tensor:
        return F.elu(x) + 1

    @property
    def num_sums(self) -> int:
        return self.heads.key_dim

    def state_layout(self) -> Mapping[str, Entry]:
        return {"sum": constant(self.heads.kv_heads, self.num_sums, self.heads.value_width + 1, dtype="accumulation")}

    def grown(self, state: State, total: Tensor, keys: int) -> State:
        return Summary({"sum": total}, state.length + keys)

    def divide(self, out: Tensor) -> Tensor:
        return out[..., :-1] / out[..., -1:].clamp_min(1e-30)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        dtype, exact, keys, state = q.dtype, accumulation_dtype(q.dtype), k.shape[2], call.state
        with torch.autocast("cpu", enabled=False):
            fq, fk, v = self.features(q.to(exact)), self.features(k.to(exact)), v.to(exact)
            if call.key_mask is not None:
                fk = fk * call.key_mask[:, None, :, None]
            v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the normaliser is one more column
            past = (
                state["sum"] if isinstance(state, Summary) else fk.new_zeros(*fk.shape[:2], fk.shape[-1], v.shape[-1])
            )
            out, total = self.walk(fq, fk, v, past) if call.causal else self.all_keys(fq, fk, v, past)
            values = self.divide(out).to(dtype)
        return Attended(values, None if state is None else self.grown(state, total, keys))

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
        total = torch.cat([past[:, :, None], total], 2)
        out = inside + fq @ expanded(total[:, :, :-1], fq.shape[1])
        return out.flatten(2, 3)[:, :, :queries], total[:, :, -1]

    def running(self, sums: Tensor) -> Tensor:
        return sums.cumsum(2)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        fq, fk = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
        weight = torch.einsum("bhif,bhjf->bhij", fq, expanded(fk, q.shape[1]))
        return weighed(weight * call.visible(q, k), v)


class ToyFeatures(ToyKernel):
    """Positive random features of the exponential: an approximation of softmax."""

    samples = ({"num_features": 24},)
    default_info = Info(
        title="Toy random features",
        source="written for the mutants",
        supports=ToyKernel.default_info.supports,
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
        stochastic=True,
        approximates="softmax",
        knob="num_features",
    )

    num_features: Annotated[int, Ge(1)] = 24
    """random directions"""
    omega: Tensor = weight()

    def setup(self) -> None:
        drawn = torch.randn(self.heads.key_dim, self.num_features, generator=generator(self.heads.seed, "omega"))
        self.register_buffer("omega", drawn)

    def redraw(self, generator: torch.Generator) -> None:
        self.omega = torch.randn(self.omega.shape, generator=generator).to(self.omega)

    @property
    def num_sums(self) -> int:
        return self.num_features

    def features(self, x: Tensor) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        return torch.exp((x @ self.omega.to(x.dtype) - x.square().sum(-1, keepdim=True) / 2).clamp(-40, 40)) + 1e-12

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        fq, fk = (self._definition(x / q.shape[-1] ** 0.25) for x in (q, k))
        weight = torch.einsum("bhif,bhjf->bhij", fq, expanded(fk, q.shape[1]))
        return weighed(weight * call.visible(q, k), v)

    def _definition(self, x: Tensor) -> Tensor:
        exponent = torch.einsum("bhid,df->bhif", x, self.omega.to(x.dtype)) - x.pow(2).sum(-1, keepdim=True) / 2
        return torch.exp(exponent) + 1e-12


class ToyDecay(Attention):
    """S_i = exp(g_i) S_(i-1) + (s_i * k_i) v_i^T, o_i = w_i S_i^T q_i: decay, write strengths and output gate."""

    default_info = Info(
        title="Toy decay",
        source="written for the mutants",
        supports=Supports(causal=True, key_mask=True, state=True, prefix=True),
        inputs={
            "log_decay": Input(slots="keys", heads="key", high=0.0),
            "strength": Input(slots="keys", heads="key", width="key", low=0.0, high=1.0),
            "gate": Input(slots="queries", heads="query", low=0.0, high=1.0),
        },
        time=2,
        memory=2,
        state="constant",
        rows_sum_to_one=False,
        nonnegative=False,
    )
    shift: nn.Parameter = weight()

    def setup(self) -> None:
        self.shift = nn.Parameter(torch.full((self.heads.kv_heads, 1, 1), 1.0))

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {
            "log_decay": F.logsigmoid(raw["log_decay"] + self.shift),
            "strength": raw["strength"].sigmoid(),
            "gate": raw["gate"].sigmoid(),
        }

    def state_layout(self) -> Mapping[str, Entry]:
        heads = self.heads
        return {"sum": constant(heads.kv_heads, heads.key_dim, heads.value_width, dtype="accumulation")}

    def effective(self, call: Call) -> dict[str, Tensor]:
        """The inputs in which sums are kept."""
        return {name: x.to(accumulation_dtype(x.dtype)) for name, x in call.inputs.items()}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        dtype, state, inputs = q.dtype, call.state, self.effective(call)
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(accumulation_dtype(dtype)) for x in (q, k, v))
            held = inputs["log_decay"].double().cumsum(2)  # differences of long sums lose digits
            past = state["sum"] if isinstance(state, Summary) else k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
            k, lead = inputs["strength"] * k, k.shape[2] - q.shape[2]
            later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(lead + 1)
            fade = (held[:, :, lead:] - held.mT).masked_fill(later, float("-inf")).exp().to(k.dtype)
            out = (q @ expanded(k, q.shape[1]).mT * expanded(fade, q.shape[1])) @ expanded(v, q.shape[1])
            out = out + q @ expanded(past, q.shape[1]) * expanded(held[:, :, lead:].exp().to(k.dtype), q.shape[1])
            values = (out * inputs["gate"]).to(dtype)
            return Attended(values, None if state is None else self.grown(state, past, k, v, held))

    def grown(self, state: State, past: Tensor, k: Tensor, v: Tensor, held: Tensor) -> State:
        last = held[:, :, -1:] if held.shape[2] else held.new_zeros(*held.shape[:2], 1, 1)
        total = past * last.exp() + (k * (last - held).exp()).mT @ v.double()
        return Summary({"sum": total.to(past.dtype)}, state.length + k.shape[2])

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        decay, strength, gate = (call.inputs[name].to(q.dtype) for name in ("log_decay", "strength", "gate"))
        real = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool) if call.key_mask is None else call.key_mask
        sums, rows = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), []
        for j in range(k.shape[2]):
            faded = decay[:, :, j, :, None].exp() * sums
            grown = faded + torch.einsum("bhd,bhe->bhde", strength[:, :, j] * k[:, :, j], v[:, :, j])
            sums = torch.where(real[:, j, None, None, None], grown, sums)
            rows.append(sums)
        last = expanded(torch.stack(rows, 2), q.shape[1])[:, :, k.shape[2] - q.shape[2] :]
        asking = torch.where(real[:, None, k.shape[2] - q.shape[2] :, None], gate, 0.0)
        return asking * torch.einsum("bhid,bhide->bhie", q, last)


class ToyProjection(Attention):
    """Keys and values projected to a few slots: not causal, not normalised, signed weights, plus a constant."""

    default_info = Info(
        title="Toy projection",
        source="written for the mutants",
        supports=Supports(bidirectional=True, cross=True, key_mask=True),
        time=1,
        rows_sum_to_one=False,
        nonnegative=False,
        linear_in_value=False,
        anchored=True,
    )
    down: nn.Parameter = weight()
    offset: nn.Parameter = weight()

    def setup(self) -> None:
        heads = self.heads
        if heads.max_length is None:
            raise ConfigError("toy_projection needs Heads.max_length: its weights belong to slots")
        drawn = generator(heads.seed, "projection")
        self.down = nn.Parameter(torch.randn(4, heads.max_length, generator=drawn) * 0.5)
        self.offset = nn.Parameter(torch.randn(heads.value_width, generator=drawn))

    def check_length(self, length: int) -> None:
        self.require_length(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        dtype, exact = q.dtype, accumulation_dtype(q.dtype)
        with torch.autocast("cpu", enabled=False):
            q, k, v = (x.to(exact) for x in (q, expanded(k, q.shape[1]), expanded(v, q.shape[1])))
            down = self.down[:, : k.shape[2]].to(exact)
            out = (q @ (down @ k).mT * q.shape[-1] ** -0.5).softmax(-1) @ (down @ v) + self.offset.to(exact)
            if call.key_mask is not None:
                out = out * call.key_mask.any(1)[:, None, None, None]
        return Attended(out.to(dtype))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        real = torch.ones(k.shape[0], k.shape[2]) if call.key_mask is None else call.key_mask
        k, v = (expanded(x * real[:, None, :, None], q.shape[1]) for x in (k, v))
        down = self.down[:, : k.shape[2]].to(q.dtype)
        fewer, lower = (torch.einsum("rj,bhjd->bhrd", down, x) for x in (k, v))
        weight = torch.softmax(torch.einsum("bhid,bhrd->bhir", q, fewer) / q.shape[-1] ** 0.5, -1)
        return (weight @ lower + self.offset) * (real.sum(1) > 0)[:, None, None, None]


class ToyMaximum(Attention):
    """The channel-wise maximum over the visible values: not affine in them; looks at no query and no key."""

    default_info = Info(
        title="Toy maximum",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, prefix=True),
        reads="v",
        memory=2,
        linear_in_value=False,
        affine_in_value=False,
        sees_content_only=True,
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        pairs = allowed_pairs(q.shape[2], v.shape[2], call)
        seen = expanded(v, q.shape[1])[:, :, None].masked_fill(~pairs[..., None], float("-inf"))
        out = seen.amax(3)
        return Attended(out.masked_fill(out.isneginf(), 0))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        pairs = call.visible(q, k).expand(v.shape[0], 1, -1, -1)
        v = expanded(v, q.shape[1])
        out = v.new_zeros(*q.shape[:3], v.shape[-1])
        for b in range(v.shape[0]):
            for i in range(q.shape[2]):
                seen = pairs[b, 0, i].nonzero()[:, 0]
                if len(seen):
                    out[b, :, i] = v[b, :, seen].amax(1)
        return out


class ToyMarked(Attention):
    """The mean of the last two visible values and of every marked one before them."""

    default_info = Info(
        title="Toy marks",
        source="written for the mutants",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, marks=True, prefix=True),
        reads="v",
        memory=2,
    )

    def seen(self, pairs: Tensor, call: Call) -> Tensor:
        queries, keys = pairs.shape[-2:]
        near = (torch.arange(queries)[:, None] + call.query_start - torch.arange(keys)[None]).abs() < 2
        return pairs & (near if call.marks is None else near | (call.marks != 0)[:, None, None, :])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        exact = accumulation_dtype(v.dtype)
        seen = self.seen(allowed_pairs(q.shape[2], v.shape[2], call), call).to(exact)
        with torch.autocast("cpu", enabled=False):
            total = seen @ expanded(v, q.shape[1]).to(exact)
        return Attended((total / seen.sum(-1, keepdim=True).clamp_min(1)).to(v.dtype))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        v, rows, marks = expanded(v, q.shape[1]), [], call.marks
        for b in range(v.shape[0]):
            for i in range(q.shape[2]):
                at = i + call.query_start
                near = [j for j in range(v.shape[2]) if abs(at - j) < 2 or (marks is not None and marks[b, j] != 0)]
                near = [j for j in near if not call.causal or j <= at]
                near = [j for j in near if call.key_mask is None or call.key_mask[b, j]]
                rows.append(v[b, :, near].sum(1) / max(len(near), 1))
        return torch.stack(rows).unflatten(0, (v.shape[0], q.shape[2])).transpose(1, 2)
