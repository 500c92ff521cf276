"""The table of recorded comparisons on three corpora, in English and Chinese.

A record is results.json of `regard compare` without its pictures; its `reproduce` is the command that repeats it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.files.checksums import opened
from regard_lab.benchmark.board import TITLES, quantity
from regard_lab.benchmark.language import Language, listed, said
from regard_lab.benchmark.measures import TASKS
from regard_lab.benchmark.verdict import MOST_SEEDS

LANGUAGES: tuple[Language, ...] = ("en", "zh")
RECORDED = Path(__file__).parent / "recorded" / "comparisons"
CORPORA = {
    "state_of_the_union": ("English (`state_of_the_union`)", "英文（`state_of_the_union`）"),
    "song_ci": ("Chinese (`song_ci`)", "中文（`song_ci`）"),
    "python_library": ("source code (`python_library`)", "源代码（`python_library`）"),
}
"""record -> its column, in English and Chinese"""
HEAD = ("need", "需求")
TIE = ("tie: {specs}", "平局：{specs}")
SETTLED = ("about {seeds:,} seeds could separate them", "约需 {seeds:,} 个种子才能分出高下")
UNSETTLED = ("{seeds:,} seeds would not separate them", "{seeds:,} 个种子也分不出高下")
STATE = ("{kib:,.0f} KiB after {length:,} tokens", "{length:,} 个词元之后 {kib:,.0f} KiB")

SHORT = {
    "the best specification, {spec} ({shown}), does not beat the baseline {name} ({value}): all were trained too "
    "little; give more steps or a larger budget": (
        "{spec} ({shown}) does not beat the baseline {name} ({value})",
        "{spec}（{shown}）没有胜过基线 {name}（{value}）",
    ),
    "no specification has learned enough to be advised; give more steps or a larger budget": (
        "no mechanism learned enough",
        "没有机制学得足够好",
    ),
    "the timings cannot be trusted: the machine was busy; compare again on a quiet one": (
        "the machine was busy",
        "机器繁忙",
    ),
}
"""sentence of a report -> short form for a table cell, in English and Chinese"""


def records() -> dict[str, Mapping[str, Any]]:
    """Records by corpus, with verified checksums."""
    return {name: opened((RECORDED / f"{name}.json").read_bytes()) for name in CORPORA}


def table(language: Language) -> str:
    """Markdown table: one row per need, one column per corpus."""
    at, found = LANGUAGES.index(language), records()
    lines = [f"| {HEAD[at]} | {' | '.join(CORPORA[name][at] for name in found)} |", "|---|" + "---|" * len(found)]
    for need, title in TITLES.items():
        cells = [cell(record, need, language) for record in found.values()]
        if all(cells):
            lines.append(f"| {said(language, title)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def cell(record: Mapping[str, Any], need: str, language: Language) -> str:
    """Table cell: the winner, a tie with the seeds that could separate it, or why nothing is recommended."""
    one = next((one for one in record["advice"] if one["need"] == need), None)
    if one is None:
        return ""
    at, colon = LANGUAGES.index(language), {"en": ": ", "zh": "："}[language]
    if one["status"] == "open":
        return said(language, "no recommendation yet") + colon + _reason(one["sentences"][0], language)
    specs = [f"`{spec}`" for spec in one["specs"]]
    named = f"**{specs[0]}**" if len(specs) == 1 else TIE[at].format(specs=listed(language, specs))
    parts = [named, _value(record, need, one["specs"][0], language)]
    if need in record["differences"]:
        rows = [row for row in record["differences"][need]["rows"] if row["spec"] in one["specs"][1:] and row["middle"]]
        seeds = [row["needed"] for row in rows]
        if None in seeds:
            parts.append(UNSETTLED[at].format(seeds=MOST_SEEDS))
        elif seeds:
            parts.append(SETTLED[at].format(seeds=max(seeds)))
    return {"en": ", ", "zh": "，"}[language].join(part for part in parts if part)


def _value(record: Mapping[str, Any], need: str, spec: str, language: Language) -> str:
    """Figure of the first recommended spec; empty for timings, which differ between machines."""
    entry = next(entry for entry in record["entries"] if entry["spec"] == spec)
    measure = next((one for one in TASKS[record["task"]] if one.name == need), None)
    if measure is not None:
        return said(language, quantity(measure, entry[need][measure.metric]["middle"]))
    if need == "memory":
        row = entry["decode"][-1]
        return STATE[LANGUAGES.index(language)].format(kib=row["state_bytes"] / 1024, length=row["length"])
    return ""


def _reason(sentence: Mapping[str, Any], language: Language) -> str:
    """Reason for no recommendation, in its short form if there is one, with specs as code."""
    values = {name: f"`{value}`" if name == "spec" else value for name, value in sentence["values"].items()}
    if sentence["text"] not in SHORT:
        return said(language, {**sentence, "values": values})
    shown = {name: said(language, value) if isinstance(value, Mapping) else value for name, value in values.items()}
    return SHORT[sentence["text"]][LANGUAGES.index(language)].format(**shown)
