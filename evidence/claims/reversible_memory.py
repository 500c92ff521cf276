"""Reversible layers keep activations of one layer, whatever the depth.

Claim: In reversible blocks the activations of each layer follow from those of the next, so that none has to be kept:
memory for activations is divided by the number of layers, at no loss, for the time of one more forward pass.
Source: Gomez et al. 2017, section 3; Kitaev, Kaiser, Levskaya 2020 (Reformer), section 3
Control: A residual stack keeps as much in every layer: what is alive at most, less what is in a model of half the
layers, doubles with the depth. The gradients are those of the same blocks under ordinary automatic differentiation, in
float64, to rounding.
Measured: The most numbers alive at one time in forward and backward pass together, counted at every allocation, inside
operators too, by depth. Activations: what twice the batch adds to it, so that gradients of weights, of which there are
as many for any batch, are left out; with them it is shown beside. Bytes that the forward pass keeps for the backward
pass, every tensor once and weights apart. Operations of both passes, reversible over residual: one more forward pass
makes 4 of 3. No clock; seeds draw tokens and weights, on which nothing of this depends.
"""

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._growth import exponent
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.cost import counted, kept_bytes


class ReversibleMemory(Claim):
    controls = (
        Control("linear", "residual: growth, second doubling / first", 2.0, tolerance=0.05),
        Control("gradient", "gradients, reversible - ordinary, relative", 0.0, tolerance=1e-9),
    )
    findings = (
        Finding("flat", "reversible: peak of activations, deepest / shallowest", at_most=1.15),
        Finding("again", "operations of both passes, reversible / residual, most", at_most=1.4),
        Finding("folds", "deepest: peak, residual / reversible, over layers", at_least=0.5),
        Finding("kept", "reversible: bytes kept, deepest / shallowest", at_most=1.15, states=False),
        Finding("all", "reversible: all that is alive, deepest / shallowest", at_most=1.15, states=False),
        Finding("slope", "residual: peak ~ layers to the power of", at_least=0.8, states=False),
    )
    revised = Revision(
        "Bytes of the backward pass were those kept and of one residual block; now the peak of both passes is "
        "counted. The shallowest has 6 layers. The bounds are those of before.",
        (0, 1, 2),
    )
    plots = (
        Plot("peak", "Activations alive at most", "layers", "numbers", log_x=True, log_y=True),
        Plot("all", "All that is alive at most", "layers", "numbers", log_x=True, log_y=True),
        Plot("bytes", "Kept for the backward pass", "layers", "bytes", log_x=True, log_y=True),
        Plot("operations", "Both passes", "layers", "operations", log_x=True, log_y=True),
    )

    reversible: str = "reversible"
    residual: str = "residual"
    attention: str = "softmax"
    depths: tuple[int, ...] = setting((6, 12, 24), tiny=(2, 4, 8))
    """doublings"""
    dim: int = setting(64, tiny=16)
    length: int = setting(256, tiny=32)
    batch: int = 2
    symbols: int = 20

    def observe(self, seed: int) -> Observation:
        tokens, twice = (
            torch.randint(self.symbols, (batch, self.length), generator=generator(seed, "tokens", batch))
            for batch in (self.batch, 2 * self.batch)
        )
        found: dict[str, dict[str, list[float]]] = {"peak": {}, "all": {}, "bytes": {}, "operations": {}}
        for name, block in (("reversible", self.reversible), ("residual", self.residual)):
            for layers in self.depths:
                model = self.model(block, layers, seed)
                once = counted(lambda model=model: loss(model, tokens).backward())
                model.zero_grad(set_to_none=True)
                doubled = counted(lambda model=model: loss(model, twice).backward())
                kept = kept_bytes(model, lambda model=model: loss(model, tokens))
                numbers = (doubled.peak - once.peak, once.peak, kept, once.operations)
                for kind, number in zip(found, numbers, strict=True):
                    found[kind].setdefault(name, []).append(float(number))
        work, plain, ours = found["operations"], found["peak"]["residual"], found["peak"]["reversible"]
        values = {
            "flat": ours[-1] / ours[0],
            "again": max(a / b for a, b in zip(work["reversible"], work["residual"], strict=True)),
            "folds": plain[-1] / ours[-1] / self.depths[-1],
            "kept": found["bytes"]["reversible"][-1] / found["bytes"]["reversible"][0],
            "all": found["all"]["reversible"][-1] / found["all"]["reversible"][0],
            "slope": exponent(self.depths, plain),
            "linear": (plain[-1] - plain[-2]) / (plain[-2] - plain[-3]),
            "gradient": self.difference(tokens, seed),
        }
        curves = {
            kind: {name: (self.depths, numbers) for name, numbers in lines.items()} for kind, lines in found.items()
        }
        return Observation(values, curves)

    def model(self, block: str, layers: int, seed: int) -> LanguageModel:
        return decoder(self, self.symbols, seed, layers=layers, heads=4, attention=self.attention, block=block)

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
