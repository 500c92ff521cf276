"""Distances of neighbours do not help SPALM.

Claim: A decoder that learns to mix in the tokens of neighbours weighs them by its hidden state alone; to weigh them by
their distance too makes it no better. It predicts better than the decoder without a datastore, and than kNN-LM, which
mixes by distances, on the same datastore.
Source: Yogatama et al. 2021, sections 2.3 and 4, tables 2 to 4
Control: Random symbols of whose neighbours one is the symbol that comes, at a distance of 0, and the others are any,
far away: by its distances SPALM knows all, so that distances can help. With the neighbours of other letters the SPALM
of the claim loses, so that it reads them. A letter of the training text never finds its own entry. Twice the steps
change the difference by less than what is to be seen.
Measured: Bits per letter on held-out addresses of decoders of two layers trained on the same windows of the others,
which are the datastore too, by keys of the one without neighbours. Distances are divided by the temperature that kNN-LM
with as many neighbours chooses on other held-out text. Beside: SPALM against that decoder alone, and against kNN-LM
around it, whose weight, neighbours and temperature are chosen on that text. There is no Transformer-XL memory here,
which the paper's models have beside the datastore.
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, Revision, setting
from evidence.claims._letters import LETTERS, text
from evidence.claims._plateau import change_with_steps, lasting
from evidence.claims._training import decoder, trained
from regard.core.attention import generator
from regard.models import LanguageModel
from regard.models.neighbours import NeighbourTokens
from regard_lab.benchmark.fitting import averages
from regard_lab.retrieval.build import build
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.documents import Text, origin
from regard_lab.retrieval.evaluation import Looked, sweep
from regard_lab.retrieval.keys import joined, kept_keys
from regard_lab.retrieval.search import Neighbours

EFFECT = 0.02
"""bits that are to be seen"""


class Rows(NamedTuple):
    """Windows of letters, and the neighbours of all but the last letter of each; None: of none."""

    windows: Int[Tensor, "rows length+1"]
    near: NeighbourTokens | None

    def picked(self, rows: Int[Tensor, " picked"] | slice) -> "Rows":
        return Rows(self.windows[rows], None if self.near is None else NeighbourTokens(*(x[rows] for x in self.near)))


class DistancesDoNotHelp(Claim):
    controls = (
        Control("told", "symbols told by distance alone: share of bits saved", 1.0, tolerance=0.1, small=False),
        Control("reads", "1 if neighbours of other letters lose 0.02 bits", 1.0, tolerance=0.0, small=False),
        Control("own found", "share of letters that find their own entry", 0.0, tolerance=0.0),
        lasting(EFFECT),
    )
    findings = (
        Finding("distances", "bits per letter gained by distances", at_most=EFFECT),
        Finding("spalm", "bits per letter, no datastore - SPALM", at_least=0.0, states=False),
        Finding("against knn", "bits per letter, kNN-LM - SPALM", at_least=0.0, states=False),
        Finding("knn", "bits per letter, no datastore - kNN-LM", at_least=0.0, states=False),
    )
    least_seeds = 6
    revised = Revision(
        "On a seed that does not count distances gained 0.026 bits at the least of five temperatures, to which a "
        "smaller one was added. After 250 steps they gained 0.037 bits (0.021 to 0.053), but twice the steps changed "
        "that by more than 0.02 in two seeds of five. There are 500 steps and 6 seeds now, whose mean the control "
        "asks. Bounds and the other controls are as they were.",
        (0, 1, 2, 3, 4, 900),
    )
    plots = (
        Plot("bits", "Held-out text", "decoder", "bits per letter"),
        Plot("loss", "Training", "step", "nats per letter"),
    )

    dim: int = setting(32, tiny=16)
    heads: int = setting(4, tiny=2)
    layers: int = setting(2, tiny=1)
    length: int = setting(64, tiny=16)
    """letters of a window"""
    skipped: int = 8
    """first letters of a window that do not count in what is measured: contexts of one letter are equal"""
    windows: int = setting(512, tiny=24)
    """of the training text, and of the datastore"""
    held: int = setting(96, tiny=8)
    """windows of held-out text to choose on, and as many to measure on"""
    steps: int = setting(500, tiny=16)
    batch: int = setting(16, tiny=4)
    learning_rate: float = setting(1e-2, tiny=2e-2)
    k: int = setting(8, tiny=4)
    """neighbours of SPALM"""
    ks: tuple[int, ...] = setting((8, 32, 128), tiny=(4, 8))
    """of kNN-LM"""
    lams: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
    temperatures: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    told_steps: int = setting(200, tiny=10)
    symbols: int = 16
    far: float = 100.0
    """distance of neighbours that say nothing"""

    def observe(self, seed: int) -> Observation:
        windows, held = self.drawn("train", self.windows, seed), self.drawn("valid", 2 * self.held, seed)
        base, losses = self.trained(Rows(windows, None), None, seed, self.steps)
        with tempfile.TemporaryDirectory() as folder:
            store = self.store(base, windows, Path(folder) / "store")
            entries = torch.arange(windows[:, 1:].numel()).view(-1, 1)
            own = self.looked(base, store, windows, self.k, own=entries)
            new = self.looked(base, store, held, max(self.ks))
        choice, test = (
            of(new, part) for part in (slice(None, self.held), slice(self.held, None)) for of in (self.part,)
        )
        temperature = self.best(choice, (self.k,)).temperature
        training, asked = Rows(windows, self.near(own)), Rows(held, self.near(new)).picked(slice(self.held, None))
        kinds: dict[str, float | None] = {"SPALM": None, "SPALM by distance": temperature}
        with_them = {name: self.trained(training, far, seed, self.steps) for name, far in kinds.items()}
        found = {name: self.bits(model, asked) for name, (model, _) in with_them.items()}
        chosen = self.best(choice, self.ks)
        alone = float(test.model.mean()) / math.log(2)
        mixed = float(test.nats(lam=chosen.lam, k=chosen.k, temperature=chosen.temperature).mean()) / math.log(2)

        def difference(steps: int) -> float:
            if steps == self.steps:
                return found["SPALM"] - found["SPALM by distance"]
            one, other = (self.bits(self.trained(training, far, seed, steps)[0], asked) for far in kinds.values())
            return one - other

        assert asked.near is not None
        others = Rows(asked.windows, NeighbourTokens(*(x.roll(1, 0) for x in asked.near)))
        bits = {"no datastore": alone, "kNN-LM": mixed, **found}
        values = {
            **{f"bits {name}": value for name, value in bits.items()},
            "distances": found["SPALM"] - found["SPALM by distance"],
            "spalm": alone - found["SPALM"],
            "against knn": mixed - found["SPALM"],
            "knn": alone - mixed,
            "temperature": temperature,
            "told": self.told(seed, 1.0),
            "told without": self.told(seed, None),
            "reads": float(self.bits(with_them["SPALM"][0], others) - found["SPALM"] >= EFFECT),
            "own found": float((own.neighbours.ids == entries).any(1).double().mean()),
            "lasting": change_with_steps(difference, self.steps),
        }
        nats = {"no datastore": losses, **{name: each for name, (_, each) in with_them.items()}}
        curves = {"held-out": (list(bits), list(bits.values()))}
        return Observation(values, {"bits": curves, "loss": {name: averages(each) for name, each in nats.items()}})

    def drawn(self, split: str, count: int, seed: int) -> Int[Tensor, "count length+1"]:
        """Windows of a split that do not overlap."""
        whole, size = text(split), self.length + 1
        order = torch.randperm(len(whole) // size, generator=generator(seed, f"windows {split}"))[:count]
        return whole[order[:, None] * size + torch.arange(size)]

    def model(self, symbols: int, seed: int, layers: int, neighbours: int, temperature: float | None) -> LanguageModel:
        """A decoder with so many neighbours; 0: without."""
        return decoder(
            self,
            symbols,
            seed,
            layers=layers,
            max_length=self.length,
            short_convolution=3,
            neighbours=neighbours,
            neighbour_temperature=temperature,
        )

    def trained(
        self, rows: Rows, temperature: float | None, seed: int, steps: int
    ) -> tuple[LanguageModel, list[float]]:
        """A decoder that has learned from these rows, in the same order in every call; the nats of its training."""
        model = self.model(LETTERS, seed, self.layers, 0 if rows.near is None else self.k, temperature)
        draw = generator(seed, "train")

        def batch() -> Rows:
            return rows.picked(torch.randint(len(rows.windows), (self.batch,), generator=draw))

        return model, fitted(model, batch, steps, self.learning_rate)

    def store(self, model: LanguageModel, windows: Tensor, folder: Path) -> Datastore:
        """The datastore of every letter but the first of each window, in order."""
        documents = [Text(str(at), window.numpy()) for at, window in enumerate(windows)]
        return build(model, documents, folder, origin=origin(model, None), length=self.length)

    @torch.no_grad()
    def looked(
        self, model: LanguageModel, store: Datastore, windows: Tensor, k: int, own: Tensor | None = None
    ) -> Looked:
        """Every letter but the first of each window, looked up."""
        targets = windows[:, 1:].flatten()
        with kept_keys(model) as pieces:
            logits = model.eval()(windows[:, :-1]).logits.flatten(0, 1)
        nats = cross_entropy(logits, targets, reduction="none").double()
        found = store.search(joined(pieces).flatten(0, 1), k, own=own)
        return Looked(nats, found, targets, torch.arange(len(windows)).repeat_interleave(self.length))

    def part(self, looked: Looked, windows: slice) -> Looked:
        """What counts of some of the windows."""

        def kept(x: Tensor) -> Tensor:
            return x.unflatten(0, (-1, self.length))[windows, self.skipped :].flatten(0, 1)

        near = Neighbours(*map(kept, looked.neighbours))
        return Looked(kept(looked.model), near, kept(looked.targets), kept(looked.documents))

    def near(self, looked: Looked) -> NeighbourTokens:
        """The first neighbours, as SPALM reads them."""
        first = (
            x[:, : self.k].unflatten(0, (-1, self.length))
            for x in (looked.neighbours.values, looked.neighbours.distances)
        )
        tokens, distances = first
        return NeighbourTokens(tokens, distances.float())

    def best(self, looked: Looked, ks: tuple[int, ...]):
        return sweep(looked, lams=self.lams, ks=ks, temperatures=self.temperatures)[0]

    @torch.no_grad()
    def bits(self, model: LanguageModel, rows: Rows) -> float:
        """Bits per letter that counts."""
        return float(nats(model, rows)[:, self.skipped :].double().mean()) / math.log(2)

    def told(self, seed: int, temperature: float | None) -> float:
        """The share of the bits of random symbols that a decoder of one layer saves; the nearest neighbour is right."""
        model, draw = self.model(self.symbols, seed, 1, self.k, temperature), generator(seed, "told")

        def batch() -> Rows:
            windows = torch.randint(self.symbols, (self.batch, self.length + 1), generator=draw)
            right = torch.randint(self.k, (self.batch, self.length, 1), generator=draw)
            tokens = torch.randint(self.symbols, (self.batch, self.length, self.k), generator=draw)
            distances = torch.full(tokens.shape, self.far).scatter(2, right, 0.0)
            return Rows(windows, NeighbourTokens(tokens.scatter(2, right, windows[:, 1:, None]), distances))

        fitted(model, batch, self.told_steps, self.learning_rate)
        with torch.no_grad():
            return 1 - float(nats(model, batch()).mean()) / math.log(self.symbols)


def nats(model: LanguageModel, rows: Rows) -> Float[Tensor, "rows length"]:
    """The loss of every letter but the first."""
    logits = model(rows.windows[:, :-1], neighbours=rows.near).logits
    return cross_entropy(logits.mT, rows.windows[:, 1:], reduction="none")


def fitted(model: LanguageModel, batch: Callable[[], Rows], steps: int, rate: float) -> list[float]:
    """Trains on fresh rows; the nats of every step."""

    return trained(model, lambda: nats(model, batch()).mean(), steps=steps, learning_rate=rate)
