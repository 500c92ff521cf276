"""The training loop: takes a model and a task to the last step, from wherever the run was left."""

import math
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote

import torch
import torch.nn.functional as F
from torch import nn

from regard.core.device import chosen_device
from regard.core.errors import CheckpointError, NumericsError, ResourceError
from regard.files.folders import discard
from regard.models import ModelState
from regard_lab.tasks.base import IGNORE, Task
from regard_lab.training import checkpoint, random_states
from regard_lab.training.batches import Batch, collate
from regard_lab.training.carried import Carrying
from regard_lab.training.config import TrainingConfig
from regard_lab.training.data_order import DataOrder
from regard_lab.training.environment import own_settings
from regard_lab.training.evaluation import accumulated, autocast, score
from regard_lab.training.identity import require_own
from regard_lab.training.interruption import Interrupted, Signals
from regard_lab.training.metrics import Interval, MetricsLog, Record, Stopwatch
from regard_lab.training.objective import counts, smoothed
from regard_lab.training.only import apart, differentiable
from regard_lab.training.optimizer import adamw, set_rate
from regard_lab.training.ranks import ALONE, Ranks
from regard_lab.training.schedule import learning_rate

OnProgress = Callable[[Record], None]


class Trainer:
    """Trains a model on a task inside a run directory.

    The objective is the mean loss per target (of smoothed targets, if the configuration says so) plus sum(weight .
    loss) over the model's own losses; the loss that is logged is that of the targets themselves. A step is computed in
    `accumulation` parts: the targets of a part count as in one big batch, its own losses by its share of what they are
    a mean over. Everything that the loop needs to go on is in the newest checkpoint, so a run that was killed at any
    moment gives the same bits as one that was not.

    Args:
        model: called by `Batch.through` -> output with `logits` and `losses`; `loss_weights` says the weight of each.
        task: the data.
        config: how.
        run: directory of `metrics.jsonl` and `checkpoints`; continued if it holds a checkpoint.
        on_progress: called with every line of metrics.jsonl and with `step`, `checkpoint`, `interrupted` events.
        run_id: of the run, which checkpoints carry and the one to continue from must have; None: they carry none.
        started: the run started from weights, which are in its first checkpoint: these are evaluated before any step,
            and without a checkpoint it does not go on.
        ranks: the processes that train it together, each with a share of every part of a batch; the first one writes.

    Raises:
        UnsupportedError: `config.only` of several processes.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        run: Path,
        *,
        on_progress: OnProgress | None = None,
        run_id: str | None = None,
        started: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        ranks.require(config)
        self.config, self.run, self.ranks = config, run, ranks
        self.device = chosen_device(config.device)
        self.dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
        shape = getattr(getattr(model, "encoder", model), "config", None)  # a head on an encoder has its shape
        self.dim: int | None = getattr(shape, "dim", None)
        self.vocab_size, self.num_targets, self.metric = task.vocab_size, task.num_targets, task.metric
        self.validation = task.examples("valid")
        self.checkpoints = run / "checkpoints"
        self.run_id, self.started = run_id, started
        self.progress = checkpoint.Progress(data=task.fingerprint)
        self.damaged: list[Path] = []
        self._saved_step: int | None = None
        self._tell = on_progress or (lambda record: None)
        self.model = apart(model, config.only, self.ranks).to(self.device)
        self.weights: dict[str, float] = model.loss_weights  # type: ignore[assignment]
        self.train_examples = task.examples("train")
        self.carrying = Carrying(self.model, self.train_examples, config) if config.carry else None
        self.order = (
            DataOrder.of(self.train_examples, config.batch_size, config.seed)
            if self.carrying is None
            else self.carrying.lanes
        )
        self.optimizer = adamw(
            self.model,
            betas=config.betas,
            epsilon=config.epsilon,
            weight_decay=config.weight_decay,
            decay_embeddings=config.decay_embeddings,
        )
        called: nn.Module = torch.compile(self.model) if config.compile else self.model  # type: ignore[assignment]
        self.forward = self.ranks.replicated(called)

    def fit(self, prepared: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Train to the last step.

        Args:
            prepared: what is around the steps, once no other process trains this run and what it holds fits it.

        Raises:
            NumericsError: a loss or gradient is not finite; parameters and optimizer are those of the step before.
            ResourceError: no space, no permission or no memory; earlier checkpoints are intact.
            CheckpointError: the run cannot be continued. UnsafeFileError: its metrics.jsonl is a link.
            Interrupted: SIGTERM, SIGINT or SIGHUP came; a checkpoint is saved.
        """
        with ExitStack() as stack:
            stack.enter_context(self.ranks.held(self.run))
            stack.enter_context(own_settings(self.device, self.config))
            self.signals = stack.enter_context(Signals())
            self._restore()
            board = self.run / "tensorboard" if self.config.tensorboard else None
            with self.ranks.together():
                if self.ranks.main:
                    self.log = MetricsLog(
                        self.run / "metrics.jsonl",
                        offset=self.progress.metrics_bytes,
                        step=self.progress.step,
                        tensorboard=board,
                    )
                    stack.callback(self.log.close)
                    stack.enter_context(prepared())
            self.interval = Interval(self.progress.interval)
            self.stopwatch = Stopwatch(self.device)
            if self.progress.step <= self.config.steps:  # of a longer training nothing is evaluated, saved or removed
                self._loop()
            self.ranks.meet()

    def _loop(self) -> None:
        config, progress = self.config, self.progress
        while True:
            if self._due(config.evaluate_every) and progress.score is None:
                self._evaluate()
            if self._due(config.checkpoint_every) and self._saved_step != progress.step:
                self._save()
            if received := self.ranks.highest(self.signals.received or 0):
                self._interrupt(signal.Signals(received))
            if progress.step >= config.steps:
                return
            self._step()

    def _due(self, every: int) -> bool:
        step = self.progress.step
        return (step > 0 or self.started) and (step % every == 0 or step >= self.config.steps)

    def _step(self) -> None:
        config, progress = self.config, self.progress
        self.stopwatch.start()
        rate = learning_rate(
            progress.step,
            peak=config.learning_rate,
            steps=config.steps,
            warmup=config.warmup,
            schedule=config.schedule,
            minimum_ratio=config.minimum_ratio,
            dim=self.dim,
        )
        ids, epochs = self.order.batch(progress.step), self.order.epochs(progress.step)
        size, share = config.batch_size // config.accumulation, self.ranks.share
        parts = [
            self.ranks.cut(
                collate(
                    self.train_examples,
                    share(ids[first : first + size]),
                    self.vocab_size,
                    num_targets=self.num_targets,
                    epochs=share(epochs[first : first + size]),
                )
            )
            for first in range(0, config.batch_size, size)
        ]
        self.model.train()
        self.optimizer.zero_grad()
        try:
            sums, positions, states = self._gradients(parts)
            norm = self._clip(ids)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            raise ResourceError(
                f"training step {progress.step}: out of memory with {size} examples at a time; raise "
                f"training.accumulation (now {config.accumulation}) or lower training.batch_size. {error}"
            ) from None
        set_rate(self.optimizer, rate)
        self.optimizer.step()
        if self.carrying is not None:
            self.carrying.leaving(states)
        progress.step += 1
        progress.tokens += int(sums["tokens"])
        progress.score = None
        self.interval.add({"steps": 1.0, "gradient_norm": norm, **sums})
        self.stopwatch.stop(positions)
        self._tell({"kind": "step", "step": progress.step, "steps": config.steps})
        if progress.step % config.log_every == 0 or progress.step >= config.steps:
            line = {"kind": "train", "step": progress.step, "tokens": progress.tokens, **self.interval.line()}
            self._write({**line, "learning_rate": rate, "timing": self.stopwatch.read()})
            self.interval = Interval()

    def _gradients(self, parts: list[Batch]) -> tuple[dict[str, float], int, list[ModelState | None]]:
        """Accumulate the gradient over the parts; the metrics' sums, the positions, what each part's rows remember."""
        owned = [counts(self.model, part, self.weights) for part in parts]
        every = {"tokens": sum(part.tokens for part in parts), "positions": sum(part.positions for part in parts)}
        everywhere = self.ranks.total(every | {f"of {name}": sum(own[name] for own in owned) for name in self.weights})
        tokens, positions = everywhere["tokens"], everywhere["positions"]
        sums = {"nats": 0.0, "tokens": float(tokens), "objective": 0.0}
        states: list[ModelState | None] = []
        for number, part in enumerate(parts):
            shares = {name: count / max(everywhere[f"of {name}"], 1) for name, count in owned[number].items()}
            batch = part.to(self.device)
            with self.ranks.adding(number == len(parts) - 1):
                with autocast(self.device, self.dtype):
                    output = batch.through(
                        self.forward, self.carrying and self.carrying.entering(number, self.progress.step)
                    )
                states.append(self.carrying and output.state)
                logits, targets = accumulated(output.logits).flatten(0, -2), batch.targets.flatten()
                nats = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
                objective = smoothed(logits, targets, nats, self.config.label_smoothing) / max(tokens, 1)
                for name, loss in output.losses.items():
                    objective = objective + self.weights[name] * shares[name] * accumulated(loss)
                losses = {f"losses.{name}": shares[name] * loss.item() for name, loss in output.losses.items()}
                found = self.ranks.total({"nats": nats.item(), "objective": objective.item(), **losses})
                if not math.isfinite(found["objective"]):
                    named = {"task": nats.item(), **{name: loss.item() for name, loss in output.losses.items()}}
                    self._not_finite("loss", part.ids, f" ({', '.join(f'{n} {x:.4g}' for n, x in named.items())})")
                differentiable(objective).backward()
            self.ranks.learned()
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums, int(positions), states

    def _clip(self, ids: list[int]) -> float:
        """Scale the gradient to norm `clip` at most; its norm before."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = nn.utils.get_total_norm([x.grad for x in parameters if x.grad is not None])
        if not torch.isfinite(norm):
            self._not_finite("gradient", ids, f" (norm {float(norm)})")
        if self.config.clip:
            nn.utils.clip_grads_with_norm_(parameters, self.config.clip, norm)
        return float(norm)

    def _not_finite(self, what: str, ids: list[int], detail: str) -> None:
        self.optimizer.zero_grad()
        raise NumericsError(
            f"training step {self.progress.step}: the {what} is not finite{detail} on training examples {ids}. "
            f"Parameters and optimizer are untouched. Look at these examples; {self._retry()}, or start a new run with "
            "another --clip or --warmup"
        )

    def _retry(self) -> str:
        """How a run that diverged can be tried again, from what is saved of it."""
        saved, run = checkpoint.paths(self.checkpoints), quote(str(self.run))
        rate = f"{self.config.learning_rate / 10:g}"
        command = f"regard train --resume {run} --learning-rate {rate} (in Python: resume(run, learning_rate={rate}))"
        if not saved:
            return f"no checkpoint is saved yet, so try again from the start with {command}"
        if self.started and len({checkpoint.step_of(path) for path in saved}) == 1 and not checkpoint.step_of(saved[0]):
            return f"go on from {saved[-1].name}, which has the weights that it started from, with {command}"
        return (
            f"go on from {saved[-1].name} with {command}; if that fails too, its weights had diverged before: remove "
            f"{saved[-1]}, and the same command goes on from the one before, or from the start"
        )

    def _evaluate(self) -> None:
        config, progress, where = self.config, self.progress, {"kind": "evaluating", "step": self.progress.step}
        scores = score(
            self.model,
            self.validation,
            self.vocab_size,
            batch_size=max(1, config.batch_size // config.accumulation),
            device=self.device,
            dtype=self.dtype,
            limit=config.evaluate_examples,
            num_targets=self.num_targets,
            stopped=lambda: self.ranks.stopped(self.signals.received is not None),
            tell=lambda done, count: self._tell({**where, "done": done, "examples": count}),
            carry=config.carry,
            share=self.ranks.share,
            cut=self.ranks.cut,
            merged=self.ranks.merged,
        )
        if scores is None:
            return
        if not math.isfinite(scores.total.nats):
            raise NumericsError(
                f"evaluation after step {progress.step}: the validation loss is {scores.total.nats}; "
                f"look at the validation data, or {self._retry()}"
            )
        self._write({"kind": "evaluate", "step": progress.step, "split": "valid", **scores.summary(self.metric)})
        progress.evaluated_step, progress.score = progress.step, scores.total.nats / scores.total.tokens
        self._saved_step = None

    def _save(self) -> None:
        self._saved_step = self.progress.step
        random = self.ranks.random_states(random_states.rng_states(self.device))
        progress = replace(self.progress, interval=self.interval.sums)
        if self.ranks.main:
            progress.metrics_bytes = self.log.sync()
        memory = {} if self.carrying is None else self.carrying.tensors()
        if self.ranks.main:
            path = checkpoint.save(self.checkpoints, progress, self.model, self.optimizer, self.device, memory, random)
            checkpoint.retain(self.checkpoints, self.config.keep, damaged=self.damaged)
            self._tell({"kind": "checkpoint", "step": progress.step, "path": str(path)})
        self.ranks.meet()  # who leaves before it is written may end the process that writes it

    def _interrupt(self, received: signal.Signals) -> None:
        step = self.progress.step
        if step > 0 and self._saved_step != step:
            self._save()
        self._tell({"kind": "interrupted", "step": step, "signal": received.name})
        raise Interrupted(received, step)

    def _write(self, record: dict[str, object]) -> None:
        if self.ranks.main:
            self.log.write(record)
            self._tell(record)

    def _restore(self) -> None:
        with self.ranks.together():
            for leftover in self.checkpoints.glob(".step-*") if self.ranks.main else ():
                discard(leftover)
        self.ranks.same({"list of checkpoints": " ".join(path.name for path in checkpoint.paths(self.checkpoints))})
        saved, self.damaged = checkpoint.newest(self.checkpoints)
        self.ranks.same({"checkpoint": repr(saved and saved.progress)})
        if self.run_id is not None:
            if saved is not None:
                require_own(saved, self.run, self.run_id)
            self.progress.run = self.run_id
        if saved is None:
            if self.started:
                raise CheckpointError(
                    f"{self.run} started from weights that its first checkpoint held, and it has none; restore one, or "
                    "start a new run"
                )
            self.ranks.begin_random(self.config.seed, 0)
            return
        if saved.progress.data != self.progress.data:
            raise CheckpointError(
                f"{saved.path} was trained on other data than the task gives now; put the data back, or start a new run"
            )
        checkpoint.restore(self.model, self.optimizer, saved)
        random = self.ranks.own_random_states(saved.rng)
        if random is None:
            self.ranks.begin_random(self.config.seed, saved.progress.step)
        else:
            random_states.use_rng_states(random, self.device, saved.path)
        if self.carrying is not None and saved.progress.step:
            self.carrying.restore(saved)
        self.progress, self._saved_step = replace(saved.progress, run=self.progress.run), saved.progress.step
