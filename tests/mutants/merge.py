"""Mutants whose parts do not add up: log-sum-exps that are none, queries that depend on one another."""

# Mechanisms are final; only a mutant may break that.
# pyright: reportGeneralTypeIssues=false

import torch
from torch import Tensor

from regard.attention.kernel.lara import Lara
from regard.core.attention import Attended, Call
from tests.mutants import mutant
from tests.mutants.toys import ToyDense, ToyGated, ToyKernel


@mutant("mergeable")
class LseWithoutTheScale(ToyDense):
    """Adds up the exponentials of inner products that are not divided by sqrt(d)."""

    def log_sum(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().log_sum(logits * self.heads.key_dim**0.5, pairs)


@mutant("mergeable")
class LseOfHiddenKeys(ToyDense):
    """Adds up hidden keys too."""

    def log_sum(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().log_sum(logits, pairs | pairs.any(0, keepdim=True))


@mutant("mergeable")
class LseWithoutGradient(ToyDense):
    """Weighs the parts as if their shares were constants."""

    def log_sum(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().log_sum(logits, pairs).detach()


@mutant("mergeable")
class KeysUpToTheQueries(ToyDense):
    """Takes the last key for the last query's own, also where the keys end before the queries."""

    def allowed(self, queries: int, keys: int, call: Call) -> Tensor:
        start = min(call.query_start, keys - queries) if call.causal else call.query_start
        return super().allowed(queries, keys, call._replace(query_start=max(start, 0)))


@mutant("mergeable")
class GatesOfThePartAlone(ToyGated):
    """Leaves out the gates between the last key of a part and its queries."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        slot = torch.arange(call.inputs["log_gate"].shape[2])
        gates = call.inputs["log_gate"].masked_fill(slot >= logits.shape[3], 0)
        return super().biased(logits, call._replace(inputs={"log_gate": gates}))


@mutant("mergeable")
class ClaimsToMerge(ToyDense):
    """Divides by one more than the sum, and says that parts can be merged."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        share = super().log_sum(logits, pairs).sigmoid()[..., None]
        return super().normalise(logits, pairs) * share


@mutant("log_sum_exp")
class LseInHalf(ToyDense):
    """Hands the log-sum-exp on in the dtype of the inputs."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer if answer.lse is None else answer._replace(lse=answer.lse.to(q.dtype))


@mutant("log_sum_exp")
class LowestForNone(ToyDense):
    """Gives a query without keys the lowest number: beside another lowest, it counts for half."""

    def log_sum(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().log_sum(logits, pairs).clamp_min(-1e9)


@mutant("log_sum_exp")
class LseOfThePiece(ToyDense):
    """Adds up the keys of this call alone."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        if not call.past:
            return answer
        return answer._replace(lse=super().attend(q, k, v, call._replace(state=None, query_start=0)).lse)


@mutant("query_pieces")
class CentresQueries(ToyKernel):
    """Takes their mean off the queries of another sequence, in algorithm and definition alike."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q if call.causal else q - q.mean(2, keepdim=True), k, v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        return super().reference(q if call.causal else q - q.mean(2, keepdim=True), k, v, call)


@mutant("query_pieces")
class DistancesFromTheFirstOfACall(ToyDense):
    """Reads a bias as if the first query of a call stood at slot 0, wherever the call begins."""

    def biased(self, logits: Tensor, call: Call) -> Tensor:
        return super().biased(logits, call if call.causal else call._replace(query_start=0))


@mutant("queries_mix")
class ModestAboutQueries(Lara):
    """Serves each query on its own, and says that it mixes them."""

    samples = ({"num_landmarks": 3},)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        each = [super(ModestAboutQueries, self).attend(one, k, v, call).values for one in q.split(1, 2)]
        return Attended(torch.cat(each, 2))
