"""Classes that are broken on purpose, each with the check that must catch it.

A bug report becomes a mutant first, then a check, then a fix. `parent` is the class without the mistake.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from regard.core.info import Info

Broken = TypeVar("Broken", bound=type)


@dataclass(frozen=True)
class Mutant:
    cls: Any
    parent: Any
    caught_by: str

    @property
    def name(self) -> str:
        return self.cls.__name__


MUTANTS: list[Mutant] = []
"""Those of the modules that are imported."""


def mutant(caught_by: str) -> Callable[[Broken], Broken]:
    """Enter a broken subclass of a mechanism or of a part of a model, with the name of the check that must fail."""

    def enter(cls: Broken) -> Broken:
        MUTANTS.append(Mutant(cls, cls.__bases__[0], caught_by))
        return cls

    return enter


def claiming(info: Info, supports: dict[str, bool] | None = None, **facts: Any) -> Info:
    """The facts of a mechanism with some of them falsified."""
    return replace(info, supports=replace(info.supports, **(supports or {})), **facts)
