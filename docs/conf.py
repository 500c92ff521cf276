"""Sphinx configuration. The pages below generated/ are written, and the notebook runs, at every build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import api
import errata
import errata_content  # noqa: F401  its measurements enter the page of `errata`
import errata_linear  # noqa: F401
import errata_models  # noqa: F401
import errata_randomized  # noqa: F401
import exactness
import gallery
import glossary
import licences
import pages
import picture
import reference
import retrieval
import rounding
import scale
import zh

import regard

project = "regard"
author = "The regard authors"
copyright = f"2026, {author}"
version = release = regard.__version__

extensions = ["myst_nb", "mathml"]
html_math_renderer = "mathml"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
html_theme = "furo"
html_title = f"regard {release}"
html_static_path = ["_static"]
html_extra_path = ["generated/extra"]
html_css_files = ["text.css"]
html_show_search_summary = False  # a page that is opened from a disk may not read others
exclude_patterns = ["_build", "recorded", "generated/extra"]
nitpicky = True


def setup(app: object) -> None:
    """Write the generated pages before Sphinx looks for documents."""
    del app
    generated = Path(__file__).parent / "generated"
    pages.write(generated)
    api.write(generated)
    reference.write(generated)
    errata.write(generated)
    gallery.write(generated)
    retrieval.write(generated)
    exactness.write(generated)
    rounding.write(generated)
    licences.write(generated)
    scale.write(generated)
    picture.write(generated)
    glossary.write(generated)
    zh.write(generated)
