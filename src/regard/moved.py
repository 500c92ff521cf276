"""Names of weights that moved: what earlier versions wrote still loads, or is refused by name."""

from collections.abc import Iterable, Mapping, Sequence
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
"""last version that wrote them -> class of this library -> beginning of a name inside it -> its beginning now"""

REFUSED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "0.1": {
        "Rfa": {
            "gate_weight": "rfa(gate=True) of version 0.1 read its gate from the key; as in the paper, the layer now "
            "projects it from its own input, so train again"
        },
    },
}
"""last version that wrote them -> class of this library -> name inside it -> why it has no place any more"""


def follow(module: nn.Module) -> None:
    """From now on `module` also loads what earlier versions called its weights."""
    module.register_load_state_dict_pre_hook(_rename)


def current_names(model: nn.Module, names: Iterable[str], place: str = "") -> dict[str, str]:
    """Names written by an earlier version -> names inside a model of today.

    Args:
        place: what stands before them, for messages.

    Raises:
        CheckpointError: a weight that has no place any more, or one under both of its names.
    """
    renamed = {name: name for name in names}
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefix = f"{prefix}." if prefix else ""
        kinds = [cls.__name__ for cls in type(module).__mro__ if cls.__module__.partition(".")[0] == __package__]
        if any(kind in classes for kind in kinds for table in (MOVED, REFUSED) for classes in table.values()):
            for name, now in renamed.items():
                if now.startswith(prefix):
                    renamed[name] = prefix + _renamed(module, kinds, now.removeprefix(prefix))
    for name, now in renamed.items():
        if now != name and now in renamed:
            raise CheckpointError(
                f"{place}{name} and {place}{now} are one weight, under its name in an earlier version and its "
                "name of today; keep the one that is meant"
            )
    return renamed


def _renamed(module: nn.Module, kinds: Sequence[str], name: str) -> str:
    first = name.partition(".")[0]
    if first in module._parameters or first in module._buffers or module._modules.get(first) is not None:
        return name  # of a subclass, which may well call something of its own as an earlier version called its parts
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
    # All that is inside of it at once, so that nothing is loaded before everything is known to have one name.
    inside = [name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)]
    for name, now in current_names(module, inside, prefix).items():
        if now != name:
            state_dict[prefix + now] = state_dict.pop(prefix + name)
