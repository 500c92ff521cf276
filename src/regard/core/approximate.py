"""FAISS, which a memory and a datastore search by where approximate neighbours are asked for."""

import importlib
from typing import Any

import torch

from regard.core.errors import UnsupportedError


def faiss(who: str, otherwise: str) -> Any:
    """The library, which from now on takes as many CPU threads in this thread as torch.

    Args:
        who: needs it, in the error.
        otherwise: what works without it, in the error.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        library = importlib.import_module("faiss")
    except ImportError:
        raise UnsupportedError(f"{who} needs FAISS: pip install 'regard[knn]'; {otherwise}") from None
    library.omp_set_num_threads(torch.get_num_threads())
    return library
