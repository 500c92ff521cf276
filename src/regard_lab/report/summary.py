"""A comparison as tables, and the sentences around them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from regard_lab.benchmark.board import TITLES, UNITS
from regard_lab.benchmark.config import MARK
from regard_lab.benchmark.language import Words, joined, listed
from regard_lab.benchmark.measures import Measure, taken

Results = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column: its head, and the cell of a specification and of a baseline."""

    head: str
    entry: Callable[[Row], str]
    baseline: Callable[[Row], str] = lambda row: ""


@dataclass(frozen=True)
class Need:
    """What is advised for a need. status: winner, tie or open."""

    title: str
    status: str
    advised: str
    why: str


def needs(results: Results, say: Words | None = None) -> list[Need]:
    """Advice by need, in words."""
    say = say or Words()
    return [
        Need(say(TITLES[one["need"]]), one["status"], advised(one, say), joined(say.language, one["sentences"]))
        for one in results["advice"]
    ]


def advised(finding: Mapping[str, Any], say: Words) -> str:
    """The winner, those that tie, or that there is none yet."""
    if finding["status"] == "open":
        return say("no recommendation yet")
    named = listed(say.language, finding["specs"])
    return named if finding["status"] == "winner" else say("a tie: {specs}", specs=named)


def recommendation(results: Results, say: Words | None = None) -> tuple[str, str]:
    """What to use in short, and why."""
    say = say or Words()
    advice = results["recommendation"]
    short = {
        "winner": say("Use {spec}", spec=advice["spec"]),
        "tie": say("Use one of {specs}", specs=list(advice["specs"])) if advice["specs"] else "",
        "open": say("No recommendation yet"),
    }[advice["status"]]
    return short, joined(say.language, advice["sentences"])


def labelled(baseline: str, say: Words) -> str:
    """The name of a baseline, which no specification has."""
    return say("{name} (baseline)", name=baseline)


def table(results: Results, say: Words | None = None) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The summary: one row for each specification and baseline."""
    columns = _columns(results, say or Words())
    rows = [tuple(column.entry(entry) for column in columns) for entry in results["entries"]]
    rows += [tuple(column.baseline(row) for column in columns) for row in results["baselines"]]
    return tuple(column.head for column in columns), rows


def _columns(results: Results, say: Words) -> list[Column]:
    measures = taken(results["task"], results["expected"]["steps"])
    first = measures[0]
    columns = [Column(say("specification"), lambda entry: entry["spec"], lambda row: labelled(row["name"], say))]
    columns += [_quality(results, measure, say, with_baselines=measure is first) for measure in measures]
    if first.name == "masked":
        columns.append(_trained(first, say("guessed"), "accuracy", "{:.1%}"))
    columns.append(_trained(first, say("train tok/s"), "tokens_per_second", "{:,.0f}", doubted=_speed_doubted))
    columns.append(_trained(first, say("peak MiB"), "peak_bytes", "{:,.0f}", unit=2**20))
    if first.causal:
        longest = max((row["length"] for entry in results["entries"] for row in entry["decode"]), default=0)
        for head, key, unit in (
            ("us/token at {length:,}", "microseconds", 1),
            ("state KiB at {length:,}", "state_bytes", 1024),
        ):
            columns.append(Column(say(head, length=longest), lambda entry, k=key, u=unit: _decode(entry, k, u, say)))
    columns.append(Column(say("faster from"), lambda entry: _crossover(entry, say)))
    columns.append(Column(say("parameters"), lambda entry: f"{entry['parameters']:,}", _parameters))
    return columns


def _quality(results: Results, measure: Measure, say: Words, *, with_baselines: bool) -> Column:
    """The number that is compared; baselines have that of the first measure."""
    form = "{:.1%}" if measure.larger_is_better else "{:.3f}"
    tied = results["ties"][measure.name]["specs"]

    def entry(entry: Row) -> str:
        value = form.format(entry[measure.name][measure.metric]["middle"])
        return f"{value} =" if entry["spec"] in tied else value

    def baseline(row: Row) -> str:
        return form.format(row[measure.metric]["middle"]) if with_baselines else ""

    return Column(say(measure.column), entry, baseline)


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


def _decode(entry: Row, key: str, unit: int, say: Words) -> str:
    if not entry["decode"]:
        return say("no state")
    row = entry["decode"][-1]
    return marked(f"{row[key] / unit:,.0f}", key == "microseconds" and row.get("untrusted"))


def _crossover(entry: Row, say: Words) -> str:
    if set(entry["layers"]) == {"softmax"}:
        return say("reference")
    timed = [row["length"] for row in entry["cost"] if row["kind"] == "both" and not row.get("untrusted")]
    if not timed:
        return MARK
    cross = entry["crossover"]["both"]
    return f"{cross:,}" if cross else say("not by {length:,}", length=max(timed))


def _parameters(row: Row) -> str:
    return "" if row["parameters"] is None else f"{row['parameters']:,}"


def tie_note(results: Results, say: Words | None = None) -> str:
    """Notes on the table: its equals sign, the worth of few seeds, and a measure that is missing."""
    say = say or Words()
    seeds, units = results["config"]["seeds"], say(UNITS[results["unit"]])
    found = [
        say("= cannot be told from the best of its column (paired t-test over seeds, paired bootstrap over {units}).",
            units=units)
    ]  # fmt: skip
    if seeds < 3:
        count = say("One seed") if seeds == 1 else say("{seeds} seeds", seeds=seeds)
        found.append(
            say("{count}: trainings differ by chance too; --seeds 3 measures by how much.", count=count)
        )  # fmt: skip
    return (" " if say.language == "en" else "").join(found)


def notes(results: Results, say: Words | None = None) -> list[str]:
    """What has to be said of trainings that were stopped and timings that cannot be trusted."""
    say = say or Words()
    return [joined(say.language, [one]) for one in results.get("notes", ())]


def subject(results: Results, say: Words | None = None) -> str:
    """The data that the specifications were compared on."""
    say = say or Words()
    config = results["config"]
    if results["task"] == "recall":
        recall = config["recall"]
        return say(
            "Exact recall of {pairs} pairs in {length} tokens.", pairs=recall["num_pairs"], length=recall["length"]
        )
    if results["task"] == "classify":
        return say("Classes of {data}.", data=config["classification"]["data"])
    if results["task"] == "mlm":
        return say(
            "Text: {corpus}, {rate:.0%} of it hidden.", corpus=config["text"]["corpus"], rate=config["masked_rate"]
        )
    return say("Text: {corpus}.", corpus=config["text"]["corpus"])


def steps(results: Results, say: Words | None = None) -> str:
    """How long a specification was trained."""
    say = say or Words()
    planned: Mapping[str, int] = results["expected"]["steps"]
    measures = taken(results["task"], planned)
    return listed(
        say.language,
        [say("{steps} steps on {subject}", steps=planned[one.name], subject=say(one.subject)) for one in measures],
    )
