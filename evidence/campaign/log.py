"""The log: a line of JSON for each batch of cases, behind which a later call goes on."""

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "recorded" / "reliability.jsonl"
_LONGEST = 240
"""characters of a defect that are kept"""


@dataclass(frozen=True)
class Outcome:
    """Of one case.

    what: in a word or two, such as "same bits"; of a defect what is wrong. counts: what else is counted, such as kills.
    seconds: of a processor, of the slowest command. peak: bytes of the largest.
    """

    what: str
    defect: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak: int = 0


@dataclass
class Batch:
    """Consecutive seeds of a kind of a part.

    again: they were made before, and were defects. judged: the number of the way in which a part judges a kind, which
    is raised when more is asked, so that what was made before is counted apart.
    """

    part: str
    kind: str
    first: int
    command: str
    again: bool = False
    judged: int = 1
    count: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    defects: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    most_seconds: float = 0.0
    most_bytes: int = 0

    def add(self, seed: int, outcome: Outcome, seconds: float) -> None:
        """One more case, of which the campaign itself took so many seconds."""
        self.count += 1
        self.seconds += seconds
        self.counts.update(outcome.counts)
        self.most_seconds = max(self.most_seconds, outcome.seconds)
        self.most_bytes = max(self.most_bytes, outcome.peak)
        if outcome.defect:
            self.defects.append({"seed": seed, "what": without_paths(outcome.what)[:_LONGEST]})
        else:
            self.outcomes[outcome.what] += 1

    def line(self) -> str:
        """As it is written."""
        where = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "source": source()}
        seconds = {"seconds": round(self.seconds, 1), "most_seconds": round(self.most_seconds, 2)}
        return json.dumps({**vars(self), **seconds, **where}, ensure_ascii=False)


def without_paths(text: str) -> str:
    """A text for the log, without the folders of this machine."""
    return " ".join(
        word if not word.lstrip("\"'([").startswith("/") else word.rpartition("/")[2] for word in text.split()
    )


def read(path: Path) -> list[dict[str, Any]]:
    """The batches of a log; none where there is no log. What the first of them do not say is as it was then."""
    if not path.exists():
        return []
    said = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line)
    return [{"judged": 1} | batch for batch in said]


def append(path: Path, batch: Batch) -> None:
    """One more line; a batch without a case is none."""
    if not batch.count:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(batch.line() + "\n")


def following(batches: list[dict[str, Any]], part: str, kind: str) -> int:
    """The first seed of a kind that the log does not have."""
    ends = [each["first"] + each["count"] for each in batches if (each["part"], each["kind"]) == (part, kind)]
    return max(ends, default=0)


def made(batches: list[dict[str, Any]], part: str, kind: str, judged: int) -> int:
    """Cases of a kind that were judged as they are today; those that were made once more count once."""
    own = [each for each in batches if (each["part"], each["kind"], each["judged"]) == (part, kind, judged)]
    return sum(each["count"] for each in own if not each["again"])


def open_defects(batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Defects that the same case still had when it was last made, with its part and kind."""
    last: dict[tuple[str, str, int], dict[str, Any] | None] = {}
    for each in batches:
        where = each["part"], each["kind"]
        for key in last:
            if key[:2] == where and each["first"] <= key[2] < each["first"] + each["count"]:
                last[key] = None
        for defect in each["defects"]:
            last[*where, defect["seed"]] = {"part": where[0], "kind": where[1], **defect}
    yield from (defect for defect in last.values() if defect is not None)


def machine() -> str:
    """The kind of processor and their number; nothing that names this one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kind = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line for line in info.read_text().splitlines() if line.startswith("model name"))
        kind = next(lines, f": {kind}").partition(":")[2].strip()
    return f"{cores} x {kind}"


def source() -> str:
    """The state of the library that was attacked: the first characters of a digest of its source."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
