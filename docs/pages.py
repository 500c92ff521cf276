"""Writes one page per mechanism, the tables of the catalog and the matrix of the contract, all from the code itself."""

import inspect
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measured
import torch
from importable import importable

from evidence import claims
from evidence.claims import _page as claims_report
from regard import catalog, position
from regard.core.attention import Attention
from regard.core.info import Heads, Supports
from regard.core.option_text import meanings, type_text
from regard.functional import weights
from regard.models import presets
from regard.testing import CHECKS, check_attention, record
from regard.testing.position_pairs import Pair, position_pair
from regard_lab.report import attention_map

POSITIONS = 48
RECORDED = Path(__file__).parent / "recorded" / "claims"
"""written by `regard claims all --out docs/recorded/claims`"""
QUICK, SLOWEST = 180, 8
"""seconds of a claim that is not waited for, and how many that are slower are named"""
TESTED = Path(__file__).parents[1] / "build" / "tested"
"""written by the tests"""
SECTIONS = ("Args", "Returns", "Raises", "Example")
MARKS = {"passed": "yes", "excused": "(fact)", "failed": "FAILED"}
TOLD = tomllib.loads((Path(catalog.__file__).with_name("mechanisms.toml")).read_text(encoding="utf-8"))
"""what a page says of a mechanism besides its source"""
LEFT_OUT = "It was left out of this build (`REGARD_DOCS_CHECKS=none`)."


def write(folder: Path) -> None:
    """Write every generated page into `folder`."""
    (folder / "mechanisms").mkdir(parents=True, exist_ok=True)
    names = catalog.names()
    for name in names:
        (folder / "mechanisms" / f"{name}.md").write_text(mechanism_page(name, folder), encoding="utf-8")
    (folder / "mechanisms.md").write_text(mechanism_index(names), encoding="utf-8")
    (folder / "positions.md").write_text(position_page(), encoding="utf-8")
    (folder / "pairs.md").write_text(pairs_page(names), encoding="utf-8")
    (folder / "presets.md").write_text(preset_page(), encoding="utf-8")
    (folder / "contract.md").write_text(contract_page(names), encoding="utf-8")
    (folder / "claims.md").write_text(claims_page(), encoding="utf-8")
    recorded = [found for found in map(recorded_claim, claims.names()) if found]
    (folder / "claims_time.inc").write_text(claims_time(recorded) + "\n", encoding="utf-8")
    claims_report.write(recorded, folder / "extra" / "measured_claims.html")


def mechanism_page(name: str, folder: Path) -> str:
    """Equation, picture, options, example, cost, evidence, facts, reference beside algorithm."""
    cls, _ = catalog.resolve(name)
    info = cls.default_info
    title, body, sections = split_docstring(cls)
    told = TOLD[name]
    lines = [f"# {name}", "", "```{index} ! " + ", ".join(told["also"]), "```", ""]
    lines += [f"*{info.title}.* {title}", "", "$$", told["equation"].strip(), "$$", ""]
    lines += [*paragraphs(body), f"Source: {escaped(info.source)}", ""]
    lines += [f"Also searched for as: {escaped(', '.join(told['also']))}.", ""]
    lines += pictures(name, cls, folder)
    lines += ["## Options", "", "| option | default | |", "|---|---|---|"]
    said = meanings(cls)
    lines += [
        f"| `{p.name}` | `{cell(repr(p.default))}` | {cell(prose(said[p.name]))} (`{cell(annotation(p))}`) |"
        for p in options(cls)
    ]
    lines.append("")
    if "Raises" in sections:
        lines += ["Raises:", "", *quoted(sections["Raises"]), ""]
    if "Example" in sections:
        shown = importable(sections["Example"], cls)
        lines += ["## Example", "", "```python", *shown.splitlines(), "```", ""]
    lines += [*measured.section(name), "## Facts", "", "What each means: [glossary](../../glossary.md).", ""]
    lines += ["| fact | value |", "|---|---|"]
    lines += [f"| family | {catalog.family(name)} |", f"| supports | {', '.join(info.supports.names)} |"]
    facts = {key: value for key, value in vars(info).items() if key not in ("title", "source", "supports", "losses")}
    lines += [f"| {key} | {escaped(str(value))} |" for key, value in facts.items()]
    lines += [f"| losses | {', '.join(f'{k} ({v:g})' for k, v in info.losses.items()) or 'none'} |", ""]
    lines += ["## The definition", "", *code(cls, "reference"), "## The algorithm", "", *code(cls, "attend")]
    return "\n".join(lines) + "\n"


