"""Claims of the literature: what they say, their known answers, and the bounds that decide about them."""

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")

FORMAT = "regard claim 2"
"""of the files of results"""
LEAST_SEEDS = 3
"""fewer seeds conclude nothing"""

Curve = tuple[Sequence[float] | Sequence[str], Sequence[float]]
"""where (numbers, or names of bars) and how much"""


@dataclass(frozen=True, kw_only=True)
class About:
    """A claim in words: the docstring of its file, so that it can be listed without importing torch."""

    title: str
    """the first line, without its full stop"""
    says: str
    """Claim: the statement of the literature, in our words"""
    source: str
    """Source: who says it, and where"""
    control: str
    """Control: the positive control: what must come out if the measurement works at all, and why that is known"""
    measures: str
    """Measured: of what, on what, and against what"""

    @classmethod
    def read(cls, file: Path) -> "About":
        """The words of a claim's file."""
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        title, *parts = re.split(r"\n+(?:Claim|Source|Control|Measured): ", text)
        says, source, control, measures = (part.replace("\n", " ") for part in parts)
        return cls(title=title.removesuffix("."), says=says, source=source, control=control, measures=measures)


@dataclass(frozen=True)
class Control:
    """A value whose answer is known beforehand. A seed that misses it makes the whole claim inconclusive."""

    value: str
    """its name in `Observation.values`"""
    title: str
    expected: float
    _: KW_ONLY
    tolerance: float
    """how far from `expected` it may be; from theory or from the size of the sample, never from what came out"""
    small: bool = True
    """whether the small form has to reach it too, whose trainings are too short for some"""


@dataclass(frozen=True)
class Finding:
    """A value between two bounds, which are committed before a run is judged by them.

    Where they were changed after numbers had been seen, `Claim.revised` says so.
    """

    value: str
    """its name in `Observation.values`; differences are taken within a seed, so that what seeds share cancels"""
    title: str
    _: KW_ONLY
    at_least: float | None = None
    at_most: float | None = None
    resolution: float = 0.0
    """the smallest step that the value can make, such as 1 / questions for an accuracy"""
    states: bool = True
    """whether the claim says this; what is shown beside it gets a verdict of its own and decides nothing"""


@dataclass(frozen=True)
class Revision:
    """A change of bounds, controls or settings that was made after numbers of some seeds had been seen."""

    what: str
    seen: tuple[int, ...]
    """the seeds; only others are fresh"""


@dataclass(frozen=True)
class Plot:
    """A figure over the curves of that name in `Observation.curves`."""

    name: str
    title: str
    x: str
    y: str
    _: KW_ONLY
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Observation:
    """Results of one seed: named numbers, and curves by plot and label."""

    values: Mapping[str, float]
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)


def setting(value: T, *, tiny: T) -> T:
    """A setting, and its value in the small form that tests and `--quick` run, which still reaches its controls."""
    return field(default=value, metadata={"tiny": tiny})


@dataclass_transform(frozen_default=True)
class Claim(ABC):
    """A claim of the literature that can be measured, and that can fail.

    A claim has a file of its own, whose name is the name of the claim and whose docstring is `About` it. This class
    makes it a frozen dataclass. Its fields are the settings of the measurement; mechanisms under test are settings too
    (specifications), so that a test can put a wrong one in their place and see that the claim no longer holds.
    """

    controls: ClassVar[tuple[Control, ...]]
    findings: ClassVar[tuple[Finding, ...]]
    plots: ClassVar[tuple[Plot, ...]]
    tiny: ClassVar[Mapping[str, object]]
    """settings of the small form"""
    least_seeds: ClassVar[int] = LEAST_SEEDS
    """fewer conclude nothing; the small form needs `LEAST_SEEDS` only"""
    revised: ClassVar[Revision | None] = None
    """what was changed after a look, if anything was"""
    timed: ClassVar[bool] = False
    """whether a finding is a time, which another version of the code may change"""

    def __init_subclass__(cls) -> None:
        settings = fields(dataclass(frozen=True)(cls))  # pyright: ignore[reportArgumentType]  # a dataclass now
        cls.tiny = {one.name: one.metadata["tiny"] for one in settings if "tiny" in one.metadata}

    @abstractmethod
    def observe(self, seed: int) -> Observation:
        """Measure once. Everything random comes from `seed`; torch's global generator is seeded with it too."""
