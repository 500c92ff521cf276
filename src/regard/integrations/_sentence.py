"""How a folder of sentence-transformers makes one vector of a text: what is read, pooling, normalisation, prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.core.errors import ConfigError, UnsafeFileError, UnsupportedError, nearest
from regard.integrations import folder as _folder
from regard.integrations.weights import Settings

MODULES, READING, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""name of a pooling -> its key in older files, in the order in which those join several"""
_MODULES = ["Transformer", "Pooling", "Normalize"]
_READ = {"max_seq_length", "do_lower_case", "embedding_dimension", "word_embedding_dimension", "pooling_mode"}
_READ |= {"include_prompt", "prompts", "default_prompt_name", *POOLINGS.values()}
_READ |= {"__version__", "similarity_fn_name", "unpad_inputs"}  # which change no vector
_ONLY: dict[str, tuple[object, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("token_embeddings", "sentence_embedding"),
    "model_type": ("SentenceTransformer",),
}


class Recipe(NamedTuple):
    """What makes a vector of hidden states.

    pooling: names in POOLINGS, whose vectors are joined. unit: a vector is divided by its length. prompt: put in front
    of a text. include_prompt: its tokens are pooled too. max_length: most tokens of a text. lower: texts in lower case.
    """

    pooling: tuple[str, ...]
    unit: bool
    prompt: str
    include_prompt: bool
    max_length: int | None
    lower: bool


def files(folder: Path) -> dict[str, Any]:
    """The settings of such a folder, by the name of their file; none of any other folder.

    Raises:
        CheckpointError: a file that is damaged. UnsafeFileError: one that is outside the folder.
    """
    if not (folder / MODULES).exists():
        return {}
    found: dict[str, Any] = {MODULES: _folder.read_json(folder, MODULES, list), READING: {}}
    for path in (*folder.glob("sentence_*_config.json"), *folder.glob(PROMPTS)):
        found[PROMPTS if path.name == PROMPTS else READING] = _folder.read_json(folder, path.name)
    for name in filter(None, map(_path, found[MODULES])):
        if (folder / name / _folder.CONFIG).exists():
            if (folder / name).resolve().parent != folder.resolve():
                raise UnsafeFileError(f"{folder / MODULES}: path {name!r} leads out of the folder")
            found[f"{name}/{_folder.CONFIG}"] = _folder.read_json(folder / name, _folder.CONFIG)
    if (folder / _folder.TOKENIZER_SETTINGS).exists():
        longest = _folder.read_json(folder, _folder.TOKENIZER_SETTINGS).get("model_max_length")
        if isinstance(longest, int) and longest < 1 << 31:  # a huge number stands for none
            found[READING] = {"max_seq_length": longest, **found[READING]}
    return found


def _path(module: object) -> str:
    return str(module.get("path") or "") if isinstance(module, dict) else ""


def recipe(
    found: Mapping[str, Any],
    dim: int,
    where: Path,
    *,
    unit: bool | None,
    pooling: str | Sequence[str] | None,
    prompt: str | None,
) -> Recipe:
    """What `files` say of hidden states of width `dim`, where the arguments of `PublishedModel.embed` say nothing else.

    Raises:
        UnsupportedError: modules that regard does not have.
        CheckpointError: settings that are not understood; all are listed.
        ConfigError: no such pooling or prompt.
    """
    modules = found.get(MODULES, [{"type": f"sentence_transformers.{name}"} for name in _MODULES])
    types = [str(one.get("type")) if isinstance(one, dict) else repr(one) for one in modules]
    names = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in types]
    if names not in (_MODULES[:2], _MODULES) or _path(modules[0]):
        raise UnsupportedError(
            f"{where / MODULES} names the modules {', '.join(types)}; regard embeds with a Transformer in the folder "
            "itself, then Pooling, then Normalize or nothing"
        )
    read = [(name, key, value) for name in found if name != MODULES for key, value in found[name].items()]
    settings = Settings({key: value for _, key, value in read}, str(where), {})
    settings.problems = [
        f"{name}: {key}={value!r}, which regard does not have"
        for name, key, value in read
        if value and key not in _READ and value not in _ONLY.get(key, ())
    ]
    said: Any = settings.get
    for _, key, _ in read:  # those that regard does not have are named above
        said(key)
    width, prompts = said("embedding_dimension", said("word_embedding_dimension")), said("prompts") or {}
    if found and width != dim:
        settings.problems.append(f"embedding_dimension={width!r}, and hidden states have {dim}")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        settings.problems.append(f"prompts must be texts by name, got {prompts!r:.200}")
    older = [kind for kind, key in POOLINGS.items() if settings.flag(key, False)]
    kinds: Any = pooling or said("pooling_mode") or older or "mean"
    longest = None if said("max_seq_length") is None else settings.size("max_seq_length")
    lower, include = settings.flag("do_lower_case", False), settings.flag("include_prompt", True)
    settings.check()
    kinds = [str(kind) for kind in (kinds if isinstance(kinds, list | tuple) else [kinds])]
    if unknown := set(kinds) - POOLINGS.keys():
        raise ConfigError(f"{where}: there is no pooling {min(unknown)!r}: {nearest(min(unknown), POOLINGS)}")
    name = str((said("default_prompt_name") if prompt is None else prompt) or "")
    if name and name not in prompts:
        raise ConfigError(f"{where} has no prompt {name!r}: {nearest(name, prompts)}")
    unit = names == _MODULES if unit is None else unit
    return Recipe(tuple(kinds), unit, prompts[name] if name else "", include, longest, lower)
