"""Laws of positions, memories, blocks, depths and whole models: what each kind must do, checked on every one."""

from collections.abc import Iterable

from regard.core.attention import Attention
from regard.core.errors import ConfigError
from regard.testing.checks import named
from regard.testing.inputs import on
from regard.testing.registry import REGISTERED, Check, CheckResult, conduct
from tests.laws import (  # noqa: F401 - each module enters its checks, in this order
    depth,
    exits,
    memories,
    model_states,
    models,
    positions,
)

PART_CHECKS: dict[str, Check] = {
    name: each for name, each in REGISTERED.items() if not issubclass(each.kind, Attention)
}
"""Every check of parts of models by name."""


def check_part(part: type, *, checks: Iterable[str] | None = None, device: str = "cpu") -> list[CheckResult]:
    """Run the laws of its kind over a part of a model: a class of the library's, or one of your own.

    Args:
        part: a subclass of `Position`, `Memory`, `Cache`, `AttentionLayer`, `Block`, `CrossBlock`, `LanguageModel`,
            `EncoderDecoder` or `Windows` (the data of `TextTask`).
        checks: names of checks to run; None: all of its kind.
        device: as of `check_attention`.

    Returns:
        One result per check.

    Raises:
        ConfigError: an unknown check, or a class that no check is for.
    """
    wanted = named(PART_CHECKS, checks)
    laws = [each for each in wanted if issubclass(part, each.kind)]
    if not laws:
        kinds = sorted({each.kind.__name__ for each in PART_CHECKS.values()})
        names = [each.name for each in wanted]
        raise ConfigError(f"{part.__name__} is none of {', '.join(kinds)}, or {names} is not for it")
    with on(device):
        return [conduct(each, part) for each in laws]
