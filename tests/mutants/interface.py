"""Mutants that break the rules around the algorithm: randomness, purity, sizes, losses, costs, graphs."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.core.attention import Attended, Call, recomputing
from regard.core.options import Options
from tests.mutants import mutant
from tests.mutants.toys import ToyCodes, ToyDense, ToyFeatures, ToyKernel, ToyMarked, ToyTable, ToyWindow, expanded


@mutant("options")
class ForgetsOption(ToyWindow):
    """Accepts a window, and uses its own."""

    def setup(self) -> None:
        self.window = 4


@mutant("options")
class SwallowsOptions(ToyWindow):
    """Accepts any option, and ignores those it does not know."""

    @classmethod
    def filled(cls, given: Mapping[str, object], label: str) -> Options:
        return super().filled({name: value for name, value in given.items() if name in cls.defaults}, label)


@mutant("options")
class IgnoresBounds(ToyWindow):
    """Checks the types of its options, and takes the nearest number within their bounds."""

    @classmethod
    def filled(cls, given: Mapping[str, object], label: str) -> Options:
        near = {n: max(value, 0) if isinstance(value, int) else value for n, value in given.items()}
        return super().filled(near, label)


@mutant("options")
class KeepsOnlyWhatWasGiven(ToyWindow):
    """Keeps the options that were given, and not the defaults of the others."""

    def check_options(self) -> None:
        self.options = Options({name: value for name, value in self.options.items() if name == "window"})


@mutant("shapes")
class DropsAChannel(ToyDense):
    """Returns one value channel too few."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(values=answer.values[..., :-1])


@mutant("shapes")
class StateUnasked(ToyDense):
    """Returns a state although none was passed."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(state=answer.state or self.initial_state(q.shape[0]))


@mutant("shapes")
class LseUnasked(ToyDense):
    """Returns a log-sum-exp although nobody asked for it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call._replace(lse=True))


@mutant("inputs_untouched")
class EditsInput(ToyDense):
    """Scales the queries in place."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        with torch.no_grad():
            q.mul_(0.5)
        return super().attend(2 * q, k, v, call)


@mutant("inputs_untouched")
class EditsAndRestoresInput(ToyDense):
    """Scales the queries in place and scales them back."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        with torch.no_grad():
            q.mul_(0.5).mul_(2)
        return super().attend(q, k, v, call)


@mutant("determinism")
class HiddenRandomness(ToyFeatures):
    """Draws its features anew from the global generator in every call."""

    def features(self, x: Tensor) -> Tensor:
        return super().features(x + 1e-3 * torch.randn(x.shape[-1], dtype=x.dtype))


@mutant("determinism")
class UnseededInit(ToyTable):
    """Initialises its weights from the global generator."""

    def setup(self) -> None:
        super().setup()
        self.slots = nn.Parameter(torch.randn(self.slots.shape))


@mutant("evaluation")
class EvalUpdatesBuffer(ToyCodes):
    """Moves its codes in evaluation too."""

    def nearest(self, k: Tensor) -> Tensor:
        found = super().nearest(k)
        with torch.no_grad():
            self.codes.mul_(0.99)
        return found


@mutant("evaluation")
class UnregisteredMemory(ToyDense):
    """Remembers its training inputs in a plain attribute that evaluation uses."""

    offset = 0.0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        if self.training:
            self.offset = k.mean().item()
            return super().attend(q, k, v, call)
        return super().attend(q + self.offset, k, v, call)


@mutant("evaluation")
class OtherScaleInTraining(ToyDense):
    """Softens its weights in training."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * (0.5 if self.training else 1.0)


@mutant("head_shapes")
class AssumesEvenHeads(ToyDense):
    """Exchanges the heads in pairs and back, which loses the last of an odd number."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        pairs = answer.values[:, : answer.values.shape[1] // 2 * 2]
        return answer._replace(values=torch.cat([pairs, 0 * answer.values[:, pairs.shape[1] :]], 1))


