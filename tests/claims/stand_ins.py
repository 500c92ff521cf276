"""What stands in a claim's tests in the place of mechanisms, clocks and long trainings."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from evidence.claims._growth import operations
from evidence.claims._letters import LETTERS
from evidence.claims._training import decoder
from evidence.claims.exit_guarantee import ExitGuarantee, naive
from evidence.claims.ponder_difficulty import Answered
from evidence.claims.routing_needle import Found
from regard import Info, Supports, catalog
from regard.attention.dense.softmax import Softmax
from regard.core.attention import Attended, Attention
from regard.models import LanguageModel
from regard_lab.benchmark.cost import counted
from regard_lab.benchmark.exits import Measured
from regard_lab.benchmark.retrieval import Trained

EVERYTHING = Supports(bidirectional=True, causal=True, cross=True, key_mask=True)
SOFT = "softmax"


class StandIn(Attention):
    """Template of mechanisms that do what a claim says, or its opposite: softmax of other logits."""

    default_info = Info(title="Stand-in", source="this test", supports=EVERYTHING)

    def setup(self) -> None:
        self.inner: Attention = Softmax(self.heads)

    def reference(self, q, k, v, call):
        raise AssertionError


@final
class Harsh(StandIn):
    """Rounds finely with many bits, and loses everything with 3."""

    default_info = StandIn.default_info

    bits: int = 8
    """how many are kept"""
    store: str = "int8"
    """as what"""

    def setup(self) -> None:
        self.inner = catalog.build(f"quantized(bits={max(self.bits, 8)}, store=float)", self.heads)

    def attend(self, q, k, v, call):
        values = self.inner(q, k, v, key_mask=call.key_mask).values
        return Attended(-100 * values if self.bits == 3 else values)


@final
class Second(StandIn):
    """Finds the key that is next to the nearest."""

    default_info = StandIn.default_info

    def attend(self, q, k, v, call):
        return Attended(v.gather(2, (q @ k.mT).topk(2).indices[..., 1:].expand(-1, -1, -1, v.shape[-1])))


@final
class Discerning(StandIn):
    """Softmax, but for values that are codes, of which linear attention finds the largest."""

    default_info = StandIn.default_info

    def setup(self) -> None:
        self.inner = Softmax(self.heads)
        self.codes: Attention = catalog.build("linear(feature_map=relu)", self.heads)

    def attend(self, q, k, v, call):
        codes = v.shape[2] == v.shape[3] and bool((v == torch.eye(v.shape[2])).all())
        return Attended((self.codes if codes else self.inner)(q, k, v).values)


@final
class Known(StandIn):
    """Off by little with the balance heuristic and by less with full weights, at next to no cost."""

    default_info = StandIn.default_info

    num_landmarks: int = 4
    """without a meaning"""
    alpha: str = "full"
    """the better weights, or `balance`"""

    def attend(self, q, k, v, call):
        noise = torch.randn(v.shape, generator=torch.Generator().manual_seed(0), dtype=v.dtype)
        with torch.no_grad():
            exact = self.inner(q, k, v).values
        error = (0.05 if self.alpha == "full" else 0.1) * (self.num_landmarks > 1) / self.num_landmarks
        cost = q @ torch.zeros(q.shape[-1], self.num_landmarks, dtype=q.dtype)
        return Attended(exact + error * exact.abs().mean() * noise + cost.sum(-1, keepdim=True))


MECHANISMS = (Harsh, Second, Discerning, Known)


@dataclass(frozen=True)
class Way:
    """Settings of the small form, and what stands in the place of a clock or of a long training."""

    settings: Mapping[str, object] = field(default_factory=dict)
    module: Mapping[str, object] = field(default_factory=dict)
    method: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def clock(softmax: float = 1.0) -> Callable[..., dict[str, float]]:
    """Counted operations for seconds; those of softmax take so long."""

    def seconds(calls: Mapping[str, Callable[[], object]], **_: object) -> dict[str, float]:
        return {name: (softmax if name == SOFT else 1.0) * operations(call) + 1 for name, call in calls.items()}

    return seconds


def writing(calls: Mapping[str, Callable[[], object]], **_: object) -> dict[str, float]:
    """Numbers written for seconds."""
    return {name: counted(call).elements for name, call in calls.items()}


def recalls(shares: Mapping[str, float], loss: Sequence[float] = (0.0,) * 20) -> Mapping[str, Callable[..., Any]]:
    """Shares that models recall, by specification; others recall everything, one pair is recalled by all."""

    def trained(self: Any, spec: str, seed: int) -> Trained:
        blind = 0.25 if spec == self.alone.format(window=self.window) else 1.0
        share = 1.0 if self.pairs == 1 else shares.get(spec, blind) - seed / 1e4
        return Trained(share, share, share, list(loss))  # pyright: ignore[reportArgumentType]  # `counted` reads it

    kinds = ("all", "near", "far", "out of reach")
    return {"trained": trained, "counted": lambda self, share, task: dict.fromkeys(kinds, share)}


def distances(aware: float) -> Callable[..., float]:
    """Accuracies of schemes of distance; relative labels find an exact distance."""

    def accuracy(self: Any, task: str, mechanism: str, position: str, seed: int) -> float:
        if mechanism == self.aware:
            return aware + seed / 1e4
        return 1.0 if task == "single" else 0.96 if task == "exact" and "shaw" in mechanism else 0.5

    return accuracy


def estimates(biased: Sequence[str]) -> Callable[..., Iterator[Tensor]]:
    """Softmax with noise, and with a bias for some; none with one key, of which there is nothing to estimate."""

    def drawn(self: Any, spec: str, count: int, q: Tensor, k: Tensor, v: Tensor, seed: int) -> Iterator[Tensor]:
        exact, draw = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v, torch.Generator().manual_seed(seed)
        size = float(k.shape[2] > 1) * v.square().mean().sqrt()
        off = 0.05 * size if any(spec.startswith(name) for name in biased) else 0.0
        for _ in range(20):
            noise = 0.01 * size * torch.randn(50, *exact[0, 0].shape, generator=draw, dtype=exact.dtype)
            yield exact[0, 0] + off + noise

    return drawn


def entropy(self: Any, spec: str, keys: int, deviation: float, seed: int) -> float:
    """log n - variance / 2 of softmax, and that of the base length always of the other."""
    return math.log(keys if spec == self.plain else self.base_length) - deviation**2 / 2


def lookup(self: Any, spec: str, lengths: Sequence[int], seed: int) -> list[float]:
    """A weight that falls with the length only in softmax."""
    return [1 - seed / 1e4 - 0.001 * length * (spec == self.plain) / lengths[-1] for length in lengths]


def quiet(self: Any, spec: str, watched: Any) -> dict[str, float]:
    """Tails that the 1 below the line halves."""
    return dict.fromkeys(("kurtosis", "largest", "stream", "logit"), 1.0 if spec == self.plain else 0.5)


def needles(self: Any, spec: str, seed: int) -> Found:
    """All needles are found, but by the window only near ones; softmax costs four times as much."""
    far = 0.5 - seed / 1e4 if spec == self.window else 1.0
    return Found(1.0, [1.0] * 20, far, 4 if spec == SOFT else 1)


def above(**lost: float) -> Callable[..., Any]:
    """Bits above the floor of language models, by the mechanism of their first layer; nothing of others."""

    def found(self: Any, spec: str, text: Any, new: Any, seed: int) -> tuple[float, list[float]]:
        name = "by_layer" if "/" in spec else spec.partition("(")[0]
        return 0.01 + seed / 1e4 + lost.get(name, 0.0), [1.0] * 20

    return found


def skewed(*shares: float) -> Callable[..., list[Tensor]]:
    """Spectra of layers, the largest quarter of which has so much of the sum."""

    def spectra(self: Any, seed: int) -> list[Tensor]:
        return [torch.tensor([[share - seed / 1e4] + [(1 - share + seed / 1e4) / 3] * 3]) for share in shares]

    return spectra


def landmarks(better: bool) -> Callable[..., Any]:
    """Errors of landmarks and of features at equal operations; those of features grow with the norm."""

    def lines(self: Any, case: Any, seed: int) -> tuple[Any, Any]:
        noise = 1 + seed / 1e4 + 10 * ("3" in case.label)
        ours = [(0.1 if better else 100.0) / count for count in self.landmarks]
        return (self.landmarks, ours), (self.landmarks, [noise / count**0.5 for count in self.landmarks])

    return lines


OVER = [2.0] * 40
"""nats of a training that is over"""
RUNNING = [2.0] * 36 + [1.8] * 4
"""of one that is not"""


def gains(*bits: float, nats: list[float] = OVER) -> Mapping[str, Callable[..., Any]]:
    """Bits that a datastore gains, the next of these at every call; own entries behave as they must."""
    again = itertools.cycle(bits)
    own = {"own first": 1.0, "own alone": 0.0, "own found": 0.0, "own wins": 1.0, "shuffled": 0.0}

    def trained(self: Any, seed: int) -> tuple[LanguageModel, list[float]]:
        return decoder(self, LETTERS, seed, max_length=self.length), nats

    return {"trained": trained, "gained": lambda *_: next(again), "own": lambda *_: own}


RISKS = (0.0, 0.0, 0.01, 0.02, 0.13, 0.16, 0.2, 0.3, 0.5)
"""by threshold, around the one of 0.1 that is allowed"""


def table(self: ExitGuarantee, seed: int) -> Measured:
    """Losses of passages of which the last ones are easier."""
    del seed
    items, blocks = self.pool, np.linspace(self.layers, 1, len(RISKS))
    losses = (np.arange(items)[:, None] < items * np.array(RISKS)).astype(np.float64)
    none = np.zeros_like(losses)
    exits = np.zeros((len(RISKS), self.layers), np.int64)
    return Measured(self.thresholds, losses, none + blocks, none, none, exits, none[:, 0], none[:, 0])


CALIBRATED: dict[str, Callable[..., Any]] = {"measured": table}
NAIVE = CALIBRATED | {"certified": lambda self, got: naive(got.risks, got.risk)}
"""a calibration that takes what looked good"""


def ponders(*steps: float, nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Steps by the number of look-ups, where it matters."""

    def answered(self: object, depth: str, seed: int, *, matter: bool = True) -> Answered:
        del self
        right = [1.0, 1.0, 0.5] if depth.startswith("universal(steps=1,") else [1.0, 1.0, 1.0]
        return Answered([one + 0.001 * seed for one in steps] if matter else [1.0, 1.0, 1.0], right, nats)

    return {"answered": answered}


def leave(bits: float) -> dict[str, Callable[..., object]]:
    """Bits of exits that decide, where those of a fixed depth, hardly trained, lose four."""
    fixed = [(1e4, 4.1), (2e4, 4.0)]
    return {"by_threshold": lambda self, model, new, seed, **costs: ([(2e4, bits + 0.001 * seed)], fixed, [(2e4, 4.2)])}
