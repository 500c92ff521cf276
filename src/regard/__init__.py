"""Every attention mechanism and Transformer of the efficient-attention literature behind one interface.

Names are imported on first use, so that `import regard` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

_HOMES = {
    "build": "regard.catalog",
    "describe": "regard.catalog",
    "names": "regard.catalog",
    "register": "regard.catalog",
    "attend": "regard.functional",
    "weights": "regard.functional",
    "check": "regard.testing",
    "Heads": "regard.core.info",
    "Info": "regard.core.info",
    "Input": "regard.core.info",
    "Supports": "regard.core.info",
    "Attended": "regard.core.attention",
    "Attention": "regard.core.attention",
    "Call": "regard.core.attention",
    "ScoreBias": "regard.core.attention",
    "State": "regard.core.attention",
    "merge": "regard.core.attention",
    "AttentionLayer": "regard.layer",
    "HeadMix": "regard.layer",
    "train": "regard_lab.training",
    "load": "regard_lab.networks.loading",
    "evaluate": "regard_lab.training",
    "compare": "regard_lab.report",
    "explore": "regard_lab.report.explore",
    "RegardError": "regard.core.errors",
    "UnsupportedError": "regard.core.errors",
    "ConfigError": "regard.core.errors",
    "ShapeError": "regard.core.errors",
    "InputError": "regard.core.errors",
    "DataError": "regard.core.errors",
    "CheckpointError": "regard.core.errors",
    "UnsafeFileError": "regard.core.errors",
    "LimitError": "regard.core.errors",
    "NumericsError": "regard.core.errors",
    "ResourceError": "regard.core.errors",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from regard.catalog import build, describe, names, register
    from regard.core.attention import Attended, Attention, Call, ScoreBias, State, merge
    from regard.core.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        InputError,
        LimitError,
        NumericsError,
        RegardError,
        ResourceError,
        ShapeError,
        UnsafeFileError,
        UnsupportedError,
    )
    from regard.core.info import Heads, Info, Input, Supports
    from regard.functional import attend, weights
    from regard.layer import AttentionLayer, HeadMix
    from regard.testing import check
    from regard_lab.networks.loading import load
    from regard_lab.report import compare
    from regard_lab.report.explore import explore
    from regard_lab.training import evaluate, train


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
