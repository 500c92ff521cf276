"""Writes the Chinese list of mechanisms: one line for each, from `mechanisms.toml`; `zh/mechanisms.md` includes it."""

from itertools import groupby
from pathlib import Path

import pages

from regard import catalog

FAMILIES = {
    "dense": "打分或归一化不同，看所有的键",
    "kernel": "用特征的内积代替指数，求和代替逐对计算",
    "lowrank": "先把位置混合成较少的几个",
    "routed": "按内容挑选要看的键",
    "sparse": "只看规则允许的位置",
    "synthesized": "没有键，由查询自己写出分数",
}
"""what a family changes"""


def write(folder: Path) -> None:
    """Write what `zh/mechanisms.md` includes."""
    (folder / "zh_mechanisms.inc").write_text("\n".join(table()), encoding="utf-8")


def table() -> list[str]:
    """A section for each family: name, marks, meaning."""
    lines: list[str] = []
    for family, members in groupby(sorted(catalog.names(), key=catalog.family), key=catalog.family):
        lines += [f"## {family}：{FAMILIES[family]}", "", "| 机制 | 用时 | 因果 | 含义 |", "|---|---|---|---|"]
        for name in members:
            info = catalog.outline(name)
            causal = "有" if info.supports.causal else "无"
            link = f"[`{name}`](../generated/mechanisms/{name}.md)"
            lines.append(f"| {link} | n^{info.time:g} | {causal} | {pages.escaped(pages.TOLD[name]['zh'])} |")
        lines.append("")
    return lines
