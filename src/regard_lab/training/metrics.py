"""The measurements of a run: metrics.jsonl, one JSON object a line, without duplicate or missing lines after a resume.

Two kinds of line. `train`, every `log_every` steps, about the steps since the line before: step, tokens (targets seen
so far), loss (nats per token), objective, losses (each one unweighted), learning_rate, gradient_norm. `evaluate`: step,
split, and what `Scores.summary` says. Every field is a function of the configuration and the step, equal after any
number of interruptions, except those inside `timing` (seconds, tokens_per_second, peak_bytes), which are measured, and
the line's checksum, `sha256` (`regard.files.checksums`).
"""

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.core.errors import CheckpointError, ConfigError, UnsafeFileError
from regard.files.checksums import opened, sealed
from regard.files.folders import writing
from regard.files.reading import content

Record = Mapping[str, object]


class MetricsLog:
    """An append-only metrics.jsonl, optionally mirrored for TensorBoard.

    Args:
        path: of metrics.jsonl.
        offset: bytes that belong to the past; whatever follows was written after the checkpoint that the run continues
            from, and is cut off.
        step: of that checkpoint.
        tensorboard: folder of the TensorBoard events, None for none.

    Raises:
        CheckpointError: the file is shorter than `offset`, or the past is damaged: a line of it, or its end.
        UnsafeFileError: it is a link.
        ConfigError: TensorBoard was asked for and is not installed.
        ResourceError: the file cannot be written.
    """

    def __init__(self, path: Path, *, offset: int = 0, step: int = 0, tensorboard: Path | None = None) -> None:
        self.path = path
        self._board = None if tensorboard is None else _board(tensorboard, step)
        if path.is_symlink():  # in a run from elsewhere it could lead to a file that must not be cut off
            raise UnsafeFileError(f"{path} is a link, and a run cuts it off where it goes on; put a copy in its place")
        past = _contents(path) if path.exists() else b""
        if len(past) < offset:
            raise CheckpointError(
                f"{path} has {len(past)} bytes, but the checkpoint of step {step} was saved after {offset}: the file "
                "was cut or replaced, or is not that of the checkpoint. Put it back, or start a new run"
            )
        _records(path, past[:offset])
        if offset and past[offset - 1 : offset] != b"\n":
            number = past.count(b"\n", 0, offset) + 1
            raise _damaged(path, number, f"the past of step {step} does not end with a line")
        with writing(path):
            # Unbuffered: a line refused by a full disk is not tried again.
            self._file = path.open("ab", buffering=0)
            self._file.truncate(offset)

    def write(self, record: Record) -> None:
        """Append one line, visible to readers at once."""
        line = memoryview(json.dumps(sealed(record), allow_nan=False).encode() + b"\n")
        with writing(self.path):
            while line:
                line = line[self._file.write(line) :]
        if self._board is not None:
            step = record["step"]
            for name, value in _numbers(record):
                self._board.add_scalar(f"{record['kind']}/{name}", value, step)
            self._board.flush()

    def sync(self) -> int:
        """Force the lines to disk; the bytes written so far."""
        with writing(self.path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


class Interval:
    """Running sums since the last `train` line, saved in checkpoints so that lines do not depend on restarts."""

    def __init__(self, sums: Mapping[str, float] | None = None) -> None:
        self.sums = dict(sums or {})

    def add(self, values: Mapping[str, float]) -> None:
        """Add what one step measured."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def line(self) -> dict[str, object]:
        """Means over the interval: losses by token, the rest by step."""
        sums, steps = self.sums, self.sums["steps"]
        losses = {name.removeprefix("losses."): sums[name] / steps for name in sums if name.startswith("losses.")}
        return {
            "loss": sums["nats"] / max(sums["tokens"], 1.0),
            "objective": sums["objective"] / steps,
            "losses": losses,
            "gradient_norm": sums["gradient_norm"] / steps,
        }


class Stopwatch:
    """Seconds, tokens per second and peak memory of the training steps since the last reading."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._reset()

    def _reset(self) -> None:
        self.seconds, self.positions = 0.0, 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, positions: int) -> None:
        """End of a step that read this many input tokens."""
        self.seconds += time.perf_counter() - self._started
        self.positions += positions

    def read(self) -> dict[str, float]:
        timing = {
            "seconds": self.seconds,
            "tokens_per_second": self.positions / max(self.seconds, 1e-9),
            "peak_bytes": peak_bytes(self.device),
        }
        self._reset()
        return timing


def peak_bytes(device: torch.device) -> int:
    """Most memory in use: by tensors since the last reset on CUDA, by the process since its start elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, kibibytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def read(path: Path) -> list[dict[str, object]]:
    """The lines of a metrics.jsonl; an unfinished last line, of a run that is being written or was killed, is left out.

    Raises:
        CheckpointError: it cannot be read, or a finished line is not what was written.
    """
    return _records(path, _contents(path))


def _damaged(path: Path, number: int, why: object) -> CheckpointError:
    return CheckpointError(f"{path}, line {number} is damaged: {why}; restore the file, or start a new run")


def _contents(path: Path) -> bytes:
    try:
        return content(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _records(path: Path, lines: bytes) -> list[dict[str, object]]:
    """The finished lines."""
    records: list[dict[str, object]] = []
    for number, line in enumerate(lines.split(b"\n")[:-1], 1):
        try:
            records.append(opened(line))
        except ValueError as error:
            raise _damaged(path, number, error) from None
    return records


def _numbers(record: Record) -> list[tuple[str, float]]:
    """The numbers of a record, nested ones under dotted names."""
    numbers: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            numbers += [(f"{name}.{inner}", number) for inner, number in _numbers(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            numbers.append((name, float(value)))
    return numbers


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard needs the tensorboard package: pip install 'regard[log]', or leave it off; "
            "metrics.jsonl holds the same numbers"
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)
