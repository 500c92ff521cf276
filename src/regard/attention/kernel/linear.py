"""Linear attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.kernel import Kernel, ratio, visible
from regard.core import Attended, ScoreBias, State, Summary
from regard.engines.sums.forms import FORMS
from regard.engines.sums.passes import accumulator, divisor
from regard.engines.sums.sparsity import OF_OUTPUT, OF_ROWS, REGULARISERS, penalty
from regard.errors import ConfigError, UnsupportedError, nearest
from regard.features import FEATURE_MAPS, FeatureMap
from regard.features import feature_map as named
from regard.info import Heads, Info, Supports

IMPLS = ("auto", "reference", "torch", "triton", "fla", *FORMS)
BASE = 10_000.0
"""of the rotary frequencies (Su et al. 2021)"""


@final
class Linear(Kernel):
    """Linear attention: out_i = sum_{j <= i} phi(q_i) . phi(k_j) v_j / sum_{j <= i} phi(q_i) . phi(k_j).

    Our phi is the paper's phi (Eq. 7: elu(x) + 1), S_i = sum_{j <= i} phi(k_j) v_j^T its S_i (Eq. 10) and
    z_i = sum_{j <= i} phi(k_j) its Z_i (Eq. 11): out_i = phi(q_i) S_i / phi(q_i) . z_i (Eq. 12). No 1 / sqrt(dim).

    Cost: O(length x features x value) time, a state of features x (value + 1) numbers per head. Lost against softmax:
    weights are as sharp as phi allows, and distinct keys share the features.

    There is no epsilon in the denominator (the paper's code adds 1e-6): a row whose weights sum to exactly 0 gives 0.

    Args:
        feature_map: of queries and keys: elu_plus_one, relu, sigmoid, softmax_features, taylor, identity.
        key_feature_map: of keys; None: the same.
        normalise: divide by the sum of the weights. `identity` is signed, its sum may vanish: it takes False.
        rotary: turn pairs of features by their slots, in the numerator only (the denominator stays positive).
        post: "softmax" takes a softmax over the channels of the output.
        regulariser: a loss in training that presses to sparsity: "output_l1" or "output_l1_sum" of the output,
            "score_l1" of the weights before they are normalised, "entropy", "hoyer" (1 - sparseness) or "l_half" of
            normalised rows, means over rows in O(queries x keys) time.
        regulariser_weight: of that loss.
        impl: "auto" and "torch" are the chunked operator; "quadratic", "recurrent" and "cumsum" the other forms of the
            same sum, with O(queries x keys), O(length) sequential and O(length x features x value) memory; "triton" and
            "fla" (flash-linear-attention) the chunked form as GPU kernels, causal only; "reference" the definition (no
            state).

    Raises:
        ConfigError: an unknown or random feature map, maps of different sizes, signed features with normalise=True,
            rotary with an odd number of features, an unknown regulariser, one of weights that may be negative.
        UnsupportedError: impl="triton" or impl="fla" where the package or a CUDA device is missing.

    Example:
        >>> import torch
        >>> from regard.core import Heads
        >>> attention = Linear(Heads(count=2, key_dim=8, causal=True), feature_map="relu")
        >>> attention(*torch.randn(3, 1, 2, 5, 8)).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Katharopoulos et al. 2020, Eqs. 4-12; rotary: Su et al. 2021, Eq. 19; taylor: second-order exp.
    """

    info = Info(
        title="Linear attention",
        source="Katharopoulos et al. 2020, Transformers are RNNs, arXiv:2006.16236, Eqs. 4-12",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"rotary": True, "regulariser": "output_l1_sum"},
        {"feature_map": "identity", "normalise": False, "regulariser": "output_l1"},
        {"feature_map": "taylor", "post": "softmax", "regulariser": "score_l1"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "impl='triton' and impl='fla' are causal only",
        "bias": "its weights are products of features, so no term can be added to a logit",
        "cross": "rotary features need one sequence of slots, and impl='triton' and impl='fla' are causal only",
        "state": "impl='reference' has none",
    }

    def __init__(
        self,
        heads: Heads,
        *,
        feature_map: Literal[
            "elu_plus_one", "relu", "sigmoid", "identity", "softmax_features", "taylor"
        ] = "elu_plus_one",
        key_feature_map: str | None = None,
        normalise: bool = True,
        rotary: bool = False,
        post: Literal["none", "softmax"] = "none",
        regulariser: Literal["none", "output_l1", "output_l1_sum", "score_l1", "entropy", "hoyer", "l_half"] = "none",
        regulariser_weight: float = 0.01,
        impl: Literal["auto", "reference", "torch", "triton", "fla", "quadratic", "recurrent", "cumsum"] = "auto",
    ) -> None:
        super().__init__(
            heads,
            feature_map=feature_map,
            key_feature_map=key_feature_map,
            normalise=normalise,
            rotary=rotary,
            post=post,
            regulariser=regulariser,
            regulariser_weight=regulariser_weight,
            impl=impl,
        )
        self.query_map = _plain_map(feature_map)
        self.key_map = _plain_map(feature_map if key_feature_map is None else key_feature_map)
        self.feature_map, self.key_feature_map = feature_map, key_feature_map
        self.normalise, self.rotary, self.post, self.impl = normalise, rotary, post, impl
        self.features = self.key_map.count(heads.key_dim)
        if impl not in IMPLS:
            raise ConfigError(f"linear has no impl={impl!r}; it has {', '.join(IMPLS)}")
        if impl in ("triton", "fla"):
            from regard.engines.gpu.linear import kernels

            kernels(impl).require()
        if post not in ("none", "softmax"):
            raise ConfigError(f"linear has no post={post!r}; it has none, softmax")
        self._check_regulariser(regulariser, regulariser_weight)
        if self.query_map.count(heads.key_dim) != self.features:
            raise ConfigError(
                f"linear compares features of one size, got feature_map={self.query_map.name!r} with "
                f"{self.query_map.count(heads.key_dim)} and key_feature_map={self.key_map.name!r} with {self.features}"
            )
        if normalise and not _nonnegative(self.query_map, self.key_map):
            raise ConfigError(
                f"linear(feature_map={self.query_map.name!r}, key_feature_map={self.key_map.name!r}) has signed "
                "weights, whose sum may vanish; pass normalise=False"
            )
        if rotary and self.features % 2:
            raise ConfigError(f"linear(rotary=True) turns pairs of features, got {self.features}; it must be even")

    def _check_regulariser(self, regulariser: str, weight: float) -> None:
        if regulariser not in REGULARISERS:
            raise ConfigError(f"linear has no regulariser={regulariser!r}: {nearest(regulariser, REGULARISERS)}")
        if weight < 0:
            raise ConfigError(f"linear: regulariser_weight must be at least 0, got {weight}")
        signed = self.rotary or not _nonnegative(self.query_map, self.key_map)
        if signed and regulariser not in ("none", *OF_OUTPUT):
            raise ConfigError(
                f"linear(regulariser={regulariser!r}) takes weights that cannot be negative, got feature_map="
                f"{self.query_map.name!r}, rotary={self.rotary}; 'output_l1' takes any"
            )
        if regulariser != "none" and self.impl == "reference":
            raise ConfigError("linear(impl='reference') has no regulariser; impl='auto' has")
        self.regulariser, self.regulariser_weight = regulariser, weight

    @classmethod
    def facts(cls, **options: object) -> Info:
        names = options.get("feature_map", "elu_plus_one"), options.get("key_feature_map")
        query_map, key_map = (_plain_map(str(names[0] if x is None else x)) for x in names)
        normalise, rotary = options.get("normalise", True), options.get("rotary", False)
        softmax, impl = options.get("post") == "softmax", options.get("impl")
        regulariser, weight = str(options.get("regulariser", "none")), options.get("regulariser_weight", 0.01)
        explicit = impl in ("reference", "quadratic")
        return replace(
            cls.info,
            supports=replace(
                cls.info.supports,
                bidirectional=impl not in ("triton", "fla"),
                cross=not rotary and impl not in ("triton", "fla"),
                state=impl != "reference",
            ),
            time=2 if explicit or regulariser in OF_ROWS else 1,
            memory=2 if explicit else 1,
            state="none" if impl == "reference" else "constant",
            # relu features of a query and of every key may be disjoint: such a row is 0
            rows_sum_to_one=bool(normalise and not rotary and not softmax and query_map.positive and key_map.positive),
            nonnegative=not rotary and not softmax and _nonnegative(query_map, key_map),
            linear_in_value=not softmax,
            affine_in_value=not softmax,
            sees_content_only=not rotary,
            losses={} if regulariser == "none" else {regulariser: weight},
        )

    def by_sums(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, state: State | None) -> Attended:
        past = self.past(state, q)
        rotation = self._rotation(past.length, k) if self.rotary else None
        if self.post == "softmax":  # must see what was accumulated, not its rounding
            q, k, v = (x.to(accumulator(x.dtype)) for x in (q, k, v))
        divide = self.normalise and not self.rotary
        result = self.average(q, k, v, past["sum"], key_mask=key_mask, rotation=rotation, normalise=divide)
        values, total, content = result.values, result.total, {"sum": result.sum}
        if self.normalise and self.rotary:
            plain = self.average(q, k, v[..., :0], past["total"], key_mask=key_mask, normalise=False)
            total, content["total"] = plain.total, plain.sum
            values = (values / divisor(total)[..., None]).to(q.dtype)
        if self.post == "softmax":
            values = values.softmax(-1).masked_fill((total == 0)[..., None], 0)  # a row without keys stays 0
        losses = {}
        if self.training and self.regulariser != "none":
            if past.length and self.regulariser in OF_ROWS:
                raise UnsupportedError(
                    f"linear(regulariser={self.regulariser!r}) needs every key, and a state holds only their sum; "
                    "train without a state, or take regulariser='score_l1'"
                )
            maps = self.query_map, self.key_map
            loss = penalty(self.regulariser, values, total, q, k, maps, key_mask, self.heads.causal)
            losses = {self.regulariser: loss}
        return Attended(values, None if state is None else Summary(content, past.length + k.shape[2]), losses)

    def _rotation(self, past: int, k: Tensor) -> Tensor:
        """Cosines and sines of slot x theta_c, theta_c = 10000^(-2 c / features), for the slots of `k`."""
        precise = torch.float32 if k.device.type == "mps" else torch.float64
        slots = torch.arange(past, past + k.shape[2], device=k.device, dtype=precise)
        pairs = torch.arange(self.features // 2, device=k.device, dtype=precise)
        angle = slots[:, None] * BASE ** (-2 * pairs / self.features)
        return torch.stack([angle.cos(), angle.sin()]).to(accumulator(k.dtype))

    def start(self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Summary:
        start = super().start(batch, device=device, dtype=dtype)
        if self.rotary and self.normalise:
            return Summary({"sum": start["sum"], "total": start["sum"][..., :1].clone()})
        return start

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Constant: features x (value + 1) numbers per head of keys; rotary keeps its denominators apart."""
        size = super().state_nbytes(batch, length, dtype)
        if self.rotary and self.normalise:
            size += batch * self.heads.kv_heads * self.features * accumulator(dtype).itemsize
        return size

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Every weight phi(q_i) . phi(k_j), masked, divided by its row's sum."""
        del bias, marks
        group, queries, keys = self.heads.group, q.shape[2], k.shape[2]
        fq = _definition(self.query_map.name, q)
        fk = _definition(self.key_map.name, k).repeat_interleave(group, 1)
        seen = visible(q, k, self.heads.causal, key_mask)
        weights = (fq @ fk.mT).masked_fill(~seen, 0)
        total = weights.sum(-1, keepdim=True)
        if self.rotary:
            slots = torch.arange(keys, device=q.device, dtype=torch.float64)
            theta = BASE ** (-torch.arange(0, self.features, 2, device=q.device) / self.features).double()
            turn = torch.polar(torch.ones(keys, self.features // 2).double().to(q.device), slots[:, None] * theta)
            zq, zk = (torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) for x in (fq, fk))
            paired = (zq * turn[keys - queries :]) @ (zk * turn).mH
            weights = paired.real.to(q.dtype).masked_fill(~seen, 0)
        values = weights @ v.repeat_interleave(group, 1)
        if self.normalise:
            values = ratio(values, total)
        if self.post == "softmax":
            values = values.softmax(-1) * seen.any(-1, keepdim=True)
        return values


def _plain_map(name: str) -> FeatureMap:
    """A map without a projection."""
    map_ = named(name)
    if map_.random:
        plain = ", ".join(x for x, known in FEATURE_MAPS.items() if not known.random)
        raise ConfigError(f"linear takes a fixed feature map ({plain}), got {name!r}; random ones belong to performer")
    return map_


def _nonnegative(query_map: FeatureMap, key_map: FeatureMap) -> bool:
    """Whether no weight is below 0."""
    return (query_map.nonnegative and key_map.nonnegative) or (query_map is key_map and query_map.positive)


def _definition(name: str, x: Tensor) -> Tensor:
    if name == "elu_plus_one":
        return torch.where(x > 0, x + 1, torch.exp(x.clamp_max(0)))
    if name == "relu":
        return x.clamp_min(0)
    if name == "sigmoid":
        return 1 / (1 + torch.exp(-x))
    if name == "softmax_features":
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)
    if name == "taylor":
        products = torch.einsum("...a,...b->...ab", x, x).flatten(-2)
        return torch.cat([x.new_ones(*x.shape[:-1], 1), x, products / 2**0.5], -1)
    assert name == "identity", name
    return x
