"""Published tokenizers from the files that they come in: tokenizer.json, or the metadata of GGUF."""

from collections.abc import Mapping

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Model

from regard.errors import CheckpointError, UnsupportedError
from regard.integrations.weights import listed
from regard.tasks.pretrained_tokenizer import PretrainedTokenizer, model_of

_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens in GGUF that are found in text before it is split into words."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_from_json(text: str, vocab_size: int, where: str) -> PretrainedTokenizer:
    """The tokenizer that a `tokenizer.json` describes, which errors call `where`.

    Raises:
        CheckpointError: text that is none, or ids that the network does not have.
    """
    return PretrainedTokenizer(model_of(text, where), vocab_size)


def tokenizer_from_gguf(metadata: Mapping[str, object], vocab_size: int, where: str) -> PretrainedTokenizer:
    """The byte-level BPE that the metadata of a GGUF file describes, which errors call `where`.

    Raises:
        UnsupportedError: another kind of tokenizer, or another way to split words.
        CheckpointError: metadata that is missing, does not fit together, or has ids that the network does not have.
    """
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise UnsupportedError(
            f"{where} has a tokenizer of kind {kind!r}; regard reads gpt2 (byte-level BPE) from GGUF"
        )
    before = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "llama-bpe": [
            pre_tokenizers.Split(Regex(_LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    }
    if split not in before:
        raise UnsupportedError(f"the tokenizer of {where} splits words as {split!r}; regard has {', '.join(before)}")
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
