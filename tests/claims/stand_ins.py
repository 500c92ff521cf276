"""What stands in a claim's tests in the place of mechanisms, clocks and long trainings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from evidence.claims._growth import operations
from evidence.claims._letters import pair_bits
from evidence.claims._needle import Found
from evidence.claims.blockwise_memory import blockwise
from evidence.claims.extrapolation import Score
from evidence.claims.random_feature_variance import ALLOWED_ERROR
from evidence.claims.randomized_attention_bias import Moments
from evidence.claims.synthesizer_tasks import Copies
from regard import Info, Supports, catalog
from regard.attention.dense.softmax import Softmax
from regard.core.attention import Attended, Attention
from regard.integrations.convolution import ConvolutionAttention
from regard_lab.benchmark.baselines import SequenceClassifier
from regard_lab.benchmark.cost import counted
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
class Blended(StandIn):
    """Sharp rows, a tenth of whose weight is the same for all keys."""

    default_info = StandIn.default_info

    def setup(self) -> None:
        self.inner = catalog.build("softmax(scale=1.5)", self.heads)

    def attend(self, q, k, v, call):
        return Attended(0.9 * self.inner(q, k, v, key_mask=call.key_mask).values + 0.1 * v.mean(2, keepdim=True))


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
class Kinds(StandIn):
    """Recalls with some regularisers, and says next to nothing with others; least with entropy."""

    default_info = StandIn.default_info

    kind: str = "none"
    """of regulariser"""
    good: str = "output_l1_sum_score_l1"
    """with which it recalls"""

    def attend(self, q, k, v, call):
        loud = 1e-9 if self.kind == "entropy" else 1.0 if self.kind in self.good else 1e-6
        return Attended(loud * self.inner(q, k, v, key_mask=call.key_mask).values)


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
class Together(StandIn):
    """All heads look where the first one looks."""

    default_info = StandIn.default_info

    def attend(self, q, k, v, call):
        return Attended(self.inner(q[:, :1].expand_as(q), k[:, :1].expand_as(k), v, key_mask=call.key_mask).values)


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


MECHANISMS = (Blended, Harsh, Kinds, Second, Discerning, Together, Known)


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


def fastest(name: str) -> Callable[..., dict[str, float]]:
    """One takes half of the time of the others."""
    return lambda calls, **_: {one: 0.5 if one == name else 1.0 for one in calls}


def writing(calls: Mapping[str, Callable[[], object]], **_: object) -> dict[str, float]:
    """Numbers written for seconds."""
    return {name: counted(call).elements for name, call in calls.items()}


def right(**shares: float) -> Callable[..., Any]:
    """Accuracies of sparse patterns, by task and kind."""

    def accuracy(self: Any, spec: str, task: str, seed: int) -> tuple[float, Any]:
        kind = "strided" if "strided" in spec else "fixed" if "summary" in spec else "full"
        return shares.get(f"{kind}_{task}", 1.0) + seed / 1e4, ([1], [0.0])

    return accuracy


def bits(**schedules: float) -> Callable[..., Any]:
    """Losses of window schedules, by their order; the control's are those of the table."""

    def measured(self: Any, windows: Sequence[int], new: Tensor, seed: int) -> tuple[float, Any]:
        if not any(windows):
            return float(pair_bits()[new[:, :-1], new[:, 1:]].mean()), ([1], [0.0])
        orders = {self.windows: "growing", self.windows[::-1]: "reverse", self.equal: "equal"}
        return schedules[orders[tuple(windows)]] + seed / 1e4, ([1], [0.0])

    return measured


def recalls(shares: Mapping[str, float], loss: Sequence[float] = (0.0,) * 20) -> Mapping[str, Callable[..., Any]]:
    """Shares that models recall, by specification; others recall everything, one pair is recalled by all."""

    def trained(self: Any, spec: str, seed: int) -> Trained:
        blind = 0.25 if spec == self.alone.format(window=self.window) else 1.0
        share = 1.0 if self.pairs == 1 else shares.get(spec, blind) - seed / 1e4
        return Trained(share, share, share, list(loss))  # pyright: ignore[reportArgumentType]  # `counted` reads it

    kinds = ("all", "near", "far", "out of reach")
    return {"trained": trained, "counted": lambda self, share, task: dict.fromkeys(kinds, share)}


def masked(self: Any, spec: str, seed: int, *, told: bool = True) -> tuple[float, Any]:
    """Accuracies of lookups: full attention and hard masks answer all, a window guesses, others answer half."""
    return {self.full: 1.0, self.hard: 1.0, self.window: 1 / self.values}.get(spec, 0.5), ([1], [0.0] * 20)


def distances(aware: float) -> Callable[..., float]:
    """Accuracies of schemes of distance; relative labels find an exact distance."""

    def accuracy(self: Any, task: str, mechanism: str, position: str, seed: int) -> float:
        if mechanism == self.aware:
            return aware + seed / 1e4
        return 1.0 if task == "single" else 0.96 if task == "exact" and "shaw" in mechanism else 0.5

    return accuracy


