"""Numbers as the command line takes them."""

import re
from collections.abc import Mapping, Sequence

from regard.core.errors import ConfigError


def parse_numbers(text: str, what: str = "lengths") -> tuple[int, ...]:
    """Numbers, and `first:last`, which doubles; with commas or spaces between them.

    Args:
        text: as it was typed.
        what: they are, for messages.

    Raises:
        ConfigError: something else, or less than one.

    Example:
        >>> parse_numbers("512:2048")
        (512, 1024, 2048)
        >>> parse_numbers("64, 512:1024 3000")
        (64, 512, 1024, 3000)
    """
    numbers: dict[int, None] = {}
    try:
        for part in text.replace(",", " ").split():
            first, last = (int(end) for end in part.split(":")) if ":" in part else (int(part), int(part))
            numbers |= dict.fromkeys(first << at for at in range(64) if first << at <= last)
    except ValueError as error:
        raise ConfigError(f"cannot read the {what} {text!r}: write 512:8192, or 1000 4096") from error
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"no {what} in {text!r}: write 512:8192, or 1000 4096")
    return tuple(numbers)


def one_word(words: Sequence[str], option: str) -> list[str]:
    """Words of a command in which the numbers after an option are one, with commas: what follows them is no number.

    Example:
        >>> one_word(["--lengths", "64", "128", "softmax"], "--lengths")
        ['--lengths', '64,128', 'softmax']
    """
    joined: list[str] = []
    inside = False
    for word in words:
        numbers = re.fullmatch(r"[\d:,\s]+", word) is not None
        if inside and numbers and joined[-1] != option:
            joined[-1] += f",{word}"
            continue
        inside = word == option or word.startswith(f"{option}=") or (inside and numbers)
        joined.append(word)
    return joined


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
