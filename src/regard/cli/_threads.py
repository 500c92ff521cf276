"""CPU threads of a measurement in this process."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """torch takes so many inside, and as many as before afterwards.

    Example:
        >>> import torch
        >>> with cpu_threads(1):
        ...     torch.get_num_threads()
        1
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
