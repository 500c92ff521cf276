"""The common part of claims on needles: keys with values among fillers, and keys at the end that ask for values."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evidence.claims._base import Claim, Curve
from evidence.claims._growth import operations
from regard.core.attention import generator
from regard.layer import AttentionLayer
from regard_lab.benchmark.fitting import averages, fit


class NeedleClaim(Claim):
    """Trains one layer of attention to say the values of keys that stood farther back than a gap."""

    keys: int = 8
    values: int = 4
    pairs: int = 6
    """needles of a sequence"""
    front: int = 24
    """tokens that needles stand among"""
    gap: int = 16
    """tokens between these and the questions"""
    asked: int = 4
    """questions of a sequence"""
    fillers: int = 8
    """tokens that mean nothing"""
    dim: int = 32
    heads: int = 2
    steps: int = 300
    learning_rate: float = 1e-2
    batch: int = 32
    samples: int = 400

    def trained(self, spec: str, seed: int, *, weight: float | None = None, far: int | None = None) -> "Found":
        """A layer after its training, asked new sequences.

        Args:
            spec: the mechanism.
            seed: of weights and sequences, which mechanisms share.
            weight: of the mechanism's own losses; None: its defaults.
            far: the gap of other new sequences, which it is asked too; None: as in the training.
        """
        model, draw = Finder(spec, self, seed, weight).train(), generator(seed, "sequences")
        nats: list[float] = []

        def loss() -> Tensor:
            tokens, answers = self.sequences(self.batch, draw)
            logits, extra, _ = model(tokens)
            value = cross_entropy(logits.mT, answers)
            nats.append(float(value.detach()))
            return value + extra

        fit(model.parameters(), loss, steps=self.steps, rate=self.learning_rate)  # to 0, so that it ends
        tokens, answers = self.sequences(self.samples, generator(seed, "new"))
        with torch.no_grad():
            own = float(model(tokens)[2])
            right = model.eval()(tokens)[0].argmax(-1) == answers
            tokens, answers = replace(self, gap=far or self.gap).sequences(self.samples, generator(seed, "far"))
            found = model(tokens)[0].argmax(-1) == answers
            cost = attention_operations(model, tokens[: self.batch])
        return Found(float(right.double().mean()), own, nats, float(found.double().mean()), cost)

    def sequences(
        self, count: int, draw: torch.Generator
    ) -> tuple[Int[Tensor, "count length 2"], Int[Tensor, "count asked"]]:
        """Tokens as (key or filler, value or none), and the answers; keys of a sequence differ."""
        key = torch.rand(count, self.keys, generator=draw).argsort(-1)[:, : self.pairs]
        value = torch.randint(0, self.values, (count, self.pairs), generator=draw)
        place = torch.rand(count, self.front, generator=draw).argsort(-1)[:, : self.pairs]
        chosen = torch.randint(0, self.pairs, (count, self.asked), generator=draw)
        fill = self.keys + torch.randint(0, self.fillers, (count, self.front + self.gap), generator=draw)
        what = torch.cat([fill.scatter(1, place, key), key.gather(1, chosen)], 1)
        none = torch.full_like(what, self.values)
        return torch.stack([what, none.scatter(1, place, value)], -1), value.gather(1, chosen)


@dataclass(frozen=True)
class Found:
    """A layer that was trained.

    Attributes:
        accuracy: of answers.
        own: the mechanism's own losses on new sequences, unweighted.
        nats: of each step.
        far: accuracy with the other gap.
        operations: of matrix products of the mechanism alone, on a batch of sequences with that gap.
    """

    accuracy: float
    own: float
    nats: list[float]
    far: float = 0.0
    operations: int = 0

    @property
    def curve(self) -> Curve:
        """The loss on the way."""
        return averages(self.nats)


class Finder(nn.Module):
    """One layer of attention over the sum of two embeddings, and a map from what it gives to the values."""

    def __init__(self, spec: str, claim: NeedleClaim, seed: int, weight: float | None) -> None:
        super().__init__()
        draw = generator(seed, "embeddings")
        length = claim.front + claim.gap + claim.asked
        sizes = claim.keys + claim.fillers, claim.values + 1
        self.asked, self.weight = claim.asked, weight
        self.embeddings = nn.ParameterList(torch.randn(size, claim.dim, generator=draw) for size in sizes)
        self.layer = AttentionLayer(claim.dim, spec, heads=claim.heads, causal=True, max_length=length, seed=seed)
        self.answer = nn.Parameter(torch.randn(claim.dim, claim.values, generator=draw) * claim.dim**-0.5)

    def forward(
        self, tokens: Int[Tensor, "batch length 2"]
    ) -> tuple[Float[Tensor, "batch asked values"], Tensor, Tensor]:
        """The logits of the questions, and the mechanism's own losses with and without their weights."""
        x = sum((table[tokens[..., at]] for at, table in enumerate(self.embeddings)), torch.zeros(()))
        found, none = self.layer(x), x.new_zeros(())
        default = self.layer.attention.info.losses
        weights = {name: default[name] if self.weight is None else self.weight for name in found.losses}
        weighted = sum((weights[name] * loss for name, loss in found.losses.items()), none)
        return found.hidden[:, -self.asked :] @ self.answer, weighted, sum(found.losses.values(), none)


def attention_operations(model: Finder, tokens: Int[Tensor, "batch length 2"]) -> int:
    """Of matrix products of a layer's mechanism, its projections apart, given what it is given here."""
    given: list[tuple[tuple[Tensor, ...], dict[str, object]]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, object]) -> None:
        del module
        given.append((inputs, named))

    attention = model.layer.attention
    handle = attention.register_forward_pre_hook(note, with_kwargs=True)
    model(tokens)
    handle.remove()
    ((inputs, named),) = given
    return operations(lambda: attention(*inputs, **named))
