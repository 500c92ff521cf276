"""docs/reliability.md, written from the log alone: no figure of it is anybody's word."""

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
        "`kill -9` of a command that trains, builds a datastore, an index or a token store, calibrates or exports: "
        "after a random time, or before any of its operations on files, half of a write included; of two processes, "
        "one. Given again, up to three kills in a row, it ends with the files of one never killed, bit for bit.",
    ),
    "faults": (
        "Faults",
        "Signals, disks that are full or break, folders that may not be written, little memory, no home. The command "
        "ends with an error that names the fault, or did not need it; given again, it ends with the same bits.",
    ),
    "damage": (
        "Damaged files",
        "A file that a command reads has other bits, another end or order, another file's content, or is gone. What "
        "regard wrote is under checksums: the command names the file, or its result is the same bits.",
    ),
    "fuzz": (
        "Bad input",
        "Words, specifications, configurations and arguments that make no sense, and some that do. Each is accepted, "
        "or refused with an error of the library, within 5 seconds of a processor and 2 GB.",
    ),
    "hygiene": (
        "Guests in a process",
        "Every mechanism under threads, after forks, in new processes (six of them); the global state of the process; "
        "objects and bytes over 10,000 small calls; sizes that cannot be.",
    ),
}
"""part -> heading, what is done and what must hold"""
_BEFORE = """# Reliability

What happens to runs and files when processes are killed, disks are full, files are damaged and input is wrong.
`make campaign` attacks the library by seeds and goes on behind its log, `docs/recorded/reliability.jsonl`, from which
this page is written; `make campaign-short` makes a little of every part with new seeds. Cases are made again by seeds:
`python -m evidence.campaign damage --kind datastore --first SEED --cases 1`.
"""
_AFTER = """- A kill is no power failure: what the system had not yet written to the disk outlives it.
- No network file system was attacked, and no machine with more than two processors.
- Operations on files are met one by one where Python makes them. What libraries write by themselves, such as indices,
  is interrupted at random times alone.
- Files of others have no checksum: where their content was changed, it may be read as what it now is.
- Attacks that nobody meets are made no more, though their cases are counted above: files changed together with their
  checksums, links and pipes in the place of files, too few descriptors, a limit on the size of files. Damage to
  configurations is now part of bad input alone, and a test gives wrong arguments to calls.
"""


def write(path: Path = log.RECORDED, page: Path = PAGE) -> None:
    """Write the page that a log gives."""
    page.write_text("\n".join(lines(log.read(path))) + "\n", encoding="utf-8")


def lines(batches: Batches) -> Iterator[str]:
    """Of the page."""
    yield from _BEFORE.splitlines()
    yield ""
    yield "| part | cases | outcomes | defects found | fixed | when | machines |"
    yield "|---|---:|---|---:|---:|---|---|"
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
    yield "What fell short:"
    yield ""
    if earlier:
        yield f"- Less was asked of cases that were made first, which the table leaves out: {', '.join(earlier)}."
    if missing := list(_missing(batches)):
        yield f"- Of the full form these kinds are not made, or not all of their cases: {', '.join(missing)}."
    for defect in log.open_defects(list(batches)):
        yield f"- Open: {defect['part']}, {defect['kind']}, seed {defect['seed']}."
    yield from _AFTER.splitlines()


def _row(heading: str, own: Batches, today: Batches) -> str:
    """Cases and outcomes of those that were judged as today; defects of all."""
    found = {(each["kind"], defect["seed"]) for each in own for defect in each["defects"]}
    still = sum(1 for _ in log.open_defects(list(own)))
    said = [f"{count:,} {what}" for what, count in _summed(today, "outcomes").most_common()]
    wrong = {(each["kind"], defect["seed"]) for each in today for defect in each["defects"]}
    said += [f"{len(wrong)} defects"] * bool(wrong)
    counts = _summed(today, "counts")
    counted = [f"{counts[what]:,} {what}" for what in ("kills", "inputs") if what in counts]
    dates = sorted({each["date"] for each in own}) or [""]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    machines = ", ".join(sorted({each["machine"] for each in own}))
    cases = " with ".join([f"{_cases(today):,}", *counted])
    return f"| {heading} | {cases} | {', '.join(said)} | {len(found)} | {len(found) - still} | {when} | {machines} |"


def _missing(batches: Batches) -> Iterator[str]:
    """Kinds of which the log has not all that the full form has."""
    for name in PARTS:
        part = parts.by_name(name)
        for kind, wanted in part.KINDS.items():
            made = log.made(list(batches), name, kind, part.JUDGED.get(kind, 1))
            if made < wanted:
                yield f"{name}, {kind} ({made} of {wanted})"


def _cases(batches: Batches) -> int:
    """Those that were made once more, since they were defects, count once."""
    return sum(each["count"] for each in batches if not each["again"])


def _summed(batches: Batches, what: str) -> Counter[str]:
    return sum((Counter(each[what]) for each in batches if not each["again"]), Counter())
