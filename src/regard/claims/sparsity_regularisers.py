"""Losses that are to make linear attention sparse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.benchmark.retrieval import sequences
from regard.claims._base import About, Control, Curve, Finding, Observation, Plot, Revision
from regard.claims._recall import RecallClaim
from regard.claims.attention_concentration import effective_keys
from regard.core import Attention, generator
from regard.functional import weights
from regard.models import LanguageModel
from regard.tasks.recall import RecallTask

NONE = "none"


@dataclass(frozen=True)
class SparsityRegularisers(RecallClaim):
    """Linear attention trained on recall with and without a loss that presses to sparsity."""

    about = About(
        title="L1 regularisation makes linear attention retrieve exactly",
        says="An L1 penalty makes linear attention sparse and so restores exact retrieval: a remedy of the "
        "exact-retrieval article, whose code takes the L1 norm of the output. (That of normalised weights is 1 in "
        "every row, whatever they are, and presses to nothing.)",
        source="The exact-retrieval article, its remedy of sparsity regularisation",
        control="Softmax answers everything in the same model and training. A row of normalised weights sums to 1, so "
        "its L1 norm has gradient 0. The entropy loss does what it says: rows spread over fewer keys than without it.",
        measures="Accuracy on associative recall (MQAR) of two layers of linear attention, with each loss less without "
        "any, from the same weights on the same sequences; and effective keys exp(entropy) of the rows of the second "
        "layer.",
    )
    controls = (
        Control(value="softmax", title="softmax: accuracy", expected=1.0, tolerance=0.05),
        Control(value="constant", title="L1 of normalised weights: gradient", expected=0.0, tolerance=1e-4),
        Control(
            value="fewer keys", title="entropy loss: 1 if rows spread over fewer keys", expected=1.0, tolerance=0.0
        ),
    )
    findings = (
        Finding(value="output_l1", title="output L1, as the article has it: accuracy gained", at_least=0.05),
        Finding(value="score_l1", title="L1 of weights before normalising: accuracy gained", at_least=0.05),
        Finding(value="entropy", title="entropy of rows: accuracy gained", at_least=0.05, states=False),
    )
    least_seeds = 5
    revised = Revision(what="The entropy of rows, which the claim does not name, decided about it.", seen=(0, 1, 2))
    plots = (
        Plot(name="accuracy", title="Accuracy", x="", y="share that is right"),
        Plot(name="keys", title="Effective keys of the second layer", x="", y="effective keys"),
        Plot(name="loss", title="Training", x="part of the training", y="nats"),
    )
    tiny: ClassVar[Mapping[str, object]] = {**RecallClaim.tiny, "steps": 20, "weight": 0.1}

    linear: str = "linear(regulariser={kind}, regulariser_weight={weight})"
    softmax: str = "softmax"
    kinds: tuple[str, ...] = (NONE, "output_l1", "score_l1", "entropy")
    weight: float = 0.01

    def observe(self, seed: int) -> Observation:
        """Train softmax, then linear attention with each loss."""
        specs = {kind: self.linear.format(kind=kind, weight=self.weight) for kind in self.kinds}
        shares, keys, losses = {}, {}, {}
        tokens, _ = sequences(RecallTask(self.task, seed=seed), "valid", range(min(50, self.sequences)))
        for kind, spec in {**specs, "softmax": self.softmax}.items():
            trained = self.trained(spec, seed)
            shares[kind], keys[kind] = trained.test, spread(trained.model, tokens)
            losses[kind] = (tuple(range(len(trained.loss))), trained.loss)
        values = {kind: shares[kind] - shares[NONE] for kind in self.kinds if kind != NONE}
        values |= {"softmax": shares["softmax"], "constant": constant(seed)}
        values["fewer keys"] = float(keys["entropy"] < keys[NONE])
        curves: dict[str, dict[str, Curve]] = {"loss": losses}
        curves["accuracy"] = {"": (list(shares), list(shares.values()))}
        curves["keys"] = {"": (list(keys), list(keys.values()))}
        return Observation(values, curves)


def spread(model: LanguageModel, tokens: Tensor) -> float:
    """Mean effective keys of the rows of the last layer."""
    seen: list[tuple[Tensor, Tensor]] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del module
        seen.append((inputs[0], inputs[1]))

    last: Attention = model.mechanisms[-1]
    handle = last.register_forward_pre_hook(look)
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        handle.remove()
    return float(effective_keys(weights(last, *seen[0])).mean())


def constant(seed: int) -> float:
    """The largest gradient of the L1 norm of normalised weights in queries."""
    q, k = torch.randn(2, 6, 4, dtype=torch.float64, generator=generator(seed, "constant"))
    q.requires_grad_()
    rows = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
    scores = rows[0] @ rows[1].mT
    (gradient,) = torch.autograd.grad((scores / scores.sum(-1, keepdim=True)).abs().sum(), q)
    return float(gradient.abs().max())
