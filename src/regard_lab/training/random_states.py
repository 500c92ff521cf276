"""The states of torch's global generators, which dropout draws from."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.core.errors import CheckpointError


def rng_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's global generators, which dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = _rng_module(device).get_rng_state()
    return states


def use_rng_states(states: dict[str, Tensor], device: torch.device, saved: Path | None = None) -> None:
    """Put the generators into these states.

    Args:
        states: by kind of device.
        device: that of what draws from them.
        saved: the checkpoint that they are from, to be named in errors.

    Raises:
        CheckpointError: they are of another kind of device, or no states of generators.
    """
    named = saved / "rng.safetensors" if saved else "the checkpoint"
    if not {"cpu", device.type} <= states.keys():
        raise CheckpointError(
            f"{named} was saved on {' and '.join(states)} and has no random state of {device.type}: continue on the "
            "same kind of device (training.device in the run's config.toml)"
        )
    try:
        torch.set_rng_state(states["cpu"])
        if device.type != "cpu":
            _rng_module(device).set_rng_state(states[device.type])
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(f"the random states of {named} are none of this version of torch: {error}") from None


def _rng_module(device: torch.device) -> Any:
    return {"cuda": torch.cuda, "mps": torch.mps}[device.type]
