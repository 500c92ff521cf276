"""Models without attention, of torch's own modules: what a Transformer of the same size has to beat."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.core.errors import ConfigError, ShapeError, UnsupportedError, nearest
from regard.models.decoder import ModelOutput
from regard_lab.benchmark.config import BaselineKind
from regard_lab.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """The shape of a baseline.

    Raises:
        ConfigError: every problem, one a line.
    """

    kind: BaselineKind = "lstm"
    """lstm, convolution: of sequences; mlp, linear: of all values of an image, or of the counts of a text's tokens"""
    dim: int = 128
    """width of the hidden states"""
    layers: int = 2
    """stacked LSTMs, blocks of convolution, or hidden layers of the MLP"""
    width: int = 3
    """taps of a convolution; the dilation doubles from block to block"""
    seed: int = 0
    """of the initial weights"""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("dim", "layers", "width")}
        problems = [f"{name} must be at least 1, got {size}" for name, size in sizes.items() if size < 1]
        if self.kind not in get_args(BaselineKind):
            problems.append(f"kind: no choice {self.kind!r}: {nearest(self.kind, get_args(BaselineKind))}")
        if self.kind == "lstm" and self.dim % 2:
            problems.append(f"dim must be even, half of it for each direction of an lstm, got {self.dim}")
        if problems:
            raise ConfigError("\n".join(problems))


class Recurrent(nn.Module):
    """h_t = LSTM(x_t, h_{t-1}), stacked; where it may look ahead, half of the width reads from the other end.

    Args:
        dim: width in and out.
        layers: stacked LSTMs.
        causal: no position sees a later one.

    Source: Hochreiter & Schmidhuber 1997; both directions: Schuster & Paliwal 1997.
    """

    def __init__(self, dim: int, layers: int, *, causal: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(dim, dim if causal else dim // 2, layers, batch_first=True, bidirectional=not causal)

    def forward(
        self, x: Float[Tensor, "batch length dim"], key_mask: Bool[Tensor, "batch length"] | None
    ) -> Float[Tensor, "batch length dim"]:
        """Padding is on the right, where a batch has it."""
        if key_mask is None:
            return self.lstm(x)[0]
        lengths = key_mask.sum(1).clamp_min(1).cpu()  # a row of padding alone still has to have a length
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Convolution(nn.Module):
    """x <- x + gelu(conv(norm(x))), block after block, the dilation doubling: 1, 2, 4, ...

    L blocks of w taps see (w - 1)(2^L - 1) positions besides their own: earlier ones, or half of them on each side.

    Args:
        dim: width in and out.
        layers: blocks.
        width: taps.
        causal: no position sees a later one.

    Source: causal and dilated: van den Oord et al. 2016, WaveNet, section 2.1; as a baseline of sequences: Bai, Kolter
    & Koltun 2018.
    """

    def __init__(self, dim: int, layers: int, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, dim, width, dilation=2**at) for at in range(layers))

    def forward(
        self, x: Float[Tensor, "batch length dim"], key_mask: Bool[Tensor, "batch length"] | None
    ) -> Float[Tensor, "batch length dim"]:
        """Positions outside the sequence, and masked ones, count as 0."""
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            assert isinstance(convolution, nn.Conv1d)
            y = norm(x) if key_mask is None else norm(x).masked_fill(~key_mask[..., None], 0)
            padding = (convolution.kernel_size[0] - 1) * convolution.dilation[0]
            left = padding if self.causal else padding // 2
            x = x + F.gelu(convolution(F.pad(y.mT, (left, padding - left)))).mT
        return x


class LanguageBaseline(nn.Module):
    """p(x_{t+1} | x_1 ... x_t) = softmax(W norm(trunk(E x)) + b), the interface of `LanguageModel` without a state.

    Args:
        config: lstm or convolution.
        vocab_size: number of tokens.

    Example:
        >>> model = language_model("convolution", vocab_size=256, dim=32).eval()
        >>> one, other = (model(torch.tensor([[72, 101, last]])).logits for last in (108, 7))
        >>> (one - other).abs().amax(-1).gt(1e-4).flatten().tolist()  # who reads the last token
        [False, False, True]
    """

    def __init__(self, config: BaselineConfig, *, vocab_size: int) -> None:
        super().__init__()
        self.loss_weights: dict[str, float] = {}
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.trunk = _trunk(config, causal=True)
        self.norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, vocab_size)

    def forward(
        self, tokens: Int[Tensor, "batch length"], *, key_mask: Bool[Tensor, "batch length"] | None = None
    ) -> ModelOutput:
        """Logits (batch, length, vocab_size); padding is on the right."""
        return ModelOutput(self.output(self.norm(self.trunk(self.embedding(tokens), key_mask))), None, {})


