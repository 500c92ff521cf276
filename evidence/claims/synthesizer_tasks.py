"""Synthesizers solve position, fail lookup and transfer badly.

Claim: Weights that no key is read for do as well as products of queries and keys. What bounds this: what rows of a
matrix have learned serves the positions of one task; lookup needs contents, and where a trained model is trained
further on another task, products transfer better.
Source: Tay et al. 2020 (Synthesizer), sections 3 and 4; its limits: GLUE and SuperGLUE in section 4.4
Control: Softmax, with as many weights of attention as the random Synthesizer, copies, looks up everything and learns
the changed rows; equal weights look up no better than a guess among the stored values, and copy no better than chance,
one of 16 tokens. A random Synthesizer can win: a matrix made by hand copies, and after the second training it answers
the changed rows as well, so that where it transfers badly it is late, not unable. Every training is over.
Measured: Share of right tokens on new sequences of 24. Copying: one causal layer of two heads without an MLP, with
learned positions, gives the token 2, 5 or 9 before, of uniform random ones, in a training of its own for each. Then the
later half of the rows gets the next of the three, and the model is trained on for as many steps. Worth of the first
training: the mean share in these rows over the steps of the second one, less the same over the first. Lookup:
associative recall (MQAR) of two layers behind a convolution of width 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims._recall import RecallClaim
from evidence.claims._training import decoder, trained
from regard import Heads, build
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages
from regard_lab.benchmark.retrieval import Trained, train_recall

CHANCE = 0.1
"""above a guess: what a convolution that sees a little may add, as in `regard_lab.benchmark.retrieval`"""


@dataclass(frozen=True)
class Copies:
    """A model that copied, and then copied otherwise.

    Attributes:
        first: share of new answers that is right after the first training, in all rows.
        again: the same after the second one, in the rows that changed.
        learning, relearning: mean share in the rows that changed over the steps of either training, each step's before
            it is learned from.
        change: of the loss at the end, the larger of both.
        curves: of either training, the share in the rows that changed.
    """

    first: float
    again: float
    learning: float
    relearning: float
    change: float
    curves: tuple[Curve, Curve]


class SynthesizerTasks(RecallClaim):
    controls = (
        Control("hand", "matrix by hand: largest error of the copy", 0.0, tolerance=1e-5),
        Control("weights", "weights of attention, random / softmax", 1.0, tolerance=0.0),
        Control("first blind", "equal weights: copying", 1 / 16, tolerance=CHANCE, small=False),
        Control("first softmax", "softmax: copying", 1.0, tolerance=0.05, small=False),
        Control("again softmax", "softmax: changed rows", 1.0, tolerance=0.1, small=False),
        Control("again random", "random: changed rows", 1.0, tolerance=0.1, small=False),
        Control("lookup softmax", "softmax: lookup", 1.0, tolerance=0.05, small=False),
        Control("blind", "equal weights: lookup", 0.25, tolerance=CHANCE, small=False),
        FINISHED,
    )
    findings = (
        Finding("first random", "random: copying", at_least=0.95),
        Finding("first dense", "dense: copying", at_least=0.95),
        Finding("lookup random", "random: lookup, 4 pairs", at_most=0.25 + CHANCE),
        Finding("lookup dense", "dense: lookup, 4 pairs", at_most=0.25 + CHANCE),
        Finding("mixture", "mixture with products - softmax: lookup", at_least=-0.05),
        Finding("transfer", "worth of the first training, softmax - random", at_least=0.05),
        Finding("worth random", "worth of the first training, random", at_most=0.0, states=False),
        Finding("worth softmax", "worth of the first training, softmax", at_least=0.0, states=False),
        Finding("worth dense", "worth of the first training, dense", at_most=0.0, states=False),
        Finding("sooner", "copying, mean over the first training: random - softmax", at_least=0.0, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "Rows beyond the trained length could not have learned anything, so that transfer was lost by "
        "construction: now rows that have learned learn anew. Softmax has as many weights as the random "
        "Synthesizer, there are three offsets, and trainings have 600 steps of shorter sequences. The bounds of "
        "copying and lookup are those of before.",
        (0, 1, 2, 3, 4, 200, 201, 202, 203, 204, *range(900, 912)),
    )
    plots = (
        Plot("copying", "Rows that change, first training", "step", "share that is right"),
        Plot("changed", "Rows that changed, second training", "step", "share that is right"),
        Plot("lookup", "Lookup", "", "share that is right"),
    )
    random: str = "random_synthesizer"
    dense: str = "dense_synthesizer"
    mixture: str = "mixture_synthesizer(parts=('random', 'dot_product'))"
    softmax: str = "softmax"
    blind: str = "uniform"
    vocab_size: int = setting(64, tiny=12)
    length: int = setting(24, tiny=16)
    dim: int = setting(24, tiny=16)
    """as the length, so that a matrix has as many weights as the projections of queries and keys"""
    steps: int = setting(600, tiny=20)
    offsets: tuple[int, ...] = setting((2, 5, 9), tiny=(1, 2))
    tokens: int = 16
    """different ones, of copies"""
    heads: int = 2
    copy_steps: int = setting(600, tiny=10)
    rates: Mapping[str, float] = field(default_factory=lambda: {"softmax": 1e-2, "random": 3e-2, "dense": 3e-2})
    """peak learning rates of copies: of 1e-2 and 3e-2 those of the larger share over both trainings, on other seeds"""

    def observe(self, seed: int) -> Observation:
        kinds = {"softmax": self.softmax, "random": self.random, "dense": self.dense}
        shares, changes = {}, []
        for name, spec in (kinds | {"mixture": self.mixture, "blind": self.blind}).items():
            trained = self.trained(spec, seed)
            shares[name] = trained.test
            changes.append(change(trained.loss))
        values = {f"lookup {name}": share for name, share in shares.items()}
        values |= {"mixture": shares["mixture"] - shares["softmax"], "blind": shares["blind"], "hand": self.by_hand()}
        curves: dict[str, dict[str, Curve]] = {
            "copying": {}, "changed": {}, "lookup": {"": (list(shares), list(shares.values()))}
        }  # fmt: skip
        turns = list(zip(self.offsets, self.offsets[1:] + self.offsets[:1], strict=True))
        learning: dict[str, float] = {}
        for name, spec in kinds.items():
            found = [self.copies(spec, (old, new), self.rates[name], seed) for old, new in turns]
            changes += [one.change for one in found]
            learning[name] = fmean(one.learning for one in found)
            values[f"first {name}"] = fmean(one.first for one in found)
            values[f"again {name}"] = fmean(one.again for one in found)
            values[f"worth {name}"] = fmean(one.relearning for one in found) - learning[name]
            for plot, at in (("copying", 0), ("changed", 1)):
                steps = found[0].curves[at][0]
                curves[plot][name] = (
                    steps,
                    [fmean(y) for y in zip(*(one.curves[at][1] for one in found), strict=True)],
                )
        values["first blind"] = self.copies(self.blind, turns[0], self.rates["softmax"], seed).first
        values["transfer"] = values["worth softmax"] - values["worth random"]
        values["sooner"] = learning["random"] - learning["softmax"]
        values["weights"] = self.weights(self.random) / self.weights(self.softmax)
        return Observation(values | {"unfinished": max(changes)}, curves)

    def trained(self, spec: str, seed: int) -> Trained:
        """Lookup, in two heads."""
        model = replace(self.config.model(spec, seed), heads=self.heads)
        return train_recall(model, self.task, seed=seed, steps=self.steps)

    def model(self, spec: str, seed: int) -> LanguageModel:
        return decoder(
            self, self.tokens, seed, layers=1, attention=spec, position="learned", mlp="none", max_length=self.length
        )

    def weights(self, spec: str) -> int:
        """Of a layer of attention, those of values and of the output apart, which all have."""
        return self.model(spec, 0).parameter_count() - self.model(self.blind, 0).parameter_count()

    def copies(self, spec: str, offsets: tuple[int, int], rate: float, seed: int) -> Copies:
        """Train a model to copy from so many tokens before, then on with the other number in the later half of rows.

        The first rows, which the largest offset leads out of, are not asked.
        """
        old, new = offsets
        model, draw = self.model(spec, seed).train(), generator(seed, "copies", old)
        first = max(self.offsets)
        asked = torch.arange(first, self.length)
        changed = asked >= (first + self.length + 1) // 2

        def learned(sources: Tensor) -> tuple[list[float], list[float], Tensor]:
            right: list[float] = []

            def loss() -> Tensor:
                tokens = torch.randint(self.tokens, (32, self.length), generator=draw)
                logits, answers = model(tokens).logits[:, first:], tokens[:, sources]
                right.append(float((logits.argmax(-1) == answers)[:, changed].double().mean()))
                return cross_entropy(logits.mT, answers)

            nats = trained(model, loss, steps=self.copy_steps, learning_rate=rate, last=0.0)
            tokens = torch.randint(self.tokens, (self.sequences, self.length), generator=generator(seed, "new copies"))
            with torch.no_grad():
                answers = model(tokens).logits[:, first:].argmax(-1)
            return right, nats, (answers == tokens[:, sources]).double().mean(0)

        before, nats, share = learned(asked - old)
        after, more, again = learned(asked - torch.where(changed, new, old))
        return Copies(
            first=float(share.mean()),
            again=float(again[changed].mean()),
            learning=fmean(before),
            relearning=fmean(after),
            change=max(change(nats), change(more)),
            curves=(averages(before), averages(after)),
        )

    def by_hand(self) -> float:
        """The error of a matrix with one large logit in each row, at the first offset."""
        heads, offset = Heads(count=1, key_dim=4, max_length=self.length, causal=True), self.offsets[0]
        mechanism = build("random_synthesizer", heads)
        (matrix,) = mechanism.parameters()
        v = torch.arange(4.0 * self.length).view(1, 1, self.length, 4) / self.length
        with torch.no_grad():
            matrix.copy_(100 * torch.eye(self.length).roll(-offset, 1))
            copied = mechanism(v, v, v).values[:, :, offset:]
        return float((copied - v[:, :, :-offset]).abs().max())
