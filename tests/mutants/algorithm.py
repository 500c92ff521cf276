"""Mutants that compute something else: leaks, masks, scores, precision."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.options import weight
from tests.mutants import mutant
from tests.mutants.toys import (
    ToyBuckets,
    ToyDense,
    ToyFeatures,
    ToyKernel,
    allowed_pairs,
    expanded,
    positions,
)


@mutant("causality")
class CausalOffByOne(ToyDense):
    """Sees one token ahead."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        i, j = positions(queries, keys, call)
        ahead = super().allowed(queries, keys, call) | (j == i + 1)
        return ahead if call.key_mask is None else ahead & call.key_mask[:, None, None]


@mutant("causality_beyond_sizes")
class LeaksAtATileBorder(ToyDense):
    """Rounds the last visible key up to the end of its tile of 64, once there is more than one."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        i, j = positions(queries, keys, call)
        border = super().allowed(queries, keys, call) | ((i >= 64) & (j // 64 == i // 64))
        return border if call.key_mask is None else border & call.key_mask[:, None, None]


@mutant("causality")
class FutureSelectionLeak(ToyBuckets):
    """Splits the keys at their median, which depends on keys to come."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        exact = k.detach().to(accumulation_dtype(k.dtype)) @ self.plane.to(torch.float32).to(k.dtype)
        middle = exact.median(-1, keepdim=True).values
        side = exact > middle
        near = side[..., k.shape[2] - q.shape[2] :, None] == side[..., None, :]
        i, j = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])[None]
        return ToyDense.score(self, q, k).masked_fill(~(near | (i == j)), float("-inf"))


@mutant("causality")
class KeyMaximumLeak(ToyFeatures):
    """Stabilises with the largest key of the whole sequence beside an epsilon."""

    def walk(self, fq: Tensor, fk: Tensor, v: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return super().walk(fq, fk / fk.amax((2, 3), keepdim=True) + 1e-3, v, past)


@mutant("causality_of_gradients")
class GradientLeak(ToyDense):
    """Adds the mean value minus itself: no effect on the output, but gradients flow from the future."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        mean = expanded(v, q.shape[1]).mean(2, keepdim=True)
        return answer._replace(values=answer.values + (mean - mean.detach()))


@mutant("power")
class SkipsItself(ToyDense):
    """Causal without the own position."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        i, j = positions(queries, keys, call)
        pairs = super().allowed(queries, keys, call)
        return pairs & (j < i) if call.causal else pairs


@mutant("power")
class NeverLooksAhead(ToyDense):
    """Stays causal when it was built not to be."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        return allowed_pairs(queries, keys, call._replace(causal=True))


@mutant("prefix")
class UpperLeftCausal(ToyDense):
    """Aligns the queries with the first keys, as torch's `is_causal` does."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        return super().allowed(queries, keys, call._replace(query_start=0) if call.causal else call)


@mutant("odd_sizes")
class SeesAsManyKeysAsQueries(ToyDense):
    """Uses the first n keys of another sequence for n queries."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        pairs = super().allowed(queries, keys, call)
        return pairs if call.causal else pairs & (torch.arange(keys) < queries)


@mutant("key_mask")
class IgnoresMask(ToyDense):
    """Drops the mask."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        return super().allowed(queries, keys, call._replace(key_mask=None))


@mutant("key_mask")
class InvertsMask(ToyDense):
    """Reads True as hidden."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        return super().allowed(queries, keys, call if call.key_mask is None else call._replace(key_mask=~call.key_mask))


@mutant("masked_content")
class KeysFromQueries(ToyBuckets):
    """Shares one projection, and takes the keys from where nothing was hidden."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        same = q.shape[1] == k.shape[1] and q.shape[2] == k.shape[2]
        return super().attend(q, q if same else k, v, call)

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        weight = (logits - logits.amax(-1, keepdim=True).detach()).exp() * pairs
        return weight / weight.sum(-1, keepdim=True).clamp_min(1e-30)


@mutant("masked_content")
class MasksByMultiplication(ToyDense):
    """Multiplies keys and values by the mask: 0 times NaN is NaN."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **given: Any) -> Attended:  # type: ignore[override,misc]
        del given
        if key_mask is not None:
            k, v = (x * key_mask[:, None, :, None] for x in (k, v))
        return self.attend(q, k, v, self._call(q, k, key_mask, None, None, {}, None))


@mutant("masked_gradients")
class RootOfZero(ToyDense):
    """Takes the norm of keys that are 0 under the mask: the gradient of the gain is not a number."""

    gain: nn.Parameter = weight()

    def setup(self) -> None:
        self.gain = nn.Parameter(torch.ones(self.heads.key_dim))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        k = k * self.gain.to(k.dtype)
        return super().score(q, k / (1 + k.square().sum(-1, keepdim=True).sqrt()))


@mutant("empty_rows")
class EmptyRowNaN(ToyDense):
    """Takes the softmax of a row of -inf."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return logits.masked_fill(~pairs, float("-inf")).softmax(-1)


@mutant("empty_rows")
class EmptyRowUniform(ToyDense):
    """Fills with -1e9, so that a query without keys averages all of them."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return logits.masked_fill(~pairs, -1e9).softmax(-1)


@mutant("right_padding")
class LengthNormaliser(ToyDense):
    """Scales the logits by the length of the call, padding included."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * torch.tensor(float(k.shape[2] + 1)).log().to(q.dtype)


@mutant("reference")
class ComputesInSingle(ToyDense):
    """Computes float64 inputs in float32."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q.float(), k.float()).to(q.dtype)


@mutant("replayed_choices")
class ChoosesInHalf(ToyBuckets):
    """Chooses in bfloat16, and reports what exact numbers would choose."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        near = [x.bfloat16() @ self.plane.bfloat16() > 0 for x in (q.detach(), k.detach())]
        same = near[0][..., :, None] == near[1][..., None, :]
        i, j = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2], torch.arange(k.shape[2])[None]
        return ToyDense.score(self, q, k).masked_fill(~(same | (i == j)), float("-inf"))


