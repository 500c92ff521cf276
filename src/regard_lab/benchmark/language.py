"""Sentences in the language of their reader. English stands in the code; `chinese.toml` has every sentence once more.

A sentence is kept as plain data, its English template and its values, so that a report can be written from recorded
results in either language.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Language = Literal["en", "zh"]
Sentence = Mapping[str, Any]
"""text: the English template. values: what is filled in, each a number, a word, a list of words or a sentence."""


def sentence(text: str, **values: object) -> dict[str, Any]:
    """A sentence as plain data.

    Args:
        text: English, with {names} of the values.
        values: what they stand for.

    Example:
        >>> said("en", sentence("{names} tie at {share:.0%}", names=["a", "b"], share=0.5))
        'a and b tie at 50%'
    """
    return {"text": text, "values": values}


def said(language: Language, what: Sentence | str) -> str:
    """A sentence in a language; text alone is a sentence without values.

    Raises:
        KeyError: there is no Chinese for it.
    """
    text, values = (what, {}) if isinstance(what, str) else (what["text"], what["values"])
    template = text if language == "en" else chinese()[text]
    return template.format(**{name: _shown(language, value) for name, value in values.items()}) if values else template


@dataclass(frozen=True)
class Words:
    """Says sentences in one language.

    Example:
        >>> Words("en")("{low} to {high}", low=1, high=2)
        '1 to 2'
    """

    language: Language = "en"

    def __call__(self, text: str, **values: object) -> str:
        """The sentence with its values."""
        return said(self.language, sentence(text, **values))


def joined(language: Language, sentences: Sequence[Sentence]) -> str:
    """Sentences as one, with a full stop, and a capital unless it begins with a name."""
    parts = [said(language, one) for one in sentences]
    if language == "zh":
        return "；".join(parts) + "。"
    whole = "; ".join(parts)
    begins_with_a_name = bool(sentences) and sentences[0]["text"].startswith("{")
    return f"{whole if begins_with_a_name else whole[:1].upper() + whole[1:]}."


def listed(language: Language, names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    Example:
        >>> listed("en", ["a", "b", "c"])
        'a, b and c'
    """
    if len(names) < 2:
        return "".join(names)
    comma, last = (", ", " and ") if language == "en" else ("、", "和")
    return f"{comma.join(names[:-1])}{last}{names[-1]}"


@cache
def chinese() -> Mapping[str, str]:
    """English -> Chinese, of everything that a report says."""
    return tomllib.loads(Path(__file__).with_name("chinese.toml").read_text(encoding="utf-8"))


def _shown(language: Language, value: object) -> Any:
    if isinstance(value, Mapping):
        return said(language, value)
    if isinstance(value, list | tuple):
        return listed(language, [_shown(language, one) for one in value])
    return value
