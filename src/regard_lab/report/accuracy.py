"""Approximations against exact attention as text, and as one self-contained HTML file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from regard.files.folders import write_text
from regard_lab.report import _page, attention_map
from regard_lab.report.figure import COLOURS, DASHES

Results = Mapping[str, Any]
COLUMNS = (
    "mechanism", "estimates", "knob", "redraws", "error", "bias", "deviation", "matrix error", "matrix bias", "keys"
)  # fmt: skip
NOTE = (
    "Relative to the norm of exact attention: error^2 = bias^2 + deviation^2, of outputs, then of attention matrices. "
    "± is a standard error over redraws. '< x': no bias was seen, and one of x would have been, four times in five. "
    "Equal weights: the error of the plain mean of the visible values; what is not below it estimates nothing. "
    "Keys: over how many a row of the estimate spreads."
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


def figures(results: Results) -> list[dict[str, str]]:
    """Error and bias of the outputs against the knob, for each source of vectors."""
    drawn = []
    for source in dict.fromkeys((case["source"], case["causal"], case["length"]) for case in results["cases"]):
        named = f"{source[0]}, {'causal' if source[1] else 'bidirectional'}, {source[2]:,} tokens"
        for part, title in (("error", "Error"), ("bias", "Bias")):
            drawn.append(
                {
                    "name": f"{part}-{len(drawn)}",
                    "title": f"{title} of the output against the knob: {named}",
                    "json": _page.script(_figure(results, source, part)),
                }
            )
    return drawn


def _figure(results: Results, source: tuple[str, bool, int], part: str) -> go.Figure:
    """One line for every mechanism on every case of a source; where no bias was seen, the smallest that would be."""
    figure = go.Figure()
    specs = list(dict.fromkeys(row["spec"] for row in results["rows"]))
    cases = [
        at for at, case in enumerate(results["cases"]) if (case["source"], case["causal"], case["length"]) == source
    ]
    values = [row["value"] for row in results["rows"] if row["case"] in cases and row["value"] is not None] or [1]
    ends = [min(values), max(values)]
    for dash, at in enumerate(cases if part == "error" else ()):
        equal = results["cases"][at]["equal_output_error"]
        line = {"color": "#9aa3ae", "dash": DASHES[dash % len(DASHES)], "width": 1}
        named = f"equal weights, {results['cases'][at]['label']}"
        figure.add_scatter(x=ends, y=[equal, equal], name=named, line=line, mode="lines")
    for spec in specs:
        for dash, at in enumerate(cases):
            measured = [row for row in results["rows"] if (row["spec"], row["case"]) == (spec, at)]
            points = [
                (row["value"], row["redraws"], row["output"]) for row in measured if row["output"][part] is not None
            ]
            if not points:
                continue
            seen = [part != "bias" or output["biased"] for _, _, output in points]
            y = [
                max(output[part] if visible else output["smallest_bias"], 0.0) ** 0.5
                for (_, _, output), visible in zip(points, seen, strict=True)
            ]
            x = [value for value, _, _ in points]
            symbols = ["circle" if visible else "triangle-down-open" for visible in seen]
            if None in x:
                x, y, symbols = ends, y[:1] * 2, symbols[:1] * 2
            figure.add_scatter(
                x=x,
                y=y,
                name=f"{spec}, {results['cases'][at]['label']}",
                line={"color": COLOURS[specs.index(spec) % len(COLOURS)], "dash": DASHES[dash % len(DASHES)]},
                marker={"symbol": symbols},
                mode="lines+markers",
            )
    figure.update_layout(
        template="plotly_white",
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        height=420,
        xaxis={"title": {"text": "knob"}, "type": "log"},
        yaxis={"title": {"text": f"relative {part} of the output"}, "type": "log"},
        legend={"orientation": "h", "y": -0.22},
        showlegend=True,
    )
    return figure


def render(results: Results) -> str:
    """The page: facts and numbers of every case, charts, pictures of one head."""
    cases = [{"headline": headline(case), "rows": rows(results, at)} for at, case in enumerate(results["cases"])]
    pictures = [
        {
            "title": f"{one['spec']}{_at(one)} on {results['cases'][one['case']]['source']}, "
            f"{results['cases'][one['case']]['label']}, "
            f"{'causal' if results['cases'][one['case']]['causal'] else 'bidirectional'}",
            "images": [
                (name, attention_map.data_uri(one[name], relative_to=one["exact"]))
                for name in ("exact", "estimate", "difference")
            ],
        }
        for one in results["pictures"]
    ]
    shown = {
        "results": {name: value for name, value in results.items() if name != "pictures"},
        "cases": cases,
        "columns": COLUMNS,
        "note": NOTE,
        "notes": notes(results),
        "figures": figures(results),
        "pictures": pictures,
    }
    return _page.render("accuracy.html", shown)


def _at(picture: Results) -> str:
    return "" if picture["value"] is None else f", {picture['knob']}={picture['value']}"


def write(results: Results, path: Path) -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(results))
