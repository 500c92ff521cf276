"""Generate docs/reliability.md from the log."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evidence.campaign import log, parts

PAGE = log.ROOT / "docs" / "reliability.md"
Batches = Sequence[dict[str, Any]]
PARTS = {
    "kills": (
        "Kills",
        "`kill -9` of a command that trains, builds a datastore, an index or a token store, calibrates or exports, "
        "after a random time or before any file operation, including half a write; of two processes, one. After up to "
        "three kills in a row, the same command gives the files of an uninterrupted run, bit for bit.",
    ),
    "faults": (
        "Faults",
        "Signals, full or failing disks, read-only folders, little memory, no home folder. The command ends with an "
        "error that names the fault, or is not affected; run again, it gives the same bits.",
    ),
    "damage": (
        "Damaged files",
        "A file that a command reads has flipped bits, is truncated, reordered, replaced or missing. Files written by "
        "regard have checksums: the command names the file, or its result is the same.",
    ),
    "fuzz": (
        "Bad input",
        "Random arguments, spec strings and configurations, valid and invalid. Each is accepted, or refused with an "
        "error of the library, within 5 s of processor time and 2 GB.",
    ),
    "hygiene": (
        "Host process",
        "Every mechanism with threads, after forks and in new processes; no change of global state; no leak "
        "of objects or bytes over 10,000 calls; impossible sizes.",
    ),
}
"""part -> heading, what is done and what must hold"""
_OUTCOMES = {
    "same bits": "same result",
    "was done before it was killed": "finished before the kill",
    "named, then the same bits": "error named, same result after",
    "did not matter": "not affected",
    "named": "error named",
    "goes on without it, and says so": "continued without it, with a warning",
    "read as what it now is": "changed content read",
    "all named, or accepted": "accepted or error named",
    "as it should be": "passed",
}
"""outcome in the log -> words of the table"""
_BEFORE = """# Reliability

This page reports what happens when processes are killed, disks are full, files are damaged or input is wrong.
`make campaign` injects such faults with seeds, records them in `docs/recorded/reliability.jsonl`, and writes this page;
`make campaign-short` is a small sample. Repeat a case by its seed:
`python -m evidence.campaign damage --kind datastore --first SEED --cases 1`.
"""
_AFTER = """- A kill is not a power failure: data that the system had not yet written to the disk survives it.
- Network file systems and machines with more than two processors were not tested.
- File operations of Python are interrupted one by one; those within other libraries, such as indices, only at random
  times.
- Files not written by regard have no checksums: changed content may be read as it is.
- Some cases counted above are no longer generated: files changed together with their checksums, links and pipes in
  place of files, too few file descriptors, a limit on the size of files.
"""


def write(path: Path = log.RECORDED, page: Path = PAGE) -> None:
    """Write the page from a log."""
    page.write_text("\n".join(lines(log.read(path))) + "\n", encoding="utf-8")


def lines(batches: Batches) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _BEFORE.splitlines()
    yield ""
    yield "| part | cases | outcomes | defects found | fixed | when |"
    yield "|---|---:|---|---:|---:|---|"
    earlier: list[str] = []
    for name, (heading, _) in PARTS.items():
        own = [each for each in batches if each["part"] == name]
        today = [each for each in own if each["judged"] == parts.by_name(name).JUDGED.get(each["kind"], 1)]
        yield _row(heading, own, today)
        if cases := _cases([each for each in own if each not in today]):
            earlier.append(f"{cases:,} of {heading.lower()}")
    yield ""
    yield from (f"- **{heading}.** {what}" for heading, what in PARTS.values())
    yield ""
    yield "Limits:"
    yield ""
    if earlier:
        yield f"- Early cases, tested less strictly, are not in the table: {', '.join(earlier)}."
    if missing := list(_missing(batches)):
        yield f"- Incomplete kinds: {', '.join(missing)}."
    for defect in log.open_defects(list(batches)):
        yield f"- Open: {defect['part']}, {defect['kind']}, seed {defect['seed']}."
    yield from _AFTER.splitlines()


def _row(heading: str, own: Batches, today: Batches) -> str:
    """Table row: cases and outcomes under the current rules, defects of all cases."""
    found = {(each["kind"], defect["seed"]) for each in own for defect in each["defects"]}
    still = sum(1 for _ in log.open_defects(list(own)))
    said = [f"{count:,} {_OUTCOMES.get(what, what)}" for what, count in _summed(today, "outcomes").most_common()]
    wrong = {(each["kind"], defect["seed"]) for each in today for defect in each["defects"]}
    said += [f"{len(wrong)} defects"] * bool(wrong)
    counts = _summed(today, "counts")
    counted = [f"{counts[what]:,} {what}" for what in ("kills", "inputs") if what in counts]
    dates = sorted({each["date"] for each in own}) or [""]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    cases = " with ".join([f"{_cases(today):,}", *counted])
    return f"| {heading} | {cases} | {', '.join(said)} | {len(found)} | {len(found) - still} | {when} |"


def _missing(batches: Batches) -> Iterator[str]:
    """Kinds with fewer cases than the full campaign has."""
    for name in PARTS:
        part = parts.by_name(name)
        for kind, wanted in part.KINDS.items():
            made = log.made(list(batches), name, kind, part.JUDGED.get(kind, 1))
            if made < wanted:
                yield f"{name}, {kind} ({made} of {wanted})"


def _cases(batches: Batches) -> int:
    """Number of cases; repeated ones count once."""
    return sum(each["count"] for each in batches if not each["again"])


def _summed(batches: Batches, what: str) -> Counter[str]:
    return sum((Counter(each[what]) for each in batches if not each["again"]), Counter())
