"""Linformer: keys and values projected to a fixed number of positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.lowrank._projections import Filters, Maxima, Means, Mixtures, Projection
from regard.core.attention import Attended, Attention, Call, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.mechanism import Mechanism
from regard.core.options import weight
from regard.engines.dense import dot_product


@final
class Linformer(Attention):
    """Softmax over `rank` mixtures of positions: softmax(q (E k)^T / sqrt(d)) (F v), E and F rank x max_length.

    `mixtures` holds E and F. They may be means over blocks, or one kernel for every block; maxima over blocks are no
    matrix. A shorter sequence is one that ends in zeros: it takes the first columns, its missing positions count in
    the mean of their block, and blocks without any position stay, as slots of 0. What is lost: positions within a
    mixture cannot be told apart, and there is no causal form, because every mixture sees the future.

    Cost: O(length rank dim) time, O(length) memory; O(length dim) before the softmax of maxima and kernels.

    Raises:
        ConfigError: no `Heads.max_length`; `share` for a projection that has no weights.
        LimitError: more keys than `max_length`.

    Example:
        >>> from regard import Heads
        >>> q, k = torch.full((1, 1, 1, 1), 99.0), torch.arange(4.0).reshape(1, 1, 4, 1)
        >>> mechanism = Linformer(Heads(count=1, key_dim=1, max_length=4), rank=2, projection="mean")
        >>> mechanism(q, k, 10 * k).values.round().item()  # the mean of 20 and 30: the best key counts as its block
        25.0
        >>> Linformer.reasons["causal"]
        'its projection mixes all positions'

    Source: Wang et al. 2020, Eq. 7 and section 4.
    """

    default_info = Info(
        title="Linformer",
        source="Wang et al. 2020, Eq. 7 and section 4",
        supports=Supports(bidirectional=True, cross=True, key_mask=True, dropout=True),
        time=1,
        rows_sum_to_one=False,
        nonnegative=False,
        anchored=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"rank": 4},
        {"rank": 5, "share": "head"},
        {"rank": 5, "share": "key_value"},
        {"rank": 4, "share": "layer"},
        {"rank": 4, "projection": "mean"},
        {"rank": 4, "projection": "max"},
        {"rank": 5, "projection": "convolution"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "causal": "its projection mixes all positions",
        "state": "its projection mixes all positions",
        "bias": "its logits belong to mixtures of positions, which have no distance",
    }

    rank: Annotated[int, Ge(1)] = 128
    """mixtures; the paper takes 128 to 256 for lengths of 512"""
    share: Literal["none", "head", "key_value", "layer"] = "none"
    """`none`: E and F of their own for every key head; `head`: one E and one F; `key_value`: one matrix for both;
    `layer`: as `key_value`, for every layer of a model with these options; layers of your own are given the same module
    as `mixtures`"""
    projection: Literal["learned", "mean", "max", "convolution"] = "learned"
    """`learned`; `mean` or `max`: over `rank` equal blocks of max_length positions; `convolution`: a learned kernel for
    all channels, whose width and stride are max_length / rank, rounded up"""
    mixtures: Projection = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Pooled positions have no negative weight; maxima are not linear."""
        pooled, linear = options["projection"] in ("mean", "max"), options["projection"] != "max"
        return replace(cls.default_info, nonnegative=pooled, linear_in_value=linear, affine_in_value=linear)

    def check_options(self) -> None:
        if self.heads.max_length is None:
            raise ConfigError(
                "linformer needs max_length, the longest sequence: its projection has one column per position"
            )
        if self.projection in ("mean", "max") and self.share != "none":
            raise ConfigError(
                "linformer: share belongs to projections with weights, learned or convolution; got "
                f"share={self.share!r} with projection={self.projection!r}"
            )

    def setup(self) -> None:
        heads, rank = self.heads, self.rank
        assert heads.max_length is not None
        if self.projection in ("mean", "max"):
            self.mixtures = (Means if self.projection == "mean" else Maxima)(rank, heads.max_length)
            return
        learned, own = self.projection == "learned", heads.kv_heads if self.share == "none" else 1
        shape = (own, rank, heads.max_length) if learned else (own, -(-heads.max_length // rank))
        key, value = (
            torch.randn(shape, generator=generator(heads.seed, "linformer", name)) * shape[1] ** -0.5
            for name in ("key", "value")
        )
        value = None if self.share in ("key_value", "layer") else value
        self.mixtures = Mixtures(key, value) if learned else Filters(rank, key, value)

    def share_weights(self, first: Mechanism) -> None:
        """With share="layer", the projections of the first layer."""
        if self.share == "layer":
            assert isinstance(first, Linformer)
            self.mixtures = first.mixtures

    def check_length(self, length: int) -> None:
        """Refuse a sequence longer than the projections."""
        self.require_length(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Project, then softmax. Keys and values under the mask are 0 before E and F, so padding changes nothing."""
        dtype = accumulation_dtype(q.dtype)  # mixtures sum over the length
        k, v = self.mixtures(k.to(dtype), v.to(dtype), call.key_mask)
        dropout = self.heads.dropout if self.training else 0.0
        call = call._replace(key_mask=None)  # mixtures are all real
        return Attended(dot_product(q.to(dtype), k, v, call, scale=self.heads.key_dim**-0.5, dropout=dropout))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """With every matrix written out for every head, or every maximum taken by itself."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        if self.projection == "max":
            mixed_k, mixed_v = (self._explicit_maxima(x, call) for x in (k, v))
        else:
            if call.key_mask is not None:
                k, v = (torch.where(call.key_mask[:, None, :, None], x, 0.0) for x in (k, v))
            e, f = self._written_out(k.shape[2], q)
            mixed_k, mixed_v = torch.einsum("hrj,bhjd->bhrd", e, k), torch.einsum("hrj,bhjd->bhrd", f, v)
        logits = torch.einsum("bhid,bhrd->bhir", q, mixed_k) / q.shape[-1] ** 0.5
        odds = torch.exp(logits - logits.amax(-1, keepdim=True))
        return torch.einsum("bhir,bhrd->bhid", odds / odds.sum(-1, keepdim=True), mixed_v)

    def _written_out(self, keys: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """E and F of every query head, (heads, rank, keys), for the definition: weights, or means of equal blocks."""
        heads, length, rank, mixtures = self.heads, self.heads.max_length, self.rank, self.mixtures
        assert length is not None
        if self.projection == "mean":
            e = like.new_zeros(1, rank, length)
            for r, block in enumerate(self._members(length)):
                e[0, r, block] = 1 / max(len(block), 1)
            e = e[:, :, :keys].expand(heads.count, -1, -1)
            return e, e
        assert isinstance(mixtures, Mixtures | Filters)
        of_head = [h // heads.group if self.share == "none" else 0 for h in range(heads.count)]
        own = (mixtures.key, mixtures.key if mixtures.value is None else mixtures.value)
        e, f = (x[of_head].to(like.dtype) for x in own)
        if self.projection == "convolution":
            size = e.shape[1]
            pairs = torch.arange(rank)[:, None] * size, torch.arange(length)
            at = (pairs[1] - pairs[0]).to(e.device)
            inside = (at >= 0) & (at < size)
            e, f = (torch.where(inside, x[:, at.clamp(0, size - 1)], 0.0) for x in (e, f))
        return e[:, :, :keys], f[:, :, :keys]

    def _members(self, length: int) -> list[list[int]]:
        """The positions of every block."""
        rank = self.rank
        return [[j for j in range(length) if j * rank // length == r] for r in range(rank)]

    def _explicit_maxima(self, x: Tensor, call: Call) -> Tensor:
        """The maximum of every block over the positions that are there and real, 0 without any."""
        length, keys = self.heads.max_length, x.shape[2]
        assert length is not None
        real = x.new_ones(x.shape[0], keys, dtype=torch.bool) if call.key_mask is None else call.key_mask
        slots = []
        for block in self._members(length):
            there = [j for j in block if j < keys]
            if not there:
                slots.append(0 * x.sum(2))
                continue
            seen = real[:, None, there, None]
            highest = torch.where(seen, x[:, :, there], float("-inf")).amax(2)
            slots.append(torch.where(seen.any(2), highest, 0.0))
        return torch.stack(slots, 2)
