"""The kernel template: weights phi_q(q_i) . phi_k(k_j), so that keys and values are summed once."""

from typing import Literal

import torch
from torch import Tensor

from regard.core.attention import Attended, Attention, Call
from regard.core.state import Entry, Summary, constant
from regard.engines.sums.engine import kernel_average
from regard.engines.sums.step import Averaged
from regard.features.maps import FEATURE_MAPS, FeatureMap


class Kernel(Attention):
    """Template: out_i = sum_j phi_q(q_i) . phi_k(k_j) v_j / sum_j phi_q(q_i) . phi_k(k_j).

    A mechanism says which maps these are (`query_map`, `key_map`), by what queries and keys are multiplied before them
    (`scale`), and which projection random ones take (`projection_now`). The state is constant, in float32 at least:
    `sum`, whose last column is the normaliser's, and `top`, the largest log scale so far, where the key map has one.
    """

    feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor"] = "elu_plus_one"
    """phi, of queries and keys"""

    @property
    def query_map(self) -> FeatureMap:
        """phi_q."""
        return FEATURE_MAPS[self.feature_map]

    @property
    def key_map(self) -> FeatureMap:
        """phi_k; by default phi_q."""
        return self.query_map

    @property
    def scale(self) -> float:
        """The factor of queries and keys before their maps."""
        return 1.0

    def projection_now(self) -> Tensor | None:
        """The projection of this call, (kv_heads, rows, dim), where the maps are random."""
        return None

    @property
    def features(self) -> int:
        """Features of a key."""
        return self.key_map.count(self.heads.key_dim)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Add this call's keys to the sums, and read them for each query."""
        past = call.state
        if past is None:
            return Attended(self.average(q, k, v, key_mask=call.key_mask).values)
        assert isinstance(past, Summary)
        result = self.average(q, k, v, past["sum"], past.content.get("top"), key_mask=call.key_mask)
        return Attended(result.values, self.after(past, result, k.shape[2]))

    def average(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sum: Tensor | None = None,
        top: Tensor | None = None,
        *,
        key_mask: Tensor | None,
        log_weight: Tensor | None = None,
        normalise: bool = True,
    ) -> Averaged:
        """The average under these maps; arguments as those of `kernel_average`."""
        q, log = self.query_map.lift(q) if normalise else (q, None)
        result = kernel_average(
            q,
            k,
            v,
            sum,
            top,
            query_map=self.query_map.name,
            key_map=self.key_map.name,
            causal=self.heads.causal,
            normalise=normalise,
            scale=self.scale,
            projection=self.projection_now(),
            log_weight=log_weight,
            key_mask=key_mask,
        )
        return result if log is None else result._replace(total=result.total * log.to(result.total.dtype).exp())

    def after(self, past: Summary, result: Averaged, keys: int) -> Summary:
        """The state behind this call's keys."""
        content = {"sum": result.sum, "top": result.top}
        return Summary({name: content[name] for name in past.content}, past.length + keys)

    def state_layout(self) -> dict[str, Entry]:
        """The sums, and their scale."""
        heads, log_scale = self.heads, self.key_map.log_scale
        sums = constant(heads.kv_heads, self.features, heads.value_width + 1, dtype="accumulation")
        top = constant(heads.kv_heads, dtype="accumulation", fill=float("-inf"))
        return {"sum": sums, "top": top} if log_scale else {"sum": sums}


def ratio(numerator: Tensor, total: Tensor) -> Tensor:
    """For definitions: numerator / total, 0 where the weights of a row sum to 0, or to next to nothing; NaN by inf."""
    none = weighs_nothing(total)
    return torch.where(none, 0, numerator / torch.where(none, 1, total.masked_fill(total.isinf(), float("nan"))))


def weighs_nothing(total: Tensor) -> Tensor:
    """For definitions: rows whose weights sum to 0, or to next to nothing."""
    return total.abs() < 2**13 * torch.finfo(total.dtype).tiny


def defined_features(name: str, x: Tensor) -> Tensor:
    """For definitions: the features that a feature map of this name gives, written out."""
    match name:
        case "elu_plus_one":
            return torch.where(x > 0, x + 1, torch.exp(x.clamp_max(0)))
        case "relu":
            return x.clamp_min(0)
        case "sigmoid":
            return 1 / (1 + torch.exp(-x))
        case "softmax_features":
            e = torch.exp(x - x.amax(-1, keepdim=True))
            return e / e.sum(-1, keepdim=True)
        case "taylor":
            products = torch.einsum("...a,...b->...ab", x, x).flatten(-2)
            return torch.cat([x.new_ones(*x.shape[:-1], 1), x, products / 2**0.5], -1)
        case _:
            return x
