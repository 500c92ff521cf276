"""Which run a checkpoint is of: an id that is drawn when a run begins, and that each of its checkpoints carries."""

import secrets
from pathlib import Path

from regard.core.errors import CheckpointError
from regard_lab.training.checkpoint import Checkpoint


def new_id() -> str:
    """Of a run that begins: 32 hexadecimal digits."""
    return secrets.token_hex(16)


def require_own(saved: Checkpoint, run: Path, run_id: str) -> None:
    """Refuse a checkpoint of another run, which may have the same shapes.

    Raises:
        CheckpointError: it is one.
    """
    if saved.progress.run != run_id:
        raise CheckpointError(
            f"{saved.path} is of another run ({saved.progress.run}) than {run} ({run_id}); take it away. To train on "
            "from it, put it back into its own run, and start a new one there: regard train --from RUN"
        )