@mutant("head_shapes")
class AssumesNarrowValues(ToyKernel):
    """Keeps no more value channels than there are key channels."""

    def divide(self, out: Tensor) -> Tensor:
        values = super().divide(out)
        return torch.cat([values[..., : self.heads.key_dim], 0 * values[..., self.heads.key_dim :]], -1)


@mutant("marks")
class IgnoresMarks(ToyMarked):
    """Drops the marks."""

    def seen(self, pairs: Tensor, call: Call) -> Tensor:
        return super().seen(pairs, call._replace(marks=None))


@mutant("marks")
class MarksBeatTheMask(ToyMarked):
    """Shows every key once some are marked."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call if call.marks is None else call._replace(key_mask=None))


@mutant("redraw")
class DrawsOnlyOnce(ToyFeatures):
    """Is stochastic, and has nothing to draw again."""

    def redraw(self, generator: torch.Generator) -> None:
        del generator


@mutant("redraw")
class RedrawsGlobally(ToyFeatures):
    """Draws again from the global generator."""

    def redraw(self, generator: torch.Generator) -> None:
        self.omega.copy_(torch.randn(self.omega.shape))


@mutant("batch_independence")
class BatchMaximum(ToyDense):
    """Stabilises with one maximum for the whole batch: neighbours move the last bits."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().normalise(logits - logits.amax().detach(), pairs)


@mutant("length_limit")
class WrapsAround(ToyTable):
    """Reuses its first slots beyond the length it was built for."""

    def require_length(self, length: int) -> None:
        del length

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        slots = self.slots[:, torch.arange(k.shape[2]) % self.slots.shape[1]]
        return F.gelu(q) @ slots.to(q.dtype)


@mutant("memory_layout")
class ViewsInputs(ToyDense):
    """Takes the queries for rows that follow one another in memory."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(torch.as_strided(q, q.shape, torch.empty(q.shape).stride()), k, v, call)


@mutant("round_trip")
class WeightsOutsideState(ToyFeatures):
    """Keeps its random features out of state_dict."""

    def setup(self) -> None:
        super().setup()
        self.register_buffer("omega", self.omega, persistent=False)


@mutant("recomputation")
class CountsRecomputation(ToyCodes):
    """Counts a step again when a checkpointed block is computed again."""

    def commitment(self, k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
        self.steps.add_(1)
        return super().commitment(k, code, key_mask)


@mutant("recomputation")
class LearnsBeforeRecomputation(ToyCodes):
    """Moves its codes at the end of a training call, so that a checkpointed block is computed again with others."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        if self.training and not recomputing():
            with torch.no_grad():
                self.codes.mul_(0.9)
        return answer


@mutant("losses")
class DroppedLoss(ToyCodes):
    """Declares a loss and returns none."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        return super().attend(q, k, v, call)._replace(losses={})


@mutant("losses")
class LossInEval(ToyCodes):
    """Returns its loss in evaluation too."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(losses={"commitment": self.commitment(k, self.nearest(k), call.key_mask)})


