"""What a trained network looks at in a text: one self-contained HTML page of heads x layers."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from regard.core.errors import ConfigError, InputError, LimitError, UnsupportedError
from regard.files.folders import write_text
from regard.files.writing import require_target
from regard.integrations import pretrained
from regard.models import Encoder, EncoderDecoder, LanguageModel
from regard.text.tokenizer import Tokenizer
from regard_lab.attention_maps import LayerMaps, NoMaps, attention_maps
from regard_lab.networks.loading import load
from regard_lab.report import _page
from regard_lab.tasks.config import ClassificationConfig, MaskedConfig
from regard_lab.training import TrainedModel

MOST_TOKENS = 4096
PAIRS = 16
"""largest weights of a head that the page has as numbers"""
_CELL_BYTES = 2_900_000
"""for the pictures of all heads of all models; a third more as text, so that a page stays below 5 MB"""
_MOST_BLOCKS = 1024
_PIECE = 24
"""most characters of a token that a page shows"""

Explorable = str | Path | TrainedModel | pretrained.PublishedModel


@dataclass(frozen=True)
class _Subject:
    """A network and a text as it reads it. pieces: how each token looks."""

    name: str
    model: LanguageModel | Encoder
    ids: Int64[np.ndarray, " length"]
    pieces: tuple[str, ...]


def explore(
    model: Explorable,
    text: str,
    *,
    beside: Explorable | None = None,
    out: str | Path = "attention.html",
    device: str = "auto",
    trust: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write a page that shows where every head of every layer looks in a text; it opens offline.

    The matrices are effective ones (`regard.weights`), so that mechanisms which make no weights have them too. A layer
    that has none is named with its reason. Long texts are shown in blocks of tokens; the largest weights of every head,
    its mean distance and its entropy are exact.

    Args:
        model: the directory of a run; published weights, as `regard.integrations.pretrained.load` takes them; or what
            `regard.load` or it returned. A decoder or an encoder.
        text: of at most 4,096 tokens.
        beside: another one, shown beside it on the same text.
        out: the new HTML file.
        device, trust: of models that are loaded here, as `regard.load`.
        tell: called with lines about the progress.

    Returns:
        `page`, `bytes`, and `models`: of each its name, tokens, tokens in a block, and layers with `mechanism`,
        `reason` (None, or why there is no matrix) and `heads`: distance in tokens, entropy in nats, effective_keys, and
        pairs of query, key and weight.

    Raises:
        ConfigError: `out` exists; a model without text.
        UnsupportedError: an encoder-decoder, a model with a memory, or one that reads tokens for its sentences.
        InputError: a text without a token. LimitError: one that is too long.

    Example:
        >>> explore("runs/001", "The state of the Union", out="union.html")  # doctest: +SKIP
    """
    out = Path(out)
    require_target(out, new=True)
    chosen = [model] if beside is None else [model, beside]
    subjects = [_subject(each, text, device=device, trust=trust) for each in chosen]
    shown, found = list[dict[str, Any]](), list[dict[str, Any]]()
    for subject in subjects:
        tell(f"{subject.name}: {len(subject.pieces):,} tokens")
        mechanisms = subject.model.mechanisms
        causal = all(each.heads.causal and not each.info.leaks for each in mechanisms)
        heads = sum(each.heads.count for each in mechanisms)
        block = _block(len(subject.pieces), heads, causal=causal, models=len(subjects))
        maps = attention_maps(subject.model, subject.ids, block=block, pairs=PAIRS, tell=tell)
        shown.append(_shown(subject, block, maps))
        found.append(_numbers(subject, block, maps))
    page = render(shown)
    write_text(out, page)
    return {"page": str(out), "bytes": len(page.encode()), "models": found}


