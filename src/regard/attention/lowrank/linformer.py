"""Linformer: keys and values projected to a fixed number of positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor, nn

from regard.core import Attended, Attention, Call, accumulation_dtype, generator
from regard.engines.dense import dot_product
from regard.errors import ConfigError
from regard.info import Info, Supports
from regard.options import weight


class Mixtures(nn.Module):
    """The matrices E (for keys) and F (for values), (kv_heads or 1, rank, max_length); F is E if `value` is None."""

    def __init__(self, key: Tensor, value: Tensor | None) -> None:
        super().__init__()
        self.key = nn.Parameter(key)
        self.value = None if value is None else nn.Parameter(value)

    def matrices(self, keys: int) -> tuple[Tensor, Tensor]:
        """The first columns of E and F, where there are fewer keys than max_length."""
        e = self.key[..., :keys]
        return e, e if self.value is None else self.value[..., :keys]


class Means(nn.Module):
    """Fixed means over `rank` equal blocks of max_length positions, as both E and F."""

    block: Tensor

    def __init__(self, rank: int, max_length: int) -> None:
        super().__init__()
        self.rank = rank
        self.register_buffer("block", torch.arange(max_length) * rank // max_length, persistent=False)

    def matrices(self, keys: int) -> tuple[Tensor, Tensor]:
        """The first columns; in float64, since a third in float32 would stay one."""
        member = (self.block == torch.arange(self.rank, device=self.block.device)[:, None]).double()
        e = (member / member.sum(1, keepdim=True).clamp(min=1))[None, :, :keys]
        return e, e


@final
class Linformer(Attention):
    """Softmax over `rank` mixtures of positions: softmax(q (E k)^T / sqrt(d)) (F v), E and F rank x max_length.

    `mixtures` holds E and F. What is lost: positions within a mixture cannot be told apart, and there is no causal
    form, because every mixture sees the future.

    Cost: O(length rank dim) time, O(length) memory.

    Raises:
        ConfigError: no `Heads.max_length`.
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
    `layer`: as `key_value`, for layers that are given the same module as `mixtures`"""
    projection: Literal["learned", "mean"] = "learned"
    """`learned`, or `mean`: fixed means over `rank` equal blocks of max_length positions"""
    mixtures: Mixtures | Means = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """Means have no negative weight."""
        return replace(cls.default_info, nonnegative=options["projection"] == "mean")

    def check_options(self) -> None:
        if self.heads.max_length is None:
            raise ConfigError("linformer needs Heads.max_length: its projection has one column per position")

    def setup(self) -> None:
        heads, rank = self.heads, self.rank
        assert heads.max_length is not None
        if self.projection == "mean":
            self.mixtures = Means(rank, heads.max_length)
            return
        shape = (heads.kv_heads if self.share == "none" else 1, rank, heads.max_length)
        key, value = (
            torch.randn(shape, generator=generator(heads.seed, "linformer", name)) * rank**-0.5
            for name in ("key", "value")
        )
        self.mixtures = Mixtures(key, None if self.share in ("key_value", "layer") else value)

    def check_length(self, length: int) -> None:
        """Refuse a sequence longer than the projections."""
        self.require_length(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Project, then softmax. Keys and values under the mask are 0 before E and F, so padding changes nothing."""
        dtype = accumulation_dtype(q.dtype)  # mixtures sum over the length
        e, f = (x.to(dtype) for x in self.mixtures.matrices(k.shape[2]))
        q, k, v = q.to(dtype), e @ k.to(dtype), f @ v.to(dtype)
        dropout = self.heads.dropout if self.training else 0.0
        call = call._replace(key_mask=None)  # mixtures are all real
        return Attended(dot_product(q, k, v, call, scale=self.heads.key_dim**-0.5, dropout=dropout))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """With every matrix written out for every head."""
        heads = self.heads
        if call.key_mask is not None:
            k, v = (torch.where(call.key_mask[:, None, :, None], x, 0.0) for x in (k, v))
        e, f = self._written_out(k.shape[2], q)
        k, v = (x.repeat_interleave(heads.group, 1) for x in (k, v))
        mixed_k, mixed_v = torch.einsum("hrj,bhjd->bhrd", e, k), torch.einsum("hrj,bhjd->bhrd", f, v)
        logits = torch.einsum("bhid,bhrd->bhir", q, mixed_k) / q.shape[-1] ** 0.5
        odds = torch.exp(logits - logits.amax(-1, keepdim=True))
        return torch.einsum("bhir,bhrd->bhid", odds / odds.sum(-1, keepdim=True), mixed_v)

    def _written_out(self, keys: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """E and F of every query head, (heads, rank, keys), for the definition: weights, or means of equal blocks."""
        heads, length, rank = self.heads, self.heads.max_length, self.rank
        assert length is not None
        if self.projection == "mean":
            members = [[j for j in range(length) if j * rank // length == r] for r in range(rank)]
            e = like.new_zeros(1, rank, length)
            for r, block in enumerate(members):
                e[0, r, block] = 1 / max(len(block), 1)
            e = f = e.expand(heads.count, -1, -1)
        else:
            assert isinstance(self.mixtures, Mixtures)
            own = self.mixtures.key, self.mixtures.key if self.mixtures.value is None else self.mixtures.value
            of_head = [h // heads.group if self.share == "none" else 0 for h in range(heads.count)]
            e, f = (x[of_head].to(like.dtype) for x in own)
        return e[:, :, :keys], f[:, :, :keys]