@mutant("losses")
class LossCountsHidden(ToyCodes):
    """Averages its loss over hidden keys too, which were replaced by 0."""

    def commitment(self, k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().commitment(k, code, None)


@mutant("losses")
class LossWithoutGradient(ToyCodes):
    """Detaches its loss."""

    def commitment(self, k: Tensor, code: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().commitment(k, code, key_mask).detach()


@mutant("dropout")
class IgnoresDropout(ToyDense):
    """Accepts a dropout, and drops nothing."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        training, self.training = self.training, False
        try:
            return super().attend(q, k, v, call)
        finally:
            self.training = training


@mutant("dropout")
class DropoutWithoutRescaling(ToyDense):
    """Drops weights, and does not make up for them."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(values=answer.values * (1 - self.heads.dropout)) if self.training else answer


@mutant("dropout")
class DropoutRescaledTooMuch(ToyDense):
    """Makes up for dropped weights by 4 % too much, which no value shows by itself."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        return answer._replace(values=answer.values * 1.04) if self.training else answer


@mutant("dropout")
class DropoutOffInOneValue(ToyDense):
    """Makes up for dropped weights by 5 % too much in one value of one query of one head."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        answer = super().attend(q, k, v, call)
        if not self.training:
            return answer
        factors = torch.ones_like(answer.values[0])
        factors[1, 2, 2] = 1.05
        return answer._replace(values=answer.values * factors)


@mutant("cost")
class QuadraticTensor(ToyKernel):
    """Makes one chunk of the whole sequence."""

    chunk = 10**4

    def walk(self, fq: Tensor, fk: Tensor, v: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        lead = fk.shape[2] - fq.shape[2]
        start = past + fk[:, :, :lead].mT @ v[:, :, :lead]
        inside = (fq @ expanded(fk[:, :, lead:], fq.shape[1]).mT).tril() @ expanded(v[:, :, lead:], fq.shape[1])
        return inside + fq @ expanded(start, fq.shape[1]), past + fk.mT @ v


@mutant("cost")
class SecretlyQuadraticTime(ToyKernel):
    """Sums the past anew for every chunk."""

    chunk = 4

    def running(self, sums: Tensor) -> Tensor:
        return torch.stack([sums[:, :, : at + 1].sum(2) for at in range(sums.shape[2])], 2)


@mutant("cost")
class QuadraticInPieces(ToyKernel):
    """Makes its weights row block by row block, and keeps them all for backward."""

    def walk(self, fq: Tensor, fk: Tensor, v: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        lead = fk.shape[2] - fq.shape[2]
        start, wide_k, wide_v = (expanded(x, fq.shape[1]) for x in (past, fk, v))
        out = []
        for first in range(0, fq.shape[2], 64):
            rows = fq[:, :, first : first + 64]
            out.append((rows @ wide_k.mT).tril(first + lead) @ wide_v + rows @ start)
        return torch.cat(out, 2), past + fk.mT @ v


@mutant("compilation")
class BreaksTheGraph(ToyDense):
    """Decides by the values in the middle of the graph."""

    def normalise(self, logits: Tensor, pairs: Tensor) -> Tensor:
        return super().normalise(logits - 1 if logits.amax() > 1 else logits, pairs)


@mutant("compilation")
class GraphGrowsWithLength(ToyKernel):
    """Walks over the chunks in Python."""

    def running(self, sums: Tensor) -> Tensor:
        total, out = torch.zeros_like(sums[:, :, 0]), []
        for piece in sums.unbind(2):
            total = total + piece
            out.append(total)
        return torch.stack(out, 2)


@mutant("compilation")
class WrongWhenCompiled(ToyDense):
    """Takes another path inside a compiled graph."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * (1.01 if torch.compiler.is_compiling() else 1.0)


@mutant("compilation")
class GraphOfOneLength(ToyDense):
    """Picks a slot by a number that follows from the length, so that every length has a graph of its own."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + 0 * k[:, :1, k.shape[2] // 2, :1, None]


@mutant("compilation_behind_a_state")
class AsksItsState(ToyDense):
    """Decides by the values that its state keeps."""

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        every, values, grown = super().remember(k, v, call)
        if call.state is not None and every.abs().amax() > 1e6:
            every = every / 2
        return every, values, grown


@mutant("compilation_behind_a_state")
class ForgetsWhenCompiled(ToyDense):
    """Keeps another value inside a compiled graph."""

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        return super().remember(k, v * (1.01 if torch.compiler.is_compiling() and call.state else 1.0), call)


@mutant("compilation_behind_a_state")
class ForgetsAtTheSecondStep(ToyDense):
    """Keeps another value inside a compiled graph, once it goes on from a state that such a graph made."""

    def remember(self, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
        return super().remember(k, v * (1.01 if torch.compiler.is_compiling() and call.past > 5 else 1.0), call)
