"""Runs: begun, continued, loaded and evaluated. A run is a directory, and is never overwritten."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from torch import nn

from regard.core.device import chosen_device
from regard.core.errors import CheckpointError, ConfigError, RegardError, ResourceError
from regard.core.types_of import typed
from regard.files.folders import write_text
from regard.files.reading import content
from regard_lab.tasks import ClassificationConfig, ImagesConfig, TaskConfig, build_task
from regard_lab.tasks.base import Split, Task
from regard_lab.tasks.translation import TranslationTask
from regard_lab.training import begun, checkpoint, environment, metrics, network, toml
from regard_lab.training.beside import Beside, alone
from regard_lab.training.config import RunConfig
from regard_lab.training.evaluation import Forward, measured, require_finite, score, straight
from regard_lab.training.fitted import fitted
from regard_lab.training.identity import require_own
from regard_lab.training.measure import Measure
from regard_lab.training.new_run import IMAGES, LABELS, made
from regard_lab.training.ranks import ALONE, Ranks
from regard_lab.training.start import START, Origin, Start, require_same
from regard_lab.training.trained_model import BEAMS, LENGTH_PENALTY, TrainedModel
from regard_lab.training.trainer import OnProgress, Trainer

Report = dict[str, object]


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    path: its directory. config: as in its config.toml. evaluation: the last line of kind `evaluate`. damaged:
    checkpoints that did not verify when it was continued.
    """

    path: Path
    config: RunConfig
    evaluation: Report
    damaged: tuple[Path, ...] = ()

    @property
    def metrics(self) -> list[dict[str, object]]:
        """The lines of metrics.jsonl."""
        return metrics.read(self.path / "metrics.jsonl")


@typed
def train(
    config: RunConfig,
    out: Path | str,
    *,
    start: Start | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    beside: Beside = alone,
    ranks: Ranks = ALONE,
) -> RunResult:
    """Train the kind of model that the task needs.

    Args:
        config: the model, the data and the training.
        out: directory of the run: config.toml, env.json, metrics.jsonl, checkpoints; tokenizer.json of a task on text,
            labels.json of one with classes, images.json of one on pixels, start.json with `start`.
        start: weights to start from (`regard_lab.networks.starting.start`); shape and tokenizer are theirs. None: new
            weights.
        resume: go on with the run in `out` if there is one; it must have this configuration. A killed run gives the
            same bits as one that was not.
        on_progress: called with every event, such as `regard_lab.training.progress.Display`.
        beside: opens the datastore that the configuration names (`regard_lab.networks.datastores.beside`).
        ranks: the processes that train it together (`regard.distributed.Replicas`), of which each calls this alike.

    Returns:
        The finished run.

    Raises:
        ConfigError: `out` exists (without `resume`), or holds another configuration; weights that cannot do this task.
        DataError, ResourceError, CheckpointError, NumericsError: as `Trainer.fit`.
        Interrupted: SIGTERM, SIGINT or SIGHUP came; a checkpoint is saved, and `resume=True` goes on from there.

    Example:
        >>> train(RunConfig(), "runs/first")  # doctest: +SKIP
        >>> load("runs/first").generate("The state of")  # doctest: +SKIP
    """
    out = Path(out)
    with ranks.together():
        config = config if start is None else start.configured(config)
        there = (out / "config.toml").exists()
        if there and not resume:
            raise ConfigError(
                f"{out} already holds a run; choose another name, or continue it with --resume {quote(str(out))}"
            )
    with ranks.together():
        begins = not there and ranks.main
        task = made(config, out, start, beside, ranks) if begins else None
    with ranks.together():
        if task is not None:
            saved = fitted(config, task)
        else:
            # Nothing of it is built before it is known to be what was given here.
            saved, task = _opened(out, beside, trust=True, edited=False)
            begun.require_same(fitted(config, task), saved, out)
            require_same(out, start)
    return _finish(out, saved, task, on_progress, ranks=ranks)


@typed
def resume(
    run: Path | str,
    *,
    steps: int | None = None,
    learning_rate: float | None = None,
    on_progress: OnProgress | None = None,
    trust: bool = False,
    edited: bool = False,
    beside: Beside = alone,
    ranks: Ranks = ALONE,
) -> RunResult:
    """Continue a run from its newest verified checkpoint, with the configuration in its config.toml.

    What is changed here is written there: the rest of the run follows the schedule of the new values.

    Args:
        run: its directory.
        steps: train to this one instead, also after the last; None: as configured.
        learning_rate: go on with this peak instead, as after a loss that was not finite; None: as configured.
        on_progress, beside, ranks: as `train`.
        trust: as `load`.
        edited: go on with a config.toml that is another than when the run began.

    Raises:
        ConfigError: there is no run, or it names import paths and is not trusted; fewer steps than it has.
        CheckpointError: config.toml was edited, and the message says what differs; or the newest checkpoint is of
            another run.
        Others: as `train`.
    """
    run = Path(run)
    with ranks.together():
        config, task = _opened(run, beside, trust=trust, edited=edited)
    given = {"steps": steps, "learning_rate": learning_rate}
    training = replace(config.training, **{name: value for name, value in given.items() if value is not None})
    if training.steps < config.training.steps:
        raise ConfigError(f"{run} has {config.training.steps} steps; it can be given more of them, not {steps}")
    changed = training != config.training
    return _finish(run, replace(config, training=training), task, on_progress, changed=changed, ranks=ranks)


