"""Which run a checkpoint is of: an id that is drawn when a run begins, and that each of its checkpoints carries."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from regard.errors import CheckpointError
from regard.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class Identity:
    """Of a run.

    id: 32 hexadecimal digits. others: ids of checkpoints that were agreed to. agreed: whichever it goes on from is one
    of these from then on.
    """

    id: str
    others: tuple[str, ...] = ()
    agreed: bool = False

    @classmethod
    def new(cls) -> "Identity":
        """Of a run that begins."""
        return cls(secrets.token_hex(16))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Identity":
        """As a manifest says.

        Raises:
            ValueError: it says something else.
        """
        try:
            return cls(document["run"]["id"], tuple(document["run"]["others"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no sound id of a run ({type(error).__name__}: {error})") from None

    def document(self) -> dict[str, object]:
        """What `of` reads."""
        return {"run": {"id": self.id, "others": list(self.others)}}

    def require(self, saved: Checkpoint, run: Path) -> None:
        """Refuse a checkpoint of another run, which may have the same shapes.

        Raises:
            CheckpointError: it is one.
        """
        theirs = saved.progress.run
        if self.agreed or theirs in (self.id, *self.others):
            return
        raise CheckpointError(
            f"{saved.path} is of another run ({theirs}) than {run} ({self.id}); take it away, or bring the "
            f"metrics.jsonl of its run too and agree to it with regard train --resume {quote(str(run))} --edited "
            "(in Python: resume(..., edited=True))"
        )

    def accepting(self, saved: Checkpoint) -> "Identity":
        """The same run with this checkpoint accepted."""
        theirs = {*self.others, saved.progress.run} - {self.id}
        return replace(self, others=tuple(sorted(theirs)), agreed=False)
