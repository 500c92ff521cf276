"""What trains, compares, measures and looks up: the laboratory of `regard`, which the library never imports."""

import importlib.util

from regard.core.errors import ResourceError

NEEDED = ("jinja2", "plotly", "pydantic", "rich", "tokenizers", "tyro")
"""what the laboratory needs and the library does not"""

if _absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    raise ResourceError(f"the laboratory needs {', '.join(_absent)}: pip install 'regard[lab]'")
