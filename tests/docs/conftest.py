"""The scripts of the documentation are no package: they find one another in their folder, as under Sphinx."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))
