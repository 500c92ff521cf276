"""Exits with a calibrated threshold, and how many blocks each token took, for the commands that show them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli import as_json
from regard.core.errors import ConfigError
from regard_lab.cli._output import tell

if TYPE_CHECKING:
    from torch import nn

    from regard.models import LanguageModel
    from regard.models.generate import Piece
    from regard_lab.tasks.base import Examples
    from regard_lab.tasks.config import TextConfig
    from regard_lab.training.batches import Batch
    from regard_lab.training.evaluation import Forward

CALIBRATED = "calibrated"
_APART = (
    "do not go together: a datastore is searched by what the last block makes of a token, and a token that leaves "
    "early never comes to it; leave one out"
)
COLOURS = ("#5e81f4", "#3bb3c3", "#4caf50", "#e0a000", "#e4572e")
"""from the fewest blocks to all of them"""


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
        raise ConfigError(f"--exits {exits} and --datastore {datastore} {_APART}")


def leave_early(model: "LanguageModel", exits: str, run: str, *, published: bool) -> Mapping[str, Any]:
    """Give a model the exits that `regard calibrate` found for it.

    Args:
        exits: `calibrated`: what the run keeps; else a folder.
        run: the run, or the published weights.

    Raises:
        ConfigError: there are none, or the model mixes in neighbours. CheckpointError: they are damaged, or of other
            weights.
    """
    from regard_lab.networks.exits import FOLDER, install

    if model.config.neighbours:
        raise ConfigError(f"--exits {exits} and the datastore that {run} reads {_APART}")
    if exits == CALIBRATED and published:
        raise ConfigError(f"{run} is no run, and keeps no calibration: give the folder of regard calibrate --out")
    return install(model, Path(run) / FOLDER if exits == CALIBRATED else Path(exits))


class Evaluated:
    """What an evaluation says besides its scores: how many blocks its targets took, where they decide it.

    Attributes:
        calibration: of the exits, if they were asked for.
        datastore: of a model that mixes neighbours in, the facts of what it read.
    """

    def __init__(self) -> None:
        self.calibration: Mapping[str, Any] | None = None
        self.datastore: Mapping[str, Any] | None = None
        self._found: dict[str, Any] = {}
        self._taken = self._targets = 0

    def reads(self, text: "TextConfig", split: str | None) -> None:
        """Note, and say, whether this text is what the exits were calibrated by; split: None for all of it."""
        from regard_lab.networks.exits import shares

        if self.calibration is None:
            return
        self._found["calibrated_on_this_text"] = shared = shares(self.calibration, text, split)
        if shared:
            other = "; --split test is other text" if split == "valid" else ""
            tell(f"The threshold was calibrated on passages of this text, so it is no test of the promise{other}.")

    def counting(self, model: "nn.Module", forward: "Forward") -> "Forward":
        """`forward`, which also counts; itself where every token takes every block."""
        from regard.models import LanguageModel
        from regard.models.depth import Leaving

        depth = model.depth if isinstance(model, LanguageModel) else None
        if depth is None or depth.most is None:
            return forward
        each = depth.each
        self._found |= {"of_layers": depth.most}
        if isinstance(depth, Leaving) and depth.asks:
            self._found["threshold"] = depth.threshold

        def counted(model: "nn.Module", batch: "Batch", examples: "Examples") -> Any:
            from regard_lab.tasks.base import IGNORE

            if self.calibration is not None and "operations" not in self._found:
                output = self._compared(model, forward, batch, examples)
            else:
                output = forward(model, batch, examples)
            if output.steps is not None:
                there = batch.targets != IGNORE
                self._taken += each * int(output.steps[there].sum())
                self._targets += int(there.sum())
            return output

        return counted

    def _compared(self, model: Any, forward: "Forward", batch: "Batch", examples: "Examples") -> Any:
        """The output for a batch, whose operations are compared with those of all blocks."""
        from regard.testing.counting import Count
        from regard_lab.benchmark.exits import leaving_at

        with Count() as early:
            output = forward(model, batch, examples)
        with leaving_at(model, 1.0), Count() as full:
            forward(model, batch, examples)
        self._found["operations"] = early.flops / full.flops
        return output

    def depth(self) -> dict[str, Any]:
        """mean_layers, of_layers, threshold (of exits); operations of the first batch, as a share of those of all
        blocks, and calibrated_on_this_text, where exits were asked for. Empty where every token takes every block."""
        return {"mean_layers": self._taken / self._targets, **self._found} if self._targets else {}


def depth_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `Evaluated.depth` found, for a table."""
    shown = {
        "mean_layers": ("blocks of a token", "{mean_layers:.2f} of {of_layers}"),
        "threshold": ("threshold", "{threshold:g}"),
        "operations": ("operations, first batch", "{operations:.1%} of those of all blocks"),
    }
    return [(what, how.format(**found)) for name, (what, how) in shown.items() if name in found]


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
        answer |= {"layers": taken, "mean_layers": sum(taken) / len(taken), "of_layers": most}
    print(as_json(answer))
