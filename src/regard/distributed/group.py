"""The processes that `torchrun` started, and what is known of one that left."""

import atexit
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from regard.core import errors
from regard.core.errors import ConfigError, RegardError, ResourceError, UnsupportedError

Answer = TypeVar("Answer")

PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""the environment that `torchrun` gives to each process"""
TIMEOUT = "REGARD_TIMEOUT"
"""environment: seconds that a process waits for the others; 600 by default"""
_WAITING = 600.0
_GROUPS = itertools.count()
"""numbers of the groups that this process joins, one after the other: each has keys of its own in the store"""
_LEFT: list[Any] = []
"""The group that was left last, until the next one or the end. A replica of a model has it too, and frees what it had
last with Python's lock in hand, while it waits for threads of gloo that may want that lock: for ever. From here it is
freed without the lock."""
atexit.register(_LEFT.clear)
_GRACE = 5.0
"""seconds in which a process that leaves with an error has said so"""
_BROKEN = re.compile(r"gloo|NCCL|connection (closed|reset|refused)|broken pipe|timed? ?out|recv.*bytes|store", re.I)


def launched() -> bool:
    """Whether this process is one of those that `torchrun` started."""
    return all(os.environ.get(name) for name in PLACE)


@dataclass(frozen=True)
class Group:
    """The processes that work together.

    rank: of this one, from 0. count: of them. store: where each leaves what the others should know of it.
    """

    rank: int
    count: int
    store: dist.Store

    def gathered(self, own: Answer) -> list[Answer]:
        """What each process gives, by rank.

        Raises:
            ResourceError: one has left.
        """
        found: list[Any] = [None] * self.count
        self.exchange(lambda: dist.all_gather_object(found, own))
        return found

    def reduced(self, numbers: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        """Numbers of all, in float64.

        Raises:
            ResourceError: one has left.
        """
        values = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self.exchange(lambda: dist.all_reduce(values, op=operation))
        return values.tolist()

    def summed(self, x: Tensor) -> None:
        """Add up a tensor of all, in place.

        Raises:
            ResourceError: one has left.
        """
        self.exchange(lambda: dist.all_reduce(x))

    def among(self, blocks: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Of blocks that hold every process once, the group of that with this one; all processes make all of them.

        Raises:
            ResourceError: one has left.
        """
        with self.watching():
            made = [dist.new_group(list(block), timeout=self.timeout) for block in blocks]
        (own,) = (x for x, block in zip(made, blocks, strict=True) if self.rank in block)
        assert isinstance(own, dist.ProcessGroup)
        return own

    @property
    def timeout(self) -> timedelta:
        """How long a process waits for the others."""
        return timedelta(seconds=_waiting())

    @property
    def device(self) -> torch.device:
        """Where tensors of an exchange must be."""
        nccl = dist.get_backend() == "nccl"
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def exchange(self, run: Callable[[], Answer]) -> Answer:
        """Call what all processes call; where that fails because one has left, say which.

        Raises:
            ResourceError: one has left. RegardError: it left with this error.
        """
        with self.watching():
            return run()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A block in which processes exchange something; where that fails because one has left, say which.

        Raises:
            As `exchange`.
        """
        try:
            yield
        except RuntimeError as error:
            broken = isinstance(error, dist.DistError) or _BROKEN.search(str(error))
            if isinstance(error, RegardError) or not broken:
                raise
            raise self.missing(error) from None

    def missing(self, error: BaseException) -> RegardError:
        """The error of a process that found another one missing."""
        for rank, said in self._last_words().items():
            name, _, message = said.partition(": ")
            own = f"process {rank} of {self.count}: "
            return error_of(name, own + message.removeprefix(own))
        gone = self._gone()
        if not gone:
            return ResourceError(
                f"process {self.rank} of {self.count}: no answer from the others within {_waiting():g} seconds: one is "
                f"on a machine that was lost, or slower than that (raise {TIMEOUT}). {str(error).splitlines()[0]:.200}"
            )
        who = " and ".join(map(str, gone))
        return ResourceError(
            f"process {self.rank} of {self.count}: lost process {who}, which left without a word (killed, or out of "
            f"memory); the run goes on from its last checkpoint with --resume. {str(error).splitlines()[0]:.200}"
        )

    def leave_word(self, error: BaseException) -> None:
        """Tell the others why this process leaves."""
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, KeyboardInterrupt):
            said = "ResourceError: was interrupted, which ends all; it says how to go on"
        with suppress(RuntimeError):
            self.store.set(f"error/{self.rank}", said)

    def _last_words(self) -> dict[int, str]:
        """What processes that left with an error have said, by rank; waits a moment for it."""
        others = [rank for rank in range(self.count) if rank != self.rank]
        end = time.monotonic() + _GRACE
        while True:
            with suppress(RuntimeError):
                said = {rank: f"error/{rank}" for rank in others if self.store.check([f"error/{rank}"])}
                if said:
                    return {rank: self.store.get(key).decode() for rank, key in said.items()}
            if self._gone() or time.monotonic() > end:
                return {}
            time.sleep(0.05)

    def _gone(self) -> list[int]:
        """Processes on this machine that have ended without a word."""
        gone = []
        with suppress(RuntimeError):
            for rank in range(self.count):
                host, _, process = self.store.get(f"process/{rank}").decode().partition(" ")
                if host == os.uname().nodename and not _lives(int(process)):
                    gone.append(rank)
        return gone


def _lives(process: int) -> bool:
    """Whether a process of this machine still runs; one that nobody has waited for yet does not."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def error_of(name: str, message: str) -> RegardError:
    """The error of a name, as another process raised it."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RegardError):
        return kind(message)
    return ResourceError(f"{message} ({name})")


def _waiting() -> float:
    """Seconds to wait for the others.

    Raises:
        ConfigError: the environment says something else.
    """
    said = os.environ.get(TIMEOUT, str(_WAITING))
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"{TIMEOUT} must be seconds, such as 600, got {said!r}")
    return seconds


@contextmanager
def joined() -> Iterator[Group]:
    """The group of processes that `torchrun` started; left at the end of the block.

    Raises:
        ResourceError: the others do not come. ConfigError: the time-out is no number.
    """
    if not dist.is_available():
        raise UnsupportedError("this build of torch has no torch.distributed; train without torchrun")
    timeout = timedelta(seconds=_waiting())
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        store, rank, count = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        store = dist.PrefixStore(f"regard/{next(_GROUPS)}", store)
        store.set(f"process/{rank}", f"{os.uname().nodename} {os.getpid()}")
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise ResourceError(
            f"the {os.environ['WORLD_SIZE']} processes of torchrun did not all come within {timeout.total_seconds():g} "
            f"seconds: {str(error).splitlines()[0]:.200}"
        ) from None
    group = Group(rank, count, store)
    assert dist.group.WORLD is not None
    _LEFT[:] = [dist.group.WORLD]
    try:
        yield group
    except BaseException as error:
        group.leave_word(error)
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()
