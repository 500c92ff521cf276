"""Exits with a calibrated threshold, and how many blocks each token took, for the commands that show them."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from regard.cli._output import console
from regard.errors import ConfigError
from regard.report.depth_text import COLOURS, legend, shade

if TYPE_CHECKING:
    from regard.models import LanguageModel
    from regard.models.generate import Piece

CALIBRATED = "calibrated"


def require_as_measured(exits: str | None, *, weights: str | None, cache: str | None, datastore: str | None) -> None:
    """Refuse a calibration for a model that reads otherwise than the one that it was measured with.

    Args:
        exits, weights, cache, datastore: the options of these names.

    Raises:
        ConfigError: one of the others beside exits.
    """
    for name, value in (("weights", weights), ("cache", cache)):
        if exits is not None and value is not None:
            raise ConfigError(
                f"--exits {exits} promises something of the model as it was calibrated: with weights as they are and "
                f"everything kept of the text. It says nothing of --{name} {value}; leave one out"
            )
    if exits is not None and datastore is not None:
        raise ConfigError(
            "--datastore looks up what the last MLP gets, which tokens that leave by --exits never reach; leave one out"
        )


def leave_early(model: "LanguageModel", exits: str, run: str, *, published: bool) -> Mapping[str, Any]:
    """Give a model the exits that `regard calibrate` found for it.

    Args:
        exits: `calibrated`: what the run keeps; else a folder.
        run: the run, or the published weights.

    Raises:
        ConfigError: there are none. CheckpointError: they are damaged, or of other weights.
    """
    from regard.integrations.exits import FOLDER, install

    if exits == CALIBRATED and published:
        raise ConfigError(f"{run} is no run, and keeps no calibration: give the folder of regard calibrate --out")
    return install(model, Path(run) / FOLDER if exits == CALIBRATED else Path(exits))


def require_depths(model: Any) -> int:
    """How many blocks a token takes at most, of a model whose tokens take as many as they need.

    Raises:
        ConfigError: every token takes every block.
    """
    if model.depth.most is None:
        raise ConfigError(
            "every token of this model takes every block: --show-depth is for exits; regard calibrate finds their "
            "threshold, and --exits uses it"
        )
    return int(model.depth.most)


def coloured(pieces: "Iterable[Piece]", most: int) -> None:
    """Write a continuation as it comes: coloured by the blocks of each token, or on no terminal with their numbers."""
    screen, taken = console(), list[int]()
    for piece in pieces:
        assert piece.layers is not None
        taken.append(piece.layers)
        if screen.is_terminal:
            screen.print(Text(piece.text, COLOURS[shade(piece.layers, most)]), end="", soft_wrap=True)
        else:
            sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    if screen.is_terminal:
        said = Text("blocks: ")
        for at, numbers in legend(most):
            said.append(f"{numbers}  ", COLOURS[at])
        screen.print(said)
    else:
        sys.stdout.write(f"blocks of each token: {' '.join(map(str, taken))}\n")
    sys.stdout.write(f"mean {mean(taken):.2f} of {most} blocks\n")


def machine(prompt: str, pieces: "Iterable[Piece]", most: int | None) -> None:
    """Write a continuation as one JSON object, with the blocks of every token where these decide them."""
    found = list(pieces)
    answer: dict[str, Any] = {
        "prompt": prompt,
        "text": "".join(piece.text for piece in found),
        "ended": (found[-1].ended if found else None) or "length",
    }
    taken = [piece.layers for piece in found if piece.layers is not None]
    if most is not None and taken:
        answer |= {"layers": taken, "mean_layers": mean(taken), "of_layers": most}
    print(json.dumps(answer, ensure_ascii=False))


def mean(taken: Sequence[int]) -> float:
    """The mean, 0 of nothing."""
    return sum(taken) / len(taken) if taken else 0.0
