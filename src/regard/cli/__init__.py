"""The `regard` command. Every file of this package that has no underscore is a verb, and so in each package that an
entry point of the group `regard.verbs` names.

A package of verbs has `read`, which reads the words after a verb into the dataclass `Options` of its file.
"""

from regard.cli._interrupted import leaving, terminable, told
from regard.cli._options import read
from regard.cli._output import as_json, emit, say, table

__all__ = ["as_json", "emit", "leaving", "read", "say", "table", "terminable", "told"]
