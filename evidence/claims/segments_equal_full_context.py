"""Segments with a long enough memory are full context.

Claim: The hidden states of the segment before are reused as an extended context, and not computed again. The longest
dependency grows with layers x segment; what lies within the memory is seen as if it had been read at once.
Source: Dai et al. 2019, section 3.2 and figure 2b
Control: A memory of one segment must change outputs from the third segment on, and none before: there it still holds
all that was read. A text of one segment needs no memory: no bit may differ. In full context the first token reaches
every later one.
Measured: Decoders with random weights in float64 on random symbols, cut in equal and in unequal segments, under three
position schemes: the largest difference of an output from that of the same weights without a memory, over the largest
output. Reach: the pairs (segment written, segment read) of which a changed first token moves any later output by
anything at all, against segments that are at most as far apart as there are layers, one segment of memory each. Nothing
is trained; an error of one position would be seen.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._training import shape
from regard.core.attention import generator
from regard.models import LanguageModel

SYMBOLS = 16
"""of the text, which is random"""


class SegmentsEqualFullContext(Claim):
    controls = (
        Control("one segment", "one segment: largest difference", 0.0, tolerance=0.0),
        Control(
            "short, where it still holds all",
            "memory of a segment, first two: largest difference",
            0.0,
            tolerance=1e-10,
        ),
        Control(
            "short differs", "memory of a segment: 1 if later outputs differ by more than 1e-3", 1.0, tolerance=0.0
        ),
        Control("full reach", "full context: share of pairs reached", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("transformer_xl", "distances of Transformer-XL: largest difference", at_most=1e-10),
        Finding("rotary", "rotary: largest difference", at_most=1e-10),
        Finding("alibi", "ALiBi: largest difference", at_most=1e-10),
        Finding("unequal", "other lengths of segments: largest difference", at_most=1e-10),
        Finding("gradient", "gradient of a segment for the one before, largest", at_most=0.0),
        Finding("wrong reach", "pairs unlike: at most as many segments apart as layers", at_most=0.5),
    )
    plots = (
        Plot("difference", "Memory of one segment", "position", "largest difference / largest output"),
        Plot("reach", "How far back outputs depend", "layers", "segments"),
    )

    memory: str = "recent(length={length})"
    positions: tuple[str, ...] = ("transformer_xl", "rotary", "alibi")
    segment: int = setting(12, tiny=4)
    segments: int = setting(6, tiny=4)
    dim: int = setting(32, tiny=16)
    heads: int = 4
    depth: int = setting(4, tiny=2)
    """layers"""
    batch: int = setting(4, tiny=2)

    def observe(self, seed: int) -> Observation:
        whole, draw = self.segment * self.segments, generator(seed, "text")
        text = torch.randint(SYMBOLS, (self.batch, whole), generator=draw)
        values: dict[str, float] = {}
        for position in self.positions:
            values[position] = float(self.difference(text, position, whole, self.segment, seed).max())
        first = self.positions[0]
        values["unequal"] = max(
            float(self.difference(text, first, whole, length, seed).max())
            for length in (self.segment - 1, self.segment + 1, whole - 1)
        )
        values["one segment"] = float(self.difference(text[:, : self.segment], first, whole, self.segment, seed).max())
        short = self.difference(text, first, self.segment, self.segment, seed)
        values["short, where it still holds all"] = float(short[: 2 * self.segment].max())
        values["short differs"] = float(float(short[2 * self.segment :].max()) > 1e-3)
        values["gradient"] = self.gradient(text, first, seed)
        full = self.reached(text, None, self.depth, seed)
        values["full reach"] = float(full.tril().double().mean() / torch.ones_like(full).tril().double().mean())
        apart = torch.arange(self.segments)[:, None] - torch.arange(self.segments)
        depths, reach, values["wrong reach"] = range(1, self.depth + 1), list[float](), 0.0
        for layers in depths:
            seen = self.reached(text, self.memory.format(length=self.segment), layers, seed)
            values["wrong reach"] += float((seen != ((apart >= 0) & (apart <= layers))).sum())
            reach.append(float((apart * seen).max()))
        curves: dict[str, dict[str, Curve]] = {
            "difference": {first: (list(range(whole)), short.tolist())},
            "reach": {"measured": (list(depths), reach)},
        }
        return Observation(values, curves)

    def model(self, memory: str | None, position: str, segment: int, layers: int, seed: int) -> LanguageModel:
        """Decoders of one seed and depth have the same weights; larger ones than usual, so that contexts matter."""
        config = shape(self, SYMBOLS, seed, layers=layers, position=position, max_length=segment)
        draw = generator(seed, "weights")
        model = LanguageModel(config if memory is None else replace(config, memory=memory)).double().eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.copy_(torch.randn(weight.shape, generator=draw) * weight.shape[-1] ** -0.5)
        return model.requires_grad_(requires_grad=False)

    def difference(self, text: Tensor, position: str, length: int, segment: int, seed: int) -> Tensor:
        """By position: the largest difference that a memory of `length` and segments make, over the largest output."""
        memory = self.memory.format(length=length)
        exact = self.model(None, position, text.shape[1], self.depth, seed)(text).logits
        found = self.model(memory, position, segment, self.depth, seed)(text).logits
        return (found - exact).abs().amax((0, 2)) / exact.abs().max()

    def gradient(self, text: Tensor, position: str, seed: int) -> float:
        """The largest entry of the gradient of the second segment's outputs for the first one's embeddings."""
        model = self.model(self.memory.format(length=self.segment), position, self.segment, self.depth, seed)
        kept: list[Tensor] = []

        def keep(module: torch.nn.Module, given: object, made: Tensor) -> Tensor:
            del module, given
            kept.append(made.detach().requires_grad_())
            return kept[-1]

        with_graph = model.table.register_forward_hook(keep)
        logits = model(text[:, : 2 * self.segment]).logits[:, self.segment :]
        with_graph.remove()
        grads = torch.autograd.grad(logits.square().sum(), kept, allow_unused=True)
        by_position = torch.cat([torch.zeros_like(x) if g is None else g for x, g in zip(kept, grads, strict=True)], 1)
        if not float(by_position[:, self.segment :].abs().max()) > 0:
            return float("inf")  # no gradient at all is no answer
        return float(by_position[:, : self.segment].abs().max())

    def reached(self, text: Tensor, memory: str | None, layers: int, seed: int) -> Bool[Tensor, "read written"]:
        """Whether another first token of a segment moves an output of a segment."""
        segment = text.shape[1] if memory is None else self.segment
        model = self.model(memory, self.positions[0], segment, layers, seed)
        usual, rows = model(text).logits, list[Tensor]()
        for written in range(self.segments):
            other = text.clone()
            other[:, written * self.segment] = (other[:, written * self.segment] + 1) % SYMBOLS
            moved = (model(other).logits != usual).any(2).any(0)
            rows.append(moved.view(self.segments, self.segment).any(1))
        return torch.stack(rows, 1)
