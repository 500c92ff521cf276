"""How a folder of sentence-transformers makes one vector of a text: what is read, pooling, normalisation, prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import ConfigError, UnsafeFileError, UnsupportedError, nearest
from regard.integrations import _folder
from regard.integrations.weights import Settings
from regard.models.encoder_config import Pooling

MODULES, READING, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_MODULES = ["Transformer", "Pooling", "Normalize"]
_POOLINGS: dict[tuple[str, ...], Pooling] = {
    ("pooling_mode_cls_token",): "first",
    ("pooling_mode_mean_tokens",): "mean",
    (): "mean",
    ("cls",): "first",
    ("mean",): "mean",
}
"""keys that are true in older files, or the value of pooling_mode"""
_ONLY: dict[str, list[object]] = {
    "include_prompt": [True],
    "transformer_task": ["feature-extraction"],
    "modality_config": [{"text": {"method": "forward", "method_output_name": "last_hidden_state"}}],
    "module_input_name": ["sentence_embedding"],
    "module_output_name": ["token_embeddings", "sentence_embedding"],
    "model_type": ["SentenceTransformer"],
}


class Recipe(NamedTuple):
    """What makes a vector of hidden states.

    unit: a vector is divided by its length. prompt: put in front of a text. max_length: most tokens of a text. lower:
    texts in lower case.
    """

    pooling: Pooling
    unit: bool
    prompt: str
    max_length: int | None
    lower: bool


def files(folder: Path, ignore: Sequence[str]) -> dict[str, Any]:
    """The settings of such a folder without keys to ignore, by the name of their file; none of any other folder.

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
    kept = {name: {key: x[key] for key in x if key not in ignore} for name, x in found.items() if name != MODULES}
    return {MODULES: found[MODULES], **kept}


def _path(module: object) -> str:
    return str(module.get("path") or "") if isinstance(module, dict) else ""


def recipe(found: Mapping[str, Any], dim: int, where: Path, *, unit: bool | None, prompt: str | None) -> Recipe:
    """What `files` say of hidden states of width `dim`, where the arguments of `PublishedModel.embed` say nothing else.

    Raises:
        UnsupportedError: modules that regard does not have.
        CheckpointError: settings that are not understood; all are listed.
        ConfigError: no such prompt.
    """
    modules = found.get(MODULES, [{"type": f"sentence_transformers.{name}"} for name in _MODULES])
    types = [str(one.get("type")) if isinstance(one, dict) else repr(one) for one in modules]
    names = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in types]
    if names not in (_MODULES[:2], _MODULES) or _path(modules[0]):
        raise UnsupportedError(
            f"{where / MODULES} names the modules {', '.join(types)}; regard embeds with a Transformer in the folder "
            "itself, then Pooling, then Normalize or nothing"
        )
    read = {key: value for name in found if name != MODULES for key, value in found[name].items()}
    settings = Settings(read, str(where), {})
    for key in ("__version__", "similarity_fn_name", "unpad_inputs"):  # which change no vector
        settings.get(key)
    for key, only in (_ONLY | {"embedding_dimension": [dim], "word_embedding_dimension": [dim]}).items():
        settings.choice(key, only, only[0])
    older = tuple(key for key in read if key.startswith("pooling_mode_") and settings.flag(key, False))
    mode = settings.get("pooling_mode")
    pooling = _POOLINGS.get(older if mode is None else (str(mode),))
    if pooling is None:
        settings.problems.append(f"the pooling {mode or ' + '.join(older)!r}: regard has cls and mean")
    prompts: Any = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        settings.problems.append(f"prompts must be texts by name, got {prompts!r:.200}")
    default, longest = settings.get("default_prompt_name"), None
    if settings.get("max_seq_length") is not None:
        longest = settings.size("max_seq_length")
    lower = settings.flag("do_lower_case", False)
    settings.check()
    assert pooling is not None
    name = str((default if prompt is None else prompt) or "")
    if name and name not in prompts:
        raise ConfigError(f"{where} has no prompt {name!r}: {nearest(name, prompts)}")
    return Recipe(pooling, names == _MODULES if unit is None else unit, prompts[name] if name else "", longest, lower)