def learned(few: float, many: float, change: float = 0.0) -> Callable[..., Any]:
    """Accuracies of attention on few and on many examples; convolution has 1."""

    def accuracy(self: Any, model: Any, batch: Callable[[], Any], new: Any) -> tuple[float, float]:
        if isinstance(model, SequenceClassifier):
            return 1.0, change
        seen = {tuple(one) for _ in range(4) for one in batch()[0].tolist()}
        return (few if len(seen) <= self.examples[0] else many) - len(seen) / 1e6, change

    return accuracy


def longer(**lost: float) -> Mapping[str, Callable[..., Any]]:
    """Bits that each scheme loses beyond the training; what is far is forgotten by some."""

    def score(self: Any, model: str, text: Any, new: Any) -> Score:
        name = model.partition("(")[0]
        long = new.tokens.shape[1] > self.lengths[0]
        far = (new.distance > new.tokens.shape[1] // 2) & long & (lost.get(f"far_{name}", 0) > 0)
        return Score(text.nats(new.symbols) + long * lost.get(name, 0.0), 1 - far.double())

    def trained(self: Any, text: Any, position: str, seed: int, attention: str) -> str:
        return position if attention == "softmax" else attention

    return {"score": score, "trained": trained}


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


def needed(self: Any, norm: float, draw: torch.Generator) -> tuple[list[int], list[float]]:
    """Errors by the formula: 256 features at norm 1, e^(4 norm^2) as many elsewhere."""
    counts = [2**power for power in range(4, 48)]
    return counts, [ALLOWED_ERROR * (256 * math.exp(4 * norm**2 - 4) / count) ** 0.5 for count in counts]


def falling(self: Any, count: int, q: Tensor, k: Tensor, v: Tensor, exact: Tensor, seed: int) -> Moments:
    """A bias of 1 / S, seen beyond doubt."""
    return Moments(torch.full_like(exact, 1 / count), torch.full_like(exact, 1e-4))


def dense_too(q: Tensor, k: Tensor, v: Tensor, blocks: int) -> Tensor:
    """The published form of blockwise attention, that holds all weights beside its own."""
    held = (q @ k.mT).exp()
    return blockwise(q, k, v, blocks) + 0 * held[..., :1]


def lost(whole: float) -> Mapping[str, object]:
    """Models that need no training, of which those without clipping lose so much beyond it."""

    def nats(text: Any, model: Any, symbols: Tensor) -> Tensor:
        beyond = symbols.shape[1] > 16 and model.mechanisms[0].max_distance > 8
        return text.nats(symbols) + whole * beyond

    return {"MarkovText.lost": nats, "trained": lambda *_, **__: []}


def quiet(self: Any, spec: str, watched: Any) -> dict[str, float]:
    """Tails that the 1 below the line halves."""
    return dict.fromkeys(("kurtosis", "largest", "stream", "logit"), 1.0 if spec == self.plain else 0.5)


def needles(share: Callable[[str, float | None], float], change: float = 0.0) -> Callable[..., Found]:
    """Accuracies of needles by mechanism and weight of its losses; softmax answers all, weights halve distances.

    Where some are far these are theirs, near ones are all answered, and softmax costs four times as much.
    """

    def trained(self: Any, spec: str, seed: int, *, weight: float | None = None, far: int | None = None) -> Found:
        found = 1.0 if spec == SOFT else share(spec, weight) - seed / 1e4
        near, cost = 1.0 if far else found, 4 if spec == SOFT else 1
        return Found(near, 0.4 if weight else 1.0, [1.0] * 18 + [1.0 + change] * 2, found, cost)

    return trained


def grid(self: Any, convolution: torch.nn.Conv2d, heads: int, seed: int) -> tuple[ConvolutionAttention, Any]:
    """A layer made from the convolution, where it has the heads for that."""
    rows, columns = convolution.kernel_size
    made = ConvolutionAttention(*self.channels, heads=heads, seed=seed)
    return ConvolutionAttention.from_conv2d(convolution) if heads >= rows * columns else made, ([1], [0.0] * 20)


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


def synthesized(lookup: float, worth: float, loss: Sequence[float] = (0.0,) * 20) -> Mapping[str, Callable[..., Any]]:
    """Synthesizers that copy, with shares of lookups and worths of first trainings; softmax does everything at once."""

    def trained(self: Any, spec: str, seed: int) -> Trained:
        share = {self.softmax: 1.0, self.mixture: 1.0, self.blind: 0.25}.get(spec, lookup) - seed / 1e4
        return Trained(None, share, share, list(loss))  # pyright: ignore[reportArgumentType]  # nobody asks the model

    def copies(self: Any, spec: str, offsets: tuple[int, int], rate: float, seed: int) -> Copies:
        share = 1 / self.tokens if spec == self.blind else 1.0
        again = 0.5 + (spec != self.softmax) * (worth - seed / 1e4)
        return Copies(share, share, 0.5, again, 0.0, (([1], [0.5]), ([1], [again])))

    return {"trained": trained, "copies": copies}


def read(lost: float) -> Callable[..., list[float]]:
    """Bits of models of letters at the steps that are watched; those of one projection lose so many."""

    def bits(self: Any, spec: str, seed: int) -> list[float]:
        more = 1.0 if spec == self.blind else lost + seed / 1e4 if spec == self.shared else 0.0
        return [3.0 - step / 6 + more for step in range(6)]

    return bits
