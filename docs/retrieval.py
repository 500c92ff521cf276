"""Writes the tables of `retrieval.md` from what was recorded: verdicts of claims, and recall of trained models."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evidence.claims import _page as claims_report
from regard import Heads, build, catalog
from regard.files.folders import write_text
from regard_lab.report import retrieval as report

HERE = Path(__file__).parent
CLAIMS = HERE / "recorded" / "claims"
TRAINED = HERE / "recorded" / "retrieval"
"""written by `regard retrieval SPEC... --out FOLDER`, one file for each family"""
SHORT, LONG = 1024, 65536


@dataclass(frozen=True)
class Row:
    """subject: what the article compares. says: its statement. findings: (claim, title) that measure it."""

    subject: str
    says: str
    findings: tuple[tuple[str, str], ...]


REASONS = (
    Row(
        "1. information loss",
        "a state of fixed size cannot hold everything",
        (("information_loss", "identity: recall, fewest - most pairs"),),
    ),
    Row(
        "2. no global normalisation",
        "without the denominator of softmax retrieval is inexact",
        (("normalisation_and_recall", "recall, with - without the denominator"),),
    ),
    Row(
        "3. no sparsity",
        "softmax looks at few keys, linear attention at all",
        (("attention_concentration", "effective keys, linear / softmax"),),
    ),
    Row(
        "3. no sparsity",
        "and that is why it cannot retrieve",
        (("attention_concentration", "recall at equal entropy, softmax - linear"),),
    ),
    Row(
        "4. no negative features",
        "positive feature maps discard information",
        (
            ("negative_features", "recall, signed - relu"),
            ("negative_features", "four times the pairs: signed - relu"),
        ),
    ),
)
REMEDIES = (
    Row(
        "another kernel",
        "a feature map nearer to exp retrieves more",
        (("information_loss", "most pairs: second-order - identity features"),),
    ),
    Row(
        "better approximation",
        "more random features retrieve more",
        (("information_loss", "middle pairs: 256 - 16 random features"),),
    ),
    Row(
        "hybrid by layer",
        "keeps what softmax retrieves",
        (("hybrid_recall", "linear, then softmax: accuracy - softmax's"),),
    ),
    Row(
        "hybrid by distance",
        "keeps what softmax retrieves within its window, and more than linear attention beyond",
        (
            ("hybrid_recall", "window and far field, near: accuracy - softmax's"),
            ("hybrid_recall", "window and far field, far: accuracy - linear's"),
        ),
    ),
    Row(
        "hybrids, on local text",
        "keep the quality of softmax as a language model",
        (
            ("hybrid_language_model", "exact while few keys, linear beyond - softmax: bits"),
            ("hybrid_language_model", "linear, then softmax - softmax: bits"),
            ("hybrid_language_model", "window and far field - softmax: bits"),
            ("hybrid_language_model", "window and far field, gated - softmax: bits"),
        ),
    ),
    Row(
        "softmax afterwards",
        "a softmax over the output restores exactness",
        (
            ("post_softmax", "random values: recall, with - without"),
            ("post_softmax", "squared error, with / without"),
        ),
    ),
    Row(
        "shortlist",
        "exact attention over the best keys of a cheap score",
        (
            ("post_softmax", "shortlist of 8: recall - linear attention's"),
            ("code_retrieval", "by text: shortlist of 8 - linear (relu), its score"),
        ),
    ),
    Row(
        "quantised",
        "8 bits lose nothing, 3 bits and fewer do",
        (("eight_bits", "8 bits: recall lost"), ("eight_bits", "3 bits: recall lost")),
    ),
    Row(
        "low rank",
        "loses what its rank cannot hold",
        (("information_loss", "most pairs: softmax - keys projected to 16 rows"),),
    ),
)
USES = (
    Row(
        "code",
        "functions that differ by one line need exact retrieval",
        (
            ("code_retrieval", "by text: softmax - linear (relu)"),
            ("code_retrieval", "by text: softmax - linear (signed)"),
            ("code_retrieval", "by signature: softmax - linear (relu)"),
        ),
    ),
    Row(
        "rare names",
        "softmax says a name again that it saw once, linear attention does not",
        (
            ("rare_names", "softmax: accuracy at the second occurrence"),
            ("rare_names", "second occurrence: accuracy, softmax - linear (relu)"),
            ("rare_names", "second occurrence: accuracy, softmax - linear (signed)"),
        ),
    ),
)


def write(folder: Path) -> None:
    """Write what `retrieval.md` includes, and the plot of trained models."""
    parts: dict[str, Callable[[], list[str]]] = {
        "reasons": lambda: verdicts(REASONS),
        "remedies": lambda: verdicts(REMEDIES),
        "uses": lambda: verdicts(USES),
        "costs": costs,
        "trained": trained,
    }
    for name, make in parts.items():
        (folder / f"retrieval_{name}.inc").write_text("\n".join([*make(), ""]), encoding="utf-8")
    (folder / "extra").mkdir(parents=True, exist_ok=True)
    write_text(folder / "extra" / "retrieval.html", report.render(recorded()))


def verdicts(rows: tuple[Row, ...]) -> list[str]:
    """A table with one line for each finding."""
    lines = ["| | the article says | measured | bound | mean, 95 % interval | verdict |", "|---" * 6 + "|"]
    for row in rows:
        subject, says = row.subject, row.says
        for claim, title in row.findings:
            found = finding(claim, title)
            interval = f"{claims_report.number(found['mean'])} ({claims_report.span([found['low'], found['high']])})"
            bound = claims_report.bounds(found["at_least"], found["at_most"])
            link = f"[{title}](generated/claims.md#{claim})".replace("|", "\\|")
            lines.append(f"| {subject} | {says} | {link} | {bound} | {interval} | **{found['verdict']}** |")
            subject = says = ""
    return lines


def finding(claim: str, title: str) -> dict[str, Any]:
    """What was recorded of a finding; its verdict is `withdrawn` where that of the claim is."""
    results = json.loads((CLAIMS / f"{claim}.json").read_text(encoding="utf-8"))
    found = next(one for one in results["findings"] if one["title"] == title)
    return {**found, "verdict": "withdrawn"} if results["withdrawn"] else found


def costs() -> list[str]:
    """Bytes of the state of one head of width 64, from the formula that the suite checks against the state itself."""
    specs = (
        "softmax", "quantized", "local(window=128)", "shortlist", "linear", "linear(feature_map=taylor)",
        "performer(num_features=256)", "local_linear(window=128)",
    )  # fmt: skip
    lines = [f"| mechanism | bytes after {SHORT:,} tokens | after {LONG:,} | |", "|---|---|---|---|"]
    for spec in specs:
        mechanism = build(spec, Heads(count=1, key_dim=64, causal=True))
        short, long = (mechanism.state_nbytes(1, length, torch.float32) for length in (SHORT, LONG))
        lines.append(f"| `{spec}` | {short:,} | {long:,} | {'grows' if long > short else 'constant'} |")
    return lines


def recorded() -> dict[str, Any]:
    """The trained models of all families."""
    return report.merge([json.loads(path.read_text(encoding="utf-8")) for path in sorted(TRAINED.glob("*.json"))])


def trained() -> list[str]:
    """Every mechanism that was trained."""
    results = recorded()
    heads = report.columns(results)
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += [f"| `{spec}` | " + " | ".join(cells) + " |" for spec, *cells in report.rows(results)]
    reached = [f"{one['title']}: {'reached' if one['reached'] else 'MISSED'}" for one in results["controls"]]
    causal = catalog.names(supports=("causal",))
    absent = ", ".join(f"`{name}`" for name in catalog.names() if name not in causal)
    told = f"Not here, since the task is causal and they cannot be: {absent}. [What they hold](accuracy.md) untrained."
    return [*lines, "", *report.notes(results), "", f"Controls: {'; '.join(reached)}.", "", told]
