"""How far a run is: progress.json of a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, get_type_hints

from annotated_types import Ge

from regard.errors import CheckpointError, ConfigError
from regard.options import validate

WHOLE, IN_SHARDS = 1, 2
"""formats of checkpoints"""


@dataclass
class Progress:
    """How far a run is: the part of a checkpoint that is not tensors."""

    step: Annotated[int, Ge(0)] = 0
    """optimizer steps done; the data position follows from it"""
    tokens: Annotated[int, Ge(0)] = 0
    """targets seen"""
    metrics_bytes: Annotated[int, Ge(0)] = 0
    """length of metrics.jsonl"""
    interval: dict[str, float] = field(default_factory=dict)
    """sums of the unfinished line of metrics.jsonl"""
    evaluated_step: Annotated[int, Ge(0)] = 0
    """step of the last evaluation"""
    score: float | None = None
    """validation nats per token, if evaluated at this step: the best checkpoint has the lowest"""
    data: str = ""
    """fingerprint of the task"""
    run: str = ""
    """id of the run that wrote it; empty: a trainer without one did"""


def written(progress: Progress, form: int) -> bytes:
    """The contents of progress.json."""
    return (json.dumps({"format": form, **asdict(progress)}, indent=1) + "\n").encode()


def read(path: Path, files: Mapping[str, bytes], *, step: int | None) -> tuple[Progress, int]:
    """What progress.json of a checkpoint says, every value of its type and in its bounds, and the format.

    Args:
        path: of the checkpoint, for messages.
        files: its contents.
        step: that it must be of; None: any.

    Raises:
        CheckpointError: it says something else.
    """
    hints = get_type_hints(Progress, include_extras=True)
    try:
        document = json.loads(files["progress.json"])
        version = document.pop("format")
        if version not in (WHOLE, IN_SHARDS):
            raise CheckpointError(
                f"{path} has checkpoint format {version}; this version of regard reads {WHOLE} and {IN_SHARDS}"
            )
        if document.keys() != hints.keys():
            raise CheckpointError(f"{path}: progress.json has {', '.join(document)}, not {', '.join(hints)}")
        for name, hint in hints.items():
            validate("progress.json", name, document[name], hint)
        if step not in (None, document["step"]):
            raise CheckpointError(f"{path}: progress.json is of step {document['step']}")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is incomplete or malformed ({why})") from None
    return Progress(**document), version
