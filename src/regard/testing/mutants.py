"""Mechanisms that are broken on purpose, each with the check that must catch it.

A bug report becomes a mutant first, then a check, then a fix. `parent` is the mechanism without the mistake.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from regard.core import Attention
from regard.info import Info

MUTANTS: "list[Mutant]" = []


@dataclass(frozen=True)
class Mutant:
    cls: type[Attention]
    parent: type[Attention]
    caught_by: str

    @property
    def name(self) -> str:
        return self.cls.__name__


def mutant(caught_by: str) -> Callable[[type[Attention]], type[Attention]]:
    """Enter a broken subclass of a mechanism, with the name of the check that must fail."""

    def enter(cls: type[Attention]) -> type[Attention]:
        MUTANTS.append(Mutant(cls, cls.__bases__[0], caught_by))
        return cls

    return enter


def claiming(info: Info, supports: dict[str, bool] | None = None, **facts: Any) -> Info:
    """The facts of a mechanism with some of them falsified."""
    return replace(info, supports=replace(info.supports, **(supports or {})), **facts)


def all_mutants() -> list[Mutant]:
    """Every hand-written mutant."""
    from regard.testing import (
        mutants_algorithm,
        mutants_catalog,
        mutants_dense,
        mutants_engine,
        mutants_facts,
        mutants_globals,
        mutants_gradient,
        mutants_interface,
        mutants_kernel,
        mutants_random,
        mutants_sparse,
        mutants_state,
    )

    del (
        mutants_algorithm,
        mutants_catalog,
        mutants_dense,
        mutants_engine,
        mutants_facts,
        mutants_globals,
        mutants_gradient,
        mutants_interface,
        mutants_kernel,
        mutants_random,
        mutants_sparse,
        mutants_state,
    )
    return list(MUTANTS)
