"""A policy for what a decoder keeps of a text, for the commands that take one."""

from pathlib import Path
from typing import TYPE_CHECKING

from regard.core.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from regard.models import LanguageModel


def reduce(model: "LanguageModel", policy: str | None) -> None:
    """Let a policy such as `h2o(budget=256)` decide what the model keeps; None: it keeps all.

    Raises:
        ConfigError: an unknown policy or option. UnsupportedError: a model that has no list of slots, or a policy that
            waits to be told when.
    """
    if policy is None:
        return
    try:
        model.reduce_cache(policy)
    except ConfigError as error:
        folder = "; for a folder of token files it is --token-files" if Path(policy).is_dir() else ""
        raise ConfigError(f"--cache {policy}: {error}{folder}") from None
    if any(layer.cache is not None and layer.cache.waits for layer in model.layers):
        raise UnsupportedError(
            f"--cache {policy} keeps everything until it is told to choose, which this command never does; measure it "
            "with regard cache, or use regard.memory.caches.compressing in Python"
        )
