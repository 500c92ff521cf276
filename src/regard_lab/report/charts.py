"""Charts of a comparison as interactive figures, each with the table of the numbers that it shows."""

from collections.abc import Mapping
from typing import Any

from regard_lab.benchmark.advice import tests_name
from regard_lab.benchmark.language import Words
from regard_lab.benchmark.measures import Measure, taken
from regard_lab.report import timings
from regard_lab.report.figure import (
    BASELINE,
    DASHES,
    Chart,
    Key,
    Results,
    Row,
    between,
    colour,
    empty,
    escaped,
    key,
    lines,
    symbol,
)  # fmt: skip
from regard_lab.report.summary import labelled, marked

LN2 = 0.6931471805599453


def charts(results: Results, say: Words | None = None) -> list[Chart]:
    """Every chart of a report, in the words of a language."""
    say = say or Words()
    measures = taken(results["task"], results["expected"]["steps"])
    first = measures[0]
    drawn = [differences(results, measure, say) for measure in measures if results["differences"][measure.name]["rows"]]
    drawn.append(quality_against_speed(results, first, say))
    drawn.append(loss_curves(results, first, say))
    drawn += [accuracy(results, measure, say) for measure in measures if measure.metric == "accuracy"]
    drawn += [timings.cost(results, kind, say) for kind in ("both", "forward")]
    if first.causal:
        drawn += [timings.decoding(results, field, say) for field in ("microseconds", "state_bytes")]
    return drawn


def differences(results: Results, measure: Measure, say: Words) -> Chart:
    """How much worse than the best each one is, with the intervals of the paired tests."""
    found, places = results["differences"][measure.name], _places(results)
    form, seeds = ".1%" if measure.larger_is_better else ".4f", results["config"]["seeds"]
    drawn, rows = [], []
    farthest = 1.5 * max((row["middle"] for row in found["rows"] if not row["baseline"]), default=float("inf"))
    for row in sorted(found["rows"], key=lambda row: row["middle"]):
        name = labelled(row["spec"], say) if row["baseline"] else row["spec"]
        hue, mark = (BASELINE, "circle") if row["baseline"] else (colour(places[name]), symbol(places[name]))
        intervals = [row["over_seeds"], row["over_units"]]
        if not row["baseline"] or row["middle"] <= farthest:
            drawn.append(Row(name, hue, mark, row["seeds"], row["middle"], intervals))
        tests = [tests_name(test, seeds, results["unit"]) for test in row["tests"]] if row["told"] else []
        rows.append(
            (
                name,
                format(row["middle"], form),
                between(row["over_seeds"], form, say),
                between(row["over_units"], form, say),
                say("{tests}", tests=tests) if tests else say("nothing: a tie"),
                "" if row["told"] or row["needed"] is None else f"{row['needed']:,}",
            )
        )
    noun = say("{measure}, worse than {best}", measure=say(measure.noun), best=escaped(found["best"]))
    x = {"title": {"text": noun}, "zeroline": False, "tickformat": ".0%" if measure.larger_is_better else None}
    figure = lines(drawn, x, 0.0)
    heads = ("specification", "worse by", "over seeds", "over documents", "told apart by", "seeds that would settle it")
    title = say("Differences from the best: {measure}", measure=say(measure.noun))
    caption = say(
        "Paired: the same seeds and the same documents as {best}. Thick: 95 % interval over seeds (t-test); thin: over "
        "documents (bootstrap); ticks: every seed. Two are told apart where both intervals leave out 0. Baselines far "
        "behind are in the table alone.",
        best=found["best"],
    )
    name = "differences" if measure.name != "recall" or results["task"] == "recall" else "differences-recall"
    return Chart(name, title, caption, figure, tuple(map(say, heads)), rows)


def quality_against_speed(results: Results, measure: Measure, say: Words) -> Chart:
    """The number that is compared over the tokens that a training reads in a second."""
    noun = say("validation {measure}", measure=say(measure.noun))
    y = noun if measure.larger_is_better else say("{noun} (lower is better)", noun=noun)
    figure = empty(
        {"title": {"text": say("training tokens per second")}, "nticks": 5, "tickangle": 0}, {"title": {"text": y}}
    )
    keys, rows, speeds = [], [], []
    for at, entry in enumerate(results["entries"]):
        own = entry[measure.name]
        value, speed, timing = own[measure.metric], own["tokens_per_second"], own.get("speed")
        shape = f"{symbol(at)}-open" if timing and timing["untrusted"] else symbol(at)
        bar = (
            {"array": [timing["high"] - speed], "arrayminus": [speed - timing["low"]], "type": "data", "thickness": 1}
            if timing
            else None
        )
        marker = {"size": 12, "color": colour(at), "symbol": shape}
        figure.add_scatter(
            x=[speed],
            y=[value["middle"]],
            error_x=bar,
            name=escaped(entry["spec"]),
            meta=entry["spec"],
            marker=marker,
            mode="markers",
        )
        keys.append(key(entry["spec"], at))
        speeds.append(speed)
        rows.append((entry["spec"], *_speed(speed, timing, say), *_interval(value, ".4f", say)))
    for at, baseline in enumerate(results["baselines"]):
        value, speed, name = baseline[measure.metric], baseline["tokens_per_second"], labelled(baseline["name"], say)
        line = {"color": BASELINE, "dash": DASHES[1 + at % 3], "width": 1.5}
        level = [value["middle"]] * 2
        figure.add_scatter(
            x=[min(speeds), max(speeds)], y=level, name=escaped(name), meta=name, line=line, mode="lines"
        )
        keys.append(Key(name, BASELINE, ("╌", "┈", "┄")[at % 3]))
        rows.append((name, *_speed(speed, baseline.get("speed"), say), *_interval(value, ".4f", say)))
    heads = ("specification", "tokens/s", "interval of tokens/s", measure.noun, "95 % interval")
    caption = say(
        "Bars are the intervals of the speed. Which values differ is in the paired differences above: documents differ "
        "much more than specifications."
    )
    if results["baselines"]:
        caption += " " + say("Level lines are baselines without attention.")
    title = say("Quality against speed")
    return Chart("quality", title, caption, figure, tuple(map(say, heads)), rows, keys)


