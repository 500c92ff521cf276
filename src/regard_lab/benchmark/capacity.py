"""How many pairs an attention mechanism can hold, untrained: recall of stored random values by their keys."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import normalize

from regard.catalog import build, describe
from regard.core.attention import Attention, generator
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads
from regard_lab.benchmark.recorded import recorded
from regard_lab.benchmark.resting import resting_inputs

FORMAT = "regard capacity 1"
SPECS = (
    "softmax",
    "linear(feature_map=identity, normalise=False)",
    "linear(feature_map=taylor)",
    "performer(num_features=256)",
    "efficient",
    "linear(feature_map=relu)",
    "linear",
)
"""exact attention, and kernels from the sharpest to the flattest"""
CONTROLS = ("softmax", "uniform")
"""a mechanism that finds every pair once it is sharp, and one that cannot tell one key from another"""
CONTROL_SHARPNESS = 64.0

Tell = Callable[[str], None]


@dataclass(frozen=True)
class CapacityConfig:
    """The mechanisms, pairs and sharpness to measure.

    Args:
        specs: mechanisms.
        pairs: how many are stored.
        sharpness: scales that are tried; see `decoded`.
        dim: width of keys and of values.
        trials: independent sets of pairs.
        seed: of everything random.

    Raises:
        ConfigError: nothing to measure, or a number that is too small.
    """

    specs: tuple[str, ...] = SPECS
    pairs: tuple[int, ...] = (8, 32, 128)
    sharpness: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    dim: int = 32
    trials: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [f"{name} must not be empty" for name in ("specs", "pairs", "sharpness") if not getattr(self, name)]
        problems += [f"pairs must be at least 2, got {one}" for one in self.pairs if one < 2]
        problems += [f"sharpness must be positive, got {one}" for one in self.sharpness if not one > 0]
        problems += [
            f"{name} must be at least {least}, got {getattr(self, name)}"
            for name, least in (("dim", 1), ("trials", 2))
            if getattr(self, name) < least
        ]
        if problems:
            raise ConfigError("\n".join(problems))


@torch.no_grad()
def decoded(
    spec: str, pairs: int, *, sharpness: float = 8.0, dim: int = 32, trials: int = 32, seed: int = 0
) -> Int[Tensor, "trials pairs"]:
    """The pair that is found for every key that is asked: pair i was found if entry i is i.

    Keys c and values u are random unit vectors. Key i and the query that asks for it are both c_i sharpness^(1/2)
    dim^(1/4), so that its logit q . k / sqrt(dim) is `sharpness`, and those of the others about sharpness / sqrt(dim)
    around 0. The answer is the pair whose value has the largest inner product with the output, so that no positive
    factor of an output matters. Feature maps see vectors of that length: a projection before them could learn it, so
    compare mechanisms at the sharpness that is best for each.

    A mechanism that attends to another sequence is asked all at once. Any other is asked by a last token, whose own key
    is the question and whose own value is 0.

    Args:
        spec: the mechanism.
        pairs: how many are stored.
        sharpness: the logit of a key with itself.
        dim: width of keys and of values.
        trials: independent sets of pairs, each with random features of its own.
        seed: of everything random.

    Raises:
        ConfigError: an unknown mechanism or option.
        UnsupportedError: a mechanism that can be asked in neither way.

    Example:
        >>> answers = decoded("softmax", 4, trials=2)
        >>> answers.tolist()
        [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    answers: list[Tensor] = []
    for trial in range(trials):
        draw = generator(seed, "capacity", pairs, dim, trial)
        keys, values = (normalize(torch.randn(pairs, dim, generator=draw), dim=-1) for _ in range(2))
        x = keys * sharpness**0.5 * dim**0.25
        mechanism = memory(spec, pairs, dim, generator(seed, "features", trial).initial_seed())
        answers.append((asked(mechanism, x, values) @ values.mT).argmax(-1))
    return torch.stack(answers)


def memory(spec: str, pairs: int, dim: int, seed: int) -> Attention:
    """One head that can be asked for so many pairs, in evaluation mode."""
    supports = describe(spec).supports
    cross = supports.cross and supports.bidirectional
    if not cross and not supports.causal:
        raise UnsupportedError(
            f"{spec} can neither attend to another sequence nor be causal, so it cannot be asked for a stored pair. "
            "Mechanisms that can: regard list --supports causal"
        )
    return build(spec, Heads(count=1, key_dim=dim, causal=not cross, max_length=pairs + 1, seed=seed)).eval()


def asked(mechanism: Attention, x: Tensor, values: Tensor) -> Tensor:
    """The output for every key as a query."""
    if not mechanism.heads.causal:
        q = x[None, None]
        return mechanism(q, q, values[None, None], inputs=resting_inputs(mechanism, q, q)).values[0, 0]
    pairs = len(x)
    stored, empty = x.expand(pairs, 1, pairs, -1), values.new_zeros(pairs, 1, 1, values.shape[1])
    k = torch.cat([stored, x[:, None, None]], 2)
    v = torch.cat([values.expand(pairs, 1, pairs, -1), empty], 2)
    q = k if not mechanism.info.supports.prefix else k[:, :, -1:]
    return mechanism(q, k, v, inputs=resting_inputs(mechanism, q, k)).values[:, 0, -1]


def recall(found: Int[Tensor, "trials pairs"]) -> tuple[float, float]:
    """The share of pairs that were found, and its standard error over trials.

    Example:
        >>> recall(torch.tensor([[0, 1], [0, 0]]))
        (0.75, 0.25)
    """
    shares = (found == torch.arange(found.shape[1])).double().mean(1)
    return shares.mean().item(), shares.std().item() / math.sqrt(len(shares))


def measure(config: CapacityConfig, *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """The recall of every mechanism over pairs and sharpness.

    Two controls: softmax at a logit of 64 finds every pair, and equal weights find one of N, since all their outputs
    are the same.

    Args:
        config: the mechanisms, pairs and sharpness.
        tell: called with lines about the progress.

    Returns:
        Plain data: `rows` (spec, pairs, sharpness, recall, its standard error, bytes of the state where there is one),
        `best` (the sharpness of the largest mean recall over pairs, per specification), `controls`.

    Raises:
        ConfigError, UnsupportedError: as `decoded`.
    """
    begun = time.perf_counter()
    shared = {"dim": config.dim, "trials": config.trials, "seed": config.seed}
    rows: list[dict[str, Any]] = []
    for spec in config.specs:  # refused before anything is measured
        memory(spec, min(config.pairs), config.dim, config.seed)
    for spec in config.specs:
        tell(spec)
        for pairs in config.pairs:
            size = _state_bytes(spec, pairs, config.dim)
            for sharpness in config.sharpness:
                share, error = recall(decoded(spec, pairs, sharpness=sharpness, **shared))
                row = {"spec": spec, "pairs": pairs, "sharpness": sharpness, "recall": share}
                rows.append({**row, "standard_error": error, "state_bytes": size})
    controls = []
    for spec, pairs in ((spec, pairs) for spec in CONTROLS for pairs in config.pairs):
        expected = 1.0 if spec == CONTROLS[0] else 1 / pairs
        value, _ = recall(decoded(spec, pairs, sharpness=CONTROL_SHARPNESS, **shared))
        control = {"title": f"{spec} finds {pairs} pairs", "expected": expected, "value": value}
        controls.append({**control, "tolerance": 1e-9, "reached": abs(value - expected) <= 1e-9})
    best = {spec: _best([row for row in rows if row["spec"] == spec]) for spec in config.specs}
    return recorded(FORMAT, config, begun, rows=rows, best=best, controls=controls)


def _best(rows: Sequence[dict[str, Any]]) -> float:
    """The sharpness of the largest mean recall over pairs; of equal ones the smallest."""
    total: dict[float, float] = {}
    for row in rows:
        total[row["sharpness"]] = total.get(row["sharpness"], 0.0) + row["recall"]
    return min(total, key=lambda sharpness: (-total[sharpness], sharpness))


def _state_bytes(spec: str, pairs: int, dim: int) -> int | None:
    """Bytes of the decode state of one head in float32 that holds the pairs."""
    supports = describe(spec).supports
    if not (supports.state and supports.causal):
        return None
    mechanism = build(spec, Heads(count=1, key_dim=dim, causal=True, max_length=pairs + 1))
    return mechanism.state_nbytes(1, pairs, torch.float32)
