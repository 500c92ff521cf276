"""Distance-aware attention exploits distances.

Claim: Logits rescaled by a learned function of the real distance let attention use distances better than absolute or
relative embeddings of positions do.
Source: Wu, Wu, Huang 2021 (DA-Transformer), sections 3 and 4.2
Control: A single marked value: no distance is needed, and attention by content without positions answers every
question. For the exact distance: relative keys and values, which have a label for it, answer too.
Measured: Accuracy of one causal layer after the same training: the value of the nearest of several marked tokens before
the question, and the value exactly so many tokens before it. Distance-aware against the better one of sinusoidal
positions and Shaw's relative keys and values. Its function of the distance rises or falls, so that it can prefer near
or far, and no distance in between.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._training import decoder, trained
from regard.core.attention import generator

Task = Literal["single", "nearest", "exact"]


class Questions(NamedTuple):
    """tokens: (count, length), plain values, marked values, and one token that asks, at `place`. answer: the value."""

    tokens: Tensor
    place: Tensor
    answer: Tensor


class DistanceAware(Claim):
    controls = (
        Control("single", "one marked value, no positions: accuracy", 1.0, tolerance=0.02),
        Control("exact shaw", "exact distance, relative labels: accuracy", 1.0, tolerance=0.05),
    )
    findings = (
        Finding("nearest gain", "nearest: distance-aware - the better other", at_least=0.0, resolution=1 / 2000),
        Finding("exact gain", "exact: distance-aware - the better other", at_least=0.0, resolution=1 / 2000),
    )
    revised = Revision("The steps were 800, and are 400. Whether numbers had been seen is not recorded.", (0, 1, 2))
    plots = (Plot("accuracy", "Accuracy", "question", "accuracy"),)

    aware: str = "distance_aware"
    length: int = setting(32, tiny=8)
    marked: int = setting(4, tiny=2)
    distance: int = setting(5, tiny=2)
    values: int = setting(8, tiny=2)
    dim: int = 32
    steps: int = setting(400, tiny=40)
    batch: int = setting(64, tiny=16)
    questions: int = setting(2000, tiny=500)

    def observe(self, seed: int) -> Observation:
        schemes = {
            "distance_aware": (self.aware, "none"),
            "sinusoidal": ("softmax", "sinusoidal"),
            "shaw": (f"shaw(max_distance={self.length})", "none"),
        }
        values = {"single": self.accuracy("single", "softmax", "none", seed)}
        curves: dict[str, Curve] = {}
        tasks: tuple[Task, ...] = ("nearest", "exact")
        for name, (mechanism, position) in schemes.items():
            for task in tasks:
                values[f"{task} {name}"] = self.accuracy(task, mechanism, position, seed)
            curves[name] = (tasks, [values[f"{task} {name}"] for task in tasks])
        for task in tasks:
            best = max(values[f"{task} sinusoidal"], values[f"{task} shaw"])
            values[f"{task} gain"] = values[f"{task} distance_aware"] - best
        return Observation(values, {"accuracy": curves})

    def accuracy(self, task: Task, mechanism: str, position: str, seed: int) -> float:
        """Of a model trained on a question, on new ones."""
        model = decoder(self, 2 * self.values + 1, seed, layers=1, heads=4, attention=mechanism, position=position)
        draw = generator(seed, "samples", task)

        def logits(asked: Questions) -> Tensor:
            return model(asked.tokens).logits[torch.arange(len(asked.tokens)), asked.place]

        def loss() -> Tensor:
            asked = self.asked(task, self.batch, draw)
            return cross_entropy(logits(asked), asked.answer)

        trained(model, loss, steps=self.steps)
        new = self.asked(task, self.questions, generator(seed, "new", task))
        with torch.no_grad():
            return float((logits(new).argmax(-1) == new.answer).double().mean())

    def asked(self, task: Task, count: int, draw: torch.Generator) -> Questions:
        """Random values; the question stands somewhere in the second half, marked values before it."""
        rows = torch.arange(count)
        tokens = torch.randint(0, self.values, (count, self.length), generator=draw)
        place = torch.randint(self.length // 2, self.length, (count,), generator=draw)
        before = torch.arange(self.length) < place[:, None]
        if task == "exact":
            answer = tokens[rows, place - self.distance]
        else:
            order = torch.rand(count, self.length, generator=draw).masked_fill(~before, 2.0).argsort(1)
            marked = order[:, : 1 if task == "single" else self.marked]
            answer = tokens[rows, marked.amax(1)]
            tokens.scatter_add_(1, marked, torch.full_like(marked, self.values))
        tokens[rows, place] = 2 * self.values
        return Questions(tokens, place, answer)
