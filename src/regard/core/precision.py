"""The dtype of sums."""

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums of numbers of a dtype are kept in: float32 at least."""
    return dtype if dtype is torch.float32 else torch.promote_types(torch.float32, dtype)
