"""Train a language model with any mechanism; continues a run that was interrupted with --resume."""

from collections.abc import Sequence
from pathlib import Path

from regard.cli import _run_options
from regard.cli._output import console, emit
from regard.cli._run_options import Options, run_config


def parse(words: Sequence[str]) -> Options:
    """Read the words after `regard train`: their layers need more than a dataclass says."""
    return _run_options.parse(words, str(__doc__))


def run(options: Options) -> int:
    """Train or resume."""
    from regard.training import resume, train
    from regard.training.progress import Display

    with Display() as display:
        if options.resume is not None:
            result = resume(options.resume, on_progress=display)
        else:
            out = Path(options.out) if options.out else free()
            result = train(run_config(options), out, on_progress=display)
    if options.json:
        emit({"run": str(result.path), "evaluation": result.evaluation})
        return 0
    screen = console()
    shown = {key: value for key, value in result.evaluation.items() if isinstance(value, float)}
    screen.print(", ".join(f"{key} {value:.4f}" for key, value in shown.items()), markup=False)
    screen.print(f"Run: {result.path}", markup=False)
    return 0


def free() -> Path:
    """The first number below runs/ that no run has."""
    number = 1
    while Path("runs", f"{number:03}").exists():
        number += 1
    return Path("runs", f"{number:03}")
