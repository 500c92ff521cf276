"""Attention against convolution, on small and large data.

Claim: A convolution is self-attention with its receptive field fixed beforehand: it does better with little data, and
self-attention, which is more flexible, catches up or does better with much.
Source: Cordonnier, Loukas, Jaggi 2020, for the inclusion; Dosovitskiy et al. 2021, section 4.3, for the data
Control: The convolution with the most data: the motif is within its reach, so that it finds every one. Attention can
win: with new examples at every step, which nothing can learn by heart, it finds them too. Every training is over.
Measured: Accuracy on new sequences of two encoder blocks with learned positions and of two blocks of convolution, about
as many weights each, trained for the same steps on few, some and many examples of one of four motifs at a random place
in random symbols.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._plateau import FINISHED, change
from evidence.claims._training import trained
from regard.core.attention import generator
from regard.models import Classifier, Encoder, EncoderConfig
from regard_lab.benchmark.baselines import BaselineConfig, SequenceClassifier

Examples = tuple[Tensor, Tensor]
"""sequences of symbols, and their classes"""


class AttentionAgainstConvolution(Claim):
    controls = (
        Control("convolution many", "convolution, most examples: accuracy", 1.0, tolerance=0.1),
        Control(
            "attention unlimited", "attention, new examples at every step: accuracy", 1.0, tolerance=0.1, small=False
        ),
        FINISHED,
    )
    findings = (
        Finding("gain few", "fewest examples: convolution - attention", at_least=0.03, resolution=1 / 2000),
        Finding("loss many", "most examples: convolution - attention", at_most=0.03, resolution=1 / 2000),
    )
    least_seeds = 5
    revised = Revision(
        "Attention was still learning after its 400 steps, which are 2,000 now, with a control that trainings are "
        "over and one that attention can find the motifs.",
        (0, 1, 2),
    )
    plots = (Plot("accuracy", "Accuracy over examples", "examples", "accuracy", log_x=True),)

    attention: str = "softmax"
    position: str = "learned"
    examples: tuple[int, ...] = setting((64, 512, 4096), tiny=(32, 1024))
    symbols: int = setting(16, tiny=32)
    motif: int = setting(3, tiny=2)
    classes: int = 4
    length: int = setting(32, tiny=10)
    dim: int = 32
    channels: int = 64
    """of the convolution, for as many weights"""
    steps: int = setting(2000, tiny=70)
    batch: int = 64
    questions: int = setting(2000, tiny=500)

    def observe(self, seed: int) -> Observation:
        motifs = self.motifs(generator(seed, "motifs"))
        new = self.sequences(motifs, self.questions, generator(seed, "new"))
        known = self.sequences(motifs, self.examples[-1], generator(seed, "examples"))
        curves: dict[str, Curve] = {}
        changes: list[float] = []
        for name in ("convolution", "attention"):
            shares = []
            for count in self.examples:
                order, some = generator(seed, "order", count), (known[0][:count], known[1][:count])

                def batch(some: Examples = some, order: torch.Generator = order) -> Examples:
                    picked = torch.randint(0, len(some[0]), (self.batch,), generator=order)
                    return some[0][picked], some[1][picked]

                share, changed = self.accuracy(self.model(name, seed), batch, new)
                shares.append(share)
                changes.append(changed)
            curves[name] = (self.examples, shares)
        ever_new = generator(seed, "ever new")
        unlimited, changed = self.accuracy(
            self.model("attention", seed), lambda: self.sequences(motifs, self.batch, ever_new), new
        )
        fewest, most = ({name: shares[at] for name, (_, shares) in curves.items()} for at in (0, -1))
        values = {
            "attention unlimited": unlimited,
            "unfinished": max(*changes, changed),
            "gain few": fewest["convolution"] - fewest["attention"],
            "loss many": most["convolution"] - most["attention"],
            **{f"{name} few": share for name, share in fewest.items()},
            **{f"{name} many": share for name, share in most.items()},
        }
        return Observation(values, {"accuracy": curves})

    def motifs(self, draw: torch.Generator) -> Tensor:
        """Different ones, (classes, motif)."""
        codes = torch.randperm(self.symbols**self.motif, generator=draw)[: self.classes]
        return codes[:, None] // self.symbols ** torch.arange(self.motif) % self.symbols

    def sequences(self, motifs: Tensor, count: int, draw: torch.Generator) -> Examples:
        """Random symbols with one motif, and which."""
        labels = torch.randint(0, self.classes, (count,), generator=draw)
        symbols = torch.randint(0, self.symbols, (count, self.length), generator=draw)
        place = torch.randint(0, self.length - self.motif + 1, (count, 1), generator=draw)
        return symbols.scatter_(1, place + torch.arange(self.motif), motifs[labels]), labels

    def model(self, name: str, seed: int) -> nn.Module:
        if name == "convolution":
            config = BaselineConfig(kind="convolution", dim=self.channels, layers=2, width=3)
            return SequenceClassifier(config, vocab_size=self.symbols, input_dim=0, classes=self.classes)
        shape = EncoderConfig(
            vocab_size=self.symbols,
            dim=self.dim,
            layers=2,
            heads=4,
            attention=(self.attention,),
            position=self.position,
            pooling="mean",
            max_length=self.length,
            seed=seed,
        )
        return Classifier(Encoder(shape), classes=self.classes)

    def accuracy(self, model: nn.Module, batch: Callable[[], Examples], new: Examples) -> tuple[float, float]:
        """The share that is right on new examples after a training, and the change of its loss at its end."""

        def loss() -> Tensor:
            symbols, labels = batch()
            return cross_entropy(model(symbols).logits, labels)

        nats = trained(model, loss, steps=self.steps)
        with torch.no_grad():
            return float((model(new[0]).logits.argmax(-1) == new[1]).double().mean()), change(nats)