def pictures(name: str, cls: type[Attention], folder: Path) -> list[str]:
    """What it looks at; the pictures are written into the folder."""
    lines = ["## What it looks at", ""]
    lines += ["Random queries and keys; rows are queries, columns are keys, darker is more.", ""]
    kinds = [(kind, kind == "causal") for kind in ("causal", "bidirectional") if fits(cls, kind == "causal")]
    for kind, causal in kinds:
        (folder / "mechanisms" / f"{name}-{kind}.png").write_bytes(picture(cls, causal))
    drawn = [f"![{kind} attention matrix of {name}]({name}-{kind}.png)" for kind, _ in kinds]
    head = [f"| {' | '.join(kind for kind, _ in kinds)} |", "|---" * len(kinds) + "|"]
    return [*lines, *head, f"| {' | '.join(drawn)} |", ""]


def split_docstring(cls: type) -> tuple[str, str, dict[str, str]]:
    """First line, the paragraphs after it, and the named sections."""
    return docstring_parts(inspect.getdoc(cls) or "")


def docstring_parts(text: str) -> tuple[str, str, dict[str, str]]:
    """As `split_docstring`, of a text."""
    parts = re.split(rf"^({'|'.join((*SECTIONS, 'Source'))}):[ \n]", text, flags=re.MULTILINE)
    title, _, body = parts[0].partition("\n")
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return title, body.strip(), {key: textwrap.dedent(value).strip("\n") for key, value in found.items()}


def quoted(text: str) -> list[str]:
    """Text as it stands in the source, where equations keep their layout."""
    return ["```text", *text.splitlines(), "```"] if text else []


def escaped(text: str) -> str:
    """Text inside a Markdown table or paragraph."""
    return re.sub(r"([\\`*_<>|\[\]$])", r"\\\1", text)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring; what it costs and what it keeps begin new ones."""
    parts = re.split(r"\n\n|\n(?=(?:Cost|State)[^\n:]*: )", text)
    return [line for each in parts if each.strip() for line in (prose(each), "")]


def prose(text: str) -> str:
    """A docstring's words on one line: what stands between backticks is code, everything else as it is written."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else escaped(part) for part in parts)


def cell(code: str) -> str:
    """Code inside a table, where only the bar means something; one that is escaped stays."""
    return re.sub(r"(?<!\\)\|", r"\|", code)


def annotation(parameter: inspect.Parameter) -> str:
    """The type of an option, without the modules of its parts."""
    return type_text(parameter.annotation)


def options(cls: type[Attention]) -> list[inspect.Parameter]:
    """The keyword-only arguments of a mechanism."""
    return [p for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY]


def code(cls: type, method: str) -> list[str]:
    """The source of a method, from the class in the hierarchy that writes it."""
    owner = next(base for base in cls.__mro__ if method in vars(base))
    shown = textwrap.dedent(inspect.getsource(vars(owner)[method]))
    return [f"`{owner.__module__}.{owner.__name__}.{method}`", "", "```python", *shown.splitlines(), "```", ""]


def drawn(cls: type[Attention]) -> Mapping[str, object] | None:
    """The first sample of options under which the output is affine in the values, so that there is a matrix."""
    return next((options for options in cls.samples if cls.describe(options).affine_in_value), None)


def fits(cls: type[Attention], causal: bool) -> bool:
    """Whether the mechanism serves this kind and has an attention matrix."""
    supports = cls.default_info.supports
    return (supports.causal if causal else supports.bidirectional) and drawn(cls) is not None


