"""Measures a claim over seeds, and says everything as plain data."""

import dataclasses
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

from regard import __version__
from regard.benchmark.plain import plain
from regard.claims._base import FORMAT, Claim, Observation
from regard.claims._verdict import conclude


def measure(claim: Claim, seeds: Sequence[int], *, tiny: bool = False) -> dict[str, Any]:
    """The results of a claim: what it says, settings, every number of every seed, verdict, versions.

    torch's global generator is seeded for each seed, for modules that draw their weights from it, and restored.

    Args:
        claim: with its settings.
        seeds: one measurement each.
        tiny: whether this is the small form, which is no evidence; the results say so.
    """
    import torch  # claims are listed without it

    from regard.core import registered_name

    begun = time.perf_counter()
    observed = [_observe(claim, seed) for seed in seeds]
    conclusion = conclude(claim.controls, claim.findings, [one.values for one in observed])
    settings = dataclasses.asdict(claim)  # pyright: ignore[reportArgumentType]  # every claim is a dataclass
    return plain(
        {
            "format": FORMAT,
            "name": registered_name(type(claim)),
            **dataclasses.asdict(claim.about),
            **dataclasses.asdict(conclusion),
            "plots": [dataclasses.asdict(plot) for plot in claim.plots],
            "settings": settings,
            "tiny": tiny,
            "seeds": list(seeds),
            "observations": [{"values": one.values, "curves": one.curves} for one in observed],
            "seconds": time.perf_counter() - begun,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "version": __version__,
            "environment": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "platform": platform.platform(),
                "processor": torch.backends.cpu.get_cpu_capability(),
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
            },
        }
    )


def _observe(claim: Claim, seed: int) -> Observation:
    import torch

    from regard.core import generator, registered_name

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, registered_name(type(claim))).initial_seed())
        return claim.observe(seed)
