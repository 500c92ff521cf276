"""Published tokenizers from the files that they come in: tokenizer.json, or the metadata of GGUF."""

import json
from collections.abc import Mapping
from types import MappingProxyType

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Model

from regard.core.errors import CheckpointError, UnsupportedError
from regard.integrations.weights import listed
from regard.text.pretrained_tokenizer import PretrainedTokenizer, model_of

_CONTROL, _USER_DEFINED = 3, 4
"""Kinds of tokens in GGUF that are found in text before it is split into words."""

_ENDS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("</s>", "<eos>", "[EOS]", "[EOT]", "<EOT>", "_<EOT>", "<end_of_utterance>"),
)
"""Tokens that llama.cpp takes for the end of a text, or of a turn, by their names."""

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")
"""Ways to split words that are one in llama.cpp: a word that is a token is that token, whatever the merges say, and a
text begins with the first token unless the file says otherwise."""
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_SAID_TWICE = (
    ("normalizer", "BertNormalizer", "lowercase", "do_lower_case"),
    ("pre_tokenizer", "ByteLevel", "add_prefix_space", "add_prefix_space"),
)
"""part of tokenizer.json, its type and option -> key of tokenizer_config.json, which transformers follows instead"""


def tokenizer_from_json(
    text: str, vocab_size: int, where: str, settings: Mapping[str, object] = MappingProxyType({})
) -> PretrainedTokenizer:
    """The tokenizer that a `tokenizer.json` describes, which errors call `where`.

    Args:
        settings: as `_folder.tokenizer_settings`; tokens of the vocabulary that they name are special, as in
            transformers.

    Raises:
        CheckpointError: text that is none, or settings that contradict it.
    """
    model, parts = model_of(text, where), json.loads(text)
    for part, kind, name, key in _SAID_TWICE:
        rule, said = parts.get(part) or {}, settings.get(key)
        if rule.get("type") == kind and isinstance(said, bool) and rule.get(name) != said:
            raise CheckpointError(
                f"{where}: the {part} has {name}={rule.get(name)}, and tokenizer_config.json says {key}={said}: make "
                "them equal"
            )
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = settings.get(key)
        named += (
            [each.get("content") if isinstance(each, dict) else each for each in listed]
            if isinstance(listed, list)
            else []
        )
    added = {each["content"] for each in parts.get("added_tokens") or ()}
    new = [
        each for each in named if isinstance(each, str) and model.token_to_id(each) is not None and each not in added
    ]
    model.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in dict.fromkeys(new)])
    return PretrainedTokenizer(model, vocab_size)


def tokenizer_from_gguf(metadata: Mapping[str, object], vocab_size: int, where: str) -> PretrainedTokenizer:
    """The byte-level BPE that the metadata of a GGUF file describes, which errors call `where`.

    Raises:
        UnsupportedError: another kind of tokenizer, or another way to split words.
        CheckpointError: metadata that is missing, or does not fit together.
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
    if llama3 := split in _LLAMA3_NAMES:
        split = "llama-bpe"
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
    added: dict[str, str] = {}
    for mark, default in (("bos", llama3), ("eos", False)):
        if metadata.get(f"tokenizer.ggml.add_{mark}_token", default):
            at = metadata.get(f"tokenizer.ggml.{mark}_token_id")
            if isinstance(at, int) and 0 <= at < len(tokens):
                added[mark] = tokens[at]
            else:
                problems.append(f"{mark}_token_id is {at!r}, which is none of the {len(tokens)} tokens")
    if problems:
        raise CheckpointError(f"the tokenizer's metadata is damaged:{listed(problems)}")
    model = Model(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=llama3))  # type: ignore[arg-type]
    model.pre_tokenizer = pre_tokenizers.Sequence(before[split])  # type: ignore[assignment]
    model.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    for token, token_kind in zip(tokens, kinds, strict=True):
        if token_kind == _CONTROL or token in _ENDS:
            model.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_kind == _USER_DEFINED:
            model.add_tokens([AddedToken(token, normalized=False)])
    if added:
        single = [f"{added['bos']}:0"] if "bos" in added else []
        single += ["$A:0", *([f"{added['eos']}:0"] if "eos" in added else [])]
        marks = [(token, vocabulary[token]) for token in added.values()]
        model.post_processor = processors.TemplateProcessing(single=single, special_tokens=marks)  # type: ignore[assignment]
    return PretrainedTokenizer(model, vocab_size)


def gguf_ends(metadata: Mapping[str, object]) -> list[object]:
    """The ids that end a text or a turn: those of three keys, and of the tokens that llama.cpp knows by their names."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    keys = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    named = [at for at, token in enumerate(tokens) if token in _ENDS] if isinstance(tokens, list) else []
    return [at for at in keys if at is not None] + named