@typed
def load(run: Path | str, *, best: bool = False, device: str = "auto", trust: bool = False) -> TrainedModel:
    """The model of a run, in evaluation mode.

    Args:
        run: its directory.
        best: the checkpoint with the lowest validation loss; otherwise the newest that verifies.
        device: auto, cpu, cuda or mps.
        trust: its configuration may name classes and functions by import path, such as `my_module:MyMechanism`, whose
            modules then run. What this process was itself given by that path needs no more trust.

    Raises:
        ConfigError: there is no run, or it names import paths and is not trusted.
        CheckpointError: it has no checkpoint yet, none that verifies, or one of another run; or what it began with is
            damaged or edited.

    Example:
        >>> load("runs/first").generate("The state of")  # doctest: +SKIP
    """
    run = Path(run)
    config = begun.configuration(run, trust=trust, edited=False)
    folder = run / "checkpoints"
    saved = checkpoint.load_best(folder) if best else None
    saved = checkpoint.newest(folder)[0] if saved is None else saved
    if saved is None:
        raise CheckpointError(f"{run} has no checkpoint yet; continue it with regard train --resume {quote(str(run))}")
    labels = network.Labels.load(run / LABELS) if isinstance(config.task, ClassificationConfig) else None
    model = network.build(config.model, 0 if labels is None else len(labels.classes))
    require_own(saved, run, begun.id_of(run))
    checkpoint.restore_model(model, saved)
    model = model.to(chosen_device(device)).eval()
    grid = network.load_grid(run / IMAGES) if isinstance(config.task, ImagesConfig) else None
    stops = Origin.load(run / START).stop_tokens if (run / START).exists() else ()
    return TrainedModel(
        model,
        begun.tokenizer(run, config),
        config,
        run,
        saved.progress.step,
        labels,
        grid,
        stop_tokens=stops,
        checkpoint=saved.path,
        data=saved.progress.data,
    )


@typed
def evaluate(
    run_or_model: Path | str | TrainedModel | nn.Module,
    task: Task | TaskConfig | None = None,
    split: Split = "valid",
    *,
    batch_size: int = 16,
    limit: int = 0,
    beams: int | None = None,
    length_penalty: float | None = None,
    trust: bool = False,
    forward: Forward = straight,
    beside: Beside = alone,
) -> Report:
    """How good a model is on a split of a task.

    Args:
        run_or_model: a run directory, what `load` gives, or a model.
        task: the data; None: the run's own, as it was when it was trained.
        split: train, valid or test.
        batch_size: examples at a time. limit: as many examples, evenly spaced; 0: all.
        beams, length_penalty: of translations, as `TrainedModel.translate`; None: its defaults.
        trust: of a run directory, as `load`. forward: as `regard_lab.training.evaluation.score`.
        beside: as `train`, of a run.

    Returns:
        split, task, nats_per_token, bits_per_byte (None without text), accuracy, tokens, bytes, and `documents`: the
        columns document, nats, tokens, correct, bytes, for a bootstrap over documents. Of pixels bits_per_dimension. Of
        translation, classification, masked and pixels also `metrics`: rows of the model and of what needs no learning
        (`regard_lab.tasks.scoring`).

    Raises:
        ConfigError: a model without a task, a task with another vocabulary, or a number out of range.
        CheckpointError: the run's own data is other than it was.
        NumericsError: the loss is not finite: the training diverged.
        UnsupportedError: the library of a metric is not installed.
    """
    if batch_size < 1 or limit < 0:
        raise ConfigError(f"batch_size must be at least 1 and limit at least 0 (all), got {batch_size} and {limit}")
    if isinstance(run_or_model, Path | str):
        run_or_model = load(run_or_model, trust=trust)
    model = run_or_model.model if isinstance(run_or_model, TrainedModel) else run_or_model
    own = task is None
    if isinstance(task, TaskConfig) or (task is None and isinstance(run_or_model, TrainedModel)):
        config = run_or_model.config if isinstance(run_or_model, TrainedModel) else RunConfig()
        tokenizer = run_or_model.tokenizer if isinstance(run_or_model, TrainedModel) else None
        wanted = config.task if task is None else task
        keeps = tokenizer is not None and wanted.name == config.task.name
        task = build_task(wanted, seed=config.training.seed, tokenizer=tokenizer if keeps else None)
        task = beside(config, task)
    if task is None:
        raise ConfigError("evaluate needs a task for a model that does not come from a run")
    if isinstance(model, network.Network):
        _require_fit(task, *network.sizes(model))
    labels = run_or_model.labels if isinstance(run_or_model, TrainedModel) else None
    if labels is not None and task.classes != labels.classes:
        raise ConfigError(
            f"the task has the classes {', '.join(task.classes):.300}, and the model was trained on "
            f"{', '.join(labels.classes):.300}: the data is other than it was"
        )
    text = task.fingerprint.partition("+")[0]  # any datastore may be evaluated beside it
    if own and isinstance(run_or_model, TrainedModel) and text != run_or_model.data.partition("+")[0]:
        raise CheckpointError(
            f"{run_or_model.path} was trained on other data than its task gives now, and what it was trained on "
            "may be in this split; put the data back, or say that it is other data: regard evaluate --corpus (in "
            "Python: evaluate(run, task))"
        )
    if not isinstance(task, TranslationTask) and (beams is not None or length_penalty is not None):
        raise ConfigError(f"task {task.name} is evaluated without beam search; leave its options out")
    measure = Measure(model, task, split, measured(len(task.examples(split)), limit))
    scores = score(
        model,
        task.examples(split),
        task.vocab_size,
        forward=forward,
        batch_size=batch_size,
        device=next(model.parameters()).device,
        limit=limit,
        num_targets=task.num_targets,
        each=measure.add,
        carry=isinstance(run_or_model, TrainedModel) and run_or_model.config.training.carry,
    )
    assert scores is not None
    who, way_out = type(model).__name__, "give another model"
    if isinstance(run_or_model, TrainedModel):
        who, again = str(run_or_model.checkpoint), quote(str(run_or_model.path))
        way_out = f"remove it and go on from the one before with regard train --resume {again} --learning-rate X"
    require_finite(scores, who, way_out)
    rows = measure.rows(
        scores,
        beams=BEAMS if beams is None else beams,
        length_penalty=LENGTH_PENALTY if length_penalty is None else length_penalty,
        batch_size=batch_size,
    )
    report = {"split": split, "task": task.name, **scores.summary(task.metric), "documents": scores.table()}
    return {**report, "metrics": rows} if rows else report


