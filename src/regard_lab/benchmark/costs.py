"""Advice by what is counted or timed: memory while decoding, long sequences, the speed of training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from regard_lab.benchmark.board import Board, Finding, price
from regard_lab.benchmark.language import sentence


def _nothing(need: str) -> Finding:
    why = sentence("no specification has learned enough to be advised; give more steps or a larger budget")
    return Finding(need, "open", (), (why,))


def memory(board: Board, specs: Sequence[str]) -> Finding:
    """The smallest state at the longest length: counted, so that it has no spread."""
    if not specs:
        return _nothing("memory")
    states = {spec: found for spec in specs if (found := _states(board, spec))}
    if not states:
        return Finding("memory", "open", (), (sentence("no specification that was advised decodes with a state"),))
    length = _longest(states)
    if length is None:
        return _no_length("memory", states)
    sizes = {spec: found[length] for spec, found in states.items()}
    least = min(sizes.values())
    best = [spec for spec, size in sizes.items() if size == least]
    rest = {spec: size for spec, size in sizes.items() if size > least}
    text = (
        "{specs} keeps {kib:,.1f} KiB after {length:,} tokens"
        if len(best) == 1
        else ("{specs} keep {kib:,.1f} KiB after {length:,} tokens each")
    )
    why = [sentence(text, specs=best, kib=least / 1024, length=length)]
    if rest:
        second = min(rest, key=lambda spec: rest[spec])
        why.append(sentence("{spec} is next with {kib:,.1f} KiB", spec=second, kib=rest[second] / 1024))
    why.append(sentence("counted, which has no spread"))
    return Finding("memory", "winner" if len(best) == 1 else "tie", tuple(best), (*why, *price(board, best)))


def _longest(measured: Mapping[str, Mapping[int, Any]]) -> int | None:
    """The longest length that every specification was measured at."""
    return max(set.intersection(*(set(found) for found in measured.values())), default=None)


def _no_length(need: str, specs: Iterable[str]) -> Finding:
    why = sentence(
        "{specs} were measured at no length in common; compare again with the same --lengths", specs=[*specs]
    )
    return Finding(need, "open", (), (why,))


def _states(board: Board, spec: str) -> dict[int, int]:
    """Bytes of the state after so many tokens; nothing for a mechanism that keeps none."""
    rows = board.entry(spec)["decode"]
    return {row["length"]: row["state_bytes"] for row in rows if row["state_bytes"] is not None}


def length(board: Board, specs: Sequence[str]) -> Finding:
    """The fastest attention at the longest length."""
    rows = {spec: {row["length"]: row for row in board.entry(spec)["cost"] if row["kind"] == "both"} for spec in specs}
    if not specs or not all(rows.values()):
        return _nothing("length")
    longest = _longest(rows)
    if longest is None:
        return _no_length("length", rows)
    timings = {spec: found[longest] for spec, found in rows.items()}

    def described(spec: str) -> dict[str, Any]:
        return sentence(
            "{spec} takes {seconds:.3g} s for forward and backward at {length:,} tokens",
            spec=spec,
            seconds=timings[spec]["seconds"],
            length=longest,
        )

    return _timed(board, "length", timings, described, larger_is_better=False)


def speed(board: Board, specs: Sequence[str]) -> Finding:
    """The most tokens in a second of training."""
    if not specs:
        return _nothing("speed")
    timings = {spec: board.entry(spec)[board.first.name].get("speed", {}) for spec in specs}

    def described(spec: str) -> dict[str, Any]:
        speed = board.entry(spec)[board.first.name]["tokens_per_second"]
        return sentence("{spec} trains on {speed:,.0f} tokens in a second", spec=spec, speed=speed)

    return _timed(board, "speed", timings, described, larger_is_better=True)


def _timed(
    board: Board,
    need: str,
    timings: Mapping[str, Mapping[str, Any]],
    described: Callable[[str], dict[str, Any]],
    *,
    larger_is_better: bool,
) -> Finding:
    """Told apart where intervals are apart; nothing where one of them cannot be trusted, or says not whether it can."""
    if any(timing.get("untrusted", True) for timing in timings.values()):
        why = sentence("the timings cannot be trusted: the machine was busy; compare again on a quiet one")
        return Finding(need, "open", (), (why,))
    bounds = {
        spec: (-timing["high"], -timing["low"]) if larger_is_better else (timing["low"], timing["high"])
        for spec, timing in timings.items()
    }
    best = min(bounds, key=lambda spec: sum(bounds[spec]))
    tied = [best, *(spec for spec in bounds if spec != best and bounds[spec][0] <= bounds[best][1])]
    if len(tied) > 1:
        why = sentence("the intervals of {specs} overlap; more turns (--rounds) would narrow them", specs=tied)
        return Finding(need, "tie", tuple(tied), (described(best), why))
    why = [described(best)]
    if len(bounds) > 1:
        second = min((spec for spec in bounds if spec != best), key=lambda spec: sum(bounds[spec]))
        why += [described(second), sentence("told apart by the intervals of timings in turns")]
    return Finding(need, "winner", (best,), (*why, *price(board, [best])))
