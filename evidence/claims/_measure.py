"""Measures a claim over seeds, and says everything as plain data."""

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evidence.claims._base import FORMAT, LEAST_SEEDS, About, Claim, Observation
from evidence.claims._verdict import conclude
from regard import __version__
from regard_lab.benchmark.plain import plain


def measure(claim: Claim, seeds: Sequence[int], *, tiny: bool = False) -> dict[str, Any]:
    """The results of a claim: what it says, settings, every number of every seed, verdict, versions and sources.

    torch's global generator is seeded for each seed, for modules that draw their weights from it, and restored.

    Args:
        claim: with its settings.
        seeds: one measurement each.
        tiny: whether this is the small form, which is no evidence; the results say so.
    """
    import torch  # claims are listed without it

    from regard.core.attention import registered_name
    from regard_lab.benchmark.recorded import machine, now
    from regard_lab.training.environment import environment

    name = registered_name(type(claim))
    begun = time.perf_counter()
    observed = [_observe(claim, seed) for seed in seeds]
    controls = [control for control in claim.controls if control.small or not tiny]
    least = LEAST_SEEDS if tiny else claim.least_seeds
    conclusion = conclude(controls, claim.findings, [one.values for one in observed], least_seeds=least)
    return plain(
        {
            "format": FORMAT,
            "name": name,
            **dataclasses.asdict(About.read(Path(__file__).with_name(f"{name}.py"))),
            **dataclasses.asdict(conclusion),
            "plots": [dataclasses.asdict(plot) for plot in claim.plots],
            "settings": dataclasses.asdict(claim),  # pyright: ignore[reportArgumentType]  # a dataclass
            "tiny": tiny,
            "seeds": list(seeds),
            "revised_after_look": _revised(claim, seeds),
            "withdrawn": None,
            "timed": claim.timed,
            "observations": [{"values": one.values, "curves": one.curves} for one in observed],
            "seconds": time.perf_counter() - begun,
            "created": now(),
            "version": __version__,
            "sources": {"commit": environment(torch.device("cpu"), 0)["revision"], **sources(name)},
            "environment": machine(torch.get_num_threads()),
        }
    )


def sources(name: str) -> dict[str, str]:
    """SHA-256 of a claim's file, and of all Python files of regard, its laboratory and the claims with their paths:
    another one is another code."""
    claim = Path(__file__).with_name(f"{name}.py").read_bytes()
    return {"claim": hashlib.sha256(claim).hexdigest(), "package": _package()}


@cache
def _package() -> str:
    root, whole = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted([*(root / "src").rglob("*.py"), *Path(__file__).parent.glob("*.py")]):
        whole.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return whole.hexdigest()


def _revised(claim: Claim, seeds: Sequence[int]) -> dict[str, object] | None:
    if claim.revised is None:
        return None
    return {**dataclasses.asdict(claim.revised), "fresh_seeds": not set(seeds) & set(claim.revised.seen)}


def _observe(claim: Claim, seed: int) -> Observation:
    import torch

    from regard.core.attention import generator, registered_name

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, registered_name(type(claim))).initial_seed())
        return claim.observe(seed)
