"""Neighbours lower the bits of a decoder without training.

Claim: Mixing in what followed the nearest contexts of a datastore lowers the perplexity of a trained model, with its
own training text as datastore and, more, with that of another domain; and the more, the more contexts there are.
Source: Khandelwal et al. 2020, section 4, tables 1, 3 and 4, figure 2a
Control: A letter of the datastore that may find its own entry finds it first, and looked up alone it is certain; with
that entry left out none finds it, and more than half of what the neighbours gained is lost. Where the letters of the
datastore are shuffled, the weight that is chosen gains nothing. The training is over.
Measured: Bits per letter of a decoder of two layers trained on addresses, alone and mixed with neighbours, on held-out
addresses (datastore: letters of its training text) and on Acts (datastore: other books of the New Testament). Weight,
neighbours and temperature are chosen on other held-out text, with the weight 0 among the choices. Keys are the input of
the last MLP, searched exactly. Seen on a seed that does not count: 0.25 and 0.60 bits gained; bounds are not from
there. Models are small and shortly trained, so that the datastore may know what a longer training would have taught.
"""

import math
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Control, Finding, Observation, Plot, setting
from evidence.claims._letters import LETTERS, text, verses, with_exits
from evidence.claims._plateau import FINISHED, change
from evidence.claims._training import decoder
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.benchmark.fitting import averages
from regard_lab.retrieval.build import build
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.documents import Text, origin
from regard_lab.retrieval.evaluation import Looked, sweep
from regard_lab.retrieval.keys import joined, kept_keys
from regard_lab.tasks.base import Split

Domain = Literal["addresses", "verses"]
Windows = Int[Tensor, "windows length+1"]
HELD: Mapping[Domain, Split] = {"addresses": "valid", "verses": "test"}
"""Acts, which is longer than the books that validate"""


class Setting(NamedTuple):
    """Weight of the neighbours, their number, and the temperature of distances."""

    lam: float
    k: int
    temperature: float