def matrix(cls: type[Attention], causal: bool) -> list[list[float]]:
    """The effective attention matrix of that sample on random input."""
    draw = torch.Generator().manual_seed(0)
    heads = Heads(count=1, key_dim=16, causal=causal, max_length=64)
    mechanism = cls(heads, **(drawn(cls) or {})).eval()
    q, k = 1.5 * torch.randn(2, 1, 1, POSITIONS, 16, generator=draw)
    if cls.default_info.shares_query_key:
        k = q
    inputs = {}
    for name, each in mechanism.info.inputs.items():
        count, width = each.shape(heads)
        low, high = max(each.low, -0.2), min(each.high, 0.2)
        inputs[name] = low + (high - low) * torch.rand(1, count, POSITIONS, width, generator=draw)
    return weights(mechanism, q, k, inputs=inputs)[0, 0].tolist()


def picture(cls: type[Attention], causal: bool) -> bytes:
    """That matrix as PNG."""
    return attention_map.png(matrix(cls, causal), scale=5)


def mechanism_index(names: list[str]) -> str:
    """The table of mechanisms, and the list of their pages."""
    lines = ["# Mechanisms", "", "| name | family | time | state | supports |", "|---|---|---|---|---|"]
    for name in names:
        info = catalog.outline(name)
        lines.append(
            f"| [{name}](mechanisms/{name}.md) | {catalog.family(name)} | n^{info.time:g} | {info.state} | "
            f"{', '.join(info.supports.names)} |"
        )
    lines += ["", f"Capabilities: {', '.join(Supports.__dataclass_fields__)}.", ""]
    lines += ["```{toctree}", ":hidden:", *(f"mechanisms/{name}" for name in names), "```", ""]
    return "\n".join(lines)


def position_page() -> str:
    """Every position scheme with its docstring."""
    lines = ["# Positions", ""]
    for name in position.names():
        title, body, sections = split_docstring(position.position_class(name))
        lines += [f"## {name}", "", escaped(title), "", *quoted(body), "", *quoted(sections.get("Args", "")), ""]
    return "\n".join(lines)


def pairs_page(names: list[str]) -> str:
    """What every position scheme did with every mechanism when these pages were built."""
    lines = [
        "# Which position works with which mechanism",
        "",
        "Every pair was built as a layer and tried, in these sources. T: it trains, with gradients in every",
        "weight of the scheme, and the scheme changes the output. S: pieces with a state equal the whole. M: segments",
        "with a memory of hidden states equal the whole. A letter is missing where the mechanism has no such form with",
        "any scheme. The others cannot be built, and say why.",
        "",
    ]
    if os.environ.get("REGARD_DOCS_CHECKS") == "none":
        return "\n".join([*lines, LEFT_OUT, ""])
    schemes = position.names()
    pairs = {(pair.mechanism, pair.position): pair for name in names for pair in pairs_of(name, schemes)}
    lines += ["| mechanism | " + " | ".join(schemes) + " |", "|---|" + "---|" * len(schemes)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(pair_cell(pairs[name, scheme]) for scheme in schemes) + " |")
    refused: dict[tuple[str, str], list[str]] = {}
    for pair in pairs.values():
        if pair.reason:
            title = position.position_class(pair.position).title
            refused.setdefault((pair.mechanism, pair.reason.removeprefix(f"position {title} ")), []).append(
                pair.position
            )
    lines += ["", "## Why not", ""]
    lines += [f"- {name} with {', '.join(these)}: {escaped(why)}" for (name, why), these in refused.items()]
    return "\n".join([*lines, ""])


def pairs_of(name: str, schemes: list[str]) -> list[Pair]:
    """What the tests of these sources found, else what is found now."""
    found = [record.kept(TESTED / "pairs", f"{name} {scheme}") for scheme in schemes]
    if None in found:
        return [position_pair(name, scheme) for scheme in schemes]
    return [Pair(name, scheme, tuple(x["forms"]), x["reason"]) for scheme, x in zip(schemes, found, strict=True)]


def pair_cell(pair: Pair) -> str:
    """The forms that hold; a dash for a pair that cannot be built."""
    letters = {"training": "T", "streaming": "S", "segments": "M"}
    return " ".join(letters[form] for form in pair.forms) or "–"


def preset_page() -> str:
    """Every preset with its docstring."""
    lines = ["# Presets", ""]
    for name in presets.names():
        lines += [f"## {name}", "", *quoted(inspect.getdoc(presets.function(name)) or ""), ""]
    return "\n".join(lines)


