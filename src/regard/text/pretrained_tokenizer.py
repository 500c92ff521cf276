"""Published tokenizers, special tokens and all, through the `tokenizers` library."""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from regard.core.errors import CheckpointError, InputError, RegardError, UnsafeFileError, kind_of, out_of_memory
from regard.text.byte_letters import byte_letters
from regard.text.confined import confined
from regard.text.reader import Encoded, Ids, Reader

if TYPE_CHECKING:
    import tokenizers

_CONTEXT = 4
"""tokens before a new one that are decoded with it: as many as a character has bytes"""
_MOST = 64
"""tokens a character of a short text: those of published tokenizers have some for each byte, and a few around it"""
_RULES = ("normalizer", "pre_tokenizer", "decoder")
_tried: set[str] = set()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Name what the `tokenizers` library could not do; it raises bare Exception, and panics, which are none."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | RegardError) or out_of_memory(error):
            raise
        raise CheckpointError(f"{what}: {error}") from error


def model_of(text: str, where: str) -> "tokenizers.Tokenizer":
    """The tokenizer that a `tokenizer.json` describes, which is first tried with bounds on time, memory and tokens.

    Raises:
        CheckpointError: text that is none. UnsafeFileError: one beyond the bounds. ResourceError: as `confined`.
    """
    from tokenizers import Tokenizer

    with suppress(ValueError, AttributeError):  # no description, which the library says
        rules = {name: part for name, part in json.loads(text).items() if name in _RULES}
        if (longest := max(map(len, _put_in(rules)), default=0)) > _MOST:
            raise UnsafeFileError(f"{where} has a rule that puts {longest:,} characters into a text; at most {_MOST}")
    if (digest := sha256(text.encode("utf-8", "replace")).hexdigest()) not in _tried:
        request, big = {"tokenizer": text}, len(text) >> 20
        characters, tokens = confined(request, where, "tokenizers", seconds=2 + big, size=(8 + big) << 27)
        if tokens > _MOST * characters:
            raise UnsafeFileError(f"{where} makes {tokens:,} tokens of {characters:,} characters")
        _tried.add(digest)
    with told(f"{where} is none that the tokenizers library reads"):
        return Tokenizer.from_str(text)


def _put_in(part: object) -> Iterator[str]:
    """The texts that rules of a tokenizer put into a text."""
    if isinstance(part, dict):
        yield from (part[name] for name in ("content", "prepend") if isinstance(part.get(name), str))
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _put_in(inner)


