"""Exact attention over the best keys by a cheap score."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from jaxtyping import Int
from torch import Tensor

from regard.attention.kernel import defined_features
from regard.attention.routed import Routed
from regard.core.attention import Attended, Call, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.randomness import decided
from regard.core.state import Entry, per_slot
from regard.engines.routed import doubled
from regard.engines.routed.lists import Listed, best_keys, listed
from regard.features.maps import FEATURE_MAPS, FeatureMap


@final
class Shortlist(Routed):
    """Softmax over the num_keys best keys by a cheap score: o_i = sum_{j in L_i} softmax_j(q_i . k_j / sqrt(dim)) v_j.

    L_i holds the keys with the largest phi(q_i) . phi(k_j) (score="linear": the weights of linear attention, whose
    normaliser does not change their order), or with the largest (R q_i) . (R k_j), R Gaussian with `rank` rows
    (score="projection"), among those that query i may see. With as many keys as there are it is softmax; with
    feature_map="identity" the list holds the keys of the largest logits.

    Cost: O(queries keys features) time for the score, then O(queries num_keys (dim + value)); memory of one chunk of
    queries, and queries x num_keys slots. State: keys and values of every slot, and phi(k_j) or R k_j in at least
    float32 (unless phi is the identity). Lost: keys that the score ranks too low; no gradient reaches the choice.

    Scores are summed in float64, so that how a sequence is cut into calls does not change a choice.

    Raises:
        ConfigError: an option of the other score.

    Example:
        >>> from regard import Heads, weights
        >>> q, k = torch.ones(1, 1, 1, 1), torch.tensor([0.5, 3.0, 1.0, 2.0]).reshape(1, 1, 4, 1)
        >>> row = weights(Shortlist(Heads(count=1, key_dim=1), num_keys=2), q, k).flatten()
        >>> row.nonzero().flatten().tolist(), round(float(row[1] / row[3]), 3)  # the two best keys; exp(3) / exp(2)
        ([1, 3], 2.718)

    Source: linear weights: Katharopoulos et al. 2020, Eq. 4; exact attention over the shortlist: the remedy that the
    exact-retrieval article leaves open; projection: Johnson and Lindenstrauss 1984.
    """

    default_info = Info(
        title="Shortlist",
        source="Katharopoulos et al. 2020, Eq. 4 (score); Vaswani et al. 2017, Eq. 1 over the shortlist",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        time=2,
        memory=1,
        state="length",
        sees_content_only=True,
        selects=True,
        replays_choices=True,
        approximates="softmax",
        knob="num_keys",
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_keys": 3},
        {"num_keys": 5, "score": "projection", "rank": 4},
        {"num_keys": 2, "feature_map": "identity"},
    )
    reasons: ClassVar[Mapping[str, str]] = {"bias": "its cheap score has no such term, so the choice would ignore it"}

    num_keys: Annotated[int, Ge(1)] = 64
    """the length of a list"""
    score: Literal["linear", "projection"] = "linear"
    """what ranks the keys: phi(q) . phi(k), or (R q) . (R k)"""
    feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor", "identity"] | None = None
    """phi of "linear"; None: elu_plus_one"""
    rank: Annotated[int, Ge(1)] | None = None
    """rows of R, of "projection"; None: 16"""
    projection: Tensor = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """A projection is drawn from the seed."""
        return replace(cls.default_info, stochastic=options["score"] == "projection")

    def check_options(self) -> None:
        for name, owner in (("feature_map", "linear"), ("rank", "projection")):
            value = self.options[name]
            if value is not None and self.score != owner:
                raise ConfigError(
                    f"shortlist: {name} belongs to score={owner!r}, got {name}={value!r}, score={self.score!r}"
                )

    def setup(self) -> None:
        if self.score == "projection":
            self.register_buffer("projection", self.drawn(generator(self.heads.seed, "shortlist", "projection")))

    def drawn(self, generator: torch.Generator) -> Tensor:
        """R of every head of keys."""
        rank = 16 if self.rank is None else self.rank
        return torch.randn(self.heads.kv_heads, rank, self.heads.key_dim, generator=generator)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the projection again, where there is one."""
        if self.score == "projection":
            self.projection = self.drawn(generator).to(self.projection)

    @property
    def phi(self) -> FeatureMap:
        """The feature map of "linear"."""
        return FEATURE_MAPS[self.feature_map or "elu_plus_one"]

    def scored(self, x: Tensor, group: int) -> Tensor:
        """phi(x) or R x, in at least float32."""
        with torch.autocast(x.device.type, enabled=False):
            if self.score == "projection":
                read = doubled(x.detach()) @ doubled(self.projection).mT.repeat_interleave(group, 0)
            else:
                read, _ = self.phi.scaled(doubled(x.detach()), None)
        return read.to(accumulation_dtype(x.dtype))

    def lists(self, q: Tensor, scored: Tensor, call: Call) -> Int[Tensor, "batch heads queries list"]:
        """The slots that each query lists, -1 for none, by what the score reads of the keys."""
        return best_keys(self.scored(q, self.heads.group), scored, call.key_mask, self.num_keys, call.causal)

    def decisions(self, q: Tensor, k: Tensor) -> Int[Tensor, "batch heads queries list"]:
        """The slots that each query lists, -1 for none."""
        return self.lists(q, self.scored(k, 1), Call(causal=self.heads.causal))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Score, list, attend to the list."""
        scored = {} if self.feature_map == "identity" else {"scored": self.scored(k, 1)}
        slots, call = call.remember(k=k, v=v, **scored)
        k, v = slots["k"], slots["v"]
        chosen = decided(lambda: self.lists(q, slots.get("scored", k.detach()), call))
        return Attended(listed(Listed(q, k, v, chosen, self.heads.key_dim**-0.5)).to(q.dtype), call.state)

    def state_layout(self) -> Mapping[str, Entry]:
        """Key and value, and what the score reads of a key beside it."""
        layout, heads = super().state_layout(), self.heads
        if self.feature_map == "identity":
            return layout
        width = self.projection.shape[1] if self.score == "projection" else self.phi.count(heads.key_dim)
        return {**layout, "scored": per_slot(heads.kv_heads, width, dtype="accumulation")}

    def choices(self, q: Tensor, k: Tensor, call: Call) -> Tensor:
        """Every score, and the slots of the best of each row."""
        q, k = q.detach().double(), k.detach().double().repeat_interleave(self.heads.group, 1)
        if self.score == "projection":
            r = self.projection.double().repeat_interleave(self.heads.group, 0)
            q, k = (torch.einsum("bhid,hrd->bhir", x, r) for x in (q, k))
        else:
            q, k = (defined_features(self.feature_map or "elu_plus_one", x) for x in (q, k))
        scores = torch.einsum("bhir,bhjr->bhij", q, k).masked_fill(~call.visible(q, k), float("-inf"))
        best = scores.argsort(stable=True, dim=-1, descending=True)[..., : self.num_keys]
        return best.masked_fill(scores.gather(-1, best).isneginf(), -1)

    def logits(self, q: Tensor, k: Tensor, choices: Tensor, call: Call) -> Tensor:
        """The logits of the listed keys."""
        logits = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1)) / q.shape[-1] ** 0.5
        columns = torch.zeros(*logits.shape[:3], k.shape[2] + 1, dtype=torch.bool, device=q.device)
        met = columns.scatter(-1, choices % (k.shape[2] + 1), True)[..., :-1]  # -1, no key, is the last column
        return logits.masked_fill(~met, float("-inf"))
