"""Attention to quantised keys in linear time."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.bias import ScoreBias
from regard.core import Attended, Attention, generator, recomputing
from regard.engines.routed import nearest, wide
from regard.engines.routed.codes import coded_op, gather_codes
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.state import Slots, State, Tape, slot_bytes

IMPLS = ("auto", "reference", "torch")
EPSILON = 1e-6
"""added to the mean square of a query or key"""
LEAST = 0.01
"""least count of a code, so that one that nobody uses keeps its place"""


@final
class VectorQuantized(Attention):
    """Softmax over keys rounded to the nearest of S codes: o_i = sum_j softmax_j(q_i . k^_j) v_j, k^_j = C_{z_j}.

    z_j = argmin_s |k_j - C_s|^2, with q and k divided by their root mean square and by d^(1/4), so that q . k carries
    1/sqrt(d). Equal keys make equal weights, so the past needs no list of keys: code s counts n_s of them and their
    mean value m_s, and enters the softmax with logit q . C_s + log n_s and value m_s. Keys of the query's own block of
    L positions and of the block before it enter one by one. Not causal: every key enters through its code.

    Gradients are straight-through, k^ = k + sg(C_z - k). As in the paper's code, a key gets none from queries for which
    it is no longer recent (its value does, exactly): that gradient would take quadratic time, or S d^2 numbers per
    query. Without causality no key is recent; then it passes through the mean key of each code.
    The codebook follows its keys by moving averages, in training only: n_s <- g n_s + (1 - g) #{j: z_j = s}, likewise
    the sums of keys, and C_s is their quotient. A checkpointed block that runs again does not learn again; set
    `recomputing` where that happens outside a backward pass. A masked key is neither counted nor learnt from.

    Cost: O(n (S + 2 L) d) time, O(n d S / L) memory, never n x n. State: a window of 2 L - 1 slots, and S (value + 1)
    numbers per head. Lost: what rounding the keys loses.

    Args:
        heads: what to serve.
        num_codes: S, per head of keys.
        block_size: L.
        decay: g, of the moving averages.
        impl: `torch` is the operator above; `auto` is `torch`; `reference` is the definition, dense and without state.

    Raises:
        ConfigError: sizes below 1, a decay outside [0, 1], an unknown `impl`.

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> VectorQuantized(Heads(count=2, key_dim=8, causal=True))(q, k, v).losses["commitment"].shape
        torch.Size([])

    Source: Lingle 2023 (Transformer-VQ), section 3; moving averages and gradients as in its published code. Initial
    codes are random points of the sphere that normalised keys lie on.
    """

    info = Info(
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
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "old keys have no distance: they enter through their codes",
        "cross": "a source that a state holds would keep no gradient path to its keys",
        "state": "impl='reference' sees a whole sequence at once",
    }
    code_sum: Tensor
    code_count: Tensor
    seen: Tensor
    """(kv_heads, codes, dim + 1): sums and counts of the keys of the last training call"""
    unlearnt: Tensor
    """1 after a training call, 0 before the first"""
    recomputing = False
    """whether this call repeats an earlier one, for its backward pass; then the codebook stays"""

    @classmethod
    def facts(cls, **options: object) -> Info:
        """The definition keeps no state and takes quadratic time."""
        info = cls.info
        if options.get("impl") != "reference":
            return info
        return replace(info, supports=replace(info.supports, state=False), state="none", time=2, memory=2)

    def __init__(
        self,
        heads: Heads,
        *,
        num_codes: int = 512,
        block_size: int = 512,
        decay: float = 0.99,
        impl: Literal["auto", "reference", "torch"] = "auto",
    ) -> None:
        super().__init__(heads, impl=impl)
        if impl not in IMPLS:
            raise ConfigError(f"vector_quantized has no impl={impl!r}; it has {', '.join(IMPLS)}")
        if num_codes < 1 or block_size < 1:
            raise ConfigError(
                f"vector_quantized: num_codes and block_size must be at least 1, got {num_codes=}, {block_size=}"
            )
        if not 0 <= decay <= 1:
            raise ConfigError(f"vector_quantized: decay must be in [0, 1], got {decay}")
        self.num_codes, self.block_size, self.decay, self.impl = num_codes, block_size, decay, impl
        drawn = generator(heads.seed, "vector_quantized", "codes")
        points = torch.randn(heads.kv_heads, num_codes, heads.key_dim, generator=drawn)
        self.register_buffer("code_sum", _scaled(points))
        self.register_buffer("code_count", torch.ones(heads.kv_heads, num_codes))
        self.register_buffer("seen", torch.zeros(heads.kv_heads, num_codes, heads.key_dim + 1))
        self.register_buffer("unlearnt", torch.zeros(()))

    @property
    def codebook(self) -> Float[Tensor, "kv_heads codes dim"]:
        """C: the codes as they are now, in the units of normalised keys."""
        return self.code_sum / self.code_count.clamp(min=LEAST)[..., None]

    def decisions(self, q: Tensor, k: Tensor) -> Int[Tensor, "batch kv_heads keys"]:
        """The codes that `attend` rounds the keys to; `reference` takes them to replay its choices."""
        del q
        return self._codes(_scaled(k), self.codebook)

    @staticmethod
    def _codes(k: Tensor, codebook: Tensor) -> Tensor:
        batch, kv_heads, keys, _ = k.shape
        # argmin |k - C|^2 = argmax k . C - |C|^2 / 2
        rows, points = k.detach().transpose(0, 1).flatten(1, 2), codebook[:, None]
        found = nearest(rows, points, points.float().square().sum(-1) / -2)
        return found.view(kv_heads, batch, keys).transpose(0, 1)

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
        """Quantise, attend block by block, remember; in training also measure and learn."""
        del bias, marks
        learns = self.training and not (self.recomputing or recomputing())
        if learns:
            self._learn()
        key, codebook = _scaled(k), self.codebook.to(wide(k))
        codes = self._codes(key, codebook)
        book = codebook.expand(len(k), *codebook.shape)
        code = book.gather(2, codes.long()[..., None].expand(*codes.shape, key.shape[3]))
        if key_mask is not None:
            codes = codes.masked_fill(~key_mask[:, None], self.num_codes)
        if self.impl == "reference":
            values = self.reference(q, k, v, key_mask=key_mask, decisions=codes)
        else:
            values, state = self._stream(_scaled(q), code + (key - key.detach()), v, codes, codebook, state)
        losses = {}
        if self.training:
            losses["commitment"] = _commitment(key, code, key_mask)
        if learns:
            self._note(key.detach(), codes)
        return Attended(values, state, losses)

    def _stream(
        self, q: Tensor, k: Tensor, v: Tensor, codes: Tensor, codebook: Tensor, state: State | None
    ) -> tuple[Tensor, State | None]:
        """The values, and the state after them. A block of the state's past begins where its recent slots begin."""
        block = self.block_size if self.heads.causal else 0
        if state is None:
            cache = k.new_zeros(*codebook.shape[:-1], v.shape[3] + 1).expand(len(k), -1, -1, -1)
            return coded_op(q, k, v, codes, codebook, cache, 0, block)[0].to(v.dtype), None
        assert isinstance(state, Slots)
        past, cache = state.length, state.steady["cache"]
        grown = state.append(k=k.to(v.dtype), v=v, codes=codes)
        recent = self._recent(past)
        kept = {name: x[:, :, state.kept - recent :] for name, x in grown.view().items()}
        values = coded_op(q, kept["k"], kept["v"], kept["codes"], codebook, cache, past - recent, block)[0]
        leaving = recent + grown.length - past - self._recent(grown.length)
        if leaving:
            cache = self._joined(cache, kept["codes"][:, :, :leaving], kept["v"][:, :, :leaving])
        return values.to(v.dtype), grown.drop(grown.length - past).with_steady(cache=cache)

    def _recent(self, length: int) -> int:
        """Slots that a next block would still read one by one: the block in progress and the one before it."""
        return min(length, self.block_size + length % self.block_size)

    @staticmethod
    def _joined(cache: Tensor, codes: Tensor, v: Tensor) -> Tensor:
        """The sums and counts with more keys, differentiable."""
        sums = nn.functional.pad(cache.flatten(0, 1), (0, 0, 0, 1))
        gather_codes(sums, codes.flatten(0, 1).long(), v.flatten(0, 1).to(cache.dtype))
        return sums[:, :-1].view(cache.shape)

    @torch.no_grad()
    def _learn(self) -> None:
        """One step of the moving averages, towards what the last call saw."""
        weight = (1 - self.decay) * self.unlearnt
        self.code_sum.lerp_(self.seen[..., :-1], weight)
        self.code_count.lerp_(self.seen[..., -1], weight)

    @torch.no_grad()
    def _note(self, k: Tensor, codes: Tensor) -> None:
        """Remember what this call saw; masked keys have a code of their own, which is left out."""
        sums = nn.functional.pad(torch.zeros_like(self.seen), (0, 0, 0, 1))
        gather_codes(sums, codes.transpose(0, 1).flatten(1).long(), k.transpose(0, 1).flatten(1, 2).to(sums.dtype))
        self.seen.copy_(sums[:, :-1])
        self.unlearnt.fill_(1.0)

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
        """Dense softmax over the quantised keys; with `decisions`, over given codes."""
        del bias, marks
        queries, keys, group = q.shape[2], k.shape[2], self.heads.group
        q, k = (x / (x.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt() / x.shape[-1] ** 0.25 for x in (q, k))
        book = (self.code_sum / self.code_count.clamp(min=LEAST)[..., None]).to(k.dtype)
        distance = (k.detach().float()[..., None, :] - book.float()[:, None]).pow(2).sum(-1)
        codes = distance.argmin(-1) if decisions is None else decisions.long().clamp(max=self.num_codes - 1)
        code = book[torch.arange(len(book), device=k.device)[:, None], codes]
        real = torch.ones(len(k), keys, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
        i = torch.arange(queries, device=q.device)[:, None] + keys - queries
        j = torch.arange(keys, device=q.device)[None]
        if self.heads.causal:
            seen, straight = real[:, None, None] & (j <= i), k + (code - k).detach()
            recent = (i // self.block_size - j // self.block_size) <= 1
        else:
            same = ((codes[..., :, None] == codes[..., None, :]) & real[:, None, None]).to(k.dtype)
            mean = same @ torch.where(real[:, None, :, None], k, 0) / same.sum(-1, keepdim=True).clamp(min=1)
            seen, straight = real[:, None, None].expand(-1, 1, queries, -1), mean + (code - mean).detach()
            recent = torch.ones_like(i == j)
        straight, code, v = (x.repeat_interleave(group, 1) for x in (straight, code, v))
        passing, fixed = (torch.einsum("bhid,bhjd->bhij", q, x) for x in (straight, code.detach()))
        logits = torch.where(recent, passing, fixed).masked_fill(~seen, float("-inf"))
        weights = torch.softmax(logits.masked_fill(~seen.any(-1, keepdim=True), 0), -1) * seen
        return torch.einsum("bhij,bhjv->bhiv", weights, v)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """A window without real slots, and codes that count nothing."""
        if not self.info.supports.state:
            return super().initial_state(batch)
        heads, window = self.heads, 2 * self.block_size - 1
        k = torch.zeros(batch, heads.kv_heads, window, heads.key_dim, device=device, dtype=dtype)
        v = k.new_zeros(*k.shape[:3], heads.value_width)
        codes = torch.full(k.shape[:3], self.num_codes, dtype=torch.int32, device=device)
        cache = k.new_zeros(batch, heads.kv_heads, self.num_codes, heads.value_width + 1, dtype=wide(k))
        return Slots(Tape({"k": k, "v": v, "codes": codes}, window, window), 0, window, 0, {"cache": cache})

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """kv_heads x (2 L - 1 slots of key, value and 4 bytes of code, and S x (value + 1) numbers), at any length."""
        if not self.info.supports.state:
            return super().state_nbytes(batch, length, dtype)
        heads, window = self.heads, 2 * self.block_size - 1
        slots = slot_bytes(heads.kv_heads * (heads.key_dim + heads.value_width), window, dtype, batch)
        codes = slot_bytes(heads.kv_heads, window, torch.int32, batch)
        cache = torch.promote_types(dtype, torch.float32)
        return slots + codes + slot_bytes(heads.kv_heads * self.num_codes, heads.value_width + 1, cache, batch)


def _scaled(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """x over its root mean square and over dim^(1/4), in float32 at least."""
    x = x.to(wide(x))
    return x * (torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * x.shape[-1] ** -0.25)


def _commitment(k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
    """The mean over real keys of sum_heads |k - sg(C_z)|^2."""
    error = (k - code.detach()).square().sum((1, 3))
    return error.mean() if key_mask is None else (error * key_mask).sum() / key_mask.sum().clamp(min=1)
