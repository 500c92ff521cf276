"""A comparison as one table, and the sentences around it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regard.benchmark.config import MARK
from regard.benchmark.measures import Measure, taken

Results = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its head, and the cell of a specification and of a baseline."""

    head: str
    entry: Callable[[Row], str]
    baseline: Callable[[Row], str] = lambda row: ""


def table(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The summary: one row for each specification and baseline."""
    columns = _columns(results)
    rows = [tuple(column.entry(entry) for column in columns) for entry in results["entries"]]
    rows += [tuple(column.baseline(row) for column in columns) for row in results["baselines"]]
    return tuple(column.head for column in columns), rows


def _columns(results: Results) -> list[Column]:
    measures = taken(results["task"], results["expected"]["steps"])
    first = measures[0]
    columns = [Column("specification", lambda entry: entry["spec"], lambda row: row["name"])]
    columns += [_quality(results, measure, with_baselines=measure is first) for measure in measures]
    if first.name == "masked":
        columns.append(_trained(first, "guessed", "accuracy", "{:.1%}"))
    if first.name == "classification":
        columns.append(_trained(first, "macro F1", "macro_f1", "{:.3f}"))
        columns.append(_trained(first, "train s", "train_seconds", "{:,.0f}", doubted=_train_doubted))
    columns.append(_trained(first, "train tok/s", "tokens_per_second", "{:,.0f}", doubted=_speed_doubted))
    columns.append(_trained(first, "peak MiB", "peak_bytes", "{:,.0f}", unit=2**20))
    if first.causal:
        longest = max((row["length"] for entry in results["entries"] for row in entry["decode"]), default=0)
        columns.append(Column(f"us/token at {longest:,}", lambda entry: _decode(entry, "microseconds", 1)))
        columns.append(Column(f"state KiB at {longest:,}", lambda entry: _decode(entry, "state_bytes", 1024)))
    columns.append(Column("faster from", _crossover))
    columns.append(Column("parameters", lambda entry: f"{entry['parameters']:,}", _parameters))
    return columns


def _quality(results: Results, measure: Measure, *, with_baselines: bool) -> Column:
    """The number that is compared; baselines have that of the first measure."""
    form = "{:.1%}" if measure.larger_is_better else "{:.3f}"
    tied = results["ties"][measure.name]["specs"]

    def entry(entry: Row) -> str:
        value = form.format(entry[measure.name][measure.metric]["middle"])
        return f"{value} =" if entry["spec"] in tied else value

    return Column(
        measure.column, entry, lambda row: form.format(row[measure.metric]["middle"]) if with_baselines else ""
    )


def _trained(
    measure: Measure,
    head: str,
    key: str,
    form: str,
    *,
    unit: int = 1,
    doubted: Callable[[Row], bool] = lambda row: False,
) -> Column:
    """A number of the trainings for a measure, marked if it is doubted; empty for a baseline that was not trained."""

    def cell(row: Row) -> str:
        value = row[key]
        return "" if value is None else marked(form.format(value / unit), doubted(row))

    return Column(head, lambda entry: cell(entry[measure.name]), cell)


def marked(shown: str, doubted: object) -> str:
    """A figure, with the mark of those that cannot be trusted."""
    return f"{shown} {MARK}" if doubted else shown


def _speed_doubted(row: Row) -> bool:
    return bool((row.get("speed") or {}).get("untrusted"))


def _train_doubted(row: Row) -> bool:
    return bool(row.get("train_untrusted"))


def _decode(entry: Row, key: str, unit: int) -> str:
    if not entry["decode"]:
        return "no state"
    row = entry["decode"][-1]
    return marked(f"{row[key] / unit:,.0f}", key == "microseconds" and row.get("untrusted"))


def _crossover(entry: Row) -> str:
    if set(entry["layers"]) == {"softmax"}:
        return "reference"
    timed = [row["length"] for row in entry["cost"] if row["kind"] == "both" and not row.get("untrusted")]
    if not timed:
        return marked("", doubted=True).strip()
    longest = max(timed)
    cross = entry["crossover"]["both"]
    return f"{cross:,}" if cross else f"not by {longest:,}"


def _parameters(row: Row) -> str:
    return "" if row["parameters"] is None else f"{row['parameters']:,}"


def tie_note(results: Results) -> str:
    """Notes on the table: its equals sign, the worth of few seeds, and a measure that is missing."""
    note = f"= cannot be told from the best of its column (95 % bootstrap over {results['unit']}s and seeds)."
    seeds = results["config"]["seeds"]
    if seeds < 3:
        count = "One seed" if seeds == 1 else f"{seeds} seeds"
        note += f" {count}: trainings differ by chance too; --seeds 3 measures by how much."
    if results["task"] == "classify" and results["entries"][0]["classification"]["macro_f1"] is None:
        note += " macro F1 is left out: scikit-learn, which computes it, is not installed."
    return note


def notes(results: Results) -> list[str]:
    """What has to be said of trainings that were stopped and timings that cannot be trusted."""
    return [f"{line}." for line in results.get("notes", ())]


def subject(results: Results) -> str:
    """The data that the specifications were compared on."""
    config = results["config"]
    if results["task"] == "recall":
        return f"Exact recall of {config['recall']['num_pairs']} pairs in {config['recall']['length']} tokens."
    if results["task"] == "classify":
        return f"Classes of {config['classification']['data']}."
    hidden = f", {config['masked_rate']:.0%} of it hidden" if results["task"] == "mlm" else ""
    return f"Text: {config['text']['corpus']}{hidden}."


def steps(results: Results) -> str:
    """How long a specification was trained."""
    planned = results["expected"]["steps"]
    first, *others = taken(results["task"], planned)
    return " and ".join(
        [f"{planned[first.name]} steps on {first.subject}", *(f"{planned[m.name]} on {m.subject}" for m in others)]
    )