def render(models: Sequence[dict[str, Any]]) -> str:
    """The page, of what `explore` makes of its models."""
    content = json.dumps(models, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return _page.render("explore.html", {"names": [each["name"] for each in models], "models": content})


def _subject(given: Explorable, text: str, *, device: str, trust: bool) -> _Subject:
    """A loaded network with the text in its tokens.

    Raises:
        ConfigError, UnsupportedError, InputError, LimitError: as `explore`.
    """
    if isinstance(given, str | Path):
        name, given = str(given), load(given, device=device, trust=trust)
    else:
        name = given.path.name
    network: Any = given.model
    if isinstance(network, EncoderDecoder):
        raise UnsupportedError(f"{name} is an encoder-decoder; explore shows decoders and encoders")
    network = network if isinstance(network, LanguageModel) else getattr(network, "encoder", network)
    if not isinstance(network, LanguageModel | Encoder):
        raise UnsupportedError(f"{name} is a {type(network).__name__}; explore shows decoders and encoders")
    if isinstance(given, TrainedModel):
        ids, pieces = _read(given, text)
    else:
        ids = given.reader.encode(text)
        pieces = _published_pieces(given.reader, ids)
    if not len(ids):
        raise InputError("the text has no token: give some text")
    if isinstance(network, Encoder) and network.config.cls_token:
        pieces = ("[cls]", *pieces)
    if len(pieces) > MOST_TOKENS:
        raise LimitError(f"{name} reads the text as {len(pieces):,} tokens, and a page shows at most {MOST_TOKENS:,}")
    return _Subject(name, network, ids, pieces)


def _read(run: TrainedModel, text: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A text as a run reads one."""
    task, tokenizer = run.config.task, run.tokenizer
    if tokenizer is None:
        raise ConfigError(f"{run.path} was trained on {task.name} without text, and explore reads one")
    ids = tokenizer.encode(text)
    if isinstance(task, MaskedConfig | ClassificationConfig) and task.summaries:
        raise UnsupportedError(
            f"{run.path} reads tokens for its sentences (summaries={task.summaries}), which explore does not make"
        )
    if isinstance(tokenizer, pretrained.PretrainedTokenizer):
        return ids, _published_pieces(tokenizer, ids)
    assert isinstance(tokenizer, Tokenizer)
    if len(ids) and isinstance(task, ClassificationConfig):
        ids = np.concatenate([[tokenizer.separator], ids])  # as its examples begin
    return ids, tuple(_piece(tokenizer, int(token)) for token in ids)


def _piece(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; bytes that are a part of a character, and the separator, in hexadecimal."""
    data = tokenizer.to_bytes([token])
    try:
        return data.decode() if data != b"\0" else "\\x00"
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)


def _published_pieces(reader: pretrained.PretrainedTokenizer, ids: Int64[np.ndarray, " length"]) -> tuple[str, ...]:
    """Tokens as text, special ones by their names."""
    names = {each["id"]: str(each["content"]) for each in json.loads(reader.to_json())["model"].get("added_tokens", [])}
    return tuple(
        names.get(token) or reader.continuation([token], ids[:at]) or f"[{token}]"
        for at, token in enumerate(ids.tolist())
    )


def _block(length: int, heads: int, *, causal: bool, models: int) -> int:
    """Tokens in a block: 1, or so many that the pictures of all heads stay within what a page may have."""
    for block in range(1, length):
        count = -(-length // block)
        cells = count * (count + 1) // 2 if causal else count * count
        if count <= _MOST_BLOCKS and heads * (cells + 4 * count) <= _CELL_BYTES // models:
            return block
    return length


def _numbers(subject: _Subject, block: int, maps: Sequence[LayerMaps | NoMaps]) -> dict[str, Any]:
    """A model in numbers."""
    layers = list[dict[str, Any]]()
    for at, layer in enumerate(maps):
        heads = list[dict[str, Any]]()
        for head in range(len(layer.cells) if isinstance(layer, LayerMaps) else 0):
            assert isinstance(layer, LayerMaps)
            pairs = [{"query": i, "key": j, "weight": weight} for i, j, weight in layer.pairs[head]]
            facts = {name: float(getattr(layer, name)[head]) for name in ("distance", "entropy", "effective_keys")}
            heads.append({**facts, "pairs": pairs})
        reason = layer.reason if isinstance(layer, NoMaps) else None
        layers.append({"layer": at, "mechanism": layer.mechanism, "reason": reason, "heads": heads})
    return {"name": subject.name, "tokens": list(subject.pieces), "block": block, "layers": layers}


def _shown(subject: _Subject, block: int, maps: Sequence[LayerMaps | NoMaps]) -> dict[str, Any]:
    """A model as its page has it: as `_numbers`, with short numbers, and cells as bytes."""
    layers = list[dict[str, Any]]()
    for layer in maps:
        if isinstance(layer, NoMaps):
            layers.append({"mechanism": layer.mechanism, "reason": layer.reason})
            continue
        heads = [
            {
                "cells": base64.b64encode(packed(cells, causal=layer.causal)).decode(),
                "distance": round(float(layer.distance[head]), 2),
                "entropy": round(float(layer.entropy[head]), 3),
                "keys": round(float(layer.effective_keys[head]), 2),
                "pairs": [[i, j, float(f"{weight:.4g}")] for i, j, weight in layer.pairs[head]],
            }
            for head, cells in enumerate(layer.cells)
        ]
        layers.append({"mechanism": layer.mechanism, "causal": layer.causal, "heads": heads})
    pieces = [piece if len(piece) <= _PIECE else piece[: _PIECE - 1] + "…" for piece in subject.pieces]
    return {"name": subject.name, "tokens": pieces, "block": block, "layers": layers}


def packed(cells: Float32[np.ndarray, "blocks blocks"], *, causal: bool) -> bytes:
    """The largest |x| of each row as float32, then each row as signed bytes: 127 sign(x) sqrt(|x| / largest).

    Causal: of row r only the first r + 1 cells. Under the root an eighth of a percent of the largest weight of a row
    still differs from 0 by more than 4 steps.

    Example:
        >>> packed(np.array([[0.5, 0.0], [0.1, -0.4]], np.float32), causal=True)[8:].hex()
        '7f4081'
    """
    largest = np.abs(cells).max(1, initial=0.0).astype("<f4")
    share = cells / np.where(largest > 0, largest, 1)[:, None]
    steps = np.rint(127 * np.sign(share) * np.sqrt(np.abs(share))).astype(np.int8)
    rows = steps[np.tril_indices(len(steps))] if causal else steps
    return largest.tobytes() + rows.tobytes()