def contract_page(names: list[str]) -> str:
    """Which checks every mechanism passed when these pages were built."""
    wanted = os.environ.get("REGARD_DOCS_CHECKS", "all")
    lines = [
        "# The contract",
        "",
        "`regard check NAME` runs this suite; so can you, on your own mechanism. `(fact)`: a fact in the mechanism's",
        "own `info` excuses the check and names the one that runs instead. The table shows what the suite found in",
        "these very sources, over the first option set of every mechanism.",
        "",
    ]
    if wanted == "none":
        return "\n".join([*lines, LEFT_OUT, ""])
    by_name = {name: checks_of(name) for name in names}
    lines += ["| check | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for check in CHECKS:
        lines.append(f"| {check} | " + " | ".join(MARKS.get(by_name[name].get(check, ""), "") for name in names) + " |")
    return "\n".join([*lines, ""])


def checks_of(name: str) -> dict[str, str]:
    """The status of every check: what the tests of these sources found, else what is found now."""
    found = record.kept(TESTED / "contract", name)
    if found is None:
        results = check_attention(name, options=[catalog.resolve(name)[0].samples[0]])
        failed = [f"{name}: {r.check}: {r.message}" for r in results if r.status == "failed"]
        if failed:
            raise RuntimeError("the documented contract does not hold:\n" + "\n".join(failed))
        found = {r.check: r.status for r in results}
    return found


def claims_page() -> str:
    """Every claim, and what came out when it was last recorded."""
    lines = [
        "# Claims: what came out",
        "",
        "[How a claim is judged](../claims.md). The numbers were recorded by `regard claims all`. Plots, every number",
        'and every setting: <a href="../measured_claims.html">measured claims</a>.',
        "",
        "| claim | source | verdict | changed after a look |",
        "|---|---|---|---|",
    ]
    found = {name: recorded_claim(name) for name in claims.names()}
    for name, results in found.items():
        about, verdict = claims.outline(name), claims_report.verdict(results) if results else "not recorded"
        revised = results["revised_after_look"] if results else None
        changed = ("yes; judged on fresh seeds" if revised["fresh_seeds"] else "yes") if revised else ""
        lines.append(f"| [{escaped(about.title)}](#{name}) | {escaped(about.source)} | {verdict} | {changed} |")
    for name, results in found.items():
        about = claims.outline(name)
        lines += ["", f"## {name}", "", f"**{escaped(about.title)}.** {escaped(about.says)}", ""]
        lines += [f"Source: {escaped(about.source)}.", "", f"Control: {escaped(about.control)}", ""]
        lines += [f"Measured: {escaped(about.measures)}", ""]
        if results:
            verdict = claims_report.verdict(results)
            lines += [f"**{verdict[0].upper()}{verdict[1:]}**: {escaped(results['reason'])}.", ""]
            lines += [f"- {escaped(note)}" for note in claims_report.notes(results)] + [""]
            lines += ["| " + " | ".join(claims_report.COLUMNS) + " |", "|---" * len(claims_report.COLUMNS) + "|"]
            lines += ["| " + " | ".join(map(escaped, row)) + " |" for row in claims_report.rows(results)]
            lines += ["", f"{len(results['seeds'])} seeds, {results['seconds']:.0f} s, regard {results['version']}, "]
            lines[-1] += f"torch {results['environment']['torch']}, {results['created'][:10]}."
    return "\n".join([*lines, ""])


def claims_time(found: Sequence[Mapping[str, Any]]) -> str:
    """How long the recorded claims took, in a sentence: most of them, and the slowest by name."""
    slowest = sorted(found, key=lambda one: one["seconds"], reverse=True)
    long = [one for one in slowest if one["seconds"] > QUICK]
    shown = [f"`{one['name']}` {one['seconds'] / 60:.0f}" for one in long[:SLOWEST]]
    return (
        f"As recorded, beside other work on the same cores, {len(found) - len(long)} of {len(found)} took at most "
        f"{QUICK // 60} minutes. Those of trainings take longer; the slowest, in minutes: {', '.join(shown)}."
    )


def recorded_claim(name: str) -> dict[str, Any] | None:
    """The results of a claim, if there are any."""
    path = RECORDED / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
