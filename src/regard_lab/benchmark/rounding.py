"""What a mechanism loses when its state is kept in fewer bits: the error of its outputs over the length."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.catalog import build, describe, names
from regard.core.attention import Attention
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Heads
from regard_lab.benchmark.recorded import recorded
from regard_lab.benchmark.resting import resting_inputs
from regard_lab.benchmark.vectors import random_vectors

FORMAT = "regard rounding 1"
ROUNDINGS = ("bfloat16", "float16", "int8")
WINDOW = 32
"""queries before a length whose outputs are compared there"""
PIECE = 16
"""tokens between two roundings of a state that is a list of slots, each of which is rounded once whenever that is"""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class RoundingConfig:
    """The mechanisms, formats and lengths to measure.

    Args:
        specs: mechanisms; none: all that are causal and keep a state.
        roundings: of `ROUNDINGS`.
        lengths: tokens, at each of which outputs are compared.
        piece: tokens between two roundings; None: 1 where anything of constant size is kept, else `PIECE`.
        heads, key_dim: of random vectors.
        norm: of random queries and keys, divided by key_dim^(1/4): logits lie within -norm^2 and norm^2.
        seed: of everything random.

    Raises:
        ConfigError: a format that there is not, or a number that is too small.
    """

    specs: tuple[str, ...] = ()
    roundings: tuple[str, ...] = ROUNDINGS
    lengths: tuple[int, ...] = (64, 256, 1024, 4096)
    piece: int | None = None
    heads: int = 2
    key_dim: int = 32
    norm: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        strange = [how for how in self.roundings if how not in ROUNDINGS]
        problems = [f"states are rounded to {', '.join(ROUNDINGS)}, not {how}" for how in strange]
        numbers = {"lengths": min(self.lengths, default=0), "heads": self.heads, "key_dim": self.key_dim}
        numbers["piece"] = 1 if self.piece is None else self.piece
        problems += [f"{name} must be at least 1, got {value}" for name, value in numbers.items() if value < 1]
        if not self.roundings:
            problems.append(f"name a format: {', '.join(ROUNDINGS)}")
        if problems:
            raise ConfigError("\n".join(problems))

    @property
    def chosen(self) -> tuple[str, ...]:
        """The mechanisms that are measured."""
        return self.specs or tuple(names(supports=("causal", "state")))


def rounded(x: Tensor, how: str) -> Tensor:
    """Numbers as they come back from a narrower format; int8 with a scale for each last axis. Others as they are.

    Example:
        >>> rounded(torch.tensor([1.0, 0.001]), "int8")
        tensor([1., 0.])
    """
    if not how or not x.is_floating_point():
        return x
    if how != "int8":
        return x.to(getattr(torch, how)).to(x.dtype)
    unit = x.abs().amax(-1, keepdim=True) / 127 if x.numel() else x
    return (x / torch.where(unit == 0, 1.0, unit)).round() * unit


@torch.no_grad()
def measure(config: RoundingConfig, *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """The relative error of outputs at every length, when the state is rounded after every piece of a text.

    Everything is computed in float64, so that what is seen is the rounding of the state: the same sequence is read once
    as a whole and once piece by piece, each piece with the state behind the one before as it comes back from the narrow
    format. Random queries and keys of one norm, normal values, declared inputs as they begin.

    Args:
        config: the mechanisms, formats and lengths.
        tell: called with lines about the progress.

    Returns:
        Plain data: `rows` (spec, rounding, piece, errors: |o' - o| / |o| over the last `WINDOW` queries before each
        length; None: not finite) and `skipped` (spec -> why it was not measured).

    Raises:
        ConfigError: an unknown mechanism or option, or nothing that can be measured.

    Example:
        >>> found = measure(RoundingConfig(specs=("linear",), roundings=("bfloat16",), lengths=(64, 512)))
        >>> near, far = found["rows"][0]["errors"]
        >>> 10 * near < far  # a sum forgets what is small beside it
        True
    """
    begun, rows, skipped = time.perf_counter(), list[dict[str, Any]](), dict[str, str]()
    for spec in config.chosen:
        supports = describe(spec).supports
        if not (supports.causal and supports.state):
            skipped[spec] = "no causal form with a state"
            continue
        try:
            rows += _rows(spec, config)
        except UnsupportedError as error:
            skipped[spec] = str(error)
            continue
        for row in rows[-len(config.roundings) :]:
            tell(f"{spec}, {row['rounding']}: {' '.join(shown(error) for error in row['errors'])}")
    if not rows:
        raise ConfigError("nothing to measure: " + "; ".join(f"{spec}: {why}" for spec, why in skipped.items()))
    return recorded(FORMAT, config, begun, rows=rows, skipped=skipped)


def shown(error: float | None) -> str:
    """An error with three digits."""
    return "not finite" if error is None or error != error or error == float("inf") else f"{error:.3g}"


def _rows(spec: str, config: RoundingConfig) -> list[dict[str, Any]]:
    longest = max(config.lengths)
    heads = Heads(count=config.heads, key_dim=config.key_dim, causal=True, max_length=longest, seed=config.seed)
    mechanism = build(spec, heads).double().eval()
    x = random_vectors(
        config.norm, length=longest, causal=True, heads=config.heads, key_dim=config.key_dim, seed=config.seed
    )
    q, k, v = (x.k if mechanism.info.shares_query_key else x.q), x.k, x.v
    inputs = resting_inputs(mechanism, q, k)
    piece = config.piece
    if piece is None:
        piece = PIECE if all(entry.slots for entry in mechanism.layout().values()) else 1
    exact = mechanism(q, k, v, inputs=inputs).values
    found: list[dict[str, Any]] = []
    for how in config.roundings:
        values = _read(mechanism, q, k, v, inputs, piece, how)
        errors = [_error(values, exact, length) for length in config.lengths]
        found.append({"spec": spec, "rounding": how, "piece": piece, "errors": errors})
    return found


def _read(
    mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, inputs: dict[str, Tensor], piece: int, how: str
) -> Tensor:
    """The values of a sequence that is read piece by piece, with a state that is rounded after each."""
    state, values = mechanism.initial_state(1, dtype=q.dtype), list[Tensor]()
    for first in range(0, q.shape[2], piece):
        cut = slice(first, first + piece)
        own = {name: x[:, :, cut] for name, x in inputs.items()}
        answer = mechanism(q[:, :, cut], k[:, :, cut], v[:, :, cut], inputs=own, state=state)
        assert answer.state is not None
        state = answer.state.map(lambda x: rounded(x, how))
        values.append(answer.values)
    return torch.cat(values, 2)


def _error(values: Tensor, exact: Tensor, length: int) -> float:
    cut = slice(max(length - WINDOW, 0), length)
    wanted = exact[:, :, cut]
    return ((values[:, :, cut] - wanted).norm() / wanted.norm()).item()


def table(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heads of a table and its rows: an error for each format and length."""
    config = results["config"]
    heads = ("mechanism", "rounded every", *(f"{how}, {n:,}" for how in config["roundings"] for n in config["lengths"]))
    rows: dict[str, list[str]] = {}
    for row in results["rows"]:
        rows.setdefault(row["spec"], [row["spec"], f"{row['piece']} tokens" if row["piece"] > 1 else "token"])
        rows[row["spec"]] += [shown(error) for error in row["errors"]]
    return heads, [tuple(cells) for cells in rows.values()]
