"""softmax_plus_one removes outliers.

Claim: Because a softmax has to add something, heads with nothing to say push logits and activations to extremes; with 1
added below the line these outliers go away, seen as the kurtosis and the largest size of activations.
Source: Miller 2023, Attention is off by one; its measures: Bondarenko, Nagel, Blankevoort 2023, section 3
Control: Normal numbers have a kurtosis of 3, and with one of d channels s times as large it is 3 (s^4 + d - 1) d / (s^2
+ d - 1)^2. Fewer outliers can win: activations without a planted outlier against the same ones with it. Both models
reach the floor of a text of known probabilities, and are trained to their end.
Measured: Causal models of two layers with rotary positions on Markov text behind one fixed first token, where a head
may look that has nothing to say. On new text, after training: kurtosis and largest size of the output of the attention
layers and of the residual stream, and the largest logit, each with 1 added over without.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims._sequences import MarkovText
from evidence.claims._training import decoder, trained
from regard.core.attention import generator
from regard.layer import LayerOutput
from regard.models import LanguageModel

NORMAL = 3.0
"""kurtosis of normal numbers"""
LESS = 0.9
"""a smaller share than this counts as fewer outliers"""


class OutlierActivations(Claim):
    controls = (
        Control("normal", "kurtosis of normal numbers", NORMAL, tolerance=0.2),
        Control("formula", "planted outlier: kurtosis / the formula", 1.0, tolerance=0.1),
        Control("planted", "1 if a planted outlier in the model is seen", 1.0, tolerance=0.0),
        Control("learned", "bits above the floor, worse model", 0.0, tolerance=0.1, small=False),
        FINISHED,
    )
    findings = (
        Finding("kurtosis", "kurtosis of attention outputs, with / without the 1", at_most=LESS),
        Finding("largest", "largest attention output / its deviation, with / without the 1", at_most=LESS),
        Finding("stream", "kurtosis of the residual stream, with / without the 1", at_most=LESS),
        Finding("logit", "largest logit, with / without the 1", at_most=LESS, states=False),
        Finding("bits", "bits above the floor, with - without the 1", at_most=0.02, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("tails", "Tails of the activations", "", "kurtosis"),
        Plot("logits", "Largest logit", "", "|q . k| / sqrt(dim)"),
        Plot("loss", "Training", "part of the training", "nats"),
    )

    silent: str = "softmax_plus_one"
    plain: str = "softmax"
    order: int = 2
    symbols: int = 3
    dim: int = setting(48, tiny=16)
    length: int = setting(32, tiny=12)
    steps: int = setting(500, tiny=20)
    batch: int = setting(24, tiny=8)
    texts: int = setting(64, tiny=16)
    planted: float = 30.0
    """times as large as the others is the channel that is planted"""

    def observe(self, seed: int) -> Observation:
        text = MarkovText(self.order, self.symbols, draw=generator(seed, "text"))
        new = text.sample(self.texts, self.length, generator(seed, "new"))
        found: dict[str, dict[str, float]] = {}
        losses: dict[str, Curve] = {}
        changes, seen = [], None
        for spec in (self.plain, self.silent):
            model, nats = self.trained(spec, text, seed)
            with torch.no_grad(), Watched(model) as watched:
                above = (self.nats(model, new) - text.nats(new)).mean()
            found[spec] = self.tails(spec, watched) | {"bits": float(above) / math.log(2)}
            losses[spec] = (tuple(range(len(nats))), nats)
            changes.append(change(nats))
            seen = watched.outputs[0] if seen is None else seen
        assert seen is not None
        one, other = (found[spec] for spec in (self.silent, self.plain))
        values = {name: one[name] / other[name] for name in ("kurtosis", "largest", "stream", "logit")}
        values |= {"bits": one["bits"] - other["bits"], "learned": max(one["bits"], other["bits"])}
        values |= {"unfinished": max(changes), **self.known(seen, seed)}
        curves: dict[str, dict[str, Curve]] = {"tails": {}, "logits": {}, "loss": losses}
        for spec, tails in found.items():
            curves["tails"][spec] = (["attention", "stream"], [tails["kurtosis"], tails["stream"]])
            curves["logits"][spec] = (["largest"], [tails["logit"]])
        return Observation(values, curves)

    def tails(self, spec: str, watched: "Watched") -> dict[str, float]:
        """Means over layers of kurtosis and of the largest size in deviations, and the largest logit."""
        del spec
        layers = len(watched.outputs)
        return {
            "kurtosis": sum(kurtosis(x) for x in watched.outputs) / layers,
            "largest": sum(float(x.abs().max() / x.std()) for x in watched.outputs) / layers,
            "stream": sum(kurtosis(x) for x in watched.stream) / layers,
            "logit": max(watched.logits),
        }

    def known(self, seen: Tensor, seed: int) -> dict[str, float]:
        normal = torch.randn(20_000, self.dim, generator=generator(seed, "normal"))
        wide, d = self.planted**2, self.dim
        formula = NORMAL * (wide**2 + d - 1) * d / (wide + d - 1) ** 2
        quiet = kurtosis(seen) / kurtosis(self.with_outlier(seen))
        return {
            "normal": kurtosis(normal),
            "formula": kurtosis(self.with_outlier(normal)) / formula,
            "planted": float(quiet <= LESS),
        }

    def with_outlier(self, x: Tensor) -> Tensor:
        """The same numbers, of which the first channel is so many times the deviation of all, scaled from its own."""
        x = x.flatten(0, -2).clone()
        x[:, 0] *= self.planted * x.std() / x[:, 0].std()
        return x

    def trained(self, spec: str, text: MarkovText, seed: int) -> tuple[LanguageModel, list[float]]:
        model = decoder(self, self.symbols + 1, seed, layers=2, heads=4, attention=spec, position="rotary")
        draw = generator(seed, "samples")

        def loss() -> Tensor:
            return self.nats(model, text.sample(self.batch, self.length, draw)).mean()

        return model, trained(model, loss, steps=self.steps)

    def nats(self, model: LanguageModel, symbols: Tensor) -> Tensor:
        """-log p of every symbol that has a whole context, behind the first token."""
        first = torch.full_like(symbols[:, :1], self.symbols)
        logits = model(torch.cat([first, symbols[:, :-1]], 1)).logits[:, self.order :]
        return cross_entropy(logits.mT, symbols[:, self.order :], reduction="none")


class Watched:
    """Keeps what the attention layers and blocks of a model give while it runs."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.outputs: list[Tensor] = []
        self.stream: list[Tensor] = []
        self.logits: list[float] = []

    def __enter__(self) -> "Watched":
        def attended(module: nn.Module, inputs: object, output: LayerOutput) -> None:
            del module, inputs
            self.outputs.append(output.hidden)

        def passed(module: nn.Module, inputs: object, output: LayerOutput) -> None:
            del module, inputs
            self.stream.append(output.hidden)

        def scored(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            del module
            q, k = inputs[:2]
            logits = q @ k.mT / math.sqrt(q.shape[-1])
            self.logits.append(float(logits.tril().abs().max()))

        self.handles = [layer.register_forward_hook(attended) for layer in self.model.layers]
        self.handles += [block.register_forward_hook(passed) for block in self.model.blocks]
        self.handles += [mechanism.register_forward_pre_hook(scored) for mechanism in self.model.mechanisms]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()


def kurtosis(x: Tensor) -> float:
    """The fourth moment of all numbers over the square of the second, about their mean.

    Example:
        >>> kurtosis(torch.tensor([-1.0, 1.0, 1.0, -1.0]))
        1.0
    """
    x = x.double() - x.double().mean()
    return float(x.pow(4).mean() / x.square().mean().square())
