"""Draws every pattern from its own predicate; `gallery.md` includes what `page` writes."""

import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard import Attention, Heads, catalog
from regard import patterns as masks
from regard.attention.sparse import Globals
from regard.functional import weights
from regard_lab.report import attention_map

POSITIONS = 48
SCALE = 4
HEADS = 3
FOLDER = "generated/gallery"
"""of the pictures, from the page"""
WRITTEN = (
    "everything",
    "causal",
    "window(4)",
    "dilated(4, 3)",
    "strided(8)",
    "block(8)",
    "block(8, 1)",
    "summary(8, 2)",
    "summary(8, 2, 3)",
    "first(3)",
    "block_model(48, 3, 6, 2)",
    "causal & (window(4) | strided(8))",
    "causal & block(8) & ~window(1)",
    "per_head(window(4), causal & first(6))",
)
"""the primitives of `regard.patterns` that have a text, and how they combine"""


@dataclass(frozen=True)
class Drawing:
    """title: what the picture shows. file: its name. mask: (queries, keys)."""

    title: str
    file: str
    mask: Tensor


def mechanism(name: str, *, causal: bool) -> Attention:
    """With its first sample of options, at the length of the pictures."""
    cls, _ = catalog.resolve(name)
    return cls(Heads(count=HEADS, key_dim=8, causal=causal, max_length=POSITIONS), **cls.samples[0]).eval()


def seen(built: Attention) -> Tensor:
    """The pairs of the predicate, and of global tokens where there are some, (heads, queries, keys).

    A mechanism without a predicate shows the pairs to which it gives a weight.
    """
    at = torch.arange(POSITIONS)
    rule = getattr(built, "pattern", None)
    if rule is None:
        q, k = torch.randn(2, 1, HEADS, POSITIONS, 8, generator=torch.Generator().manual_seed(0))
        return weights(built, q, k)[0] > 0
    mask = rule.mask(at, at).expand(HEADS, -1, -1)
    if isinstance(built, Globals):
        spread = at < built.leading
        mask = mask | spread
        mask = mask | spread[:, None] if built.symmetric else mask
        mask = mask & (at <= at[:, None]) if built.heads.causal else mask
    return mask


def drawings(stem: str, kind: str, mask: Tensor) -> list[Drawing]:
    """One picture for all heads, or one for each where they differ."""
    if all(torch.equal(mask[0], other) for other in mask):
        return [Drawing(kind, f"{stem}.png", mask[0])]
    heads = (", ".join(filter(None, (kind, f"head {head}"))) for head in range(len(mask)))
    return [Drawing(title, f"{stem}-{head}.png", x) for head, (title, x) in enumerate(zip(heads, mask, strict=True))]


def kinds(name: str) -> list[tuple[str, bool]]:
    """Those of causal and bidirectional that a mechanism serves with its first sample of options."""
    cls, _ = catalog.resolve(name)
    supports = cls.describe(cls.samples[0]).supports
    return [kind for kind in (("causal", True), ("bidirectional", False)) if getattr(supports, kind[0])]


def words(name: str) -> list[str]:
    """Options, definition, and the text of the predicate, for those that are made of the patterns of
    `regard.patterns`."""
    cls, _ = catalog.resolve(name)
    built = mechanism(name, causal=kinds(name)[0][1])
    options = ", ".join(f"{key}={value}" for key, value in cls.samples[0].items())
    lines = [f"{name}({options})"]
    definition = (inspect.getdoc(getattr(built, "allowed", cls)) or "").partition("\n")[0]
    lines.append(f"query i sees key j: {definition}")
    text = str(getattr(built, "pattern", ""))
    if text and "rule_" not in text:
        lines.append(f"predicate: {text}")
    if isinstance(built, Globals) and built.leading:
        sees = "seen by all and seeing all" if built.symmetric else "seen by all"
        lines.append(f"global tokens, {sees}: position {', '.join(map(str, range(built.leading)))}")
    return lines


def primitives() -> dict[str, masks.Pattern]:
    """What is drawn of `regard.patterns`, by its text."""
    table = torch.tensor([[0, 3], [4, 5], [0, 1], [5, 2], [1, 3], [2, 4]])
    ring = torch.stack([torch.arange(POSITIONS), torch.arange(POSITIONS).roll(5)])
    made = {
        "random_blocks(8, table)": masks.random_blocks(8, table),
        "edges(ring, 48, loops=True)": masks.edges(ring, POSITIONS, loops=True),
    }
    return {**{text: masks.parse(text) for text in WRITTEN}, **made}


def figures(pictures: list[Drawing], what: str, folder: Path) -> list[str]:
    """A table of pictures side by side; the files are written into the folder."""
    for one in pictures:
        (folder / one.file).write_bytes(attention_map.png(one.mask.int().tolist(), scale=SCALE))
    cells = [f"![{what} {one.title}]({FOLDER}/{one.file})".replace(" ]", "]") for one in pictures]
    if len(cells) == 1:
        return [f"{pictures[0].title}:" if pictures[0].title else "", "", *cells, ""]
    titles = " | ".join(one.title for one in pictures)
    return [f"| {titles} |", "|---" * len(cells) + "|", f"| {' | '.join(cells)} |", ""]


def page(folder: Path) -> str:
    """Primitives, then mechanisms; pictures go into the folder."""
    lines = ["## What patterns are made of", ""]
    at = torch.arange(POSITIONS)
    for text, rule in primitives().items():
        mask = rule.mask(at, at)
        stem = "rule-" + re.sub(r"\W+", "-", text.replace("~", "not ")).strip("-")
        pictures = drawings(stem, "", mask if mask.dim() == 3 else mask[None])
        lines += [f"### `{text}`", "", *figures(pictures, text.replace("|", "or"), folder)]
    lines += ["## What mechanisms see", ""]
    for name in (name for name in catalog.names() if catalog.family(name) == "sparse"):
        lines += [f"### {name}", "", f"*{catalog.outline(name).title}.* [All of it](generated/mechanisms/{name}.md)"]
        lines += ["", "```text", *words(name), "```", ""]
        pictures = [
            one
            for kind, causal in kinds(name)
            for one in drawings(f"{name}-{kind}", kind, seen(mechanism(name, causal=causal)))
        ]
        lines += figures(pictures, name, folder)
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write what `gallery.md` includes, and the pictures."""
    (folder / "gallery").mkdir(parents=True, exist_ok=True)
    (folder / "gallery.inc").write_text(page(folder / "gallery"), encoding="utf-8")
