"""What every causal mechanism loses when its state is kept in fewer bits: `python docs/rounding.py` records it.

The table of `caches.md` is written from what was recorded.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard_lab.benchmark import rounding

RECORDED = Path(__file__).parent / "recorded" / "rounding.json"


def write_record() -> None:
    """Measure every causal mechanism that keeps a state, a line of JSON for each format; with what, and when."""
    found = rounding.measure(rounding.RoundingConfig(), tell=print)
    rows = [{**row, "errors": [_short(error) for error in row["errors"]]} for row in found["rows"]]
    kept = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **{name: one for name, one in found.items() if name != "rows"}}
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = json.dumps(kept)[:-1] + f', "rows": [\n{lines}\n]}}\n'
    RECORDED.write_text(text, encoding="utf-8")


def recorded() -> dict[str, Any]:
    """What was measured."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def write(folder: Path) -> None:
    """Write what `caches.md` includes."""
    (folder / "rounding.inc").write_text("\n".join([*lines(), ""]), encoding="utf-8")


def lines() -> Iterator[str]:
    """A table of the errors over the length, mechanisms that lose most in bfloat16 last."""
    found = recorded()
    heads, rows = rounding.table(found)
    last = {row["spec"]: row["errors"][-1] for row in found["rows"] if row["rounding"] == "bfloat16"}
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for name, *cells in sorted(rows, key=lambda row: (last[row[0]] is None, last[row[0]] or 0.0, row[0])):
        yield f"| `{name}` | " + " | ".join(cells) + " |"


def _short(error: float | None) -> float | None:
    return None if error is None else float(f"{error:.3g}")


if __name__ == "__main__":
    write_record()
