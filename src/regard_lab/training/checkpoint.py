"""Checkpoints: everything that a run needs to go on bit for bit, in safetensors and JSON.

A checkpoint is a folder `step-00000250` of a run's `checkpoints`: model.safetensors (parameters and buffers),
optimizer.safetensors, rng.safetensors, progress.json, memory.safetensors where memories are carried from step to step,
and manifest.json with the SHA-256 of each. A step saved again (because its first checkpoint is damaged, or was saved
before its evaluation) is `step-00000250.1`: nothing that is whole is ever replaced.
"""

import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from regard.core.errors import CheckpointError, ResourceError
from regard.files.folders import load_folder, remove_folder, save_file, save_folder
from regard_lab.training import standing
from regard_lab.training.random_states import rng_states
from regard_lab.training.standing import Progress

_NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_LOG = logging.getLogger("regard")
_UNTAUGHT = {"step": torch.zeros(())}
"""what is saved of a parameter that never had a gradient, of which the optimizer remembers nothing"""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint, in memory."""

    path: Path
    progress: Progress
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    rng: dict[str, Tensor]
    memory: dict[str, Tensor] = field(default_factory=dict)
    """of the rows of a batch, where it is carried from step to step"""


def paths(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest step first, verified or not.

    Raises:
        ResourceError: the folder is a link to one that is not there.
    """
    if not folder.is_dir():
        if folder.is_symlink():  # to a disk that is not mounted; without checkpoints the run would begin anew
            raise ResourceError(f"{folder} is a link to {os.readlink(folder)}, which is no folder; mount its disk")
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_order)


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return _order(path)[0]