def loss_curves(results: Results, measure: Measure, say: Words) -> Chart:
    """The losses while training."""
    unit = "example" if measure.name == "classification" else "token"
    across, bits = say(f"training {unit}s"), say(f"bits per {unit}")
    figure = empty({"title": {"text": across}, "nticks": 5, "tickangle": 0}, {"title": {"text": bits}})
    rows, keys = [], []
    for at, entry in enumerate(results["entries"]):
        for seed, curve in enumerate(entry[measure.name]["curves"]):
            x, y = [tokens for tokens, _ in curve], [loss / LN2 for _, loss in curve]
            line = {"color": colour(at), "dash": DASHES[seed % len(DASHES)], "width": 1.5}
            figure.add_scatter(x=x, y=y, name=escaped(entry["spec"]), meta=entry["spec"], line=line, mode="lines")
            rows += [(entry["spec"], str(seed), f"{a:,}", f"{b:.4f}") for a, b in zip(x, y, strict=True)]
        keys.append(key(entry["spec"], at))
    caption = say(
        "Mean training loss over the steps since the point before, on {subject}. The same batches in the same order "
        "for all; seeds differ in their dashes.",
        subject=say(measure.subject),
    )
    heads = ("specification", "seed", f"{unit}s", f"bits per {unit}")
    return Chart("loss", say("Loss curves"), caption, figure, tuple(map(say, heads)), rows, keys)


def accuracy(results: Results, measure: Measure, say: Words) -> Chart:
    """The share of right answers, of every seed."""
    found = [
        (entry["spec"], entry[measure.name], colour(at), symbol(at)) for at, entry in enumerate(results["entries"])
    ]
    if measure.name == "classification":
        found += [(labelled(row["name"], say), row, BASELINE, "circle") for row in results["baselines"]]
    drawn, rows = [], []
    for name, result, hue, mark in found:
        value = result["accuracy"]
        interval = None if value["low"] is None else (value["low"], value["high"])
        drawn.append(Row(name, hue, mark, result["seeds"], value["middle"], [None, interval]))
        rows.append((name, *_interval(value, ".1%", say), ", ".join(f"{seed:.1%}" for seed in result["seeds"])))
    axis = {"title": {"text": say(measure.noun)}, "range": [-0.03, 1.03], "tickformat": ".0%", "nticks": 6}
    figure = lines(drawn, axis, results["recall_chance"] if measure.name == "recall" else 0.0)
    heads = tuple(map(say, ("specification", "accuracy", "95 % interval", "seeds")))
    if measure.name == "classification":
        caption = say(
            "The share of validation examples that were given the right class. The baselines have no attention; those "
            "that are trained had as many steps as fit into the time of a specification, timed in turns."
        )
        return Chart("classification", say("Accuracy"), caption, figure, heads, rows)
    task = results["config"]["recall"]
    caption = say(
        "Multi-query associative recall: {pairs} pairs in {length} tokens, vocabulary {vocabulary}; the share of "
        "questions answered with the right value. Dotted: guessing a value.",
        pairs=task["num_pairs"], length=task["length"], vocabulary=task["vocab_size"],
    )  # fmt: skip
    return Chart("recall", say("Exact recall"), caption, figure, heads, rows)


def _places(results: Results) -> dict[str, int]:
    return {entry["spec"]: at for at, entry in enumerate(results["entries"])}


def _speed(speed: float | None, timing: Mapping[str, Any] | None, say: Words) -> tuple[str, str]:
    """Tokens per second and their interval; empty for what was not trained."""
    if speed is None:
        return "", ""
    interval = between((timing["low"], timing["high"]), ",.0f", say) if timing else ""
    return marked(f"{speed:,.0f}", timing and timing["untrusted"]), interval


def _interval(estimate: Mapping[str, Any], form: str, say: Words) -> tuple[str, str]:
    """The value, and its interval if it has one."""
    interval = None if estimate["low"] is None else (estimate["low"], estimate["high"])
    return format(estimate["middle"], form), between(interval, form, say)
