"""Train a model with any mechanism on any task; continues a run that was interrupted with --resume."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from regard.catalog import require_known
from regard.cli import leaving
from regard.core.errors import ConfigError, DataError, ResourceError, UnsupportedError
from regard.files.folders import writing
from regard.models.block_config import GATED
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard_lab.cli import _run_options
from regard_lab.cli._output import console, emit, will_write
from regard_lab.cli._run_options import CONVERTED, Options, run_config
from regard_lab.tasks import ImagesConfig, TaskConfig, has_text
from regard_lab.training.config import RunConfig
from regard_lab.training.parallel_config import ParallelConfig

if TYPE_CHECKING:
    from regard_lab.training.ranks import Ranks
    from regard_lab.training.start import Start


def parse(words: Sequence[str]) -> Options:
    """Read the words after `regard train`: their layers need more than a dataclass says."""
    options = _run_options.parse(words, str(__doc__))
    with settings_of(options.config):
        for spec in options.model.attention:
            require_known(spec)  # before torch is imported, which takes seconds
    return options


def run(options: Options) -> int:
    """Train or resume."""
    from regard_lab.networks.datastores import beside
    from regard_lab.training import resume, train
    from regard_lab.training.progress import Display

    opened = partial(beside, trust=options.trust, ignore=options.ignore)
    with together(options.parallel) as ranks, Display() if ranks.main else nullcontext() as display:
        if options.resume is not None:
            given = {name: getattr(options.training, name) for name in options.changed}
            with leaving(partial(_left, Path(options.resume))):
                result = resume(
                    options.resume,
                    **given,
                    on_progress=display,
                    trust=options.trust,
                    edited=options.edited,
                    beside=opened,
                    ranks=ranks,
                )
        else:
            with settings_of(options.config):
                config, start = run_config(options), None
                will_write(options.out, folder=True)
                if options.start is not None:
                    config, start = started(options)
                require_memory(config, options.config, ranks.count)
                if not options.out and ranks.count > 1:
                    raise ConfigError("several processes write one run: name it with --out")
                with nullcontext(Path(options.out)) if options.out else free() as out, leaving(partial(_left, out)):
                    result = train(config, out, start=start, on_progress=display, beside=opened, ranks=ranks)
        main = ranks.main
    if not main:
        return 0
    if options.json:
        emit({"run": str(result.path), "evaluation": result.evaluation})
        return 0
    screen = console()
    shown = {key: value for key, value in result.evaluation.items() if isinstance(value, float)}
    screen.print(", ".join(f"{key} {value:.4f}" for key, value in shown.items()), markup=False)
    screen.print(f"Try it: {_next(result.config.task, quote(str(result.path)))}", markup=False)
    screen.print(f"Run: {result.path}", markup=False)
    return 0


@contextmanager
def settings_of(file: str | None) -> Iterator[None]:
    """Name the file of settings in an error that one of them may have caused."""
    try:
        yield
    except (ConfigError, DataError, UnsupportedError) as error:
        if file is None or file in str(error):
            raise
        raise type(error)(f"{error} (the settings are those of {file} and of the flags)") from error


@contextmanager
def together(parallel: ParallelConfig) -> Iterator["Ranks"]:
    """The processes that train: those that `torchrun` started, or this one.

    Raises:
        ConfigError: one process, and something for several to share.
    """
    from regard_lab.training.ranks import ALONE

    several = "WORLD_SIZE" in os.environ
    if several:
        from regard.distributed import joined, launched
        from regard_lab.distributed import ranks_for

        several = launched()
    if not several:
        if parallel.named:
            raise ConfigError(
                f"{' '.join(parallel.named)} is for the processes of torchrun, and this is one by itself: start it as "
                "torchrun --nproc-per-node 2 -m regard train ..., or leave it out"
            )
        yield ALONE
        return
    with joined() as group:
        yield ranks_for(group, parallel)


def started(options: Options) -> tuple[RunConfig, "Start"]:
    """The configuration of a run that starts from weights, and these."""
    from regard.core.device import chosen_device
    from regard_lab.networks import starting

    assert options.start is not None
    chosen_device(options.training.device)  # before the weights are read
    given = {name: getattr(options.model, name) for name in options.shaped}
    conversion = {name: given.pop(name) for name in CONVERTED if name in given}
    start = starting.start(options.start, **conversion, trust=options.trust, ignore=options.ignore)
    start.require_task(options.task)
    return start.configured(RunConfig(replace(start.shape, **given), options.task, options.training)), start


def _left(run: Path) -> str | None:
    """How a run goes on that a signal stopped beside its steps, where it has begun."""
    return f"go on with regard train --resume {quote(str(run))}" if (run / "config.toml").exists() else None


def _next(task: TaskConfig, run: str) -> str:
    """The command that shows what a run has learned."""
    if isinstance(task, ImagesConfig):
        return f"regard generate {run} --out drawn.png"
    if not has_text(task):
        return f"regard evaluate {run}"
    example = "'a [MASK] text'" if task.name == "masked" else "'a text'"
    return f"regard generate {run} {example}"


def require_memory(config: RunConfig, file: str | None, processes: int = 1) -> None:
    """Refuse what this machine's memory cannot hold: a system that runs out of it ends other programs too.

    Args:
        config: of the run. file: with its settings, for the error; None: flags alone have them. processes: that share
            a batch.

    Raises:
        ResourceError: weights of the blocks, gradients and the two moments of AdamW, 4 bytes each, are more than there
            is; where only some parameters learn, the weights alone. Or the inputs of the blocks are, of the examples
            that are in a step at a time.
    """
    from regard.core.device import chosen_device

    model = config.model
    mlp = (3 if model.mlp in GATED else 2) * model.dim * model.mlp_width
    keys = model.dim * model.key_dim * (model.kv_heads or model.heads)
    attention = 2 * model.dim * model.key_dim * model.heads + 2 * keys
    blocks = model.layers * (attention + mlp)
    if isinstance(model, EncoderDecoderConfig):  # whose decoder also has attention to the source
        blocks += model.layers * attention + model.encoder.layers * (attention + mlp)
    needed = (4 if config.training.only else 4 * 4) * blocks
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if there is None or chosen_device(config.training.device).type != "cpu":
        return
    has = f"and this machine has {there / 2**30:.0f} GiB"
    settings = f"; the settings are those of {file} and of the flags" if file else ""
    if needed > there:
        raise ResourceError(
            f"a model of this shape takes {needed / 2**30:.0f} GiB for weights"
            f"{'' if config.training.only else ', gradients and optimizer'}, {has}; choose a smaller --model.dim (now "
            f"{model.dim}) or --model.layers (now {model.layers}){settings}"
        )
    training, length = config.training, getattr(config.task, "length", 1)
    rows = training.batch_size // training.accumulation
    kept = 2 if model.block == "reversible" else model.layers
    stored = (2 if training.dtype == "bfloat16" else 4) * math.ceil(rows / processes) * length * model.dim * kept
    if stored > there:
        raise ResourceError(
            f"a step of {rows} examples of {length} positions keeps {stored / 2**30:.0f} GiB for what goes into the "
            f"blocks alone, {has}; raise --accumulation (now {training.accumulation}) or lower "
            f"--batch-size (now {training.batch_size}){settings}"
        )


@contextmanager
def free() -> Iterator[Path]:
    """An empty folder for a run, with the first number below runs/ that is free: of two processes each gets its own.

    Raises:
        ResourceError: it cannot be made.
    """
    runs = Path("runs")
    new = not runs.exists()
    with writing(runs):
        runs.mkdir(exist_ok=True)
        number = 1
        while not _made(runs / f"{number:03}"):
            number += 1
    try:
        yield runs / f"{number:03}"
    finally:  # what was refused leaves nothing
        with suppress(OSError):
            (runs / f"{number:03}").rmdir()
            if new:
                runs.rmdir()


def _made(folder: Path) -> bool:
    """Whether it was this call that made a folder."""
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True
