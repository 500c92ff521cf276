"""Mutants of kernel mechanisms: normalisers, stabilisers, decay and chunk boundaries that public code gets wrong."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from typing import Any
from unittest import mock

import torch
from torch import Tensor

from regard.attention.kernel.efficient import Efficient
from regard.attention.kernel.linear import Linear
from regard.attention.kernel.performer import Performer
from regard.attention.kernel.rfa import Rfa
from regard.core.attention import Attended, Call, Summary
from regard.engines.sums import channels, passes
from regard.engines.sums.passes import CHUNK
from regard.engines.sums.step import Averaged
from tests.mutants import mutant


@mutant("rows_sum_to_one")
class MissingDenominator(Linear):
    """Sums values under weights and divides by nothing."""

    def average(self, *args: Any, **given: Any) -> Averaged:
        return super().average(*args, **{**given, "normalise": False})


@mutant("reference")
class EpsilonInTheDenominator(Linear):
    """Divides by the total + 1e-6, as the paper's code does: rows of small weights shrink."""

    def average(self, *args: Any, **given: Any) -> Averaged:
        found = super().average(*args, **given)
        return found._replace(values=found.values * (found.total / (found.total + 1e-6))[..., None])


@mutant("reference")
class EpsilonInTheFeatures(Performer):
    """Adds 1e-4 of the largest key so far to every weight: pulls towards the mean of the keys."""

    samples = ({"num_features": 16},)

    def average(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **given: Any) -> Averaged:
        found = super().average(q, k, v, *args, **given)
        ones, mask = torch.ones_like(q[..., :1]), given["key_mask"]
        real = (
            torch.ones_like(k[..., :1]) if mask is None else mask[:, None, :, None].to(k.dtype).expand(k[..., :1].shape)
        )
        pairs = (ones @ real.repeat_interleave(self.heads.group, 1).mT).clone()
        pairs = pairs.tril(k.shape[2] - q.shape[2]) if self.heads.causal else pairs
        flat, total = pairs @ v.repeat_interleave(self.heads.group, 1), pairs.sum(-1)
        return found._replace(
            values=(found.values * found.total[..., None] + 1e-4 * flat)
            / (found.total + 1e-4 * total).clamp_min(1e-30)[..., None]
        )


@mutant("reference")
class StabiliserNotRescaled(Performer):
    """Carries its sums from chunk to chunk as they are when a larger key raises their scale."""

    samples = ({"num_features": 16},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        def unscaled(before: Tensor, s: Any, chunk: int, into: Tensor) -> Tensor:
            del s, chunk
            return into.copy_(before)

        with mock.patch.object(passes, "carried", unscaled):
            return super().attend(q, k, v, call)


@mutant("state_splits")
class StateNotRescaled(Performer):
    """Keeps the scale of the first piece for the sums of the next."""

    samples = ({"num_features": 16},)

    def after(self, past: Summary, result: Averaged, keys: int) -> Summary:
        state = super().after(past, result, keys)
        first = torch.where(past["top"].isneginf(), state["top"], past["top"])
        return Summary({**state.content, "top": first}, state.length)


@mutant("state_splits")
class StateNotDecayed(Rfa):
    """Hands on its sums as if this call's gates had forgotten nothing."""

    samples = ({"num_features": 32, "gate": True},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        if not isinstance(answer.state, Summary):
            return answer
        content = dict(answer.state.content)
        content["top"] = content["top"] - call.inputs["log_gate"].sum((2, 3)).detach()
        return answer._replace(state=Summary(content, answer.state.length))


@mutant("key_mask")
class PaddingForgets(Rfa):
    """Hidden keys add nothing, but their gates decay what came before."""

    samples = ({"num_features": 32, "gate": True},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if call.key_mask is None:
            return super().attend(q, k, v, call)
        gates = call.inputs["log_gate"].masked_fill(~call.key_mask[:, None, :, None], -0.5)
        return super().attend(q, k, v, call._replace(inputs={"log_gate": gates}))


@mutant("key_mask")
class PaddingInTheNormaliser(Linear):
    """Hidden keys have no value, but are counted in the denominator."""

    def average(self, *args: Any, **given: Any) -> Averaged:
        return super().average(*args, **{**given, "key_mask": None})


@mutant("reference")
class BoundaryCountedTwice(Linear):
    """Each chunk starts with the last key of the one before it, which the state already holds."""

    def average(self, q: Tensor, k: Tensor, v: Tensor, sum: Tensor, *args: Any, **given: Any) -> Averaged:
        if not self.heads.causal or q.shape[2] != k.shape[2] or given["key_mask"] is not None:
            return super().average(q, k, v, sum, *args, **given)
        parts = []
        for a in range(0, max(q.shape[2], 1), CHUNK):
            keys, b = slice(max(a - 1, 0), a + CHUNK), a + CHUNK
            parts.append(super().average(q[:, :, a:b], k[:, :, keys], v[:, :, keys], sum, *args, **given))
            sum = parts[-1].sum
        values, total = (torch.cat([part[i] for part in parts], 2) for i in (0, 1))
        return parts[-1]._replace(values=values, total=total)


@mutant("reference")
class OneNormaliserForAllChannels(Efficient):
    """The causal form of the code that is known for it: exp(k) divided by one sum over all channels."""

    def _averaged(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Tensor, dict[str, Tensor]]:
        values, content = super()._averaged(q, k, v, key_mask, past)
        if not self.heads.causal or key_mask is not None:
            return values, content
        pairs = (q.softmax(-1) @ k.exp().repeat_interleave(self.heads.group, 1).mT).tril(k.shape[2] - q.shape[2])
        return pairs @ v.repeat_interleave(self.heads.group, 1) / pairs.sum(-1, keepdim=True), content


@mutant("causality")
class PublishedNormaliserInCausalUse(Efficient):
    """Takes the softmax over all positions, as published, and sums up to the query only."""

    def _averaged(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Tensor, dict[str, Tensor]]:
        values, content = super()._averaged(q, k, v, key_mask, past)
        if not self.heads.causal or key_mask is not None:
            return values, content
        pairs = (q.softmax(-1) @ k.softmax(2).repeat_interleave(self.heads.group, 1).mT).tril(k.shape[2] - q.shape[2])
        return pairs @ v.repeat_interleave(self.heads.group, 1), content


@mutant("reference")
class ChannelsNotRescaled(Efficient):
    """Carries the sums of a channel from chunk to chunk as they are when a larger key raises its scale."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        exact = channels._chunks

        def unscaled(*chunk: Any) -> Any:
            found = exact(*chunk)
            return found._replace(carry=torch.ones_like(found.carry))

        with mock.patch.object(channels, "_chunks", unscaled):
            return super().attend(q, k, v, call)


@mutant("reference")
class NoUnitNorm(Rfa):
    """Gives the vectors to the random features as they are, so that the factors of the norms do not cancel."""

    samples = ({"num_features": 32},)

    def _sums(self, q: Tensor, k: Tensor, *args: Any) -> Any:
        with mock.patch("regard.attention.kernel.rfa.unit", lambda x: x):
            return super()._sums(q, k, *args)


@mutant("rows_sum_to_one")
class ClampedAtOne(Rfa):
    """Divides by at least 1, as the published code does: the first rows are smaller than they should be."""

    samples = ({"num_features": 32},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        with mock.patch("regard.attention.kernel.rfa.away_from_zero", lambda total: total.clamp_min(1)):
            return super().attend(q, k, v, call)
