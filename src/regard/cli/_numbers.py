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
            lengths = tuple(first << at for at in range(64) if first << at <= last)
        else:
            lengths = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"cannot read the lengths {text!r}: write 512:8192 or 1000,4096") from error
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"no lengths in {text!r}: write 512:8192 or 1000,4096")
    return lengths


def require_positive(numbers: Mapping[str, int]) -> None:
    """Refuse numbers less than one, all of them at once.

    Args:
        numbers: option -> number.

    Raises:
        ConfigError: there is one.
    """
    problems = [f"{name} must be at least 1, got {value}" for name, value in numbers.items() if value < 1]
    if problems:
        raise ConfigError("\n".join(problems))
