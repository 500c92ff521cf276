"""Which parameters of a network learn."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from regard.core.errors import ConfigError, UnsupportedError, nearest
from regard_lab.training.ranks import Ranks


def learning(model: nn.Module, only: Sequence[str]) -> None:
    """Let these parameters learn, and no others, which keep their bits; without patterns all learn as they did.

    A pattern is the name of a parameter, or that of a module for all that it holds; `*` stands for anything in it, dots
    too: `blocks.24`, `*.memory`, `blocks.*.norm.weight`. A parameter that several modules share has several names.

    Raises:
        ConfigError: a pattern that nothing which learns has.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        >>> learning(model, ("1", "*.bias"))
        >>> [name for name, x in model.named_parameters() if x.requires_grad]
        ['0.bias', '1.weight', '1.bias']
    """
    if not only:
        return
    named = [(name, x) for name, x in model.named_parameters(remove_duplicate=False) if x.requires_grad]
    chosen: set[nn.Parameter] = set()
    for pattern in only:
        found = [x for name, x in named if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
        if not found:
            kinds = {re.sub(r"\.\d+(?=\.)", ".*", name) for name, _ in named}
            raise ConfigError(
                f"training.only: nothing that learns is called {pattern!r}, {nearest(pattern, kinds)}; a module stands "
                "for all that it holds, and * for anything in a name, as in '*.memory'"
            )
        chosen.update(found)
    for _, x in named:
        x.requires_grad_(x in chosen)


def apart(model: nn.Module, only: Sequence[str], ranks: Ranks) -> nn.Module:
    """The model, once `learning` was done and processes took it that can share it.

    Raises:
        UnsupportedError: several processes, and not all learns. ConfigError: as `learning`. Both: as `require_model`.
    """
    if only and ranks.count > 1:
        raise UnsupportedError(
            "training.only lets some parameters learn, which several processes have not been taught to share: leave it "
            "out, or train with one process"
        )
    learning(model, only)
    ranks.require_model(model)
    return model


def differentiable(objective: Tensor) -> Tensor:
    """The objective, whose backward pass gives no parameter a gradient where none that learns took part in it.

    So it is where a memory learns alone and is still empty: weight decay then leaves it as it is.
    """
    return objective if objective.requires_grad else objective + objective.new_zeros((), requires_grad=True)