class SequenceClassifier(nn.Module):
    """p(class | x) = softmax(W norm(mean over real positions of trunk(x)) + b), over tokens or vectors.

    Args:
        config: lstm or convolution, which look both ways.
        vocab_size: number of tokens; 0: the inputs are vectors.
        input_dim: width of these vectors.
        classes: to tell apart.
    """

    def __init__(self, config: BaselineConfig, *, vocab_size: int, input_dim: int, classes: int) -> None:
        super().__init__()
        self.loss_weights: dict[str, float] = {}
        self.inputs = nn.Linear(input_dim, config.dim) if input_dim else nn.Embedding(vocab_size, config.dim)
        self.trunk = _trunk(config, causal=False)
        self.norm = nn.LayerNorm(config.dim)
        self.output = nn.Linear(config.dim, classes)

    def forward(
        self, inputs: Shaped[Tensor, "batch length *width"], *, key_mask: Bool[Tensor, "batch length"] | None = None
    ) -> ModelOutput:
        """Logits (batch, classes); padding is on the right."""
        x = self.trunk(self.inputs(inputs), key_mask)
        if key_mask is None:
            mean = x.mean(1)
        else:
            mean = x.masked_fill(~key_mask[..., None], 0).sum(1) / key_mask.sum(1, keepdim=True).clamp_min(1)
        return ModelOutput(self.output(self.norm(mean)), None, {})


class FlatClassifier(nn.Module):
    """p(class | x) = softmax(MLP(f(x))): f all values of an image, or log(1 + count) of every token in a text.

    Without hidden layers it is multinomial logistic regression. A text's order is lost: it is a bag of tokens.

    Args:
        config: mlp, or linear (no hidden layer).
        vocab_size: number of tokens; 0: the inputs are vectors.
        features: numbers in all vectors of an example together.
        classes: to tell apart.
    """

    def __init__(self, config: BaselineConfig, *, vocab_size: int, features: int, classes: int) -> None:
        super().__init__()
        self.loss_weights: dict[str, float] = {}
        self.vocab_size, self.features = vocab_size, vocab_size or features
        widths = [self.features, *([config.dim] * config.layers if config.kind == "mlp" else [])]
        hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.GELU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(widths[-1], classes))

    def forward(
        self, inputs: Shaped[Tensor, "batch length *width"], *, key_mask: Bool[Tensor, "batch length"] | None = None
    ) -> ModelOutput:
        """Logits (batch, classes).

        Raises:
            ShapeError: vectors that are not as many, or not as wide, as it was built for.
            UnsupportedError: masked vectors: every example has all of them.
        """
        if self.vocab_size:
            real = torch.ones_like(inputs, dtype=torch.bool) if key_mask is None else key_mask
            counts = torch.zeros(len(inputs), self.vocab_size, device=inputs.device)
            x = counts.scatter_add(1, inputs, real.to(counts.dtype)).log1p()
        elif key_mask is not None:
            raise UnsupportedError("an mlp reads all vectors of an example, and some are masked; use an lstm")
        elif inputs[0].numel() != self.features:
            raise ShapeError(f"inputs must be {self.features} numbers for an example, got {tuple(inputs.shape[1:])}")
        else:
            x = inputs.flatten(1)
        return ModelOutput(self.layers(x), None, {})


Baseline = LanguageBaseline | SequenceClassifier | FlatClassifier


def language_model(
    kind: BaselineKind, *, vocab_size: int, dim: int = 128, layers: int = 2, width: int = 3, seed: int = 0
) -> LanguageBaseline:
    """A causal model of tokens, with torch's own initial weights drawn from `seed`.

    Raises:
        ConfigError: mlp or linear, which have no order; or a size out of range.
    """
    config = BaselineConfig(kind=kind, dim=dim, layers=layers, width=width, seed=seed)
    if kind not in ("lstm", "convolution"):
        raise ConfigError(f"{kind} is no model of sequences: use lstm or convolution")
    with _seeded(seed):
        return LanguageBaseline(config, vocab_size=vocab_size)


def build(config: BaselineConfig, task: Task) -> Baseline:
    """The baseline for a task: a classifier where it has classes, else a language model.

    Raises:
        ConfigError: as `language_model`.
    """
    if not task.classes:
        shape = {name: getattr(config, name) for name in ("dim", "layers", "width", "seed")}
        return language_model(config.kind, vocab_size=task.vocab_size, **shape)
    sizes = {"vocab_size": task.vocab_size, "classes": len(task.classes)}
    with _seeded(config.seed):
        if config.kind in ("lstm", "convolution"):
            return SequenceClassifier(config, input_dim=task.input_dim, **sizes)
        return FlatClassifier(config, features=task.length * task.input_dim, **sizes)


def _trunk(config: BaselineConfig, *, causal: bool) -> Recurrent | Convolution:
    if config.kind == "lstm":
        return Recurrent(config.dim, config.layers, causal=causal)
    return Convolution(config.dim, config.layers, config.width, causal=causal)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """torch's modules draw their weights from the global generator: seeded inside, as it was outside."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
