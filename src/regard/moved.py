"""Names of weights that moved: what earlier versions wrote still loads, or is refused by name."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from regard.errors import CheckpointError

MOVED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "0.1": {
        "AttentionLayer": {
            "query.": "projections.query.",
            "key.": "projections.key.",
            "value.": "projections.value.",
            "output.": "projections.output.",
            "global_rows.": "projections.global_rows.",
        },
        "LanguageModel": {"embedding.": "embeddings.table.", "position.": "embeddings.position."},
    },
}
"""last version that wrote them -> class -> beginning of a name inside it -> its beginning now"""

REFUSED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "0.1": {
        "Rfa": {
            "gate_weight": "rfa(gate=True) of version 0.1 read its gate from the key; as in the paper, the layer now "
            "projects it from its own input, so train again"
        },
    },
}
"""last version that wrote them -> class -> name inside it -> why it has no place any more"""


def follow(module: nn.Module) -> None:
    """From now on `module` also loads what earlier versions called its weights."""
    module.register_load_state_dict_pre_hook(_rename)


def current_names(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Names written by an earlier version -> names inside a model of today.

    Raises:
        CheckpointError: a weight that has no place any more.
    """
    renamed = {name: name for name in names}
    for prefix, module in model.named_modules():
        prefix = f"{prefix}." if prefix else ""
        for name, now in renamed.items():
            if now.startswith(prefix):
                renamed[name] = prefix + _renamed(module, now.removeprefix(prefix))
    return renamed


def _renamed(module: nn.Module, name: str) -> str:
    kinds = [cls.__name__ for cls in type(module).__mro__]
    for version, classes in REFUSED.items():
        for kind in kinds:
            if name in classes.get(kind, {}):
                raise CheckpointError(f"{name} was written by version {version}: {classes[kind][name]}")
    for classes in MOVED.values():
        for kind in kinds:
            for old, new in classes.get(kind, {}).items():
                if name.startswith(old):
                    return new + name.removeprefix(old)
    return name


def _rename(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    for name in [name for name in state_dict if name.startswith(prefix)]:
        now = prefix + _renamed(module, name.removeprefix(prefix))
        if now != name:
            state_dict[now] = state_dict.pop(name)
