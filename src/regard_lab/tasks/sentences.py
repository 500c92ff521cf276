"""Sentences of token sequences, and a token in front for each."""

import re
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from regard.text.tokenizer import Tokenizer

_SENTENCE_ENDS = re.compile(rb"""[.!?]["')\]]*(?=\s)|\n+|(?:\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f)""")
"""full stops, exclamation and question marks before white space; ends of lines; the Chinese marks"""


class Summarised(NamedTuple):
    """inputs: a summary token for every sentence, then the tokens. marks: as `Example.marks`."""

    inputs: Int64[np.ndarray, "length"]
    marks: Int64[np.ndarray, "length"]


def sentence_numbers(ids: Int64[np.ndarray, "tokens"], tokenizer: Tokenizer, most: int) -> Int64[np.ndarray, "tokens"]:
    """The sentence that each token belongs to, from 1; what comes after `most` sentences belongs to the last.

    A token is of the sentence that its first byte is of. White space after an end begins the next sentence.

    Example:
        >>> from regard.text.tokenizer import ByteTokenizer
        >>> tokenizer = ByteTokenizer()
        >>> sentence_numbers(tokenizer.encode("I am. You. Who"), tokenizer, 9).tolist()
        [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3]
    """
    text = tokenizer.to_bytes(ids)
    ends = np.array([match.end() for match in _SENTENCE_ENDS.finditer(text)], np.int64)
    starts = np.cumsum(tokenizer.sizes[ids]) - tokenizer.sizes[ids]
    return np.minimum(np.searchsorted(ends, starts, side="right") + 1, most)


def in_front(ids: Int64[np.ndarray, "tokens"], numbers: Int64[np.ndarray, "tokens"], summary: int) -> Summarised:
    """The tokens behind one `summary` token for every sentence among `numbers`.

    Example:
        >>> in_front(np.array([7, 8, 9]), np.array([1, 1, 2]), 256).marks.tolist()
        [-1, -2, 1, 1, 2]
    """
    named = np.unique(numbers)
    return Summarised(np.concatenate([np.full_like(named, summary), ids]), np.concatenate([-named, numbers]))
