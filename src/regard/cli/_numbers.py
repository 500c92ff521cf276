"""Numbers as the command line takes them."""

from collections.abc import Mapping

from regard.errors import ConfigError


def parse_lengths(text: str) -> tuple[int, ...]:
    """`first:last`, doubling, or a list.

    Raises:
        ConfigError: neither.

    Example:
        >>> parse_lengths("512:2048")
        (512, 1024, 2048)
    """
    try:
        if ":" in text:
            first, last = (int(part) for part in text.split(":"))
            found = tuple(first << at for at in range(64) if first << at <= last)
        else:
            found = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"cannot read the lengths {text!r}: write 512:8192 or 1000,4096") from error
    if not found or min(found) < 1:
        raise ConfigError(f"no lengths in {text!r}: write 512:8192 or 1000,4096")
    return found


def require_positive(given: Mapping[str, int]) -> None:
    """Refuse what is less than one; all of it is said at once.

    Args:
        given: option -> number.

    Raises:
        ConfigError: there is some.
    """
    problems = [f"{name} must be at least 1, got {value}" for name, value in given.items() if value < 1]
    if problems:
        raise ConfigError("\n".join(problems))
