"""Draws docs/picture.svg: what every mechanism looks at, on the same random queries and keys.

Run as `python docs/picture.py`. The pictures are the effective attention matrices that `regard.weights` reads off the
mechanisms; nothing is drawn by hand.
"""

from collections.abc import Iterable
from pathlib import Path

import pages

from regard import catalog
from regard_lab.report import attention_map

SIZE, GAP, LABEL, COLUMNS = 150, 16, 22, 4
FRONT = ("softmax", "local", "strided", "bigbird", "linear", "performer", "lsh", "vector_quantized")
"""on the first page: what there is, at a glance"""


def svg(names: Iterable[str]) -> str:
    """Their attention matrices: the causal one, and the bidirectional one of those that have no other."""
    shown = [(name, pages.fits(catalog.resolve(name)[0], True)) for name in names]
    rows = -(-len(shown) // COLUMNS)
    width, height = COLUMNS * (SIZE + GAP) + GAP, rows * (SIZE + GAP + LABEL) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for at, (name, causal) in enumerate(shown):
        x, y = GAP + at % COLUMNS * (SIZE + GAP), GAP + at // COLUMNS * (SIZE + GAP + LABEL)
        uri = attention_map.data_uri(pages.matrix(catalog.resolve(name)[0], causal))
        parts += [
            f'<text x="{x}" y="{y + 14}" font-family="sans-serif" font-size="13" fill="#1c2430">{name}</text>',
            f'<image x="{x}" y="{y + LABEL}" width="{SIZE}" height="{SIZE}" href="{uri}"/>',
            f'<rect x="{x}" y="{y + LABEL}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#d9dee5"/>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def write(folder: Path) -> None:
    """Write the picture of the first page."""
    (folder / "front.svg").write_text(svg(FRONT), encoding="utf-8")


if __name__ == "__main__":
    Path(__file__).with_name("picture.svg").write_text(svg(catalog.names()), encoding="utf-8")
