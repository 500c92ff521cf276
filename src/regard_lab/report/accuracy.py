"""Approximations against exact attention as text, and as one self-contained HTML file that opens offline."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from regard_lab.report import _page
from regard_lab.report.figure import BASELINE, DASHES, Chart, Key, colour, empty, escaped

Results = Mapping[str, Any]
COLUMNS = (
    "mechanism", "estimates", "knob", "redraws", "error", "bias", "deviation", "matrix error", "matrix bias", "keys"
)  # fmt: skip
NOTE = (
    "Relative to the norm of exact attention: error^2 = bias^2 + deviation^2, of outputs, then of attention matrices. "
    "± is a standard error over redraws. '< x': no bias was seen, and one of x would have been, four times in five. "
    "Equal weights: the error of the plain mean of the visible values; what is not below it estimates nothing. "
    "Keys: over how many a row of the estimate spreads. Primes: divided by dim^(1/4), so that a logit is q' . k'. In "
    "float64: what is seen is the approximation, not rounding."
)


CAPTION = (
    "Open triangles: no bias was seen; one of this size would have been, four times in five. Mechanisms without a knob "
    "are level lines."
)


def headline(case: Results) -> str:
    """A case in one line: where its vectors come from, and what explains the errors on them."""
    sees = "causal" if case["causal"] else "bidirectional"
    return (
        f"{case['source']}, {case['label']}, {sees}, {case['length']:,} tokens: softmax spreads over "
        f"{case['effective_keys']:.1f} of {case['visible_keys']:.1f} keys; logits {case['logit_mean']:.2f} ± "
        f"{case['logit_deviation']:.2f}, at most {case['logit_largest']:.1f}; |q'| {case['query_norm']:.2f}, "
        f"|k'| {case['key_norm']:.2f}, |q' + k'|^2 {case['sum_square']:.1f}; equal weights: error "
        f"{case['equal_output_error']:.3g}, matrix error {case['equal_matrix_error']:.3g}"
    )


def rows(results: Results, case: int) -> list[tuple[str, ...]]:
    """The mechanisms on a case, under `COLUMNS`."""
    return [
        (
            row["spec"],
            row["approximates"] or "another kernel",
            "" if row["value"] is None else f"{row['knob']}={row['value']}",
            str(row["redraws"]),
            *_cells(row["output"]),
            *(cell.partition(" ±")[0] for cell in _cells(row["matrix"])[:2]),
            "" if row["effective_keys"] is None else f"{row['effective_keys']:.1f}",
        )
        for row in results["rows"]
        if row["case"] == case
    ]


def _cells(estimate: Results | None) -> tuple[str, str, str]:
    """Error, bias and deviation: roots of the recorded squares."""
    if estimate is None:
        return "", "", ""
    if any(value is None for value in estimate.values()):
        return "not finite", "", ""
    unseen = f"< {estimate['smallest_bias'] ** 0.5:.3g}"
    return (
        _root(estimate["error"], estimate["error_se"]),
        _root(estimate["bias"], estimate["bias_se"]) if estimate["biased"] or not estimate["error"] else unseen,
        _root(estimate["variance"], estimate["variance_se"]),
    )


def _root(square: float, error: float) -> str:
    """The root of a square and, by the delta method, of its standard error."""
    root = max(square, 0.0) ** 0.5
    return f"{root:.3g} ± {error / (2 * root):.1g}" if error and root else f"{root:.3g}"


def notes(results: Results) -> list[str]:
    """Notes on cases that were not measured, one line for each reason, and on controls that missed."""
    reasons: dict[str, list[str]] = {}
    for one in results["skipped"]:
        case = results["cases"][one["case"]]
        reasons.setdefault(one["reason"], []).append(f"{case['source']}, {case['label']}")
    lines = [f"not measured on {'; '.join(dict.fromkeys(where))}: {reason}" for reason, where in reasons.items()]
    return lines + [
        f"CONTROL MISSED: {one['title']} is {one['value']}, at most {one['tolerance']} is allowed"
        for one in results["controls"]
        if not one["reached"]
    ]


def charts(results: Results) -> list[Chart]:
    """Error and bias of the outputs against the knob, for each source of vectors; then every number, by case."""
    drawn = []
    for source in dict.fromkeys((case["source"], case["causal"], case["length"]) for case in results["cases"]):
        named = f"{source[0]}, {'causal' if source[1] else 'bidirectional'}, {source[2]:,} tokens"
        for part, title in (("error", "Error"), ("bias", "Bias")):
            figure, keys = _figure(results, source, part)
            name, whole = f"{part}-{len(drawn)}", f"{title} of the output against the knob: {named}"
            drawn.append(Chart(name, whole, CAPTION, figure, (), [], keys))
    for at, case in enumerate(results["cases"]):
        drawn.append(Chart(f"case-{at}", headline(case), "", None, COLUMNS, rows(results, at)))
    return drawn


def _figure(results: Results, source: tuple[str, bool, int], part: str) -> tuple[go.Figure, list[Key]]:
    """One line for every mechanism on every case of a source; where no bias was seen, the smallest that would be."""
    figure = empty(
        {"title": {"text": "knob"}, "type": "log"},
        {"title": {"text": f"relative {part} of the output"}, "type": "log"},
        height=420,
    )
    keys: list[Key] = []

    def draw(name: str, x: list[Any], y: list[float], hue: str, dash: int, symbols: list[str] | None = None) -> None:
        mode = "lines" if symbols is None else "lines+markers"
        line = {"color": hue, "dash": DASHES[dash % len(DASHES)], "width": 1 if symbols is None else 2}
        figure.add_scatter(x=x, y=y, name=escaped(name), meta=name, line=line, marker={"symbol": symbols}, mode=mode)
        keys.append(Key(name, hue, ("─", "╌", "┈", "┄")[dash % len(DASHES)]))

    specs = list(dict.fromkeys(row["spec"] for row in results["rows"]))
    cases = [
        at for at, case in enumerate(results["cases"]) if (case["source"], case["causal"], case["length"]) == source
    ]
    values = [row["value"] for row in results["rows"] if row["case"] in cases and row["value"] is not None] or [1]
    ends = [min(values), max(values)]
    for dash, at in enumerate(cases if part == "error" else ()):
        equal = results["cases"][at]["equal_output_error"]
        draw(f"equal weights, {results['cases'][at]['label']}", ends, [equal, equal], BASELINE, dash)
    for spec in specs:
        for dash, at in enumerate(cases):
            points = [
                (row["value"], row["output"])
                for row in results["rows"]
                if (row["spec"], row["case"]) == (spec, at) and row["output"][part] is not None
            ]
            if not points:
                continue
            seen = [part != "bias" or output["biased"] for _, output in points]
            y = [
                max(output[part] if visible else output["smallest_bias"], 0.0) ** 0.5
                for (_, output), visible in zip(points, seen, strict=True)
            ]
            x = [value for value, _ in points]
            symbols = ["circle" if visible else "triangle-down-open" for visible in seen]
            if None in x:
                x, y, symbols = ends, y[:1] * 2, symbols[:1] * 2
            draw(f"{spec}, {results['cases'][at]['label']}", x, y, colour(specs.index(spec)), dash, symbols)
    return figure, keys


def render(results: Results) -> str:
    """The page: charts, and the numbers of every case."""
    title = "Approximations against exact attention"
    return _page.measured(title, [NOTE, *notes(results)], charts(results), results)