def save(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    memory: Mapping[str, Tensor] | None = None,
    random: dict[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint.

    Args:
        memory: what the rows of a batch remember, where it is carried from step to step.
        random: states of generators; None: those of this process.

    Returns:
        Its path.

    Raises:
        ResourceError: it cannot be written; earlier ones are intact and nothing of this one is left.
    """
    taken = {path.name for path in paths(folder)}
    name = f"step-{progress.step:08d}"
    attempts = (name, *(f"{name}.{attempt}" for attempt in range(1, len(taken) + 1)))
    target = folder / next(attempt for attempt in attempts if attempt not in taken)
    tensors = {
        "model": own_tensors(model),
        "optimizer": optimizer_tensors(model, optimizer),
        "rng": rng_states(device) if random is None else random,
        **({"memory": dict(memory)} if memory else {}),
    }
    files = {f"{part}.safetensors": _packed(each) for part, each in tensors.items()}
    save_folder(target, {**files, "progress.json": standing.written(progress)})
    return target


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte of it.

    Raises:
        CheckpointError: damaged, incomplete, or of a format that this version does not know.
        ResourceError: it cannot be read, which says nothing about what it holds.
    """
    files = load_folder(path)
    progress = standing.read(path, files, step=_step(path))
    try:
        parts = ("model", "optimizer", "rng", *(["memory"] if "memory.safetensors" in files else []))
        tensors = {part: safetensors.torch.load(files[f"{part}.safetensors"]) for part in parts}
    except (KeyError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is incomplete or malformed ({type(error).__name__}: {error})") from None
    return Checkpoint(path, progress, **tensors)


def newest(folder: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The newest checkpoint that verifies, and the newer ones that do not; each of those is logged as a warning.

    Returns:
        (checkpoint, damaged); the checkpoint is None only if the folder holds none at all.

    Raises:
        CheckpointError: there are checkpoints and none verifies.
        ResourceError: one cannot be read.
    """
    damaged: list[Path] = []
    reasons: list[str] = []
    while left := [path for path in reversed(paths(folder)) if path not in damaged]:
        try:
            return load(left[0]), damaged
        except CheckpointError as error:
            if os.path.lexists(left[0]):  # or who trains this run has removed it meanwhile, after saving a newer one
                _LOG.warning("skipped a damaged checkpoint: %s", error)
                damaged.append(left[0])
                reasons.append(str(error))
    if damaged:
        raise CheckpointError(
            f"no checkpoint in {folder} verifies:\n  " + "\n  ".join(reasons) + "\nStart a new run, or restore a backup"
        )
    return None, []


def best(folder: Path, *, damaged: Collection[Path] = ()) -> Path | None:
    """The checkpoint with the lowest validation loss among those saved with an evaluation; the newest of equals."""
    sound = [path for path in reversed(paths(folder)) if path not in damaged]
    scored = [(score, path) for path in sound if (score := _score(path)) is not None]
    return min(scored, key=lambda pair: pair[0])[1] if scored else None


def load_best(folder: Path) -> Checkpoint | None:
    """The checkpoint that `best` finds, verified; None if none was saved with an evaluation.

    Raises:
        CheckpointError: it does not verify.
    """
    while (path := best(folder)) is not None:
        try:
            return load(path)
        except CheckpointError:
            if os.path.lexists(path):  # or whoever trains this run has found a better one meanwhile
                raise
    return None


def retain(folder: Path, keep: int, *, damaged: Collection[Path] = ()) -> None:
    """Remove checkpoints except the newest `keep` and the best one. Run after a save, so one is always whole."""
    latest = {_order(path)[0]: path for path in paths(folder) if path not in damaged}
    kept = {latest[step] for step in sorted(latest)[-keep:]} | {best(folder, damaged=damaged)}
    for path in paths(folder):
        if path not in kept:
            remove_folder(path)


def export(saved: Checkpoint, target: Path) -> None:
    """Write the model of a checkpoint to one safetensors file, there whole or not at all.

    Raises:
        ResourceError: the file cannot be written.
    """
    save_file(target, _packed(saved.model))


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a shared one once, under its first name."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def restore_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy parameters and buffers into a model.

    Raises:
        CheckpointError: names, shapes or dtypes differ: the checkpoint is of another model.
    """
    _copy(_model_pairs(model, checkpoint))


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Copy parameters and buffers into a model, and the running means and step counts into its optimizer.

    Raises:
        CheckpointError: as `restore_model`, or the file of the optimizer holds something else than those of this model;
            neither is changed.
    """
    pairs, state = _model_pairs(model, checkpoint), _optimizer_state(model, optimizer, checkpoint)
    _copy(pairs)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, saved in pairs:
            tensor.copy_(saved)


def _model_pairs(model: nn.Module, checkpoint: Checkpoint) -> list[tuple[Tensor, Tensor]]:
    """(tensor of the model, its saved value) of all."""
    tensors = own_tensors(model)
    _require_same(checkpoint.path, tensors, checkpoint.model)
    return [(tensor, checkpoint.model[name]) for name, tensor in tensors.items()]


def _require_same(path: Path, wanted: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Refuse tensors with other names, shapes or dtypes."""
    problems = [f"{name} is missing" for name in wanted.keys() - saved.keys()]
    problems += [f"{name} is not in the model" for name in saved.keys() - wanted.keys()]
    for name in wanted.keys() & saved.keys():
        ours, theirs = wanted[name], saved[name]
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            problems.append(
                f"{name} is {tuple(theirs.shape)} {theirs.dtype}, the model's {tuple(ours.shape)} {ours.dtype}"
            )
    if problems:
        raise CheckpointError(
            f"{path} is of another model: {'; '.join(sorted(problems)[:5])}"
            f"{' ...' if len(problems) > 5 else ''}. Has config.toml been edited?"
        )


def _optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Checkpoint
) -> dict[int, dict[str, Tensor]]:
    """The saved state of every parameter, by its place in the optimizer.

    The fused optimizer reads it without looking at its shape. A parameter that never had a gradient has 0 steps and
    nothing else.
    """
    state: dict[str, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.optimizer.items():
        name, _, kind = key.rpartition("/")
        state.setdefault(name, {})[kind] = tensor
    optimized = {parameter: position for position, parameter in enumerate(_optimized(optimizer))}
    positions = {name: optimized[x] for name, x in model.named_parameters() if x in optimized}
    wanted, others = dict[str, Tensor](), set[str]()
    for name, parameter in model.named_parameters():
        if name not in positions:
            others.add(name)
        else:
            moments = {} if _untaught(state.get(name, {})) else {"exp_avg": parameter, "exp_avg_sq": parameter}
            wanted |= {f"{name}/{kind}": x for kind, x in {**_UNTAUGHT, **moments}.items()}
    saved = {
        f"{name}/{kind}": tensor
        for name, kinds in state.items()
        if name not in others or not _untaught(kinds)  # a run of some parameters starts from a checkpoint of all
        for kind, tensor in kinds.items()
    }
    _require_same(checkpoint.path, wanted, saved)
    return {positions[name]: kinds for name, kinds in state.items() if not _untaught(kinds)}


def _untaught(kinds: Mapping[str, Tensor]) -> bool:
    return kinds.keys() == {"step"} and not kinds["step"].any()


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimizer remembers of each parameter: `name/exp_avg`, `name/exp_avg_sq`, `name/step`."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}/{kind}": tensor
        for parameter in _optimized(optimizer)
        for kind, tensor in (optimizer.state.get(parameter) or _UNTAUGHT).items()
    }


def _optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _packed(tensors: dict[str, Tensor]) -> bytes:
    # safetensors refuses tensors that share memory or have holes; copies have neither.
    return safetensors.torch.save(
        {name: tensor.detach().contiguous().to("cpu", copy=True) for name, tensor in tensors.items()}
    )


def _step(path: Path) -> int | None:
    """The step of a checkpoint, if its folder has the name of one."""
    return _order(path)[0] if _NAME.fullmatch(path.name) else None


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _score(path: Path) -> float | None:
    try:
        return standing.read(path, load_folder(path, only=["progress.json"]), step=_step(path)).score
    except CheckpointError:
        return None
