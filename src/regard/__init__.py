"""Every attention mechanism and Transformer of the efficient-attention literature behind one interface.

Names are imported on first use, so that `import regard` costs next to nothing.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_HOMES = {
    "build": "regard.catalog",
    "describe": "regard.catalog",
    "names": "regard.catalog",
    "register": "regard.catalog",
    "attend": "regard.functional",
    "weights": "regard.functional",
    "check": "regard.testing",
    "Heads": "regard.info",
    "Info": "regard.info",
    "Input": "regard.info",
    "Supports": "regard.info",
    "Attended": "regard.core",
    "Attention": "regard.core",
    "Call": "regard.core",
    "ScoreBias": "regard.core",
    "State": "regard.core",
    "merge": "regard.core",
    "AttentionLayer": "regard.layer",
    "HeadMix": "regard.layer",
    "train": "regard.training",
    "load": "regard.integrations.loading",
    "evaluate": "regard.training",
    "compare": "regard.report",
    "explore": "regard.report.explore",
    "RegardError": "regard.errors",
    "UnsupportedError": "regard.errors",
    "ConfigError": "regard.errors",
    "ShapeError": "regard.errors",
    "InputError": "regard.errors",
    "DataError": "regard.errors",
    "CheckpointError": "regard.errors",
    "UnsafeFileError": "regard.errors",
    "LimitError": "regard.errors",
    "NumericsError": "regard.errors",
    "ResourceError": "regard.errors",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from regard.catalog import build, describe, names, register
    from regard.core import Attended, Attention, Call, ScoreBias, State, merge
    from regard.errors import (
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
    from regard.functional import attend, weights
    from regard.info import Heads, Info, Input, Supports
    from regard.integrations.loading import load
    from regard.layer import AttentionLayer, HeadMix
    from regard.report import compare
    from regard.report.explore import explore
    from regard.testing import check
    from regard.training import evaluate, train


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
