"""Linear attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.kernel import Kernel, defined_features, ratio, weighs_nothing
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.state import Entry, Summary, constant
from regard.engines.kernels import kernel
from regard.engines.sums.engine import kernel_average
from regard.engines.sums.forms import FORMS, average_by
from regard.engines.sums.passes import divisor, weightless
from regard.engines.sums.step import Averaged
from regard.features.maps import FEATURE_MAPS, FeatureMap

BASE = 10_000.0
"""of the rotary frequencies (Su et al. 2021)"""
FixedMap = Literal["elu_plus_one", "relu", "sigmoid", "identity", "softmax_features", "taylor"]


@final
class Linear(Kernel):
    """Linear attention: out_i = sum_{j <= i} phi(q_i) . phi(k_j) v_j / sum_{j <= i} phi(q_i) . phi(k_j).

    Our phi is the paper's phi (Eq. 7: elu(x) + 1), S_i = sum_{j <= i} phi(k_j) v_j^T its S_i (Eq. 10) and
    z_i = sum_{j <= i} phi(k_j) its Z_i (Eq. 11): out_i = phi(q_i) S_i / phi(q_i) . z_i (Eq. 12). No 1 / sqrt(dim).

    Cost: O(length x features x value) time, a state of features x (value + 1) numbers per head. Lost against softmax:
    weights are as sharp as phi allows, and distinct keys share the features.

    There is no epsilon in the denominator (the paper's code adds 1e-6): a row whose weights sum to 0 gives 0. Weights
    are ratios, so queries may be as small as they like. Keys may not: in float32, features below 1e-38 are 0
    (elu_plus_one or sigmoid of -87), and a row whose weights sum to less than 1e-34 counts as one without keys: keys
    that are all far below weigh nothing, where exact numbers would average them. In float64 that begins at -708. (A
    scale of the keys so far, as `performer` keeps one, would take a third more time in every call, and more state.)

    Raises:
        ConfigError: maps of different sizes, signed features with normalise=True, rotary with an odd number of
            features.

    Example:
        >>> import torch
        >>> from regard.core.attention import Heads
        >>> attention = Linear(Heads(count=1, key_dim=8, causal=True))
        >>> inputs = (torch.randn(3, 1, 1, length, 8) for length in (1, 1000))
        >>> [attention(*qkv, state=attention.initial_state(1)).state.nbytes for qkv in inputs]  # 8 x (8 + 1) numbers
        [288, 288]

    Source: Katharopoulos et al. 2020, Eqs. 4-12; rotary: Su et al. 2021, Eq. 19; taylor: second-order exp.
    """

    default_info = Info(
        title="Linear attention",
        source="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, Eqs. 4-12",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"rotary": True},
        {"feature_map": "identity", "normalise": False},
        {"feature_map": "taylor", "post": "softmax"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
        "cross": "rotary features need one sequence of slots",
    }

    feature_map: FixedMap = "elu_plus_one"
    """phi, of queries and keys; `identity` is signed, so that a sum of weights may vanish: it takes normalise=False"""
    key_feature_map: FixedMap | None = None
    """of keys; None: the same"""
    normalise: bool = True
    """divide by the sum of the weights"""
    rotary: bool = False
    """turn pairs of features by their slots, in the numerator only (the denominator stays positive)"""
    post: Literal["none", "softmax"] = "none"
    """`softmax` takes a softmax over the channels of the output"""
    impl: Literal["auto", "reference", "quadratic", "recurrent"] = "auto"
    """`auto` is the chunked operator; `quadratic` and `recurrent` are other forms of the same sum, in O(queries x keys)
    and O(length) sequential steps; `reference` is the definition"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """The default's, less what maps, rotation and post-processing take away."""
        first = FEATURE_MAPS[options["feature_map"]]
        maps = first, FEATURE_MAPS[options["key_feature_map"] or options["feature_map"]]
        rotary, softmax = options["rotary"], options["post"] == "softmax"
        quadratic = options["impl"] == "quadratic"
        return replace(
            cls.default_info,
            supports=replace(cls.default_info.supports, cross=not rotary),
            time=2 if quadratic else 1,
            memory=2 if quadratic else 1,
            # relu features of a query and of every key may be disjoint: such a row is 0
            rows_sum_to_one=options["normalise"] and not rotary and not softmax and all(m.positive for m in maps),
            nonnegative=not rotary and not softmax and _nonnegative(*maps),
            linear_in_value=not softmax,
            affine_in_value=not softmax,
            sees_content_only=not rotary,
        )

    def check_options(self) -> None:
        dim, named = self.heads.key_dim, f"feature_map={self.query_map.name!r}, key_feature_map={self.key_map.name!r}"
        sizes, nonnegative = [m.count(dim) for m in (self.query_map, self.key_map)], _nonnegative(*self._maps)
        if sizes[0] != sizes[1]:
            raise ConfigError(f"linear compares features of one size, got {named} with {sizes[0]} and {sizes[1]}")
        if self.normalise and not nonnegative:
            raise ConfigError(f"linear({named}) has signed weights, whose sum may vanish; pass normalise=False")
        if self.rotary and sizes[0] % 2:
            raise ConfigError(f"linear(rotary=True) turns pairs of features, got {sizes[0]}; it must be even")

    @property
    def key_map(self) -> FeatureMap:
        return FEATURE_MAPS[self.key_feature_map or self.feature_map]

    @property
    def _maps(self) -> tuple[FeatureMap, FeatureMap]:
        return self.query_map, self.key_map

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The sums, and the rotary numerator apart from its denominator."""
        past, mask = call.state, call.key_mask
        assert past is None or isinstance(past, Summary)
        before = {} if past is None else past.content
        rotation = self._rotation(call.past, k) if self.rotary else None
        if self.post == "softmax":  # must see what was accumulated, not its rounding
            q, k, v = (x.to(accumulation_dtype(x.dtype)) for x in (q, k, v))
        q = self.query_map.lift(q)[0] if self.normalise else q
        divide = self.normalise and not self.rotary
        result = self.average(q, k, v, before.get("sum"), key_mask=mask, rotation=rotation, normalise=divide)
        values, total, content = result.values, result.total, {"sum": result.sum}
        if self.normalise and self.rotary:
            plain = self.average(q, k, v[..., :0], before.get("total"), key_mask=mask, normalise=False)
            total, content["total"] = plain.total, plain.sum
            values = (values / divisor(total)[..., None]).to(q.dtype)
        if self.post == "softmax":
            none = weightless(total) if self.normalise else total == 0
            values = values.softmax(-1).masked_fill(none[..., None], 0)  # of rows without keys, or that weigh nothing
        return Attended(values, None if past is None else Summary(content, past.length + k.shape[2]))

    def average(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sum: Tensor | None = None,
        *,
        key_mask: Tensor | None,
        normalise: bool = True,
        rotation: Tensor | None = None,
    ) -> Averaged:
        """By the operator, or in the form that `impl` names."""
        if self.impl in FORMS:
            return average_by(self.impl, q, k, v, sum, self._maps, key_mask, rotation, self.heads.causal, normalise)
        if average := kernel("linear", q.device.type, q=q, causal=self.heads.causal):
            return average(q, k, v, sum, self._maps, key_mask=key_mask, rotation=rotation, normalise=normalise)
        return kernel_average(
            q,
            k,
            v,
            sum,
            query_map=self.feature_map,
            key_map=self.key_feature_map or self.feature_map,
            causal=self.heads.causal,
            normalise=normalise,
            key_mask=key_mask,
            rotation=rotation,
        )

    def _rotation(self, past: int, k: Tensor) -> Tensor:
        """Cosines and sines of slot x theta_c, theta_c = 10000^(-2 c / features), for the slots of `k`."""
        precise = torch.float32 if k.device.type == "mps" else torch.float64
        slots = torch.arange(past, past + k.shape[2], device=k.device, dtype=precise)
        pairs = torch.arange(self.features // 2, device=k.device, dtype=precise)
        angle = slots[:, None] * BASE ** (-2 * pairs / self.features)
        return torch.stack([angle.cos(), angle.sin()]).to(accumulation_dtype(k.dtype))

    def state_layout(self) -> dict[str, Entry]:
        """The sums; under a rotation those of the denominators apart."""
        layout = super().state_layout()
        if self.rotary and self.normalise:
            layout["total"] = constant(self.heads.kv_heads, self.features, 1, dtype="accumulation")
        return layout

    @property
    def adds_states(self) -> bool:
        """They are sums over keys."""
        return self.impl != "reference"

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every weight phi(q_i) . phi(k_j), masked, divided by its row's sum."""
        fq, fk = defined_features(self.feature_map, q), defined_features(self.key_feature_map or self.feature_map, k)
        fk, v = (x.repeat_interleave(self.heads.group, 1) for x in (fk, v))
        seen = call.visible(q, k)
        weights = (fq @ fk.mT).masked_fill(~seen, 0)
        total = weights.sum(-1, keepdim=True)
        if self.rotary:
            keys, first = k.shape[2], call.query_start
            slots = torch.arange(keys, device=q.device, dtype=torch.float64)
            theta = BASE ** (-torch.arange(0, self.features, 2, device=q.device) / self.features).double()
            turn = torch.polar(torch.ones(keys, self.features // 2).double().to(q.device), slots[:, None] * theta)
            zq, zk = (torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) for x in (fq, fk))
            paired = (zq * turn[first : first + q.shape[2]]) @ (zk * turn).mH
            weights = paired.real.to(q.dtype).masked_fill(~seen, 0)
        values = weights @ v
        if self.normalise:
            values = ratio(values, total)
        if self.post == "softmax":
            values = values.softmax(-1).masked_fill(weighs_nothing(total) if self.normalise else total == 0, 0)
        return values


def _nonnegative(query_map: FeatureMap, key_map: FeatureMap) -> bool:
    """Whether no weight is below 0."""
    return (query_map.nonnegative and key_map.nonnegative) or (query_map is key_map and query_map.positive)