class KnnLmGain(Claim):
    controls = (
        Control("own first", "own entry allowed: share that find it first", 1.0, tolerance=0.02),
        Control("own alone", "own entry alone: bits", 0.0, tolerance=0.05),
        Control("own found", "own entry left out: share that find it", 0.0, tolerance=0.0),
        Control("own wins", "1 if leaving it out loses half of the gain", 1.0, tolerance=0.0),
        Control("shuffled", "shuffled letters: bits gained", 0.0, tolerance=0.005),
        FINISHED,
    )
    findings = (
        Finding("in domain", "bits gained in domain", at_least=0.01),
        Finding("other domain", "bits gained in the other domain", at_least=0.01),
        Finding("other - in", "bits gained, other domain - in domain", at_least=0.0),
        Finding("growth", "in domain: bits gained, all - a sixteenth", at_least=0.0),
        Finding("other growth", "other domain: bits gained, all - a sixteenth", at_least=0.0),
        Finding("least step", "least gain by four times as many, either domain", at_least=0.0, states=False),
    )
    least_seeds = 5
    plots = (
        Plot("gain", "Gain against datastore size", "entries", "bits per letter gained"),
        Plot("loss", "Training", "step", "nats per letter"),
    )

    dim: int = setting(48, tiny=16)
    layers: int = setting(2, tiny=1)
    heads: int = 4
    length: int = setting(64, tiny=32)
    """letters of a window, in training, in datastores and in tests"""
    skipped: int = 8
    """first letters of a window that are not asked for: contexts of one letter are equal"""
    steps: int = setting(400, tiny=60)
    batch: int = setting(32, tiny=8)
    learning_rate: float = setting(1e-2, tiny=2e-2)
    sizes: tuple[int, ...] = setting((4096, 16384, 65536), tiny=(64, 256, 1024))
    """entries of the datastores, of which each holds the smaller ones"""
    queries: int = setting(64, tiny=8)
    """windows to choose the setting on, and as many to test it"""
    lams: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
    ks: tuple[int, ...] = setting((16, 64, 256), tiny=(16,))
    temperatures: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)

    def observe(self, seed: int) -> Observation:
        model, nats = self.trained(seed)
        gains: dict[str, list[float]] = {}
        values: dict[str, float] = {"unfinished": change(nats)}
        for domain in HELD:
            windows, held = self.windows(domain, "train", seed), self.windows(domain, HELD[domain], seed)
            with tempfile.TemporaryDirectory() as folder:
                stores = [
                    self.store(model, windows[: size // self.length], Path(folder) / str(size)) for size in self.sizes
                ]
                looked = [self.looked(model, store, held) for store in stores]
                gains[domain] = [0.0, *map(self.gained, looked)]
                values[f"bits {domain}"] = float(looked[-1].model.mean()) / math.log(2)
                if domain == "addresses":
                    values |= self.own(model, stores[-1], windows, looked[-1], seed)
        inside, outside = gains["addresses"], gains["verses"]
        steps = [after - before for found in (inside, outside) for before, after in pairwise(found)]
        values |= {
            "in domain": inside[-1],
            "other domain": outside[-1],
            "other - in": outside[-1] - inside[-1],
            "growth": inside[-1] - inside[1],
            "other growth": outside[-1] - outside[1],
            "least step": min(steps),
        }
        sizes = [0, *self.sizes]
        curves = {"in domain": (sizes, inside), "other domain": (sizes, outside)}
        return Observation(values, {"gain": curves, "loss": {"training": averages(nats)}})

    def trained(self, seed: int) -> tuple[LanguageModel, list[float]]:
        model = decoder(self, LETTERS, seed, max_length=self.length, short_convolution=3)
        training = {"steps": self.steps, "learning_rate": self.learning_rate}
        return model, with_exits(model, generator(seed, "train"), batch=self.batch, length=self.length, **training)

    def windows(self, domain: Domain, split: Split, seed: int) -> Windows:
        """Windows from anywhere in a split: as many as the datastore has, or as are asked for."""
        whole = text(split) if domain == "addresses" else verses(split)
        count = max(self.sizes) // self.length if split == "train" else 2 * self.queries
        draw = generator(seed, f"{domain} {split}")
        begin = torch.randint(len(whole) - self.length, (count, 1), generator=draw)
        return whole[begin + torch.arange(self.length + 1)]

    def store(self, model: LanguageModel, windows: Windows, folder: Path) -> Datastore:
        """The datastore of every letter but the first of each window."""
        documents = [Text(str(at), window.numpy()) for at, window in enumerate(windows)]
        return build(model, documents, folder, origin=origin(model, None), length=self.length)

    @torch.no_grad()
    def looked(
        self, model: LanguageModel, store: Datastore, windows: Windows, own: Int[Tensor, "targets 1"] | None = None
    ) -> Looked:
        """Every letter but the first `skipped + 1` of each window, looked up."""
        targets = windows[:, 1 + self.skipped :].flatten()
        with kept_keys(model) as pieces:
            logits = model.eval()(windows[:, :-1]).logits[:, self.skipped :].flatten(0, 1)
        nats = cross_entropy(logits, targets, reduction="none").double()
        keys = joined(pieces)[:, self.skipped :].flatten(0, 1)
        neighbours = store.search(keys, min(max(self.ks), len(store) - 1), own=own)
        number = torch.arange(len(windows)).repeat_interleave(self.length - self.skipped)
        return Looked(nats, neighbours, targets, number)

    def chosen(self, looked: Looked) -> Setting:
        return self.best(half(looked, first=True))

    def best(self, looked: Looked) -> Setting:
        ks = [k for k in self.ks if k <= looked.neighbours.ids.shape[1]]
        found = sweep(looked, lams=self.lams, ks=ks, temperatures=self.temperatures)[0]
        return Setting(found.lam, found.k, found.temperature)

    def gained(self, looked: Looked) -> float:
        """Bits per letter that the setting chosen on the first half gains on the second."""
        return saved(half(looked, first=False), self.chosen(looked))

    def own(
        self, model: LanguageModel, store: Datastore, windows: Windows, held: Looked, seed: int
    ) -> dict[str, float]:
        """Training letters that may find themselves, and that may not; and held-out ones whose values are shuffled."""
        asked, entries = windows[: self.queries], torch.arange(self.queries * self.length).view(-1, self.length)
        entries = entries[:, self.skipped :].reshape(-1, 1)
        among = self.looked(model, store, asked)
        apart = self.looked(model, store, asked, own=entries)
        setting = self.best(among)
        gain = saved(among, setting)
        order = torch.randperm(len(store), generator=generator(seed, "shuffled"))
        values = store.values(0, len(store))[order]
        neighbours = held.neighbours._replace(values=values[held.neighbours.ids])
        first = among.nats(lam=1.0, k=1, temperature=1.0)
        return {
            "own first": float((among.neighbours.ids[:, :1] == entries).double().mean()),
            "own alone": float(first.clamp(max=50.0).mean()) / math.log(2),
            "own found": float((apart.neighbours.ids == entries).any(1).double().mean()),
            "own gain": gain,
            "left out gain": saved(apart, setting),
            "own wins": float(gain > 0.1 and saved(apart, setting) < gain / 2),
            "shuffled": self.gained(held._replace(neighbours=neighbours)),
        }


def half(looked: Looked, *, first: bool) -> Looked:
    """The first or the second half of the targets."""
    middle = len(looked.targets) // 2
    part = slice(None, middle) if first else slice(middle, None)
    neighbours = type(looked.neighbours)(*(x[part] for x in looked.neighbours))
    return Looked(looked.model[part], neighbours, looked.targets[part], looked.documents[part])


def saved(looked: Looked, setting: Setting) -> float:
    """Bits per letter, the model alone - with the neighbours."""
    mixed: Float[Tensor, " targets"] = looked.nats(**setting._asdict())
    return float((looked.model - mixed).mean()) / math.log(2)
