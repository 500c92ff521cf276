"""Randomized attention: an unbiased estimate of softmax attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from jaxtyping import Int
from torch import Tensor

from regard.attention.kernel._exact import EXPLICIT_QUERIES, exact_average
from regard.core.attention import Attended, Attention, Call, accumulation_dtype
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.routed.sampling import sampled_keys
from regard.engines.sums.noise import counted_call, position_noise
from regard.patterns import causal, everything


@final
class Randomized(Attention):
    """Softmax attention as an expectation, from a few samples per query: out_i = mean over samples of f_i(w).

    With q, k scaled by dim^(-1/4): j ~ Categorical(softmax_j(q_i . k_j)), w = q_i + k_j + N(0, I), and f_i(w) =
    sum_j softmax_j(w . k_j - |k_j|^2 / 2) v_j. Over w, drawn from the mixture p_i = sum_j softmax_j(q_i . k_j)
    N(q_i + k_j, I), the mean of f_i(w) is softmax attention itself, not a ratio of estimates. Causal: both the mixture
    and f_i are over the keys that query i sees.

    Cost: O(num_samples queries keys dim) time, more than softmax itself; O(num_samples length) memory. State: every key
    and value. It is the measure that linear estimators are compared with. Lost: exactness, by the variance of f_i / S;
    gradients reach w through q_i and k_j, not through the choice of j.

    Noise depends on (seed, head, query slot, sample) alone, so evaluation is pure, and left padding, which would move
    the slots, is refused. Training draws anew at every call.

    Raises:
        ConfigError: more than one sample in form="mean", which has one.

    Example:
        >>> from regard import Heads, attend
        >>> x = torch.linspace(-2, 2, 8).reshape(1, 1, 4, 2)
        >>> mechanism = Randomized(Heads(count=1, key_dim=2)).train()
        >>> draws = torch.stack([mechanism(x, x, x).values for _ in range(400)])
        >>> [torch.allclose(values, attend(x, x, x), atol=0.2) for values in (draws[0], draws.mean(0))]
        [False, True]

    Source: Zheng, Wang, Kong 2022, Linear Complexity Randomized Self-attention Mechanism, section 3.
    """

    default_info = Info(
        title="Randomized attention",
        source="Zheng, Wang, Kong 2022, Linear Complexity Randomized Self-attention Mechanism, arXiv:2204.04667, "
        "section 3",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        time=2,
        memory=1,
        state="length",
        selects=True,
        replays_choices=True,
        anchored=True,
        stochastic=True,
        approximates="softmax",
        knob="num_samples",
    )
    draws: ClassVar[str] = "position noise"
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_samples": 2},
        {"form": "official"},
        {"form": "mean"},
    )
    reasons: ClassVar[Mapping[str, str]] = {"bias": "a logit of its mixture is an inner product, by which it is drawn"}

    num_samples: Annotated[int, Ge(1)] = 1
    """per query"""
    form: Literal["exact", "official", "mean"] = "exact"
    """`exact` is the formula above. `official` is the published code, whose noise has the standard deviation
    dim^(-1/4) in these units, because it is added before the scaling: biased. `mean` is what that code evaluates: no
    noise, w = q_i + sum_j softmax_j(q_i . k_j) k_j, biased too"""
    seed: Tensor = weight()
    calls: Tensor = weight()
    """in training, so far"""
    deviation: float = weight()
    """of the noise"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """The biased forms approach something else; the mean draws nothing."""
        if options["form"] == "exact":
            return cls.default_info
        biased = replace(cls.default_info, approximates=None, knob=None)
        if options["form"] == "official":
            return biased
        return replace(
            biased,
            selects=False,
            replays_choices=False,
            anchored=False,
            stochastic=False,
            sees_content_only=True,
        )

    def check_options(self) -> None:
        if self.form == "mean" and self.num_samples > 1:
            raise ConfigError(f"randomized(form='mean') has exactly 1 sample, got num_samples={self.num_samples}")

    def setup(self) -> None:
        self.deviation = self.heads.key_dim**-0.25 if self.form == "official" else 1.0
        if self.form != "mean":
            self.register_buffer("seed", torch.tensor(self.heads.seed))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def redraw(self, generator: torch.Generator) -> None:
        """Other noise for every position."""
        if self.form != "mean":
            self.seed.fill_(int(torch.randint(2**62, (), generator=generator)))

    def _noise(self, q: Tensor, first: int) -> tuple[Tensor, Tensor]:
        number = counted_call(self.calls) if self.training else torch.zeros_like(self.calls)
        source = torch.stack([self.seed, number])
        return position_noise(q.detach(), source, first, q.shape[2], self.heads.count, self.num_samples)

    def decisions(self, q: Tensor, k: Tensor) -> Int[Tensor, "batch heads queries samples"]:
        """The keys that evaluation draws, -1 for none; `reference` takes them to replay its choices."""
        uniform = self._noise(q, k.shape[2] - q.shape[2] if self.heads.causal else 0)[1]
        return sampled_keys(q.detach(), k.detach(), uniform, None, q.shape[3] ** -0.5, self.heads.causal)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Draw w for every query and sample, then softmax attention with the samples as further heads."""
        kept, call = call.remember(k=k, v=v)
        k, v, state, mask = kept["k"], kept["v"], call.state, call.key_mask
        dtype, dim = accumulation_dtype(q.dtype), q.shape[3]
        explicit = state is not None and q.shape[2] * self.num_samples <= EXPLICIT_QUERIES
        near, keys = q.to(dtype) * dim**-0.25, k.to(dtype) * dim**-0.25
        if self.form == "mean":
            w = near + self._softmax(near, keys, keys, mask, explicit)
        else:
            normal, uniform = self._noise(q, call.query_start)
            drawn = sampled_keys(q.detach(), k.detach(), uniform, mask, dim**-0.5, self.heads.causal)
            w = near[..., None, :] + self._picked(keys, drawn) + self.deviation * normal.to(dtype)
            w = w.transpose(2, 3).flatten(1, 2)  # samples beside heads: those of a group stay together
        half = keys.square().sum(-1, keepdim=True) / 2
        asked, keys = F.pad(w, (0, 1), value=1.0), torch.cat([keys, -half], -1)
        values = self._softmax(asked, keys, v.to(dtype), mask, explicit).unflatten(1, (self.heads.count, -1)).mean(2)
        return Attended(values.to(q.dtype), state)

    def _picked(self, k: Tensor, drawn: Tensor) -> Tensor:
        """The drawn keys, (batch, heads, queries, samples, dim)."""
        rows = drawn.clamp_min(0).unflatten(1, (k.shape[1], -1)).flatten(2)[..., None]
        return k.gather(2, rows.expand(-1, -1, -1, k.shape[3])).view(*drawn.shape, k.shape[3])

    def _softmax(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, explicit: bool) -> Tensor:
        """At scale 1: q and k are scaled already."""
        pattern = causal if self.heads.causal else everything
        return exact_average(q, k, v, pattern, real, scale=1.0, explicit=explicit)[0]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Tensor | None = None) -> Tensor:
        """Every query, sample and key at once; with `decisions`, for keys that were drawn before."""
        group, keys, dim, seen = self.heads.group, k.shape[2], q.shape[3], call.visible(q, k)
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))

        def probabilities(logits: Tensor) -> Tensor:
            empty = ~seen.any(-1, keepdim=True)
            return torch.softmax(logits.masked_fill(~seen, float("-inf")).masked_fill(empty, 0), -1) * seen

        if self.form == "mean":
            pi = probabilities(torch.einsum("bhid,bhjd->bhij", q, k) / dim**0.5)
            w = ((q + torch.einsum("bhij,bhjd->bhid", pi, k)) / dim**0.25)[..., None, :]
        else:
            noise, uniform = self._noise(q, call.query_start)
            if decisions is None:
                pi = probabilities(torch.einsum("bhid,bhjd->bhij", q.detach().double(), k.detach().double()) / dim**0.5)
                decisions = (pi.cumsum(-1)[..., None, :] <= uniform[..., None]).sum(-1).clamp_max(keys - 1)
            one_hot = F.one_hot(decisions.clamp_min(0), keys).to(k.dtype)
            w = (q[..., None, :] + torch.einsum("bhisj,bhjd->bhisd", one_hot, k)) / dim**0.25
            w = w + noise.to(k.dtype) * (dim**-0.25 if self.form == "official" else 1)
        small = k / dim**0.25
        logits = torch.einsum("bhisd,bhjd->bhsij", w, small) - (small**2).sum(-1)[:, :, None, None] / 2
        return torch.stack([probabilities(x) @ v for x in logits.unbind(2)]).mean(0)
