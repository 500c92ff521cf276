"""L1 regularisation makes linear attention retrieve exactly.

Claim: An L1 penalty makes linear attention sparse and so restores exact retrieval: a remedy of the exact-retrieval
article, whose code takes the L1 norm of the output. (That of normalised weights is 1 in every row, whatever they are,
and presses to nothing.)
Source: The exact-retrieval article, its remedy of sparsity regularisation
Control: Softmax answers everything in the same model and training. Linear attention can win: with Taylor features,
which can be sharper, it answers everything too. A row of normalised weights sums to 1, so its L1 norm has gradient 0.
The entropy loss at its largest weight does what it says: rows spread over fewer keys.
Measured: Accuracy on associative recall (MQAR) of two layers of linear attention, with each loss less without any, from
the same weights on the same sequences. Each loss is tried at every weight; the one that is best on validation sequences
is judged on others. Beside it effective keys exp(entropy) of the rows of the second layer, at the largest weight.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from evidence.claims._base import Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._recall import RecallClaim
from evidence.claims.attention_concentration import effective_keys
from regard import Info, Supports, build
from regard.core.attention import Attended, Attention, Call, generator
from regard.features.maps import FEATURE_MAPS
from regard.functional import weights
from regard.models import LanguageModel
from regard_lab.benchmark.retrieval import sequences
from regard_lab.tasks.recall import RecallTask

NONE = "none"
PHI = FEATURE_MAPS["elu_plus_one"]
"""phi(x) = elu(x) + 1, of linear attention by default"""


@final
class Regularised(Attention):
    """Causal linear attention with a loss in training, see `penalty`."""

    default_info = Info(
        title="Linear attention with a loss",
        source="The exact-retrieval article, its remedy of sparsity regularisation",
        supports=Supports(causal=True),
        memory=2,
    )

    kind: str = NONE
    """of loss"""
    weight: float = 0.01
    """of that loss"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """The loss that was chosen."""
        return replace(cls.default_info, losses={} if options["kind"] == NONE else {options["kind"]: options["weight"]})

    def setup(self) -> None:
        self.linear = build("linear", self.heads)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Linear attention, and the loss."""
        values = self.linear(q, k, v).values
        if not self.training or self.kind == NONE:
            return Attended(values)
        return Attended(values, losses={self.kind: penalty(self.kind, values, (PHI(q) @ PHI(k).mT).tril())})

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """That of linear attention."""
        return self.linear.reference(q, k, v, call)


def penalty(kind: str, values: Tensor, products: Tensor) -> Tensor:
    """The loss of that kind.

    output_l1: mean |out|. output_l1_sum: sum |out|. The others are means over heads and queries of a number per row i
    of A = phi(Q) phi(K)^T: score_l1: sum_j A_ij. With p = A_i / sum A_i over the l keys seen: entropy: -sum_j p_j log
    p_j. hoyer: (|p|_1 / |p|_2 - 1) / (sqrt(l) - 1), 0 for one key alone, 1 for equal weights (one minus Hoyer's
    sparseness). l_half: (sum_j p_j^(1/2))^2, 1 to l.

    Args:
        kind: which.
        values: the output, (batch, heads, length, value).
        products: A, whose later keys are 0, (batch, heads, length, length).
    """
    if kind in ("output_l1", "output_l1_sum"):
        return values.abs().mean() if kind == "output_l1" else values.abs().sum()
    total = products.sum(-1, keepdim=True)
    p, seen = products / total, torch.arange(1, products.shape[-1] + 1).to(products)
    positive = torch.where(p > 0, p, 1)  # where log and root have slopes
    match kind:
        case "score_l1":
            rows = total[..., 0]
        case "entropy":
            rows = -(p * positive.log()).sum(-1)
        case "hoyer":
            rows = (1 / p[..., 1:, :].square().sum(-1).sqrt() - 1) / (seen[1:].sqrt() - 1)
            rows = nn.functional.pad(rows, (1, 0))
        case "l_half":
            rows = (positive.sqrt() * (p > 0)).sum(-1).square()
        case _:
            raise AssertionError(kind)
    return rows.mean()


