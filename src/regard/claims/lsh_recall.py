"""How much of full attention random hashes find, by the number of rounds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from regard import Heads, build
from regard.attention.routed.lsh import Lsh
from regard.benchmark.fitting import averages, train
from regard.claims._base import About, Claim, Control, Curve, Finding, Observation, Plot
from regard.claims._letters import LETTERS, nats, samples
from regard.core import generator
from regard.models import LanguageModel, ModelConfig


@dataclass(frozen=True)
class LshRecall(Claim):
    """Attention mass and nearest keys that share a bucket with their query, and what is lost without the others."""

    about = About(
        title="Eight rounds of hashing come close to full attention",
        says="Similar vectors may fall into different buckets, which several rounds of hashing make rare: with eight "
        "rounds LSH attention nearly matches full attention.",
        source="Kitaev, Kaiser, Levskaya 2020 (Reformer), sections 2 and 5",
        control="One bucket holds the whole mass. Hashing can win: of vectors in 32 narrow bundles, whose keys of much "
        "weight lie at small angles, eight rounds find all of it. The model has learned: it needs fewer bits than the "
        "frequencies of letters.",
        measures="1,024 causal tokens, one projection for queries and keys, 16 buckets, that is 64 tokens each if they "
        "spread evenly; means over the queries of the second half of the share of full attention's weights that lies "
        "on keys which share a bucket in one of so many rounds, and of the eight keys with the largest logits that do. "
        "Of standard normal vectors, and of a model of two layers that was trained on the letters of bundled text with "
        "full attention, on new text. Bits per letter that the same weights lose there if attention is hashed.",
    )
    controls = (
        Control(value="one bucket", title="one bucket: mass", expected=1.0, tolerance=1e-5),
        Control(value="bundles", title="narrow bundles, eight rounds: mass", expected=1.0, tolerance=0.02),
        Control(value="learned", title="1 if fewer bits than by frequency", expected=1.0, tolerance=0.0, small=False),
    )
    findings = (
        Finding(value="mass", title="trained, eight rounds: mass", at_least=0.9),
        Finding(value="lost", title="trained, eight rounds: bits per letter lost", at_most=0.05),
        Finding(value="gain", title="trained: mass, sixteen rounds - one", at_least=0.1),
        Finding(value="nearest", title="trained, eight rounds: nearest keys found", at_least=0.9, states=False),
        Finding(value="random mass", title="random, eight rounds: mass", at_least=0.9, states=False),
        Finding(value="random nearest", title="random, eight rounds: nearest keys found", at_least=0.9, states=False),
    )
    plots = (
        Plot(name="mass", title="Attention mass found", x="rounds", y="share", log_x=True),
        Plot(name="nearest", title="Nearest keys found", x="rounds", y="share", log_x=True),
        Plot(name="lost", title="Hashed without training for it", x="rounds", y="bits per letter lost", log_x=True),
        Plot(name="loss", title="Training", x="step", y="bits per letter"),
    )
    tiny: ClassVar[Mapping[str, object]] = {
        "length": 64, "bucket_size": 8, "steps": 3, "dim": 16, "windows": 1
    }  # fmt: skip

    full: str = "lsh(num_buckets=1, rounds=1)"
    hashed: str = "lsh(num_buckets={buckets}, rounds={rounds})"
    length: int = 1024
    bucket_size: int = 64
    rounds: tuple[int, ...] = (1, 2, 4, 8, 16)
    neighbours: int = 8
    dim: int = 64
    heads: int = 2
    steps: int = 240
    batch: int = 2
    windows: int = 4
    """of new text"""

    def observe(self, seed: int) -> Observation:
        """Train with full attention; look at what hashes find of it."""
        new = samples("valid", self.windows, self.length - 1, generator(seed, "new"))
        model, loss = self.trained(seed)
        with torch.no_grad():
            vectors = self.vectors(model, new[:, :-1])
            kinds = {"trained": vectors, "random": [self.normal(seed)], "bundles": [self.bundles(seed)]}
            found = {kind: self.found(each, seed) for kind, each in kinds.items()}
            exact = self.bits(model, new)
            lost = [self.bits(self.with_hashes(model, rounds, seed), new) - exact for rounds in self.rounds]
            whole, _ = self.shares(vectors[0], build(self.full, self.shape(vectors[0], seed)))
        stated = self.rounds.index(8)
        masses, nearest = ({kind: shares[which] for kind, shares in found.items()} for which in (0, 1))
        values = {
            "one bucket": whole[-1],
            "bundles": masses["bundles"][stated],
            "learned": float(exact < frequency_bits(new)),
            "mass": masses["trained"][stated],
            "nearest": nearest["trained"][stated],
            "lost": lost[stated],
            "gain": masses["trained"][-1] - masses["trained"][0],
            "random mass": masses["random"][stated],
            "random nearest": nearest["random"][stated],
        }
        curves: dict[str, dict[str, Curve]] = {
            "mass": {kind: (self.rounds, shares) for kind, shares in masses.items()},
            "nearest": {kind: (self.rounds, shares) for kind, shares in nearest.items()},
            "lost": {"trained with full attention": (self.rounds, lost)},
            "loss": {"": averages(loss)},
        }
        return Observation(values, curves)

    def config(self, spec: str, seed: int) -> ModelConfig:
        """The model."""
        return ModelConfig(
            vocab_size=LETTERS,
            dim=self.dim,
            layers=2,
            heads=self.heads,
            attention=(spec,),
            position="sinusoidal",
            max_length=self.length,
            seed=seed,
        )

    def trained(self, seed: int) -> tuple[LanguageModel, list[float]]:
        """The model of full attention, and its bits on the way."""
        model, draw, bits = LanguageModel(self.config(self.full, seed)).train(), generator(seed, "train"), list[float]()

        def loss(step: int) -> Tensor:
            del step
            value = nats(model, samples("train", self.batch, self.length - 1, draw))
            bits.append(float(value.detach()) / math.log(2))
            return value

        train(model.parameters(), loss, steps=self.steps)
        return model.eval(), bits

    def with_hashes(self, model: LanguageModel, rounds: int, seed: int) -> LanguageModel:
        """The same weights in a model that hashes in so many rounds."""
        other = LanguageModel(self.config(self.spec(rounds), seed)).eval()
        for weight, same in zip(other.parameters(), model.parameters(), strict=True):
            weight.copy_(same)
        return other

    def spec(self, rounds: int) -> str:
        """LSH attention in so many rounds."""
        return self.hashed.format(buckets=self.length // self.bucket_size, rounds=rounds)

    def bits(self, model: LanguageModel, new: Tensor) -> float:
        """Per letter of new text."""
        return sum(float(nats(model, window)) for window in new.split(1)) / len(new) / math.log(2)

    def vectors(self, model: LanguageModel, tokens: Tensor) -> list[Tensor]:
        """What serves as queries and keys in each layer, (batch, heads, length, dim)."""
        seen: list[Tensor] = []

        def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            del module
            seen.append(inputs[0])

        handles = [mechanism.register_forward_pre_hook(note) for mechanism in model.mechanisms]
        model(tokens)
        for handle in handles:
            handle.remove()
        return seen

    def normal(self, seed: int) -> Tensor:
        """Vectors that have nothing to do with each other."""
        size = 1, self.heads, self.length, self.dim // self.heads
        return torch.randn(size, generator=generator(seed, "normal"))

    def bundles(self, seed: int) -> Tensor:
        """Vectors around few directions, 32 to each, so long that the weights lie within a bundle."""
        draw, width, count = generator(seed, "bundles"), self.dim // self.heads, self.length // 32
        centre = normalize(torch.randn(count, width, generator=draw), dim=-1)
        which = torch.randint(0, count, (1, self.heads, self.length), generator=draw)
        noise = normalize(torch.randn(*which.shape, width, generator=draw), dim=-1)
        return 20 * width**0.5 * (centre[which] + 0.05 * noise)

    def shape(self, x: Tensor, seed: int) -> Heads:
        """The heads that serve vectors."""
        return Heads(count=x.shape[1], key_dim=x.shape[3], causal=True, seed=seed)

    def found(self, layers: list[Tensor], seed: int) -> tuple[list[float], list[float]]:
        """Means over layers of the shares of mass and of nearest keys, by rounds."""
        mechanism = build(self.spec(self.rounds[-1]), self.shape(layers[0], seed))
        shares = torch.tensor([self.shares(x, mechanism) for x in layers]).mean(0).tolist()
        return shares[0], shares[1]

    def shares(self, x: Tensor, mechanism: nn.Module) -> tuple[list[float], list[float]]:
        """Of the mass and of the nearest keys that lie in a bucket of the query, by rounds."""
        assert isinstance(mechanism, Lsh)
        length, half = x.shape[2], x.shape[2] // 2
        later = torch.ones(length, length, dtype=torch.bool).triu()[half:]  # and itself
        masses, nearest = torch.zeros(2, len(self.rounds), dtype=torch.float64).unbind()
        for one in x.split(1):
            logits = one[:, :, half:] @ normalize(one, dim=-1).mT / one.shape[3] ** 0.5
            logits = logits.masked_fill(later, -math.inf)
            weights, best = logits.softmax(-1), logits.topk(self.neighbours).indices
            buckets = mechanism.decisions(one, one).keys
            met = torch.zeros_like(logits, dtype=torch.bool)
            counts = [min(count, buckets.shape[3]) for count in self.rounds]
            for place, (first, stop) in enumerate(zip([0, *counts], counts, strict=False)):
                for chosen in buckets[..., first:stop].unbind(-1):
                    met |= chosen[:, :, half:, None] == chosen[:, :, None]
                masses[place] += (weights * met).sum(-1).mean() / len(x)
                nearest[place] += met.gather(-1, best).double().mean() / len(x)
        return masses.tolist(), nearest.tolist()


def frequency_bits(text: Tensor) -> float:
    """Bits per letter of a text by its own frequencies.

    Example:
        >>> frequency_bits(torch.tensor([0, 1, 2, 3]))
        2.0
    """
    share = torch.bincount(text.flatten()).double() / text.numel()
    return float(-torch.special.xlogy(share, share).sum() / math.log(2))
