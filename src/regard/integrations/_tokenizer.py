"""Published tokenizers, special tokens and all, through the `tokenizers` library."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, Integer
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Model

from regard.errors import CheckpointError, InputError, UnsupportedError, kind_of
from regard.integrations.weights import listed
from regard.tasks.tokenizer import byte_letters

_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens in GGUF that are found in text before it is split into words."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Encoded(NamedTuple):
    """ids of a text, and how many of its UTF-8 bytes each stands for (special tokens: none)."""

    ids: Int64[np.ndarray, "length"]
    nbytes: Int64[np.ndarray, "length"]


class PretrainedTokenizer:
    """A published tokenizer with its defaults: the special tokens that it adds by itself are added.

    Args:
        model: of the `tokenizers` library.
        vocab_size: ids that the network has, at least as many as the tokenizer; None: the tokenizer's.

    Raises:
        CheckpointError: tokens that the network does not have; all are listed.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"to": 0, "be": 1, "?": 2}, "?"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> PretrainedTokenizer(words).encode("to be").tolist()
        [0, 1]
    """

    def __init__(self, model: Model, vocab_size: int | None = None) -> None:
        names = model.get_vocab(with_added_tokens=True)
        self.vocab_size = max(names.values(), default=-1) + 1 if vocab_size is None else vocab_size
        beyond = sorted((at, name) for name, at in names.items() if at >= self.vocab_size)
        if beyond:
            raise CheckpointError(
                f"the tokenizer has ids that the network has not, whose vocabulary ends at {self.vocab_size - 1}:"
                + listed(f"{at}: {name!r}" for at, name in beyond)
            )
        model.no_truncation()
        model.no_padding()
        self._model = model
        parts = json.loads(model.to_str())
        self._missing: frozenset[int] = frozenset()
        if "ByteLevel" in json.dumps(parts["pre_tokenizer"]) and parts["model"].get("unk_token") not in names:
            self._missing = frozenset(byte for byte, letter in enumerate(byte_letters()) if letter not in names)

    def encode(self, text: str, *, added: bool = True) -> Int64[np.ndarray, "length"]:
        """The ids of a text.

        Args:
            text: special tokens that are written out in it are these tokens.
            added: with the special tokens that the tokenizer adds by itself.

        Raises:
            InputError: half a surrogate pair, or bytes that the vocabulary has no token for; all are listed.
        """
        self._check(text)
        return np.array(self._model.encode(text, add_special_tokens=added).ids, np.int64)

    def measured(self, text: str) -> Encoded:
        """The ids of a text and the bytes they stand for; errors as `encode`."""
        self._check(text)
        encoding = self._model.encode(text)
        # bytes up to each character; the tokens of one character all span it, and the first of them counts its bytes
        widths = np.array([len(character.encode()) for character in text], np.int64)
        reached = np.concatenate([[0], np.cumsum(widths)])
        ends = np.array([end for _, end in encoding.offsets], np.int64).reshape(-1)
        seen = np.maximum.accumulate(reached[ends]) if ends.size else reached[:0]
        return Encoded(np.array(encoding.ids, np.int64), np.diff(seen, prepend=0))

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

    def decode(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> str:
        """The text of the ids, without special tokens.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1; all are listed.
        """
        return self._model.decode(self.checked(ids).tolist(), skip_special_tokens=True)

    def checked(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> Int64[np.ndarray, "length"]:
        """The ids as an array.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1; all are listed.
        """
        array = np.asarray(ids, np.int64).reshape(-1)
        wrong = np.flatnonzero((array < 0) | (array >= self.vocab_size))
        if wrong.size:
            raise InputError(
                f"unknown token ids, this vocabulary runs from 0 to {self.vocab_size - 1}:"
                + listed(f"{array[at]} at position {at}" for at in wrong)
            )
        return array

    def stream(self) -> "PretrainedStream":
        """A decoder for ids that arrive one after the other."""
        return PretrainedStream(self)

    def to_json(self) -> str:
        """The JSON that the `tokenizers` library reads."""
        return self._model.to_str()


class PretrainedStream:
    """Decodes ids that arrive one after the other: text comes out when its last character is whole.

    A tokenizer may decode a token differently behind others (a leading space), so the tokens of the last piece of text
    are decoded again in front of the new ones.
    """

    def __init__(self, tokenizer: PretrainedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0

    def feed(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> str:
        """The text that these ids complete."""
        self._ids += self._tokenizer.checked(ids).tolist()
        text = self._new()
        if not text or text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._ids, self._shown = self._ids[self._shown :], len(self._ids) - self._shown
        return text

    def finish(self) -> str:
        """The rest of the text: U+FFFD for an unfinished character. The stream can be used again."""
        rest = self._new()
        self._ids, self._shown = [], 0
        return rest

    def _new(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._shown])
        return self._tokenizer.decode(self._ids)[len(before) :]


def tokenizer_from_json(text: str, vocab_size: int) -> PretrainedTokenizer:
    """The tokenizer that a `tokenizer.json` describes.

    Raises:
        CheckpointError: text that is none, or ids that the network does not have.
    """
    try:
        model = Model.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"the tokenizer is none that the tokenizers library reads: {error}") from error
    return PretrainedTokenizer(model, vocab_size)


def tokenizer_from_gguf(metadata: Mapping[str, object], vocab_size: int) -> PretrainedTokenizer:
    """The byte-level BPE that a GGUF file's metadata describes.

    Raises:
        UnsupportedError: another kind of tokenizer, or another way to split words.
        CheckpointError: metadata that is missing, does not fit together, or has ids that the network does not have.
    """
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UnsupportedError(f"the tokenizer is of kind {kind!r}; regard reads gpt2 (byte-level BPE) from GGUF")
    before = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "llama-bpe": [
            pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    }
    if split not in before:
        raise UnsupportedError(f"the tokenizer splits words as {split!r}; regard has {', '.join(before)}")
    tokens, kinds, merges = (metadata.get(f"tokenizer.ggml.{name}", []) for name in ("tokens", "token_type", "merges"))
    if not (isinstance(tokens, list) and isinstance(kinds, list) and isinstance(merges, list)):
        raise CheckpointError("tokens, token_type and merges of the tokenizer must be lists")
    problems = [f"token {at} is {token!r}, no text" for at, token in enumerate(tokens) if not isinstance(token, str)]
    vocabulary = {token: at for at, token in enumerate(tokens) if isinstance(token, str)}
    if len(vocabulary) != len(tokens) or len(kinds) != len(tokens):
        problems.append(f"{len(tokens)} tokens, {len(vocabulary)} different ones, {len(kinds)} kinds")
    pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else () for merge in merges]
    problems += [
        f"merge {at} is {merges[at]!r}, no pair of tokens"
        for at, pair in enumerate(pairs)
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys()
    ]
    names: dict[str, str] = {}
    for mark in ("bos", "eos"):
        at = metadata.get(f"tokenizer.ggml.{mark}_token_id")
        if isinstance(at, int) and 0 <= at < len(tokens):
            names[mark] = tokens[at]
        elif at is not None or metadata.get(f"tokenizer.ggml.add_{mark}_token"):
            problems.append(f"{mark}_token_id is {at!r}, which is none of the {len(tokens)} tokens")
    if problems:
        raise CheckpointError(f"the tokenizer's metadata is damaged:{listed(problems)}")
    model = Model(models.BPE(vocab=vocabulary, merges=pairs))  # type: ignore[arg-type]
    model.pre_tokenizer = pre_tokenizers.Sequence(before[split])  # type: ignore[assignment]
    model.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    for token, token_kind in zip(tokens, kinds, strict=True):
        if token_kind == _CONTROL:
            model.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_kind == _USER_DEFINED:
            model.add_tokens([AddedToken(token, normalized=False)])
    added = {mark: names[mark] for mark in names if metadata.get(f"tokenizer.ggml.add_{mark}_token") is True}
    if added:
        single = [f"{added['bos']}:0"] if "bos" in added else []
        single += ["$A:0", *([f"{added['eos']}:0"] if "eos" in added else [])]
        marks = [(token, vocabulary[token]) for token in added.values()]
        model.post_processor = processors.TemplateProcessing(single=single, special_tokens=marks)  # type: ignore[assignment]
    return PretrainedTokenizer(model, vocab_size)
