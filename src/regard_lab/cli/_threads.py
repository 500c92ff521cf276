"""CPU threads of a measurement in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from regard_lab.benchmark.threads import require_threads


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """torch takes so many inside, and as many as before afterwards.

    Raises:
        ConfigError: too many.

    Example:
        >>> import torch
        >>> with cpu_threads(1):
        ...     torch.get_num_threads()
        1
    """
    import torch

    require_threads(count)
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