@mutant("reference_float32")
class ComputesInHalf(ToyDense):
    """Computes the scores of float32 inputs in bfloat16."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if q.dtype != torch.float32:
            return super().score(q, k)
        return super().score(q.bfloat16(), k.bfloat16()).float()


@mutant("bfloat16")
class AccumulatesInHalf(ToyKernel):
    """Keeps its running sums in bfloat16 when the inputs are."""

    chunk = 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        self.in_half = q.dtype == torch.bfloat16
        return super().attend(q, k, v, call)

    def running(self, sums: Tensor) -> Tensor:
        if not self.in_half:
            return super().running(sums)
        total, out = torch.zeros_like(sums[:, :, 0]).bfloat16(), []
        for piece in sums.unbind(2):
            total = total + piece.bfloat16()
            out.append(total)
        return torch.stack(out, 2).to(sums.dtype)

    def all_keys(self, fq: Tensor, fk: Tensor, v: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        out, total = super().all_keys(fq, fk, v, past)
        return (out.bfloat16().to(out.dtype), total) if self.in_half else (out, total)


@mutant("autocast")
class ShiftsBeforeTheProduct(ToyDense):
    """Takes 64 off the queries behind a product that autocast has rounded."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        shifted = (q + 64) @ torch.eye(q.shape[-1], dtype=q.dtype) - 64
        return super().attend(shifted.to(q.dtype), k, v, call)


@mutant("huge_logits")
class NoMaximum(ToyDense):
    """Exponentiates without subtracting the row maximum."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        weight = logits.exp() * pairs
        return weight / weight.sum(-1, keepdim=True).clamp_min(1e-30)


@mutant("odd_sizes")
class WrongWhenEven(ToyDense):
    """Skips the middle key of an even number of keys."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        pairs = super().allowed(queries, keys, call)
        return pairs & (torch.arange(keys) != keys // 2) if keys % 2 == 0 and keys > 2 else pairs


@mutant("odd_sizes")
class DividesByVariance(ToyDense):
    """Standardises the logits of a row, which a single key does not allow."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().score(q, k)
        return logits if k.shape[2] > 1 else logits / (logits - logits.mean(-1, keepdim=True))


@mutant("rows_sum_to_one")
class BiasedNormaliser(ToyKernel):
    """Adds a visible epsilon to the normaliser."""

    def divide(self, out: Tensor) -> Tensor:
        return out[..., :-1] / (out[..., -1:] + 1e-2)


@mutant("grouped_heads")
class WrongHeadMapping(ToyDense):
    """Gives the heads of a group to alternating keys."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        order = torch.arange(q.shape[1]).reshape(-1, self.heads.kv_heads).mT.flatten()
        answer = super().attend(q[:, order], k, v, call)
        return answer._replace(values=answer.values[:, order.argsort()])


@mutant("nan")
class LosesTheNanOfAQuery(ToyDense):
    """Takes the maximum of a row by comparisons, which NaN fails: such a row counts as one without keys."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        lost = logits.isnan().all(-1, keepdim=True)
        return super().normalise(logits.masked_fill(lost, float("-inf")), pairs)


@mutant("nan")
class LosesTheNanOfAKey(ToyDense):
    """Sees only the keys whose logit is above -inf, which NaN is not."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().normalise(logits, pairs & (~logits.isnan() | logits.isnan().all(-1, keepdim=True)))
