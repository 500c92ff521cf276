"""A command by several processes, as `torchrun` starts them, forked from this one; one of them may be killed."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from evidence.campaign import children, injected
from evidence.campaign.children import Ended

COUNT = 2
WAITING = "20"
"""seconds that those wait that are left, where the killed one had not come yet"""


def command(
    words: Sequence[str],
    place: Path,
    *,
    before: Callable[[], None] = lambda: None,
    stop: tuple[float, signal.Signals] | None = None,
    rank: int = 0,
) -> Ended:
    """`regard WORDS` by two processes.

    Args:
        words: of each.
        place: the working folder of all.
        before: is called in one of them first.
        stop: (seconds, signal): what this one gets after that time.
        rank: which one that is.

    Returns:
        How they ended: as the one that was killed, if all others named it and left; as the first that failed, if any
        did; else as the first.
    """
    done = children.call(partial(_started, words, before, stop, rank), place)
    codes = json.loads(done.out.rpartition("\n")[2] or "[]")
    if not codes:
        return done
    killed = [number for number, code in enumerate(codes) if code == -signal.SIGKILL]
    others = [code for code in codes if code != -signal.SIGKILL]
    code = next((code for code in others if code), 0)
    if killed and all(other in (0, 6) for other in others) and (not code or _named(done.err, killed[0])):
        code = -signal.SIGKILL
    return Ended(code, done.out, done.err, done.seconds, done.wall, done.peak, done.hung)


def _named(said: str, killed: int) -> bool:
    """Whether those that are left say who is gone, or that not all came."""
    return f"lost process {killed}" in said or "did not all come" in said


def _started(
    words: Sequence[str],
    before: Callable[[], None],
    stop: tuple[float, signal.Signals] | None,
    chosen: int,
) -> int:
    """Start them, wait for them, and print their exit codes behind all else."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"WORLD_SIZE": str(COUNT), "LOCAL_WORLD_SIZE": str(COUNT), "REGARD_TIMEOUT": WAITING}
    pids = [_forked(words, rank, before if rank == chosen else lambda: None) for rank in range(COUNT)]
    if stop is not None:
        time.sleep(stop[0])
        if os.waitid(os.P_PID, pids[chosen], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(pids[chosen], stop[1])
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(f"\n{json.dumps(codes)}", end="")
    return 0


def _forked(words: Sequence[str], rank: int, before: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        injected.read_in_an_order_of_its_own(rank)
        before()
        from regard.cli.main import main

        code = main(list(words))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