class PretrainedTokenizer(Reader):
    """A published tokenizer with its defaults: the special tokens that it adds by itself are added.

    Args:
        model: of the `tokenizers` library.
        vocab_size: ids that the network has; None: the tokenizer's. Tokens beyond are warned of, and no text that has
            one is encoded.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"to": 0, "be": 1, "?": 2}, "?"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> PretrainedTokenizer(words).encode("to be").tolist()
        [0, 1]
    """

    kind = "published"
    filler = 0

    def __init__(self, model: "tokenizers.Tokenizer", vocab_size: int | None = None) -> None:
        names = model.get_vocab(with_added_tokens=True)
        self.vocab_size = max(names.values(), default=-1) + 1 if vocab_size is None else vocab_size
        beyond = sorted((at, name) for name, at in names.items() if at >= self.vocab_size)
        if beyond:
            warnings.warn(
                f"the network has no row for {len(beyond)} tokens of its tokenizer, {beyond[0][0]} ({beyond[0][1]!r}) "
                "the first: a text with one of them is refused",
                stacklevel=2,
            )
        parts = json.loads(model.to_str())
        self.limits = {name: parts[name] for name in ("truncation", "padding")}
        """settings of its file that hold for those who read batches of it"""
        model.no_truncation()
        model.no_padding()
        self._model = model
        self._missing: frozenset[int] = frozenset()
        self.no_utf8 = names.get("<0xFF>") if "ByteFallback" in json.dumps(parts["decoder"]) else None
        """of tokenizers with byte fallback, which show a run of such tokens as U+FFFD if some of it are no UTF-8"""
        if "ByteLevel" in json.dumps(parts["pre_tokenizer"]) and parts["model"].get("unk_token") not in names:
            self._missing = frozenset(byte for byte, letter in enumerate(byte_letters()) if letter not in names)

    def encode(self, text: str, *, added: bool = True, longest: int | None = None) -> Int64[np.ndarray, "length"]:
        """The ids of a text.

        Args:
            text: special tokens that are written out in it are these tokens.
            added: with the special tokens that the tokenizer adds by itself.
            longest: cut the text to so many ids, those that are added included.

        Raises:
            InputError: half a surrogate pair, bytes that the vocabulary has no token for, or tokens that the network
                has no row for; all are listed.
            CheckpointError: the tokenizer lacks what it needs for this text.
        """
        self._check(text)
        encoding = self._encoding(text, added=added)
        if longest is not None and len(encoding) > longest:
            encoding = self._encoding(text, added=False)
            encoding.truncate(max(longest - self._model.num_special_tokens_to_add(is_pair=False), 0))
            encoding = self._model.post_process(encoding)
        return self.checked(encoding.ids)

    def document(self, text: str) -> Encoded:
        """The ids of a text and the bytes they stand for; errors as `encode`."""
        self._check(text)
        encoding = self._encoding(text)
        # bytes up to each character; the tokens of one character all span it, and the first of them counts its bytes
        widths = np.array([len(character.encode()) for character in text], np.int64)
        reached = np.concatenate([[0], np.cumsum(widths)])
        ends = np.array([end for _, end in encoding.offsets], np.int64).reshape(-1)
        seen = np.maximum.accumulate(reached[ends]) if ends.size else reached[:0]
        return Encoded(self.checked(encoding.ids), np.diff(seen, prepend=0))

    def _encoding(self, text: str, *, added: bool = True) -> "tokenizers.Encoding":
        with told("the tokenizer cannot encode this text, so that its tokenizer.json is damaged or incomplete"):
            return self._model.encode(text, add_special_tokens=added)

    def _check(self, text: str) -> None:
        if not isinstance(text, str):
            raise InputError(f"a tokenizer encodes one text, got {kind_of(text)}")
        try:
            absent = sorted(set(text.encode("utf-8")) & self._missing)
        except UnicodeEncodeError as error:
            raise InputError(
                f"text holds half a surrogate pair at character {error.start}; it is no Unicode"
            ) from error
        if absent:
            where = [f"U+{ord(c):04X}" for c in sorted(set(text)) if set(c.encode()) & set(absent)]
            raise InputError(
                f"this tokenizer has no token for the bytes {', '.join(f'0x{byte:02x}' for byte in absent)} of "
                f"{', '.join(where)}; remove these characters"
            )

    def decode(self, ids: Ids) -> str:
        """The text of the ids, without special tokens.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1; all are listed.
        """
        with told("the tokenizer cannot decode these ids, so that its tokenizer.json is damaged or incomplete"):
            return self._model.decode(self.checked(ids).tolist(), skip_special_tokens=True)

    def stream(self, after: Ids = ()) -> "PretrainedStream":
        """A decoder for ids that arrive one after the other, behind those of `after`."""
        return PretrainedStream(self, self.checked(after).tolist())

    def to_json(self) -> str:
        model = json.loads(self._model.to_str())
        return json.dumps({"kind": self.kind, "vocab_size": self.vocab_size, "model": model}, ensure_ascii=False)


class PretrainedStream:
    """Decodes ids that arrive one after the other: what they add to the text before them, once no later id changes it.

    Some ids before the new ones are decoded with them, since a tokenizer may take the space of a first word away.
    """

    def __init__(self, tokenizer: PretrainedTokenizer, after: list[int]) -> None:
        self._tokenizer, self._decode = tokenizer, tokenizer.decode
        self._start_behind(after)

    def feed(self, ids: Ids) -> str:
        """The text that these ids complete."""
        self._ids += self._tokenizer.checked(ids).tolist()
        text, last = self.pending, self._tokenizer.no_utf8
        if not text or (last is not None and not self._decode([*self._ids, last]).startswith(self._decode(self._ids))):
            return ""
        self._start_behind(self._ids)
        return text

    def finish(self) -> str:
        """The rest of the text: U+FFFD for an unfinished character. The stream can be used again, for another text."""
        rest = self._new()
        self._start_behind([])
        return rest

    @property
    def pending(self) -> str:
        """The text that has not come yet, if its last character is whole."""
        text = self._new()
        return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else text

    def _new(self) -> str:
        before, text = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        return text[len(os.path.commonprefix([before, text])) :]  # noqa: RUF071  # of characters

    def _start_behind(self, ids: list[int]) -> None:
        """Keep the last of the ids that were shown, as many as have some text of their own."""
        count = _CONTEXT
        while count < len(ids) and not self._decode(ids[-count:]).strip("\N{REPLACEMENT CHARACTER} "):
            count *= 2
        self._ids = ids[-count:]
        self._shown = len(self._ids)
