"""docs/reliability.md, written from the log alone: no figure of it is anybody's word."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from evidence.campaign import log

PAGE = log.ROOT / "docs" / "reliability.md"
Batches = Sequence[dict[str, Any]]
PARTS = {
    "kills": (
        "Kills",
        "`kill -9` of a process that trains, builds a datastore or an index, calibrates or exports: after a "
        "random time, or before any of its operations on files, half of a write included. The same command is"
        " given again, up to three kills in a row; in the end weights, optimizer, random states, memories, "
        "metrics (without timings) and every other file that the command leaves are compared, bit for bit, with "
        "those of a process that was never killed. What was made before that is counted apart: of an export nothing "
        "was compared then, of an addition its manifest, and of a run its newest checkpoint and its metrics. Some "
        "kinds have two processes, of which one is killed and the other must name it; before 2026-11-27 both read the "
        "tensors of a file in one order, as separate processes do not, and moments that heads mixed up were not seen.",
    ),
    "faults": (
        "Faults",
        "Signals, disks that are full or break, folders that may not be written, no descriptors, little "
        "memory, no home. The command ends with a named error and its exit code, or did not need what failed;"
        " given again, it ends with the same bits.",
    ),
    "damage": (
        "Damaged files",
        "A file that a command reads has other bits, another end, another order, another file's content or "
        "shape, or is a link, a folder, a pipe, or gone. What regard wrote is under checksums: the command "
        "names the file, or its result is the same bits. Files of others have no checksum, so other content "
        "may be read as what it now is. Content of ours that somebody changed together with its checksum "
        "(`sealed value`) is tried no more. Before 2026-11-24 a command that goes on counted as one that says so "
        "where it named the run's folder, as it also does of a sound one.",
    ),
    "fuzz": (
        "Bad input",
        "Words, specifications, configurations and arguments that make no sense, and some that do. Each is "
        "refused with an error of the library, or accepted; none shows a traceback, takes more than 5 seconds"
        " of a processor, or gets more than 2 GB (the limit under which it runs, and beyond which it must say"
        " so). A command that is accepted is stopped where its training or its processes begin, or after 2 "
        "seconds of work.",
    ),
    "hygiene": (
        "Guests in a process",
        "Every name of the catalog: threads that share it, forks, new processes (of six names), the global state of "
        "the process (random states, types, threads, environment, warnings, signals), objects and resident bytes "
        "over 10,000 small calls, and sizes that cannot be (2^40), which are refused before memory is taken.",
    ),
}
"""part -> heading, what is done"""
_INTRODUCTION = (
    "What happens to runs and files when processes are killed, disks are full, files are damaged and input is wrong.",
    "Written by `python -m evidence.campaign` from its log, `docs/recorded/reliability.jsonl`, a line for each batch",
    "of cases, behind which a later call goes on. `make campaign` makes what is missing of the full form,",
    "`make campaign-short` a little of every part with new seeds, and writes nothing. A case is made again by its",
    "seed:",
    "`python -m evidence.campaign damage --kind datastore --first SEED --cases 1`.",
)
TARGETS = {"kills": ("kills", 500), "fuzz": ("inputs", 20_000)}
"""part -> what is counted, and how many there are to be"""
AT_ONCE = {"kills": 100}
"""part -> how many of these one call of the campaign is to make"""


def write(path: Path = log.RECORDED, page: Path = PAGE) -> None:
    """Write the page that a log gives."""
    page.write_text("\n".join(lines(log.read(path))) + "\n", encoding="utf-8")


def lines(batches: Batches) -> Iterator[str]:
    """Of the page."""
    yield "# Reliability"
    yield ""
    yield from _INTRODUCTION
    yield ""
    yield from _summary(batches)
    for part, (heading, what) in PARTS.items():
        own = [each for each in batches if each["part"] == part]
        yield f"## {heading}"
        yield ""
        yield what
        yield ""
        today, earlier = _judged(part, own)
        yield from _table(today)
        yield from _earlier(earlier)
        yield from _missing(part, today)
        yield from _defects(own)
    yield from _made(batches)


def _summary(batches: Batches) -> Iterator[str]:
    yield "| part | cases | counted | target | defects found | of these still open |"
    yield "|---|---:|---:|---:|---:|---:|"
    for part, (heading, _) in PARTS.items():
        own = [each for each in batches if each["part"] == part]
        name, target = TARGETS.get(part, ("cases", 0))
        today, _ = _judged(part, own)
        counted = _counts(today)[name] if part in TARGETS else _cases(today)
        still = sum(1 for _ in log.open_defects(own))
        found = len({(each["kind"], defect["seed"]) for each in own for defect in each["defects"]})
        cases = _cases(today)
        yield f"| {heading} | {cases:,} | {counted:,} {name} | {f'{target:,}' if target else ''} | {found} | {still} |"
    yield ""
    for part, target in AT_ONCE.items():
        name, _ = TARGETS[part]
        today, _ = _judged(part, [each for each in batches if each["part"] == part])
        calls = {each["call"]: [] for each in today if each["call"]}
        for each in today:
            calls.get(each["call"], []).append(each)
        most = max((_counts(own)[name] for own in calls.values()), default=0)
        yield f"The most {name} that one call of the campaign made: {most:,} (target: {target:,})."
        yield ""


def _module(part: str) -> ModuleType:
    from evidence.campaign import damage, faults, fuzz, hygiene, kills

    return next(each for each in (kills, faults, damage, fuzz, hygiene) if part == each.NAME)


def _judged(part: str, batches: Batches) -> tuple[Batches, Batches]:
    """Those that were judged as cases are today, and those of which less was asked."""
    module = _module(part)
    today = [each for each in batches if each["judged"] == module.judged(each["kind"])]
    return today, [each for each in batches if each not in today]


def _earlier(batches: Batches) -> Iterator[str]:
    """Cases of which less was asked, in one sentence: the tables leave them out."""
    if not _cases(batches):
        return
    outcomes = sum((Counter(each["outcomes"]) for each in batches if not each["again"]), Counter())
    wrong = len({(each["kind"], defect["seed"]) for each in batches for defect in each["defects"]})
    said = [f"{count:,} {what}" for what, count in outcomes.most_common()] + [f"{wrong} defects"] * bool(wrong)
    counted = "".join(f" with {count:,} {what}" for what, count in _counts(batches).items())
    last = max(each["date"] for each in batches)
    made = f"{_cases(batches):,} cases{counted}, {', '.join(said)}"
    yield f"Not counted, since less was asked of them until {last}: {made}."
    yield ""


def _table(batches: Batches) -> Iterator[str]:
    if not batches:
        yield "Not yet made."
        yield ""
        return
    yield "| what | cases | outcomes | slowest, s of a processor | most memory, MiB |"
    yield "|---|---:|---|---:|---:|"
    for kind in dict.fromkeys(each["kind"] for each in batches):
        own = [each for each in batches if each["kind"] == kind]
        outcomes = sum((Counter(each["outcomes"]) for each in own if not each["again"]), Counter())
        said = [f"{count:,} {what}" for what, count in outcomes.most_common()]
        wrong = len({defect["seed"] for each in own for defect in each["defects"]})
        said += [f"{wrong} defects" if wrong > 1 else "1 defect"] if wrong else []
        said += [f"({', '.join(f'{count:,} {what}' for what, count in _counts(own).items())})"] if _counts(own) else []
        seconds, most = max(each["most_seconds"] for each in own), max(each["most_bytes"] for each in own)
        cases, memory = _cases(own), f"{most >> 20:,}" if most else ""
        yield f"| {kind} | {cases:,} | {', '.join(said).replace(', (', ' (')} | {seconds:.1f} | {memory} |"
    yield ""


def _missing(part: str, batches: Batches) -> Iterator[str]:
    """What the full form has, and the log has not, or not all of."""
    of = _module(part)
    made = {kind: _cases(each for each in batches if each["kind"] == kind) for kind in of.kinds()}
    missing = [kind for kind, count in made.items() if not count and of.cases_of(kind)]
    some = [f"{kind} ({count} of {of.cases_of(kind)})" for kind, count in made.items() if 0 < count < of.cases_of(kind)]
    for said, kinds in (("Not yet made", missing), ("Begun", some)):
        if batches and kinds:
            yield f"{said}: {', '.join(kinds)}."
            yield ""


def _cases(batches: Iterable[dict[str, Any]]) -> int:
    """Those that were made once more, since they were defects, count once."""
    return sum(each["count"] for each in batches if not each["again"])


def _counts(batches: Batches) -> Counter[str]:
    return sum((Counter(each["counts"]) for each in batches if not each["again"]), Counter())


def _defects(batches: Batches) -> Iterator[str]:
    still = {(each["kind"], each["seed"]) for each in log.open_defects(list(batches))}
    rows: dict[tuple[str, int], str] = {}
    for each in batches:
        for defect in each["defects"]:
            rows[each["kind"], defect["seed"]] = defect["what"]
    if not rows:
        return
    yield "Defects:"
    yield ""
    yield "| what | seed | the same case now | what was wrong |"
    yield "|---|---:|---|---|"
    for (kind, seed), what in sorted(rows.items()):
        shown = what.replace("|", "/").replace("`", "'").replace("<", "(").replace(">", ")")
        shown = re.sub("^regard ", "$ regard ", shown)  # bad input, and no example of a command
        yield f"| {kind} | {seed} | {'open' if (kind, seed) in still else 'right'} | `{shown}` |"
    yield ""


def _made(batches: Batches) -> Iterator[str]:
    yield "## When, where, with what"
    yield ""
    if not batches:
        yield "Nothing is recorded."
        return
    yield "| part | date | machine | state of `src/regard` | cases | hours | command |"
    yield "|---|---|---|---|---:|---:|---|"
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in batches:
        key = tuple(each[name] for name in ("part", "date", "machine", "source", "command"))
        groups.setdefault(key, []).append(each)
    for (part, date, machine, source, command), own in groups.items():
        hours, cases = sum(each["seconds"] for each in own) / 3600, sum(each["count"] for each in own)
        yield f"| {part} | {date} | {machine} | `{source}` | {cases:,} | {hours:.2f} | `{command}` |"
    yield ""
    yield "The state is a digest of the library's source. Hours are on the clock, beside whatever else the machine did."
