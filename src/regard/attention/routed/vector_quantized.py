"""Attention to quantised keys in linear time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.routed import Routed, nearest
from regard.core.attention import Attended, Call, accumulation_dtype, generator, recomputing
from regard.core.compiling import known_within
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.randomness import decided
from regard.core.state import Entry, Slots, State, Tape, constant, per_slot
from regard.engines.routed import exact
from regard.engines.routed.codes import coded, gather_codes, window
from regard.features.norms import balanced, short

EPSILON = 1e-6
"""added to the mean square of a query or key"""
LEAST = 0.01
"""least count of a code, so that one that nobody uses keeps its place"""


@final
class VectorQuantized(Routed):
    """Softmax over keys rounded to the nearest of S codes: o_i = sum_j softmax_j(q_i . k^_j) v_j, k^_j = C_{z_j}.

    z_j = argmin_s |k_j - C_s|^2, with q and k divided by their root mean square and by d^(1/4), so that q . k carries
    1/sqrt(d). Equal keys make equal weights, so the past needs no list of keys: code s counts n_s of them and their
    mean value m_s, and enters the softmax with logit q . C_s + log n_s and value m_s. Keys of the query's own block of
    L positions and of the block before it enter one by one. Not causal: every key enters through its code.

    With `relative`, Transformer-XL's scores: q_i + u meets codes and keys alike, and the logit of a key that enters one
    by one is more by (q_i + v) . W r_(i-j) / d^(1/4), r the sinusoid of the distance. An old key has no distance.
    Like q, u and v are divided by d^(1/4).

    Gradients are straight-through, k^ = k + sg(C_z - k). As in the paper's code, a key gets none from queries for which
    it is no longer recent (its value does, exactly): that gradient would take quadratic time, or S d^2 numbers per
    query. Without causality no key is recent; then it passes through the mean key of each code.
    The codebook follows its keys by moving averages, in training only: n_s <- g n_s + (1 - g) #{j: z_j = s}, likewise
    the sums of keys, and C_s is their quotient. A checkpointed block that runs again does not learn again; set
    `recomputing` where that happens outside a backward pass. A masked key is neither counted nor learnt from.

    Cost: O(n (S + 2 L) d) time, O(n d S / L) memory, never n x n. State: a window of 2 L - 1 slots, and S (value + 1)
    numbers per head. Lost: what rounding the keys loses. Blocks begin at multiples of L, so that with `relative` left
    padding is refused.

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 1, 5, 8)
        >>> output = VectorQuantized(Heads(count=1, key_dim=8), num_codes=1)(q, k, v)
        >>> torch.allclose(output.values, v.mean(2, keepdim=True), atol=1e-6)  # with one code all keys are the same
        True
        >>> list(output.losses)  # in training
        ['commitment']

    Source: Lingle 2023 (Transformer-VQ), section 3; moving averages and gradients as in its published code; scores by
    distance: Dai et al. 2019, section 3.3. Initial codes are random points of the sphere that normalised keys lie on. r
    is as wide as a key (the papers': as hidden states, which a mechanism does not see).
    """

    default_info = Info(
        title="Vector quantization",
        source="Lingle 2023, Transformer-VQ, section 3",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        time=1,
        state="constant",
        sees_content_only=True,
        selects=True,
        straight_through="k",
        losses={"commitment": 1e-4},
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_codes": 8, "block_size": 5},
        {"num_codes": 5, "block_size": 16, "decay": 0.5},
        {"num_codes": 6, "block_size": 4, "relative": True},
    )
    row_sums = ("seen",)
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "old keys have no distance: they enter through their codes; relative=True has a bias for recent ones",
        "bidirectional": "relative=True scores recent keys by distance, and without causality no key is recent",
        "cross": "a source that a state holds would keep no gradient path to its keys",
    }

    num_codes: Annotated[int, Ge(1)] = 512
    """S, per head of keys"""
    block_size: Annotated[int, Ge(1)] = 512
    """L"""
    decay: Annotated[float, Ge(0), Le(1)] = 0.99
    """g, of the moving averages"""
    relative: bool = False
    """score by distance in the query's own block and the one before it, as Transformer-XL does; causal only"""
    code_sum: Tensor = weight()
    code_count: Tensor = weight()
    seen: Tensor = weight()
    """(kv_heads, codes, dim + 1): sums and counts of the keys of the last training call"""
    unlearnt: Tensor = weight()
    """1 after a training call, 0 before the first"""
    content_bias: nn.Parameter = weight()
    """u, (heads, 1, dim)"""
    distance_bias: nn.Parameter = weight()
    """v, (heads, 1, dim)"""
    distance_weight: nn.Parameter = weight()
    """W, (heads, dim or one more, dim)"""
    recomputing = False
    """whether this call repeats an earlier one, for its backward pass; then the codebook stays"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """What is recent follows from the blocks, and with `relative` it shows."""
        if not options["relative"]:
            return cls.default_info
        supports = replace(cls.default_info.supports, bidirectional=False)
        return replace(cls.default_info, supports=supports, sees_content_only=False, anchored=True)

    def setup(self) -> None:
        shape = (self.heads.kv_heads, self.num_codes, self.heads.key_dim)
        points = torch.randn(shape, generator=generator(self.heads.seed, "vector_quantized", "codes"))
        self.register_buffer("code_sum", scaled(points))
        self.register_buffer("code_count", torch.ones(shape[:2]))
        self.register_buffer("seen", torch.zeros(*shape[:2], shape[2] + 1))
        self.register_buffer("unlearnt", torch.zeros(()))
        if self.relative:
            count, dim = self.heads.count, self.heads.key_dim
            draw = generator(self.heads.seed, "vector_quantized", "relative")
            self.content_bias = nn.Parameter(0.02 * torch.randn(count, 1, dim, generator=draw))
            self.distance_bias = nn.Parameter(0.02 * torch.randn(count, 1, dim, generator=draw))
            self.distance_weight = nn.Parameter(dim**-0.5 * torch.randn(count, dim + dim % 2, dim, generator=draw))

    @property
    def codebook(self) -> Float[Tensor, "kv_heads codes dim"]:
        """C: the codes as they are now, in the units of normalised keys."""
        return self.code_sum / self.code_count.clamp(min=LEAST)[..., None]

    def decisions(self, q: Tensor, k: Tensor) -> Int[Tensor, "batch kv_heads keys"]:
        """The codes of the keys."""
        del q
        return self.codes(scaled(k), self.codebook)

    @staticmethod
    def codes(k: Tensor, codebook: Tensor) -> Tensor:
        """The nearest code of each normalised key."""
        points = codebook[:, None]
        # argmin |k - C|^2 = argmax k . C - |C|^2 / 2
        return nearest(k, points, points.float().square().sum(-1) / -2)[..., 0]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Quantise, attend block by block, remember; in training also measure and learn."""
        learns = self.training and not (self.recomputing or recomputing())
        if learns:
            self.learn()
        key, codebook = scaled(k), self.codebook.to(accumulation_dtype(k.dtype))
        codes = decided(lambda: self.codes(key, codebook))
        book = codebook.expand(len(k), *codebook.shape)
        code = book.gather(2, codes.long()[..., None].expand(*codes.shape, key.shape[3]))
        if call.key_mask is not None:
            codes = codes.masked_fill(~call.key_mask[:, None], self.num_codes)
        assert call.state is None or isinstance(call.state, Slots)
        straight, block = code + (key - key.detach()), self.block_size if call.causal else 0
        if not known_within(key, high=torch.finfo(key.dtype).max):
            v = v.masked_fill(key.amax(-1, keepdim=True).isnan(), float("nan"))  # its code holds none
        query, distance = self.scores(scaled(q))
        values, state = coded(query, straight, v, codes, codebook, block, call.state, distance)
        losses = {"commitment": commitment(key, code, call.key_mask)} if self.training else {}
        if learns:
            self.note(key.detach(), codes)
        return Attended(values, state, losses)

    def scores(self, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scaled queries with u, and (q + v) W of those with v; without `relative` as they are, and None."""
        if not self.relative:
            return q, None
        unit = self.heads.key_dim**-0.25
        u, v, w = (x.to(q.dtype) * unit for x in (self.content_bias, self.distance_bias, self.distance_weight))
        with exact(q):
            return q + u, (q + v) @ w.mT

    @torch.no_grad()
    def learn(self) -> None:
        """One step of the moving averages, towards what the last call saw."""
        step = (1 - self.decay) * self.unlearnt
        self.code_sum.lerp_(self.seen[..., :-1], step)
        self.code_count.lerp_(self.seen[..., -1], step)

    @torch.no_grad()
    def note(self, k: Tensor, codes: Tensor) -> None:
        """Note what this call saw; masked keys have a code of their own, which is left out, and so is what is NaN."""
        codes, k = codes.masked_fill(k.isnan().any(-1), self.num_codes), k.nan_to_num()
        sums = F.pad(torch.zeros_like(self.seen), (0, 0, 0, 1))
        gather_codes(sums, codes.transpose(0, 1).flatten(1).long(), k.transpose(0, 1).flatten(1, 2).to(sums.dtype))
        self.seen.copy_(sums[:, :-1])
        self.unlearnt.fill_(1.0)

    def state_layout(self) -> Mapping[str, Entry]:
        """Quantised keys, values and codes of a window, and the sums and counts of the codes before it."""
        heads = self.heads
        return {
            **super().state_layout(),
            "codes": per_slot(heads.kv_heads, dtype=torch.int32),
            "cache": constant(heads.kv_heads, self.num_codes, heads.value_width + 1, dtype="accumulation"),
        }

    def kept_slots(self, length: int) -> int:
        """The block in progress and the one before it, less the slot that is next; from the first slot on."""
        del length
        return 2 * self.block_size - 1

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """A window without real slots, and codes that count nothing."""
        state = super().initial_state(batch, device=device, dtype=dtype)
        if self.impl == "reference":
            return state
        assert isinstance(state, Slots)
        slots, fill = window(self.block_size), {"codes": self.num_codes}
        blank = {n: x.new_full((*x.shape[:2], slots, *x.shape[3:]), fill.get(n, 0)) for n, x in state.view().items()}
        return Slots(Tape(blank, slots, slots), 0, slots, 0, state.steady, state.spec_tag)

    def choices(self, q: Tensor, k: Tensor, call: Call) -> Tensor:
        """The code at the least distance of every key."""
        del q, call
        distance = (normalised(k).detach().float()[..., None, :] - self.book(k).float()[:, None]).pow(2).sum(-1)
        return distance.argmin(-1)

    def book(self, k: Tensor) -> Tensor:
        """C, by definition, in the dtype of k."""
        return (self.code_sum / self.code_count.clamp(min=LEAST)[..., None]).to(k.dtype)

    def logits(self, q: Tensor, k: Tensor, choices: Tensor, call: Call) -> Tensor:
        """Every query with every quantised key, which passes gradients straight through while it is recent."""
        q, k, codes, book = normalised(q), normalised(k), choices.long(), self.book(k)
        code = book[torch.arange(len(book), device=k.device)[:, None], codes].masked_fill(k.isnan(), float("nan"))
        if call.causal:
            block = torch.arange(k.shape[2], device=k.device) // self.block_size
            straight, recent = k + (code - k).detach(), block[call.query_start :, None] - block <= 1
        else:
            real = torch.ones_like(codes[:, :1], dtype=torch.bool) if call.key_mask is None else call.key_mask[:, None]
            same = ((codes[..., :, None] == codes[..., None, :]) & real[:, :, None]).to(k.dtype)
            mean = same @ k.masked_fill(~real[..., None], 0) / same.sum(-1, keepdim=True).clamp(min=1)
            straight, recent = mean + (code - mean).detach(), torch.ones((), dtype=torch.bool, device=q.device)
        straight, code = (x.repeat_interleave(self.heads.group, 1) for x in (straight, code.detach()))
        content = q + self.content_bias / k.shape[-1] ** 0.25 if self.relative else q
        near, far = (torch.einsum("bhid,bhjd->bhij", content, x) for x in (straight, code))
        if self.relative:
            slots = torch.arange(k.shape[2], device=k.device)
            waves = self.waves((slots[call.query_start :, None] - slots).to(k.dtype))
            place = q + self.distance_bias / k.shape[-1] ** 0.25
            near = near + torch.einsum("bhid,hcd,ijc->bhij", place, self.distance_weight, waves) / k.shape[-1] ** 0.25
        return torch.where(recent, near, far)

    def waves(self, distance: Tensor) -> Tensor:
        """r of each distance by definition, (*distance, dim or one more)."""
        width = self.distance_weight.shape[1]
        angle = torch.stack([distance / 10000 ** (2 * c / width) for c in range(width // 2)], -1)
        return torch.cat([angle.sin(), angle.cos()], -1)


def scaled(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """x over its root mean square and over dim^(1/4), in float32 at least."""
    x, least = x.to(accumulation_dtype(x.dtype)), EPSILON
    square = x.square().mean(-1, keepdim=True)
    if not short(square):
        x, factor = balanced(x)
        square, least = x.square().mean(-1, keepdim=True), EPSILON * factor.square()
    return x * (torch.rsqrt(square + least) * x.shape[-1] ** -0.25)


def normalised(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """The same by definition, in the dtype of x."""
    largest = x.detach().abs().amax(-1, keepdim=True).clamp(min=1)  # whose square may be infinite
    part = x / largest
    return part / (part.pow(2).mean(-1, keepdim=True) + EPSILON / largest**2).sqrt() / x.shape[-1] ** 0.25


def commitment(k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
    """The mean over real keys of sum_heads |k - sg(C_z)|^2."""
    error = (k - code.detach()).square().sum((1, 3))
    if key_mask is None:
        return error.mean() if error.numel() else error.sum()
    return (error * key_mask).sum() / key_mask.sum().clamp(min=1)
