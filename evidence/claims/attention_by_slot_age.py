"""Attention falls with the age of a slot, and rises again where compression begins.

Claim: Older positions of the memory receive less attention. From the oldest that are kept as they are to the compressed
ones it increases again, against that trend: the network has learned to keep what is salient.
Source: Rae et al. 2020, section 5 (attention over six buckets), figure 2
Control: Weights that are equal by definition come out flat: no slot is preferred by what counts them. One value among
fillers, asked for when only a compressed slot can hold it: the head that answers puts most of its mass there, so that a
rise is seen where there is one. The training on letters is over.
Measured: The mean weight of a slot over queries, heads, layers and segments whose memory is full, of a decoder of two
layers on held-out addresses. Fall: newest against oldest quarter of the memory. Rise: newest quarter of the compressed
slots against the oldest quarter of the memory, slot by slot, in powers of two. A compressed slot stands for several
positions, of which it would receive the sum if nothing were gained or lost: beside, the rise is measured for each
position. Seen on a seed that does not count: fall 1.6, rise 0.01.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from evidence.claims._letters import LETTERS
from evidence.claims._plateau import FINISHED, change
from evidence.claims._remembering import far, held_out, on_letters
from evidence.claims._segments import learned
from evidence.claims._training import decoder
from regard.core.attention import Attention, generator
from regard.functional import weights
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages

SHORT = 3
"""width of the convolution over embeddings"""


class AttentionBySlotAge(Claim):
    controls = (
        Control("flat", "equal weights: largest |log2 (slot / mean)|", 0.0, tolerance=1e-4),
        Control("found", "far value: mass on compressed slots, best head", 1.0, tolerance=0.25, small=False),
        FINISHED,
    )
    findings = (
        Finding("fall", "log2 mass, newest / oldest of the memory", at_least=0.0),
        Finding("rise", "log2 mass, compressed / oldest of the memory", at_least=0.0),
        Finding("rise by position", "the same for each position", at_least=0.0, states=False),
        Finding("fall compressed", "log2 mass, newest / oldest compressed", at_least=0.0, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("mass", "Attention by age", "slots back, from the segment", "mean weight", log_y=True),
        Plot("loss", "Training", "step", "nats per letter"),
    )

    attention: str = "softmax"
    memory: str = "compressive(length={length}, compressed={compressed}, rate={rate})"
    length: int = setting(16, tiny=8)
    compressed: int = setting(16, tiny=4)
    rate: int = setting(4, tiny=2)
    """positions in a compressed slot"""
    segment: int = setting(16, tiny=8)
    dim: int = setting(32, tiny=16)
    layers: int = 2
    heads: int = 4
    steps: int = setting(300, tiny=20)
    batch: int = setting(16, tiny=4)
    learning_rate: float = setting(1e-2, tiny=2e-2)
    samples: int = setting(128, tiny=40)
    """rows of held-out text, and of far values"""
    far_steps: int = setting(300, tiny=2)
    values: int = 4
    fillers: int = 8

    @property
    def filled(self) -> int:
        """Positions after which the memory is full, in whole segments."""
        return -(-(self.length + self.rate * self.compressed) // self.segment) * self.segment

    def observe(self, seed: int) -> Observation:
        text = held_out(seed, self.samples, self.filled + self.segment)[:, :-1]
        model = self.model(LETTERS, self.layers, seed)
        nats = on_letters(model, text.shape[1], steps=self.steps, batch=self.batch, learning_rate=self.learning_rate)
        mass = self.mass(model, text).mean((0, 1))
        plain = self.model(LETTERS, self.layers, seed, flat=True)
        equal = self.mass(plain, text).mean((0, 1))
        new, old, squeezed, oldest = self.quarters(mass)
        rise = math.log2(squeezed / old)
        values = {
            "fall": math.log2(new / old),
            "rise": rise,
            "rise by position": rise - math.log2(self.rate),
            "fall compressed": math.log2(squeezed / oldest),
            "flat": float((equal / equal.mean()).log2().abs().max()),
            "found": self.found(seed),
            "unfinished": change(nats),
        }
        back, ages = mass.flip(0), list(range(1, self.length + self.compressed + 1))
        kept, after = ages[: self.length], ages[self.length :]
        curves = {"memory": (kept, back[: self.length].tolist()), "compressed": (after, back[self.length :].tolist())}
        return Observation(values, {"mass": curves, "loss": {"training": averages(nats)}})

    def quarters(self, mass: Float[Tensor, " slots"]) -> tuple[float, float, float, float]:
        """Mean weights of the newest and the oldest quarter of the memory, and of the compressed slots."""
        compressed, memory = mass[: self.compressed], mass[self.compressed :]
        few, more = max(1, self.compressed // 4), max(1, self.length // 4)
        parts = memory[-more:], memory[:more], compressed[-few:], compressed[:few]
        new, old, squeezed, oldest = (float(part.mean()) for part in parts)
        return new, old, squeezed, oldest

    def model(self, symbols: int, layers: int, seed: int, *, mean: bool = False, flat: bool = False) -> LanguageModel:
        """A decoder with the memory; mean: that compresses without weights; flat: whose weights are all equal."""
        memory = f"{self.memory[:-1]}, function=mean, loss=none)" if mean or flat else self.memory
        return decoder(
            self,
            symbols,
            seed,
            layers=layers,
            attention="uniform" if flat else self.attention,
            position="none" if flat else "transformer_xl",
            memory=memory.format(length=self.length, compressed=self.compressed, rate=self.rate),
            max_length=self.segment,
            short_convolution=SHORT,
        )

    def mass(
        self, model: LanguageModel, tokens: Tensor, rows: slice = slice(None)
    ) -> Float[Tensor, "calls heads slots"]:
        """The mean weight of every slot of a full memory, oldest first, over those rows of a segment.

        Args:
            model: with the memory; every layer and every segment with a full one is a call.
            tokens: as it reads them.
            rows: queries of a segment.
        """
        slots, found, inside = self.length + self.compressed, list[Tensor](), False

        def look(module: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Any]) -> None:
            nonlocal inside
            q, k = arguments[:2]
            if inside or k.shape[2] != slots + self.segment:
                return
            assert isinstance(module, Attention)
            inside = True
            whole = weights(module, q, k, bias=named.get("bias"), inputs=named.get("inputs"))
            inside = False
            found.append(whole[:, :, rows, :slots].double().mean((0, 2)))

        hooks = [one.register_forward_pre_hook(look, with_kwargs=True) for one in dict.fromkeys(model.mechanisms)]
        try:
            with torch.no_grad():
                model.eval()(tokens)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(found)

    def found(self, seed: int) -> float:
        """The most that a head of one layer puts on compressed slots when it is asked for what only they can hold."""
        model, draw = self.model(self.values + self.fillers + 1, 1, seed, mean=True), generator(seed, "far")
        whole, last = self.filled + self.segment, self.filled - self.length - SHORT + 1
        places = range(last - self.rate * self.compressed // 2, last)
        kinds = {"values": self.values, "fillers": self.fillers, "draw": draw}
        learned(
            model,
            lambda: far(2 * self.batch, whole, places, **kinds),
            steps=self.far_steps,
            learning_rate=self.learning_rate,
        )
        mass = self.mass(model, far(self.samples, whole, places, **kinds)[0], rows=slice(-1, None))
        return float(mass[..., : self.compressed].sum(-1).max())
