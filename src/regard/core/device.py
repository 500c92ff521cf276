"""Where a training runs."""

import torch

from regard.core.errors import ConfigError, UnsupportedError, nearest


def chosen_device(name: str) -> torch.device:
    """The device of this name; `auto` takes cuda, else mps, else cpu.

    Raises:
        ConfigError: there is no such name.
        UnsupportedError: this machine, or this build of torch, has none of that name.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(device for device, available in there.items() if available)
    if name not in there:
        raise ConfigError(f"unknown device {name!r}: {nearest(str(name), ['auto', *there])}")
    if not there[name]:
        available = ", ".join(device for device, ok in there.items() if ok)
        raise UnsupportedError(f"device {name} is not available here; available: {available}. Use --device auto")
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)
