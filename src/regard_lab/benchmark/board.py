"""Everything that advice is drawn from: samples, costs and baselines, and what of them can be told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from regard_lab.benchmark.language import sentence
from regard_lab.benchmark.measures import Measure
from regard_lab.benchmark.verdict import Difference, Sample, difference, differences

LEARNED_RECALL = 0.9
"""recall that some specification must reach before differences in recall mean much: the positive control"""
TITLES = {
    "text": "quality of text",
    "masked": "quality of masked text",
    "classification": "accuracy of classes",
    "recall": "exact recall",
    "memory": "decoding memory",
    "length": "long sequences",
    "speed": "training speed",
}
"""need -> what it is called"""
UNITS = {"document": "documents", "window": "windows", "image": "images"}
Status = Literal["winner", "tie", "open"]


@dataclass(frozen=True)
class Finding:
    """What a comparison says to one need.

    Attributes:
        need: a key of `TITLES`.
        status: winner: one was told from all others; tie: several cannot be told apart; open: no recommendation yet.
        specs: the winner, or those that tie; open: none.
        sentences: why.
    """

    need: str
    status: Status
    specs: tuple[str, ...]
    sentences: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Baseline:
    """A model beside the specifications. counting: it only counts, and has to be beaten."""

    sample: Sample
    counting: bool


@dataclass(frozen=True, kw_only=True)
class Board:
    """Everything that advice is drawn from.

    Args:
        measures: of the task; the first is the quality.
        samples: name of a measure -> specification -> what its trainings found.
        entries: the specifications' costs, as results.json has them. Those that are missing here were not trained to
            the end, and are not advised.
        baselines: by name.
        unit: what was resampled: document, window or image.
        chance: recall of guessing.
    """

    measures: Sequence[Measure]
    samples: Mapping[str, Mapping[str, Sample]]
    entries: Sequence[Mapping[str, Any]]
    baselines: Mapping[str, Baseline]
    unit: str
    chance: float = 0.0

    @property
    def first(self) -> Measure:
        return self.measures[0]

    @property
    def seeds(self) -> int:
        return len(next(iter(self.samples[self.first.name].values())).top)

    @cached_property
    def worse(self) -> dict[str, tuple[str, dict[str, Difference]]]:
        """By measure, the best specification and how much every other is worse."""
        return {
            measure.name: differences(self.samples[measure.name], larger_is_better=measure.larger_is_better)
            for measure in self.measures
        }

    @cached_property
    def usable(self) -> tuple[str, ...]:
        """Specifications that learned something: they beat what only counts, or recall what they were shown."""
        if self.first.name == "recall":
            return tuple(s for s, sample in self.samples["recall"].items() if sample.value >= LEARNED_RECALL)
        return tuple(spec for spec in self.samples[self.first.name] if not self.unbeaten(spec))

    def unbeaten(self, spec: str) -> list[str]:
        """Baselines that only count and that a specification was not told to be better than, the best first."""
        own, sign = self.samples[self.first.name][spec], 1 if self.first.larger_is_better else -1
        found = [
            name
            for name, baseline in self.baselines.items()
            if baseline.counting
            and not _beaten(difference(baseline.sample, own, larger_is_better=self.first.larger_is_better))
        ]
        return sorted(found, key=lambda name: -sign * self.baselines[name].sample.value)

    def entry(self, spec: str) -> Mapping[str, Any]:
        return next(entry for entry in self.entries if entry["spec"] == spec)


def told(board: Board) -> dict[str, Any]:
    """Every paired difference as plain data, by measure: from the best specification, for it and for baselines."""
    found = {}
    for measure in board.measures:
        best, worse = board.worse[measure.name]
        rows = [{"spec": spec, "baseline": False, **_plain(one)} for spec, one in worse.items()]
        if measure is board.first:
            top = board.samples[measure.name][best]
            for name, baseline in board.baselines.items():
                one = difference(baseline.sample, top, larger_is_better=measure.larger_is_better)
                rows.append({"spec": name, "baseline": True, **_plain(one)})
        found[measure.name] = {"best": best, "rows": rows}
    return found


def _beaten(one: Difference) -> bool:
    """Told to be worse; by its value alone, where one seed is compared with a text that was coded as a whole."""
    return one.told or (one.over_seeds is None and one.over_units is None and one.middle > 0)


def _plain(one: Difference) -> dict[str, Any]:
    return {**asdict(one), "told": one.told or one.better, "tests": one.tests, "needed": one.needed}


def quantity(measure: Measure, value: float) -> dict[str, Any]:
    """A value and what it is."""
    return sentence(f"{{value:{'.1%' if measure.larger_is_better else '.3f'}}} {measure.noun}", value=value)


def price(board: Board, specs: Sequence[str]) -> list[dict[str, Any]]:
    """The quality of what is advised for another need."""
    priced = []
    for spec in specs:
        shown = [quantity(measure, board.samples[measure.name][spec].value) for measure in board.measures]
        priced.append(sentence("{spec} reaches {shown}", spec=spec, shown=shown))
    return priced
