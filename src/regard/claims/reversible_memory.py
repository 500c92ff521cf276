"""What a reversible stack keeps for its backward pass, and what it computes again, over its depth."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard.benchmark.cost import kept_bytes
from regard.claims._base import About, Claim, Control, Finding, Observation, Plot
from regard.claims._growth import exponent, operations
from regard.core import generator
from regard.models import LanguageModel, ModelConfig


@dataclass(frozen=True)
class ReversibleMemory(Claim):
    """Bytes kept, operations and gradients of reversible and of residual stacks of the same sizes."""

    about = About(
        title="Reversible layers keep activations of one layer, whatever the depth",
        says="In reversible blocks the activations of each layer follow from those of the next, so that none has to be "
        "kept: memory for activations is divided by the number of layers, at no loss, for the time of one more "
        "forward pass.",
        source="Gomez et al. 2017, section 3; Kitaev, Kaiser, Levskaya 2020 (Reformer), section 3",
        control="A residual stack keeps as much in every layer: what it keeps, less what a model of half the layers "
        "does, doubles with the depth. The gradients are those of the same blocks under ordinary automatic "
        "differentiation, in float64, to rounding.",
        measures="Bytes that one forward pass keeps for its backward pass, every tensor once and weights apart, by "
        "depth; the backward pass makes those of one block again, which the saving by the number of layers allows for. "
        "Operations of forward and backward passes, counted without a clock, reversible over residual: one "
        "more forward pass makes 4 of 3.",
    )
    controls = (
        Control(value="linear", title="residual: growth, second doubling / first", expected=2.0, tolerance=0.05),
        Control(value="gradient", title="gradients, reversible - ordinary, relative", expected=0.0, tolerance=1e-9),
    )
    findings = (
        Finding(value="flat", title="reversible: bytes kept, deepest / shallowest", at_most=1.15),
        Finding(value="again", title="operations of both passes, reversible / residual, most", at_most=1.4),
        Finding(value="folds", title="deepest: residual / (reversible + one block), over layers", at_least=0.5),
        Finding(value="slope", title="residual: bytes kept ~ layers to the power of", at_least=0.8, states=False),
    )
    plots = (
        Plot(name="bytes", title="Kept for the backward pass", x="layers", y="bytes", log_x=True, log_y=True),
        Plot(name="operations", title="Both passes", x="layers", y="operations", log_x=True, log_y=True),
    )
    tiny: ClassVar[Mapping[str, object]] = {"depths": (2, 4, 8), "dim": 16, "length": 32}

    reversible: str = "reversible"
    residual: str = "residual"
    attention: str = "softmax"
    depths: tuple[int, ...] = (2, 6, 12, 24)
    """the last three are doublings"""
    dim: int = 64
    length: int = 256
    batch: int = 2
    symbols: int = 20

    def observe(self, seed: int) -> Observation:
        """Count both at every depth."""
        tokens = torch.randint(self.symbols, (self.batch, self.length), generator=generator(seed, "tokens"))
        kept: dict[str, list[float]] = {}
        work: dict[str, list[float]] = {}
        for name, block in (("reversible", self.reversible), ("residual", self.residual)):
            models = [self.model(block, layers, seed) for layers in self.depths]
            kept[name] = [float(kept_bytes(model, lambda model=model: loss(model, tokens))) for model in models]
            work[name] = [float(operations(lambda model=model: loss(model, tokens).backward())) for model in models]
        plain, ours = kept["residual"], kept["reversible"]
        block = (plain[-1] - plain[-2]) / (self.depths[-1] - self.depths[-2])
        values = {
            "flat": ours[-1] / ours[0],
            "again": max(a / b for a, b in zip(work["reversible"], work["residual"], strict=True)),
            "folds": plain[-1] / (ours[-1] + block) / self.depths[-1],
            "slope": exponent(self.depths, plain),
            "linear": (plain[-1] - plain[-2]) / (plain[-2] - plain[-3]),
            "gradient": self.difference(tokens, seed),
        }
        curves = {
            "bytes": {name: (self.depths, found) for name, found in kept.items()},
            "operations": {name: (self.depths, found) for name, found in work.items()},
        }
        return Observation(values, curves)

    def model(self, block: str, layers: int, seed: int) -> LanguageModel:
        """A model of so many layers."""
        config = ModelConfig(
            vocab_size=self.symbols,
            dim=self.dim,
            layers=layers,
            heads=4,
            attention=(self.attention,),
            block=block,
            seed=seed,
        )
        return LanguageModel(config).train()

    def difference(self, tokens: Tensor, seed: int) -> float:
        """Of the gradients from those of the blocks one after the other, over the size of these."""
        model = self.model(self.reversible, self.depths[1], seed).double()
        weights = list(model.parameters())
        found = torch.autograd.grad(loss(model, tokens), weights)
        ordinary = torch.autograd.grad(loss(model, tokens, ordinary=True), weights)
        off = sum(float((a - b).square().sum()) for a, b in zip(found, ordinary, strict=True))
        return (off / sum(float(b.square().sum()) for b in ordinary)) ** 0.5


def loss(model: LanguageModel, tokens: Tensor, *, ordinary: bool = False) -> Tensor:
    """A number that depends on all outputs; ordinary: by automatic differentiation, which keeps everything."""
    state = model.initial_state(len(tokens)) if ordinary else None  # with which the blocks run one after the other
    return model(tokens, state=state).logits.square().mean()
