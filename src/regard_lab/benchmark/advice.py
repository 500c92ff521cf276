"""A winner for each need, a tie, or no recommendation yet, and why: from measurements that can be told apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard_lab.benchmark import costs
from regard_lab.benchmark.board import LEARNED_RECALL, TITLES, UNITS, Baseline, Board, Finding, Status, quantity
from regard_lab.benchmark.language import joined, sentence
from regard_lab.benchmark.measures import Measure
from regard_lab.benchmark.verdict import MOST_SEEDS, Difference, Sample, difference

LEAST_SEEDS = 3
"""trainings of each before a difference between trainings is believed"""
BITS_OF_A_BYTE = 8.0
"""what a guess is worth that gives every byte the same probability"""


@dataclass(frozen=True)
class Advice:
    """One specification for everything, and why.

    Attributes:
        spec: None where there is no recommendation yet, or several tie.
        status: as `Finding`.
        specs: the recommended one, or those that tie.
        sentences: why.
        reason: the same in English.
    """

    spec: str | None
    status: Status
    specs: tuple[str, ...]
    sentences: tuple[dict[str, Any], ...]
    reason: str


def advise(board: Board) -> tuple[list[Finding], Advice]:
    """What to use for each need, and for all of them."""
    findings = [_learned(board, measure) for measure in board.measures]
    specs = board.usable
    if board.first.causal:
        findings.append(costs.memory(board, specs))
    findings += [costs.length(board, specs), costs.speed(board, specs)]
    return findings, _overall(board, findings)


def _gap(measure: Measure, value: float) -> dict[str, Any]:
    return sentence("{gap:.1%} worse" if measure.larger_is_better else "{gap:.3f} worse", gap=value)


def _learned(board: Board, measure: Measure) -> Finding:
    """The best quality, if it was learned, and if more than chance tells it from the next."""
    best, worse = board.worse[measure.name]
    samples = board.samples[measure.name]
    reasons = _too_little(board, measure, best)
    if reasons:
        return Finding(measure.name, "open", (), tuple(reasons))
    shown = quantity(measure, samples[best].value)
    if board.seeds < LEAST_SEEDS and worse:
        seeds = sentence("one seed" if board.seeds == 1 else "two seeds")
        why = sentence(
            "{spec} is ahead with {shown}, but {seeds} cannot say how much trainings differ by chance: give --seeds 3",
            spec=best,
            shown=shown,
            seeds=seeds,
        )
        return Finding(measure.name, "open", (), (why,))
    untold = [spec for spec, one in worse.items() if not one.told]
    beside = _beside(board, measure, best)
    if untold:
        unlearned = [spec for spec in untold if _unlearned(measure, samples[spec])]
        # With one alone that learned it, there is no saying yet that it is more than chance.
        tied = [spec for spec in untold if spec not in unlearned] or untold
        why = [
            sentence("{specs} cannot be told apart ({shown} of {spec})", specs=[best, *tied], shown=shown, spec=best)
        ]
        why += [
            sentence("{spec} did not learn it in every training ({shown})", spec=spec, shown=value)
            for spec in unlearned
            for value in (quantity(measure, samples[spec].value),)
        ]
        why += [_settled(board, spec, worse[spec]) for spec in untold]
        return Finding(measure.name, "tie", (best, *tied), (*why, *beside))
    if not worse:
        return Finding(measure.name, "winner", (best,), (sentence("it is the only one"), *beside))
    second = min(worse, key=lambda spec: worse[spec].middle)
    why = sentence(
        "{spec} reaches {shown}; {second} is next, {gap}, told apart by {tests}",
        spec=best,
        shown=shown,
        second=second,
        gap=_gap(measure, worse[second].middle),
        tests=[tests_name(test, board.seeds, board.unit) for test in worse[second].tests],
    )
    return Finding(measure.name, "winner", (best,), (why, *beside))


def _unlearned(measure: Measure, sample: Sample) -> bool:
    """Whether a mean over seeds that is inside the spread of the best is recall that was not learned all the same."""
    return measure.name == "recall" and sample.value < LEARNED_RECALL


def tests_name(test: str, seeds: int, unit: str) -> dict[str, Any]:
    """A test that tells two specifications apart."""
    if test == "seeds":
        return sentence("the paired t-test over {seeds} seeds", seeds=seeds)
    return sentence("the paired bootstrap over {units}", units=sentence(UNITS[unit]))


def _too_little(board: Board, measure: Measure, best: str) -> list[dict[str, Any]]:
    """Why nothing can be advised yet: something without attention is not beaten, or nothing was learned."""
    shown = quantity(measure, board.samples[measure.name][best].value)
    reasons = []
    if measure.metric == "bits_per_byte" and board.samples[measure.name][best].value > BITS_OF_A_BYTE:
        text = (
            "the best specification, {spec} ({shown}), is worse than guessing every byte ({guess}): all diverged; give "
            "a smaller learning rate"
        )
        return [sentence(text, spec=best, shown=shown, guess=quantity(measure, BITS_OF_A_BYTE))]
    if measure is board.first:
        for name in board.unbeaten(best):
            value = quantity(measure, board.baselines[name].sample.value)
            reasons.append(
                sentence(
                    "the best specification, {spec} ({shown}), does not beat the baseline {name} ({value}): all were "
                    "trained too little; give more steps or a larger budget",
                    spec=best,
                    shown=shown,
                    name=name,
                    value=value,
                )
            )
            break
        reasons += [
            sentence(
                "the baseline {name}, which has no attention, reached {value} in the same time, which is better than "
                "the best specification, {spec} ({shown})",
                spec=best,
                shown=shown,
                name=name,
                value=quantity(measure, baseline.sample.value),
            )
            for name, baseline in board.baselines.items()
            if not baseline.counting and _against(board, best, baseline).told
        ]
    if measure.name == "recall" and (value := board.samples["recall"][best].value) < LEARNED_RECALL:
        reasons.append(
            sentence(
                "recall was not learned: the best, {spec}, reached {value:.0%}, guessing gives {chance:.0%}, and a "
                "task that was learned shows at least {least:.0%} somewhere; give more steps or a larger budget",
                spec=best,
                value=value,
                chance=board.chance,
                least=LEARNED_RECALL,
            )
        )
    return reasons


def _against(board: Board, best: str, baseline: Baseline) -> Difference:
    own = board.samples[board.first.name][best]
    return difference(own, baseline.sample, larger_is_better=board.first.larger_is_better)


def _beside(board: Board, measure: Measure, best: str) -> list[dict[str, Any]]:
    """Trained baselines that cannot be told from the best specification."""
    return [
        sentence(
            "the baseline {name}, which has no attention, reached {value} in the same time and cannot be told from "
            "the best",
            name=name,
            value=quantity(measure, baseline.sample.value),
        )
        for name, baseline in board.baselines.items()
        if measure is board.first
        and not baseline.counting
        and not (_against(board, best, baseline).told or _against(board, best, baseline).better)
    ]


def _settled(board: Board, spec: str, one: Difference) -> dict[str, Any]:
    """What would tell a specification from the best."""
    units = sentence(UNITS[board.unit])
    if one.middle == 0:
        return sentence("{spec} is equal", spec=spec)
    if one.over_seeds is not None and one.over_seeds[0] > 0:
        return sentence("for {spec} more validation {units} would settle it, seeds would not", spec=spec, units=units)
    if one.needed is None:
        return sentence("for {spec} {seeds:,} seeds would not settle it", spec=spec, seeds=MOST_SEEDS)
    return sentence("for {spec} about {seeds:,} seeds would settle it", spec=spec, seeds=one.needed)


def _overall(board: Board, findings: Sequence[Finding]) -> Advice:
    """Of those that tie for the best quality the ones that recall as well as the best, and of these the one that trains
    fastest, or keeps least, where that can be told.
    """
    quality, why = findings[0], list(findings[0].sentences)
    if quality.status == "open":
        return _advice(None, "open", (), why)
    pool: tuple[str, ...] = quality.specs
    recall = next((one for one in findings[1:] if one.need == "recall"), None)
    if recall is not None and recall.status == "open":
        why += recall.sentences
    elif recall is not None:
        kept = tuple(spec for spec in pool if spec in recall.specs)
        value = {spec: sample.value for spec, sample in board.samples["recall"].items()}
        if kept:
            why.append(sentence("the recall of {specs} is not below the best", specs=list(kept)))
        else:
            text = "{spec} recalls {value:.0%}, less than the {best:.0%} of {better}"
            why += [
                sentence(text, spec=spec, value=value[spec], best=value[recall.specs[0]], better=recall.specs[0])
                for spec in pool
            ]
        pool = kept or pool
    for narrowed in (costs.speed, *((costs.memory,) if board.first.causal else ())):
        if len(pool) > 1:
            found = narrowed(board, pool)
            if found.status == "winner":
                pool = found.specs
                why.append(
                    sentence(
                        "of those that are left, {spec} is ahead in {need}",
                        spec=pool[0],
                        need=sentence(TITLES[found.need]),
                    )
                )
    return _advice(pool[0], "winner", pool, why) if len(pool) == 1 else _advice(None, "tie", pool, why)


def _advice(spec: str | None, status: Status, specs: Sequence[str], why: Sequence[dict[str, Any]]) -> Advice:
    return Advice(spec, status, tuple(specs), tuple(why), joined("en", why))
