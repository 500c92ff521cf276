"""Measurements as plain data."""

import math
from typing import Any


def plain(value: Any) -> Any:
    """The value as JSON can hold it: a number that is not finite becomes None."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    assert value is None or isinstance(value, str | int), f"measurements are plain numbers, got {type(value)}"
    return value
