"""Exact attention over the best keys by a cheap score."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.dense import visible
from regard.core import Attended, Attention, ScoreBias, State, generator
from regard.engines.routed import wide
from regard.engines.routed.lists import best_keys, doubled, listed
from regard.errors import ConfigError, nearest
from regard.features import FEATURE_MAPS
from regard.info import Heads, Info, Supports
from regard.state import Slots, slot_bytes

MAPS = ("elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor", "identity")
SCORES = ("linear", "projection")


@final
class Shortlist(Attention):
    """Softmax over the num_keys best keys by a cheap score: o_i = sum_{j in L_i} softmax_j(q_i . k_j / sqrt(dim)) v_j.

    L_i holds the keys with the largest phi(q_i) . phi(k_j) (score="linear": the weights of linear attention, whose
    normaliser does not change their order), or with the largest (R q_i) . (R k_j), R Gaussian with `rank` rows
    (score="projection"), among those that query i may see. With as many keys as there are it is softmax; with
    feature_map="identity" the list holds the keys of the largest logits.

    Cost: O(queries keys features) time for the score, then O(queries num_keys (dim + value)); memory of one chunk of
    queries, and queries x num_keys slots. State: keys and values of every slot, and phi(k_j) or R k_j in at least
    float32 (unless phi is the identity). Lost: keys that the score ranks too low; no gradient reaches the choice.

    Scores are summed in float64, so that how a sequence is cut into calls does not change a choice.

    Args:
        heads: what to serve.
        num_keys: the length of a list.
        score: "linear" or "projection".
        feature_map: phi of "linear": elu_plus_one, relu, sigmoid, softmax_features, taylor, identity; None:
            elu_plus_one.
        rank: rows of R, of "projection"; None: 16.

    Raises:
        ConfigError: num_keys or rank below 1, an unknown score or feature map, an option of the other score.

    Example:
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 50, 8)
        >>> Shortlist(Heads(count=2, key_dim=8, causal=True), num_keys=10)(q, q, q).values.shape
        torch.Size([1, 2, 50, 8])

    Source: linear weights: Katharopoulos et al. 2020, Eq. 4; exact attention over the shortlist: the remedy that the
    exact-retrieval article leaves open; projection: Johnson and Lindenstrauss 1984.
    """

    info = Info(
        title="Shortlist",
        source="Katharopoulos et al. 2020, Eq. 4 (score); Vaswani et al. 2017, Eq. 1 over the shortlist",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
        time=2,
        memory=1,
        state="length",
        sees_content_only=True,
        selects=True,
        rounding=True,
        approximates="softmax",
        knob="num_keys",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_keys": 3},
        {"num_keys": 5, "score": "projection", "rank": 4},
        {"num_keys": 2, "feature_map": "identity"},
    )

    reasons: ClassVar[Mapping[str, str]] = {"bias": "its cheap score has no such term, so the choice would ignore it"}

    def __init__(
        self,
        heads: Heads,
        *,
        num_keys: int = 64,
        score: Literal["linear", "projection"] = "linear",
        feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor", "identity"] | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(heads, score=score)
        for name, value, owner in (("feature_map", feature_map, "linear"), ("rank", rank, "projection")):
            if value is not None and score in SCORES and score != owner:
                raise ConfigError(f"shortlist: {name} belongs to score={owner!r}, got {name}={value!r}, {score=}")
        if num_keys < 1 or (rank is not None and rank < 1):
            raise ConfigError(f"shortlist: num_keys and rank must be at least 1, got {num_keys=}, {rank=}")
        for name, value, allowed in (("score", score, SCORES), ("feature_map", feature_map or "elu_plus_one", MAPS)):
            if value not in allowed:
                raise ConfigError(f"shortlist has no {name}={value!r}: {nearest(value, allowed)}")
        self.num_keys, self.score = num_keys, score
        self.feature_map = (feature_map or "elu_plus_one") if score == "linear" else None
        self.rank = (rank or 16) if score == "projection" else None
        if self.rank is not None:
            self.register_buffer("projection", self._drawn(self.rank, generator(heads.seed, "shortlist", "projection")))

    projection: Tensor

    @classmethod
    def facts(cls, **options: object) -> Info:
        """A projection is drawn from the seed."""
        return replace(cls.info, stochastic=options.get("score") == "projection")

    def _drawn(self, rank: int, generator: torch.Generator) -> Tensor:
        return torch.randn(self.heads.kv_heads, rank, self.heads.key_dim, generator=generator)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the projection again, where there is one."""
        if self.rank is not None:
            self.projection = self._drawn(self.rank, generator).to(self.projection)

    @property
    def _kept(self) -> int:
        """Numbers that a key's score reads beside the key."""
        if self.feature_map is None:
            return self.projection.shape[1]
        return 0 if self.feature_map == "identity" else FEATURE_MAPS[self.feature_map].count(self.heads.key_dim)

    def decisions(self, q: Tensor, k: Tensor) -> Int[Tensor, "batch heads queries list"]:
        """The slots that `attend` lists for each query, -1 for none; `reference` takes them to replay its choices."""
        return self._lists(q, self._scored(k, 1), None)

    def _scored(self, x: Tensor, group: int) -> Tensor:
        """phi(x) or R x, in at least float32."""
        with torch.autocast(x.device.type, enabled=False):
            if self.feature_map is None:
                found = doubled(x.detach()) @ doubled(self.projection).mT.repeat_interleave(group, 0)
            else:
                found, _ = FEATURE_MAPS[self.feature_map].scaled(doubled(x.detach()), None)
        return found.to(wide(x))

    def _lists(self, q: Tensor, scored: Tensor, key_mask: Tensor | None) -> Tensor:
        return best_keys(self._scored(q, self.heads.group), scored, key_mask, self.num_keys, self.heads.causal)

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
        """Score, list, attend to the list."""
        del bias, marks
        scored = self._scored(k, 1)
        if state is not None:
            assert isinstance(state, Slots)
            if k.shape[2]:
                extra = {"scored": scored} if self._kept else {}
                state = state.append(key_mask, k=k, v=v, **extra)
            seen = state.view()
            k, v, key_mask = seen["k"], seen["v"], seen.get("key_mask")
            scored = seen["scored"] if self._kept else k.detach().to(wide(k))
        lists = self._lists(q, scored, key_mask)
        return Attended(listed(q, k, v, lists, self.heads.key_dim**-0.5).to(q.dtype), state, {})

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        shape = (batch, self.heads.kv_heads, 0)
        like = {
            "k": torch.empty(*shape, self.heads.key_dim, device=device, dtype=dtype),
            "v": torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
        }
        if self._kept:
            like["scored"] = torch.empty(*shape, self._kept, device=device, dtype=wide(like["k"]))
        return Slots.empty(**like)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """length x kv_heads x (key + value, and what the score reads of a key, numbers of at least 4 bytes)."""
        heads = self.heads
        size = slot_bytes(heads.kv_heads * (heads.key_dim + heads.value_width), length, dtype, batch)
        kept = slot_bytes(heads.kv_heads * self._kept, length, torch.promote_types(dtype, torch.float32), batch)
        return size + kept

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
        """Every score, the best of each row, then a softmax over those; with `decisions`, over given lists."""
        del bias, marks
        queries, keys = q.shape[2], k.shape[2]
        k, v = k.repeat_interleave(self.heads.group, 1), v.repeat_interleave(self.heads.group, 1)
        seen = visible(queries, keys, causal=self.heads.causal, key_mask=key_mask, device=q.device)
        if decisions is None:
            exact_q, exact_k = q.detach().double(), k.detach().double()
            if self.feature_map is not None:
                fq, fk = (FEATURE_MAPS[self.feature_map](x) for x in (exact_q, exact_k))
            else:
                r = self.projection.double().repeat_interleave(self.heads.group, 0)
                fq, fk = (torch.einsum("bhid,hrd->bhir", x, r) for x in (exact_q, exact_k))
            scores = torch.einsum("bhir,bhjr->bhij", fq, fk).masked_fill(~seen, float("-inf"))
            rank = scores.argsort(stable=True, dim=-1, descending=True).argsort(-1)
            chosen = seen & (rank < self.num_keys)
        else:
            slots = torch.arange(keys, device=q.device)
            chosen = seen & (decisions[..., None, :] == slots[:, None]).any(-1)
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        logits = logits.masked_fill(~chosen, float("-inf"))
        empty = ~chosen.any(-1, keepdim=True)
        return torch.softmax(logits.masked_fill(empty, 0), -1).masked_fill(empty, 0) @ v
