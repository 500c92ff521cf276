"""A memory makes evaluation faster than a sliding window.

Claim: In evaluation Transformer-XL reuses what it computed for the segments before; a window that moves on by one token
computes everything anew. It is up to 1,800 times faster, and the more so, the longer the context (363 times at 800,
1,874 times at 3,800).
Source: Dai et al. 2019, sections 3.2 and 4.5, table 9
Control: Equal context: in one layer, with segments of one token, the memory and the window show every token the same
past, so that outputs are equal. Windows that do not overlap compute every token once and show it half the context: they
cost less than the memory, so that the window's side can win.
Measured: Operations of matrix products and attention, counted, for each token of a text whose past is at least as long
as the context. The window's output layer reads its last token alone. Both decoders have the weights of one seed and the
distances of Transformer-XL, projected anew in every call on both sides. No time is measured, and counts do not depend
on the seed.
"""

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._growth import exponent, operations
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard.models import LanguageModel

SYMBOLS = 64


class MemoryEvaluationCost(Claim):
    controls = (
        Control("difference", "one layer, equal context: largest difference", 0.0, tolerance=1e-10),
        Control("apart is cheaper", "1 if windows without overlap cost less than the memory", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("least", "operations, window / memory: least over contexts", at_least=5.0),
        Finding("growth", "exponent of that over the context", at_least=0.5),
        Finding(
            "segment of one", "longest context, segments of one token: window / memory", at_least=5.0, states=False
        ),
    )
    plots = (
        Plot("operations", "Operations for each token", "context", "operations", log_x=True, log_y=True),
        Plot("ratio", "Window / memory", "context", "times", log_x=True, log_y=True),
    )

    memory: str = "recent(length={length})"
    contexts: tuple[int, ...] = setting((64, 128, 256, 512), tiny=(16, 32, 64))
    segment: int = setting(64, tiny=16)
    dim: int = setting(128, tiny=32)
    heads: int = 4
    layers: int = setting(4, tiny=2)

    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "text")
        costs: dict[str, list[float]] = {"window": [], "memory": [], "windows without overlap": []}
        for context in self.contexts:
            text = torch.randint(SYMBOLS, (1, context + self.segment), generator=draw)
            costs["window"].append(self.window(text[:, : context + 1], 1, seed))
            costs["memory"].append(self.remembered(text, context, self.segment, seed))
            costs["windows without overlap"].append(self.window(text[:, :context], context, seed))
        times = [window / memory for window, memory in zip(costs["window"], costs["memory"], strict=True)]
        alone = self.remembered(text[:, : context + 1], context, 1, seed)
        cheaper = costs["windows without overlap"][-1] < costs["memory"][-1]
        values = {
            "least": min(times),
            "growth": exponent(self.contexts, times),
            "segment of one": costs["window"][-1] / alone,
            "apart is cheaper": float(cheaper),
            "difference": self.difference(seed),
        }
        curves: dict[str, dict[str, Curve]] = {
            "operations": {name: (self.contexts, found) for name, found in costs.items()},
            "ratio": {"window / memory": (self.contexts, times)},
        }
        return Observation(values, curves)

    def model(self, memory: int | None, segment: int, seed: int, layers: int) -> LanguageModel:
        return decoder(
            self,
            SYMBOLS,
            seed,
            layers=layers,
            position="transformer_xl",
            memory="none" if memory is None else self.memory.format(length=memory),
            max_length=segment,
        ).eval()

    def window(self, tokens: Tensor, asked: int, seed: int) -> float:
        """Operations of one window for each of the `asked` last tokens, whose outputs alone are computed."""
        model = self.model(None, tokens.shape[1], seed, self.layers)

        def read() -> None:
            model.logits(model.hidden(tokens).hidden[:, -asked:])

        with torch.no_grad():
            return operations(read) / asked

    def remembered(self, text: Tensor, context: int, segment: int, seed: int) -> float:
        """Operations of a segment behind a full memory, for each of its tokens."""
        model = self.model(context, segment, seed, self.layers)
        with torch.no_grad():
            state = model.initial_state(1, segments=True)
            for part in text[:, :context].split(segment, 1):
                state = model(part, state=state).state
            last = text[:, context : context + segment]
            return operations(lambda: model(last, state=state)) / segment

    def difference(self, seed: int) -> float:
        """The largest difference of outputs in one layer, over the largest output, where contexts are equal."""
        context, asked = self.contexts[0], 8
        text = torch.randint(SYMBOLS, (1, context + asked), generator=generator(seed, "equal"))
        both = self.model(context, 1, seed, 1).double(), self.model(None, context + 1, seed, 1).double()
        with torch.no_grad():
            found = both[0](text).logits[0, context:]
            exact = torch.stack([both[1](text[:, at : at + context + 1]).logits[0, -1] for at in range(asked)])
        return float((found - exact).abs().max() / exact.abs().max())
