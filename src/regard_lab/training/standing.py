"""How far a run is: progress.json of a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from regard.core.errors import CheckpointError

FORMAT = 1
"""of checkpoints"""


@dataclass
class Progress:
    """How far a run is: the part of a checkpoint that is not tensors."""

    step: int = 0
    """optimizer steps done; the data position follows from it"""
    tokens: int = 0
    """targets seen"""
    metrics_bytes: int = 0
    """length of metrics.jsonl"""
    interval: dict[str, float] = field(default_factory=dict)
    """sums of the unfinished line of metrics.jsonl"""
    evaluated_step: int = 0
    """step of the last evaluation"""
    score: float | None = None
    """validation nats per token, if evaluated at this step: the best checkpoint has the lowest"""
    data: str = ""
    """fingerprint of the task"""
    run: str = ""
    """id of the run that wrote it; empty: a trainer without one did"""


def written(progress: Progress) -> bytes:
    """The contents of progress.json."""
    return (json.dumps({"format": FORMAT, **asdict(progress)}, indent=1) + "\n").encode()


def read(path: Path, files: Mapping[str, bytes], *, step: int | None) -> Progress:
    """What progress.json of a checkpoint says.

    Args:
        path: of the checkpoint, for messages.
        files: its contents.
        step: that it must be of; None: any.

    Raises:
        CheckpointError: it says something else.
    """
    try:
        document = json.loads(files["progress.json"])
        version = document.pop("format")
        if version != FORMAT:
            raise CheckpointError(f"{path} has checkpoint format {version}; this version of regard reads {FORMAT}")
        if step not in (None, document["step"]):
            raise CheckpointError(f"{path}: progress.json is of step {document['step']}")
        return Progress(**document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is incomplete or malformed ({type(error).__name__}: {error})") from None
