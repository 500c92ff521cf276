"""Run by the tests as a program: `tests/distributed/processes.py`, with all processes on one GPU."""

import functools
import sys

from tests.distributed import processes
from tests.gpu.staged import share_the_device

if __name__ == "__main__":
    share_the_device()
    processes.TrainingConfig = functools.partial(processes.TrainingConfig, device="cuda")  # type: ignore[assignment,misc]
    processes.main(sys.argv[1:])
