"""The parts of the campaign: modules with the same few names, which `__main__` runs and `page` counts.

NAME; KINDS: kind -> cases of the full form; SHORT: kind -> cases of the short one; BATCH: cases of a line of the log;
JUDGED: kind -> number of the way in which it is judged, where that is not the first; `cases(kind, folder)`: a function
of a seed that makes a case of a kind, with what it needs in an empty folder.
"""

from types import ModuleType


def every() -> list[ModuleType]:
    """In the order in which they are made."""
    from evidence.campaign import damage, faults, fuzz, hygiene, kills

    return [kills, faults, damage, fuzz, hygiene]


def by_name(name: str) -> ModuleType:
    """The part of that name."""
    return next(part for part in every() if name == part.NAME)
