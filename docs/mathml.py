"""Formulas as MathML, which browsers draw themselves: no script, no font and no network. A Sphinx extension."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

FENCE = re.compile(r"<mo>([{}])</mo>")
"""braces of a set, which would grow as tall as the sum beside them"""


def setup(app: Any) -> dict[str, bool]:
    """Make it the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def drawn(latex: str, *, as_block: bool = False) -> str:
    """A formula as MathML.

    Raises:
        docutils.utils.math.MathError: a command that docutils does not know.
    """
    return FENCE.sub(r'<mo stretchy="false">\1</mo>', tex2mathml(latex, as_block=as_block))


def inline(writer: Any, node: nodes.math) -> None:
    """A formula in a line of text."""
    writer.body.append(f'<span class="math notranslate nohighlight">{drawn(node.astext())}</span>')
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """A formula on lines of its own, in a box that scrolls where the window is narrow."""
    formula = drawn(node.astext(), as_block=True)
    writer.body.append(f'<div class="math notranslate nohighlight">{formula}</div>')
    raise nodes.SkipNode