def _require_fit(task: Task, vocab_size: int, targets: int) -> None:
    if task.vocab_size != vocab_size:
        raise ConfigError(f"the task has {task.vocab_size} tokens, the model {vocab_size}; they must be the same")
    if task.num_targets != targets:
        raise ConfigError(f"the task has {task.num_targets} classes, the model {targets}; they must be the same")


def _finish(
    run: Path,
    config: RunConfig,
    task: Task,
    on_progress: OnProgress | None,
    *,
    changed: bool = False,
    ranks: Ranks,
) -> RunResult:
    facts = {"configuration": toml.dumps(config), "data": task.fingerprint, "versions": str(environment.versions())}
    ranks.same({"way to share": ranks.way, **facts})
    run_id = begun.id_of(run)
    trainer = Trainer(
        network.build(config.model, len(task.classes)),
        task,
        config.training,
        run,
        on_progress=on_progress if ranks.main else None,
        run_id=run_id,
        started=(run / START).exists(),
        ranks=ranks,
    )

    @contextmanager
    def prepared() -> Iterator[None]:
        """What is changed is written for as long as something comes of it: an error before the first checkpoint that
        was saved with it takes it back."""
        before, saved = content(run / begun.CONFIG), checkpoint.paths(trainer.checkpoints)
        try:
            if changed:
                write_text(run / begun.CONFIG, toml.dumps(config))
            begun.record(run, run_id)
            environment.record(run / "env.json", trainer.device, config.training.threads)
            yield
        except RegardError:
            if changed and checkpoint.paths(trainer.checkpoints) == saved:
                with suppress(ResourceError):
                    write_text(run / begun.CONFIG, before.decode())
                    begun.record(run, run_id)
            raise

    trainer.fit(prepared)
    if config.training.only and not trainer.optimizer.state and on_progress is not None:
        on_progress({"kind": "untaught", "step": trainer.progress.step, "only": list(config.training.only)})
    lines = [line for line in metrics.read(run / "metrics.jsonl") if line["kind"] == "evaluate"]
    if not lines:
        raise CheckpointError(
            f"{run} has a checkpoint of step {trainer.progress.step}, beyond training.steps={config.training.steps}, "
            "and was never evaluated; raise training.steps in its config.toml"
        )
    return RunResult(run, config, lines[-1], tuple(trainer.damaged))


def _opened(run: Path, beside: Beside, *, trust: bool, edited: bool) -> tuple[RunConfig, Task]:
    config = begun.configuration(run, trust=trust, edited=edited)
    task = build_task(config.task, seed=config.training.seed, tokenizer=begun.tokenizer(run, config))
    return config, beside(config, task)