class SparsityRegularisers(RecallClaim):
    controls = (
        Control("softmax", "softmax: accuracy", 1.0, tolerance=0.05),
        Control("sharp", "linear, Taylor features: accuracy", 1.0, tolerance=0.05, small=False),
        Control("constant", "L1 of normalised weights: gradient", 0.0, tolerance=1e-4),
        Control("fewer keys", "entropy loss: 1 if rows spread over fewer keys", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("output_l1", "output L1, as the article has it: accuracy gained", at_least=0.05),
        Finding("output_l1_sum", "output L1, summed: accuracy gained", at_least=0.05),
        Finding("score_l1", "L1 of weights before normalising: accuracy gained", at_least=0.05),
        Finding("entropy", "entropy of rows: accuracy gained", at_least=0.05, states=False),
        Finding("hoyer", "Hoyer's measure of rows: accuracy gained", at_least=0.05, states=False),
        Finding("l_half", "L1/2 of rows: accuracy gained", at_least=0.05, states=False),
    )
    least_seeds = 5
    revised = Revision(
        "The entropy of rows, which the claim does not name, decided about it. Three losses of six were tried, at "
        "the weight 0.01 alone, which did not always reach the control of the entropy loss; it is asked of the largest "
        "weight now, and that linear attention can win is a control.",
        (0, 1, 2, 100, 101, 102, 103, 104),
    )
    plots = (
        Plot("accuracy", "Accuracy over the weight of the loss", "weight", "right", log_x=True),
        Plot("keys", "Effective keys of the second layer, largest weight", "", "effective keys"),
        Plot("loss", "Training, largest weight", "part of the training", "nats"),
    )
    linear: str = "evidence.claims.sparsity_regularisers:Regularised(kind={kind}, weight={weight})"
    softmax: str = "softmax"
    taylor: str = setting("linear(feature_map=taylor)", tiny="linear")
    kinds: tuple[str, ...] = ("output_l1", "output_l1_sum", "score_l1", "entropy", "hoyer", "l_half")
    weights: tuple[float, ...] = setting((1e-3, 3e-2, 1.0), tiny=(0.1,))
    vocab_size: int = setting(64, tiny=6)
    length: int = setting(32, tiny=8)
    dim: int = setting(32, tiny=32)
    steps: int = setting(200, tiny=8)

    def observe(self, seed: int) -> Observation:
        tokens, _ = sequences(RecallTask(self.task, seed=seed), "valid", range(min(50, self.sequences)))
        alone = {
            NONE: self.trained(self.linear.format(kind=NONE, weight=self.weights[0]), seed),
            "softmax": self.trained(self.softmax, seed),
            "taylor": self.trained(self.taylor, seed),
        }
        keys = {name: spread(alone[name].model, tokens) for name in (NONE, "softmax")}
        losses = {name: (tuple(range(len(one.loss))), one.loss) for name, one in alone.items()}
        values = {"softmax": alone["softmax"].test, "sharp": alone["taylor"].test, "constant": constant(seed)}
        over: dict[str, Curve] = {NONE: (self.weights, [alone[NONE].test] * len(self.weights))}
        for kind in self.kinds:
            tried = [self.trained(self.linear.format(kind=kind, weight=weight), seed) for weight in self.weights]
            values[kind] = max(tried, key=lambda one: one.valid).test - alone[NONE].test
            keys[kind] = spread(tried[-1].model, tokens)
            losses[kind] = (tuple(range(len(tried[-1].loss))), tried[-1].loss)
            over[kind] = (self.weights, [one.test for one in tried])
        values["fewer keys"] = float(keys["entropy"] < keys[NONE])
        curves = {"accuracy": over, "keys": {"": (list(keys), list(keys.values()))}, "loss": losses}
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
    scores = PHI(q) @ PHI(k).mT
    (gradient,) = torch.autograd.grad((scores / scores.sum(-1, keepdim=True)).abs().sum(), q)
    return float(gradient.abs().max())
