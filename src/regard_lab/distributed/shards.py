"""Checkpoints that several processes write and read, each its shard, by torch.distributed.checkpoint.

Its own format has an index that is a pickle, which runs code when it is opened; here it reads and writes safetensors
(`HuggingFaceStorageWriter`, `HuggingFaceStorageReader`), whose headers say which part of a tensor is where. Any number
of processes reads what any number wrote, one file or several; every byte is verified first.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from regard.core.errors import CheckpointError, ResourceError
from regard.files.checksums import Entry
from regard.files.folders import NewFolder, listed, load_folder, new_folder, require_file, save_file, writing
from regard_lab.distributed.several import Several
from regard_lab.training import checkpoint
from regard_lab.training.checkpoint import Checkpoint, Progress
from regard_lab.training.shards import file_name, size_of
from regard_lab.training.shards import names as shard_names

Answer = TypeVar("Answer")

PARTS = ("model", "optimizer")
"""what is in shards; the rest is small"""
_WRITTEN = "shard-{number:05d}-model-{part:05d}-of-{parts:05d}.safetensors"
"""how `HuggingFaceStorageWriter` calls its files"""


def save(
    ranks: Several,
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    memory: dict[str, Tensor],
    random: dict[str, Tensor],
) -> Path | None:
    """Write a checkpoint to which every process adds its shards; it is there whole or not at all.

    Returns:
        Its path, in the first process.

    Raises:
        ResourceError: a process cannot write; nothing of it is left.
    """
    tensors = {"model": checkpoint.own_tensors(model), "optimizer": checkpoint.optimizer_tensors(model, optimizer)}
    parts = {key: number for number, part in enumerate(PARTS, 1) for key in tensors[part]}
    state = {key: x.detach() for part in PARTS for key, x in tensors[part].items()}
    with ExitStack() as stack:
        target: Path | None = None
        new: NewFolder | None = None
        with ranks.together():
            if ranks.main:
                target = checkpoint.free_name(folder, progress.step)
                new = stack.enter_context(new_folder(target))
        partial = folder / str(ranks.group.gathered(new and new.path.name)[0])
        with ranks.together(), writing(partial):
            if not partial.is_dir():
                raise ResourceError(
                    f"{partial} is not there in process {ranks.rank} of {ranks.count}, and process 0 has just made it: "
                    "all must see the run's folder"
                )
        with ranks.together(), writing(partial):
            writer = HuggingFaceStorageWriter(str(partial), parts, save_distributed=True)
            _by_torch(ranks, lambda: dcp.save(state, storage_writer=writer), "written")
            own = _named(partial, ranks)
        shards = ranks.group.gathered(own)
        with ranks.together():
            if new is not None:
                for each in shards:
                    new.entries |= each
                for name, data in checkpoint.small_files(progress, checkpoint.IN_SHARDS, random, memory).items():
                    new.write(name, data)
                stack.close()
    return target


def _named(partial: Path, ranks: Several) -> dict[str, Entry]:
    """Call this process's files by what they are, one for each part, and take their checksums."""
    entries = {}
    for number, part in enumerate(PARTS, 1):
        written = partial / _WRITTEN.format(number=ranks.rank + 1, part=number, parts=len(PARTS))
        name = file_name(part, ranks.rank + 1, ranks.count)
        if written.exists():
            written.rename(partial / name)
        else:  # others have all of it
            save_file(partial / name, safetensors.torch.save({}))
        entries[name] = Entry.at(partial / name)
    return entries


def read(ranks: Several, path: Path) -> Checkpoint:
    """A verified checkpoint, written by any number of processes, each file verified by one of these.

    Returns:
        Its progress, random states and memories; of model and optimizer names, shapes and dtypes alone.

    Raises:
        CheckpointError: damaged, incomplete, or of a format that this version does not know.
        ResourceError: a file cannot be read.
    """
    with ranks.together():
        manifest = listed(path)
        for name in sorted(manifest)[ranks.rank :: ranks.count]:
            require_file(path / name, manifest[name])
    with ranks.together():
        small = [name for name in manifest if name.partition(".")[0] not in PARTS]
        saved = checkpoint.opened(path, load_folder(path, only=small), ())
        tensors = _described(path, set(manifest))
    return replace(saved, **tensors)


def _described(path: Path, names: set[str]) -> dict[str, dict[str, Tensor]]:
    """Tensors without numbers, with the shapes and dtypes of those in the files of model and optimizer.

    Raises:
        CheckpointError: files that are none, are not named by the manifest or do not fit together.
    """
    strange = {file.name for file in path.glob("*.safetensors")} - names
    if strange:
        raise CheckpointError(f"{path}: its manifest does not name {', '.join(sorted(strange)):.200}; remove it")
    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    try:
        for part in PARTS:
            if f"{part}.safetensors" not in names:
                shard_names(names, part)
        metadata: Metadata = HuggingFaceStorageReader(str(path)).read_metadata()
        homes: dict[str, str] = {}
        for index, info in (metadata.storage_data or {}).items():
            homes[index.fqn] = Path(info.relative_path).name.partition(".")[0]
        for key, found in metadata.state_dict_metadata.items():
            if homes[key] not in PARTS or not isinstance(found, TensorStorageMetadata):
                continue
            shape = size_of(key, [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in found.chunks])
            tensors[homes[key]][key] = torch.empty(shape, dtype=found.properties.dtype, device="meta")
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from None
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is incomplete or malformed ({type(error).__name__}: {error})") from None
    return tensors


def restore(ranks: Several, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Checkpoint) -> None:
    """Put this process's share of what was `read` into a model and its optimizer.

    Raises:
        CheckpointError: as `regard_lab.training.checkpoint.restore`.
    """
    targets = {"model": _likes(model, saved.model), "optimizer": _likes(model, saved.optimizer)}
    filled = replace(saved, **targets)
    with ranks.together():
        checkpoint.require_fit(model, optimizer, filled)
    with ranks.together():
        state = {key: x for part in PARTS for key, x in targets[part].items()}
        reader = HuggingFaceStorageReader(str(saved.path))
        _by_torch(ranks, lambda: dcp.load(state, storage_reader=reader), "read")
        checkpoint.restore(model, optimizer, filled)


def _likes(model: nn.Module, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    """Room for saved tensors, shared as the weights that they belong to; as they are where these have another shape."""
    ours = checkpoint.own_tensors(model)
    rooms = {}
    for key, x in saved.items():
        like = ours.get(key.rpartition("/")[0] or key)
        if not x.ndim:
            rooms[key] = torch.zeros((), dtype=x.dtype)
        elif like is None or like.shape != x.shape:
            rooms[key] = x
        else:
            rooms[key] = torch.zeros_like(like.detach(), dtype=x.dtype)
    return rooms


def _by_torch(ranks: Several, run: Callable[[], Answer], done: str) -> Answer:
    """What torch.distributed.checkpoint does by itself, whose errors are of no kind that this library knows.

    Raises:
        ResourceError: the operating system refuses. CheckpointError: anything else.
    """
    try:
        return ranks.group.exchange(run)
    except CheckpointException as error:
        rank, (first, _) = next(iter(error.failures.items()))
        said = f"process {rank} of {ranks.count}: a checkpoint cannot be {done}: {type(first).__name__}: {first}"
        raise (ResourceError if isinstance(first, OSError) else CheckpointError)(said) from None
