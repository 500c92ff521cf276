"""Attention among tokens that a locality-sensitive hash puts into one bucket."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention, generator
from regard.engines.routed import nearest, wide
from regard.engines.routed.buckets import bucketed_op
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.state import Slots, State, slot_bytes

FORMS = ("exact", "paper")
IMPLS = ("auto", "reference", "torch")
TINY = 1e-12
"""least norm of a key: a key of zeros stays zero"""


class Buckets(NamedTuple):
    """The choices of a call: h_r(q_i) and h_r(k_j)."""

    queries: Int[Tensor, "batch heads queries rounds"]
    keys: Int[Tensor, "batch kv_heads keys rounds"]


@final
class Lsh(Attention):
    """Softmax over the keys that share a bucket with the query in at least one of several random hashes.

    o_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j over j in the union over rounds r of P_i^r,
    P_i^r = {j: h_r(q_i) = h_r(k_j), j <= i if causal}, h_r(x) = argmax([x R_r; -x R_r]), R_r Gaussian (d, buckets / 2).

    With `share` one projection serves as query and key: k_j = q_j / |q_j|, j = i counts only where the union is empty
    without it (the paper subtracts 1e5 from that logit, which costs float32 its last digits), and a hidden position
    gives 0. The union is one softmax: the paper merges rounds and divides a key's weight by the number of rounds that
    it was met in, which is the same; `duplicates=True` leaves that division out. A token's bucket depends on that token
    alone, in float32.

    Cost: O(rounds length (log length + (bucket + num_buckets) dim)) time, where a bucket holds length / num_buckets
    tokens if they spread evenly; O(rounds length^2 dim) if all fall into one bucket. O(length) memory. State: key,
    value and buckets of every slot. Lost: keys that no round puts beside the query.

    Args:
        heads: what to serve; `max_length` fixes `num_buckets` where that is not given, and then limits the length.
        rounds: independent hashes (the paper trains with 4 and evaluates with 8).
        bucket_size: tokens per bucket at `max_length`; the length of a chunk in form="paper".
        num_buckets: even, or 1 for a single bucket; None: max_length / bucket_size, rounded up to an even number.
        share: whether one projection serves as query and key; False hashes both, sees its own position like any other,
            permits cross-attention, and gives 0 to a query that meets no key.
        duplicates: a key met in several rounds counts once per round.
        form: `exact` is strictly causal. `paper` sorts by (bucket, position), cuts the sequence into chunks, and lets a
            query see its own chunk and the one before: linear in the worst case, but where chunks begin depends on the
            buckets of later tokens, so it leaks. (Public code also attends across buckets within these chunks.)
        impl: `torch` walks tiles of equal buckets; `auto` is `torch`; `reference` is the definition.

    Raises:
        ConfigError: sizes below 1, an odd `num_buckets`, neither `num_buckets` nor `max_length`, an unknown `form` or
            `impl`, form="paper" without `share`.

    Example:
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 5, 8)
        >>> Lsh(Heads(count=2, key_dim=8, causal=True, max_length=64))(q, q, q).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Kitaev, Kaiser, Levskaya 2020 (Reformer), section 2; hash: Andoni et al. 2015.
    """

    info = Info(
        title="Locality-sensitive hashing",
        source="Kitaev, Kaiser, Levskaya 2020, Reformer, section 2",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        time=2,
        state="length",
        sees_content_only=True,
        shares_query_key=True,
        selects=True,
        stochastic=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"rounds": 2, "bucket_size": 8},
        {"num_buckets": 10, "rounds": 2, "share": False, "duplicates": True},
        {"num_buckets": 2, "rounds": 1, "bucket_size": 2, "form": "paper"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "a query and a key may be any distance apart",
        "cross": "one projection serves as query and key; share=False permits it",
        "prefix": "the chunks of form='paper' depend on the whole sequence",
        "state": "the chunks of form='paper' depend on the whole sequence",
    }
    rotations: Tensor

    @classmethod
    def facts(cls, **options: object) -> Info:
        """share=False also serves cross-attention; form="paper" has no past to keep, and leaks."""
        info = cls.info
        if options.get("form") == "paper":
            supports = replace(info.supports, state=False, prefix=False)
            return replace(info, supports=supports, state="none", sees_content_only=False, leaks=True)
        if options.get("share") is False:
            supports = replace(info.supports, cross=True)
            return replace(info, supports=supports, rows_sum_to_one=False, shares_query_key=False)
        return info

    def __init__(
        self,
        heads: Heads,
        *,
        rounds: int = 4,
        bucket_size: int = 64,
        num_buckets: int | None = None,
        share: bool = True,
        duplicates: bool = False,
        form: Literal["exact", "paper"] = "exact",
        impl: Literal["auto", "reference", "torch"] = "auto",
    ) -> None:
        super().__init__(heads, share=share, form=form)
        if form not in FORMS or impl not in IMPLS:
            raise ConfigError(f"lsh has forms {', '.join(FORMS)} and impls {', '.join(IMPLS)}, got {form=}, {impl=}")
        if form == "paper" and not share:
            raise ConfigError("lsh: form='paper' sorts queries and keys as one sequence; it needs share=True")
        if rounds < 1 or bucket_size < 1:
            raise ConfigError(f"lsh: rounds and bucket_size must be at least 1, got {rounds=}, {bucket_size=}")
        self.limited = num_buckets is None
        if num_buckets is None:
            if heads.max_length is None:
                raise ConfigError("lsh fixes its buckets at build: give num_buckets, or Heads.max_length")
            num_buckets = 2 * -(-heads.max_length // (2 * bucket_size))
        if num_buckets < 1 or (num_buckets > 1 and num_buckets % 2):
            raise ConfigError(f"lsh: num_buckets must be even (a direction and its opposite) or 1, got {num_buckets}")
        self.rounds, self.bucket_size, self.num_buckets = rounds, bucket_size, num_buckets
        self.share, self.duplicates, self.form, self.impl = share, duplicates, form, impl
        shape = (heads.kv_heads, rounds, heads.key_dim, num_buckets // 2)
        self.register_buffer("rotations", torch.randn(shape, generator=generator(heads.seed, "lsh", "rotations")))

    def decisions(self, q: Tensor, k: Tensor) -> Buckets:
        """The buckets that `attend` puts queries and keys into; `reference` takes them to replay its choices."""
        keys = self._hash(k)
        return Buckets(keys if q is k else self._hash(q), keys)

    def _hash(self, x: Tensor) -> Tensor:
        batch, heads, length, dim = x.shape
        axes = self.rotations.mT
        points = torch.cat([axes, -axes], 2) if self.num_buckets > 1 else axes.new_zeros(*axes.shape[:2], 1, dim)
        kv_heads = self.heads.kv_heads
        # Heads that share keys share their hash: rows of a head of keys are (batch, group, position).
        rows = x.detach().unflatten(1, (kv_heads, -1)).transpose(0, 1).flatten(1, 3)
        found = nearest(rows, points, points.new_zeros(points.shape[:3]))
        found = found.view(kv_heads, batch, heads // kv_heads, length, self.rounds)
        return found.transpose(0, 1).flatten(1, 2)

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
        """Hash, remember, walk the tiles of each bucket."""
        del bias, marks
        if self.limited:
            self.require_length(k.shape[2] + (0 if state is None else state.length))
        query_codes, key_codes = self.decisions(q, k)
        if self.share:
            k = _unit(k)
        if state is not None:
            assert isinstance(state, Slots)
            state = state.append(key_mask, k=k, v=v, buckets=key_codes)
            kept = state.view()
            k, v, key_codes, key_mask = kept["k"], kept["v"], kept["buckets"], kept.get("key_mask")
        if self.impl == "reference":
            values = self._definition(q, k, v, Buckets(query_codes, key_codes), key_mask)
        else:
            values = self._average(q, k, v, Buckets(query_codes, key_codes), key_mask)
        return Attended(values, state, {})

    def _average(self, q: Tensor, k: Tensor, v: Tensor, buckets: Buckets, key_mask: Tensor | None) -> Tensor:
        codes, choices, back = buckets, self.num_buckets, 0
        if self.form == "paper":
            chunks = k.shape[2] // self.bucket_size + 3
            codes = Buckets(*(self._chunked(x, key_mask, chunks) for x in buckets))
            choices, back = (self.num_buckets + 1) * chunks, 1
        # Tiles about as long as a bucket, from the shapes of the call alone.
        crowd = k.shape[2] // self.num_buckets
        tile = 64 if crowd > 48 else 32 if crowd > 24 else 16
        causal, scale = self.heads.causal, self.heads.key_dim**-0.5
        masks = (self._asking(q, key_mask), key_mask)
        values, lse = bucketed_op(
            q, k, v, *codes, *masks, scale, causal, not self.share, back, self.duplicates, choices, tile
        )
        if not self.share:
            return values.to(v.dtype)
        own = v[:, :, v.shape[2] - q.shape[2] :].repeat_interleave(self.heads.group, 1)
        return torch.where(lse[..., None] == float("-inf"), own, values.to(v.dtype))

    def _asking(self, q: Tensor, key_mask: Tensor | None) -> Tensor | None:
        """Which queries are real, where a query is a key: the others give 0."""
        return key_mask[:, key_mask.shape[1] - q.shape[2] :] if self.share and key_mask is not None else None

    def _chunked(self, buckets: Tensor, key_mask: Tensor | None, chunks: int) -> Tensor:
        """One code per (bucket, chunk): codes c - 1 and c are the same bucket in the chunk before and in the same."""
        if key_mask is not None:
            buckets = buckets.masked_fill(~key_mask[:, None, :, None], self.num_buckets)  # padding sorts behind all
        rank = buckets.argsort(dim=2, stable=True).argsort(dim=2)
        return buckets * chunks + rank // self.bucket_size + 1

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
        decisions: Buckets | None = None,
    ) -> Tensor:
        """Every pair of every round, then the softmax of each row; with `decisions`, over given buckets."""
        del bias, marks
        if decisions is None:
            spread = self.rotations.float().repeat_interleave(self.heads.group, 0)
            turned = torch.einsum("bhid,hrdc->bhirc", q.detach().float(), spread)
            other = torch.einsum("bhjd,hrdc->bhjrc", k.detach().float(), self.rotations.float())
            hashes = [torch.cat([x, -x], -1) for x in (turned, other)]
            if self.num_buckets == 1:
                hashes = [x.new_zeros(*x.shape[:4], 1) for x in hashes]
            decisions = Buckets(*(x.argmax(-1) for x in hashes))
        if self.share:
            k = k / k.square().sum(-1, keepdim=True).sqrt().clamp_min(TINY)
        return self._definition(q, k, v, decisions, key_mask)

    def _definition(self, q: Tensor, k: Tensor, v: Tensor, buckets: Buckets, key_mask: Tensor | None) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        k, v, theirs = (x.repeat_interleave(self.heads.group, 1) for x in (k, v, buckets.keys))
        i = torch.arange(queries, device=q.device)[:, None] + (keys - queries if self.heads.causal else 0)
        j = torch.arange(keys, device=q.device)[None]
        seen = (j <= i)[None, None] if self.heads.causal else torch.ones_like(j <= i)[None, None]
        seen = seen if key_mask is None else seen & key_mask[:, None, None]
        met = buckets.queries[..., :, None, :] == theirs[..., None, :, :]
        if self.form == "paper":
            ours, theirs = (self._place(x, key_mask) for x in (buckets.queries, theirs))
            met &= (ours[..., :, None, :] - theirs[..., None, :, :] - 0.5).abs() < 1
        times = met.sum(-1) * seen
        asking = self._asking(q, key_mask)
        times = times if asking is None else times * asking[:, None, :, None]
        if self.share:
            others = times * (i != j)
            times = torch.where(others.any(-1, keepdim=True), others, (seen & (i == j)).long())
        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.heads.key_dim**-0.5
        logits = logits + (times if self.duplicates else times.clamp(max=1)).to(logits.dtype).log()
        weights = torch.softmax(logits.masked_fill(times.sum(-1, keepdim=True) == 0, 0), -1) * (times > 0)
        return torch.einsum("bhij,bhjv->bhiv", weights, v)

    def _place(self, buckets: Tensor, key_mask: Tensor | None) -> Tensor:
        """The chunk of each token: how many come before it by (bucket, position), hidden ones last."""
        if key_mask is not None:
            buckets = torch.where(key_mask[:, None, :, None], buckets, self.num_buckets)
        slot = torch.arange(buckets.shape[2], device=buckets.device)[:, None]
        order = buckets * buckets.shape[2] + slot
        return (order[..., None, :, :] < order[..., :, None, :]).sum(-2) // self.bucket_size

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        if not self.info.supports.state:
            return super().initial_state(batch)
        shape = (batch, self.heads.kv_heads, 0)
        return Slots.empty(
            k=torch.empty(*shape, self.heads.key_dim, device=device, dtype=dtype),
            v=torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
            buckets=torch.empty(*shape, self.rounds, device=device, dtype=torch.int32),
        )

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """length x kv_heads x (key + value, and 4 bytes per round)."""
        if not self.info.supports.state:
            return super().state_nbytes(batch, length, dtype)
        heads = self.heads
        content = slot_bytes(heads.kv_heads * (heads.key_dim + heads.value_width), length, dtype, batch)
        return content + slot_bytes(heads.kv_heads * self.rounds, length, torch.int32, batch)


def _unit(k: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """k / |k|, computed in float32 at least."""
    high = k.to(wide(k))
    return (high / torch.linalg.vector_norm(high, dim=-1, keepdim=True).clamp_min(TINY)).to(k.dtype)
