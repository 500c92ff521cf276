"""How near every mechanism is to exact attention, and how many pairs it holds: `python docs/exactness.py` records both.

What `accuracy.md` shows of the catalog is written from what was recorded.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard import catalog
from regard.core.errors import UnsupportedError
from regard_lab.benchmark import accuracy, capacity
from regard_lab.benchmark.vectors import random_vectors

RECORDED = Path(__file__).parent / "recorded" / "exactness.json"
LENGTH, NORM = 256, 2.0
"""of the random vectors that errors are measured on"""
FORMS = {"causal": True, "bidirectional": False}
HELD = {"pairs": (8, 32, 128), "sharpness": (4.0, 8.0, 16.0, 64.0), "trials": 12, "dim": 32}
EXACT = "softmax"


def write_record() -> None:
    """Measure every mechanism of the catalog, a line of JSON for each."""
    found = {"error": errors(), "equal weights": equal_weights(), "held": held()}
    text = ",\n".join(
        f"{json.dumps(part)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in rows.items())
        + "\n}"
        for part, rows in found.items()
    )
    RECORDED.write_text("{\n" + text + "\n}\n", encoding="utf-8")


def recorded() -> dict[str, Any]:
    """What was measured."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def comparable() -> list[str]:
    """The mechanisms whose weights follow from queries and keys, which an error to exact attention is a fact of."""
    return [name for name in catalog.names() if {"q", "k"} <= set(catalog.describe(name).reads)]


def errors() -> dict[str, Any]:
    """Relative errors of the output on random vectors, by the form of attention, one for each value of the knob."""
    config = accuracy.AccuracyConfig(specs=tuple(comparable()), redraws=4)
    cases = [random_vectors(NORM, length=LENGTH, causal=causal) for causal in FORMS.values()]
    results = accuracy.measure(config, cases, tell=print)
    if not all(one["reached"] for one in results["controls"]):
        raise SystemExit("softmax is not itself")
    found: dict[str, Any] = {}
    for row in results["rows"]:
        one = found.setdefault(row["spec"], {"knob": row["knob"], "values": [], **{form: [] for form in FORMS}})
        if row["value"] is not None and row["value"] not in one["values"]:
            one["values"].append(row["value"])
        error = row["output"]["error"]
        one[list(FORMS)[row["case"]]].append(None if error is None else round(error**0.5, 4))
    return found


def equal_weights() -> dict[str, float]:
    """The error of the plain mean of the visible values."""
    cases = {form: random_vectors(NORM, length=LENGTH, causal=causal).facts() for form, causal in FORMS.items()}
    return {form: round(facts["equal_output_error"], 4) for form, facts in cases.items()}


def held() -> dict[str, Any]:
    """The share of stored pairs that are found, each mechanism at the best sharpness that was tried."""
    named = [name for name in catalog.names() if name not in capacity.SPECS and not unasked(name)]
    results = capacity.measure(capacity.CapacityConfig(specs=(*capacity.SPECS, *named), **HELD), tell=print)
    if not all(one["reached"] for one in results["controls"]):
        raise SystemExit("softmax does not find every pair, or equal weights more than one")
    found: dict[str, Any] = {}
    for spec, best in results["best"].items():
        rows = [row for row in results["rows"] if row["spec"] == spec]
        shown = [row for row in rows if row["sharpness"] == best]
        flat = all(len({row["recall"] for row in rows if row["pairs"] == pairs}) == 1 for pairs in HELD["pairs"])
        found[spec] = {
            "sharpness": None if flat else best,
            "recall": [round(row["recall"], 3) for row in shown],
            "state_bytes": [row["state_bytes"] for row in shown],
        }
    return found


def unasked(name: str) -> str:
    """Why a mechanism cannot be asked for a stored pair; empty: it can."""
    try:
        capacity.memory(name, 2, HELD["dim"], 0)
    except UnsupportedError as error:
        return str(error).partition(". ")[0]
    return ""


def write(folder: Path) -> None:
    """Write what `accuracy.md` includes."""
    for name, lines in (("error", error_lines()), ("held", held_lines())):
        (folder / f"exactness_{name}.inc").write_text("\n".join([*lines, ""]), encoding="utf-8")


def error_lines() -> Iterator[str]:
    """A table by the least error in either form, and the names that have none."""
    found = recorded()
    rows = sorted(found["error"].items(), key=lambda row: (least(row[1]), row[0]))
    yield "| mechanism | estimates | knob | causal | bidirectional |"
    yield "|---|---|---|---|---|"
    for name, one in rows:
        estimates = catalog.describe(name).approximates or "another kernel"
        cells = (spread(one[form]) for form in FORMS)
        yield f"| `{name}` | {estimates} | {knob(one)} | {' | '.join(cells)} |"
    yield "| equal weights | | | " + " | ".join(f"{found['equal weights'][form]:.3g}" for form in FORMS) + " |"
    blind = [name for name in catalog.names() if name not in comparable()]
    yield ""
    yield (
        f"Not here, since their weights do not follow from queries and keys: {listed(blind)}. A dash: the mechanism "
        "has no such form."
    )


def held_lines() -> Iterator[str]:
    """A table by the share of the most pairs, and why some names are not in it."""
    rows = sorted(recorded()["held"].items(), key=lambda row: (-sum(row[1]["recall"]), row[0]))
    counts = " | ".join(f"{pairs} pairs" for pairs in HELD["pairs"])
    yield f"| mechanism | state bytes | sharpness | {counts} |"
    yield "|---" * (3 + len(HELD["pairs"])) + "|"
    for spec, one in rows:
        sizes = [f"{size:,}" for size in one["state_bytes"] if size is not None]
        state = " to ".join(dict.fromkeys((*sizes[:1], *sizes[-1:]))) or "none"
        sharpness = "any" if one["sharpness"] is None else f"{one['sharpness']:g}"
        yield f"| `{spec}` | {state} | {sharpness} | " + " | ".join(f"{x:.3f}" for x in one["recall"]) + " |"
    yield ""
    absent = [name for name in catalog.names() if unasked(name)]
    yield f"Not here, since they have neither a causal form nor cross-attention to be asked by: {listed(absent)}."


def least(one: Mapping[str, Any]) -> float:
    """The smallest error that was measured."""
    return min((x for form in FORMS for x in one[form] if x is not None), default=float("inf"))


def knob(one: Mapping[str, Any]) -> str:
    """An option and its values, if there is one."""
    return f"{one['knob']} {', '.join(map(str, one['values']))}" if one["values"] else ""


def spread(values: list[float | None]) -> str:
    """Errors in the order of the knob's values."""
    return ", ".join("not finite" if x is None else f"{x:.3g}" for x in values) or "–"


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    write_record()
