"""Mutants of mechanisms of the catalog: mistakes that their published implementations have made."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.dense.softmax import Softmax
from regard.attention.dense.uniform import Uniform
from regard.attention.kernel.linear import Linear
from regard.attention.kernel.performer import Performer
from regard.attention.lowrank.linformer import Linformer
from regard.attention.routed.lsh import Lsh
from regard.attention.routed.vector_quantized import VectorQuantized
from regard.attention.sparse.local import Local
from regard.attention.synthesized.dense_synthesizer import DenseSynthesizer
from regard.core.attention import Attended, Call
from regard.core.state import Slots
from regard_lab.published.lsh_published import LshPublished
from regard_lab.published.performer_published import PerformerPublished
from tests.mutants import mutant


@mutant("prefix")
class TorchCausal(Softmax):
    """Uses torch's `is_causal`, which is upper-left."""

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().average(q, k, v, call)
        if not call.causal or call.key_mask is not None or call.bias is not None:
            return answer
        return answer._replace(values=F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


@mutant("causality")
class ChunkedHashes(Lsh):
    """Chunks sorted buckets, so that future tokens move the borders."""

    samples = ({"num_buckets": 2, "rounds": 1, "bucket_size": 2},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return LshPublished(self.heads, num_buckets=2, rounds=1, bucket_size=2).attend(q, k, v, call)


@mutant("causality")
class MaximumOfAllKeys(Performer):
    """Stabilises with the largest key of the sequence, in the mechanism that is causal."""

    samples = ({},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return PerformerPublished(self.heads).attend(q, k, v, call)


@mutant("rows_sum_to_one")
class ClaimsToNormalise(Linear):
    """Divides by nothing, whatever was asked for."""

    def setup(self) -> None:
        self.normalise = False
        super().setup()


@mutant("linear_in_value")
class ClaimsLinearMaximum(Uniform):
    """Takes a maximum for the mean."""

    def setup(self) -> None:
        self.pool = "max"
        super().setup()


@mutant("length_limit")
class BeyondItsWeights(Linformer):
    """Cuts a sequence that is longer than its projection."""

    def check_length(self, length: int) -> None:
        del length

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        limit = self.heads.max_length
        return super().attend(q, k[:, :, :limit], v[:, :, :limit], call)


@mutant("causality")
class ProjectsTheFuture(Softmax):
    """Projects its values over all positions, as Linformer does, and sees those up to the query."""

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        slots = torch.arange(v.shape[2], dtype=v.dtype)
        return super().average(q, k, v + 0.1 * torch.cos(slots[:, None] * slots) @ v, call)


@mutant("state_splits")
class OneSlotTooFew(Local):
    """Drops the oldest slot that its window still reaches."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        state = answer.state
        return answer._replace(state=state.drop(1)) if isinstance(state, Slots) and state.kept else answer


@mutant("evaluation")
class LearnsInEvaluation(VectorQuantized):
    """Moves its codebook whenever it is called."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        with torch.no_grad():
            self.code_sum.mul_(0.99)
        return answer


@mutant("losses")
class ForgetsTheCommitment(VectorQuantized):
    """Trains without its loss."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call)._replace(losses={})


@mutant("left_padding_refusal")
class ShiftedSlots(DenseSynthesizer):
    """Serves padded sequences with the weights of other slots."""

    def setup(self) -> None:
        super().setup()
        self.info = replace(self.info, anchored=False)
