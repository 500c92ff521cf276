"""Exits with a calibrated threshold, kept in a folder beside a run or published weights."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from regard.core.errors import CheckpointError, ConfigError, UnsupportedError
from regard.files import checksums
from regard.files.folders import load_folder, save_folder
from regard.files.writing import require_target
from regard.models import LanguageModel
from regard.models.depth import Depth
from regard.models.depth.early_exit import EarlyExit
from regard.models.depth.light_exit import LightExit
from regard_lab.benchmark.exits import Measured, exits_of
from regard_lab.calibration import Calibrated
from regard_lab.retrieval.documents import fingerprint
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus
from regard_lab.training.exit_heads import require_leavable

HeadsKind = Literal["trained", "own", "light"]
"""of exits: those that a run was trained with; the model's own output layer behind every block; fitted light heads"""
FOLDER = "exits"
"""of a run, where its calibration is kept"""
DOCUMENT, WEIGHTS = "calibration.json", "heads.safetensors"
FORMAT = 1


def own_exits(model: LanguageModel) -> EarlyExit:
    """Exits behind every block of a decoder that has none, through its own last norm and output layer.

    Raises:
        UnsupportedError: `require_leavable`.
    """
    require_leavable(model)
    return EarlyExit(model.config, whole=1).to(model.table.weight).eval()


def put(model: LanguageModel, depth: Depth) -> None:
    """Let the model be run by another scheme."""
    model.depth = depth.train(model.training)
    model.embeddings.coordinates = depth.places


def document(
    found: Calibrated, measured: Measured, *, heads: HeadsKind, loss: str, promise: str, origin: Mapping[str, object]
) -> dict[str, Any]:
    """A calibration as plain data, with the curve that reports draw.

    Args:
        found: what was calibrated, on what was `measured`.
        heads: of the exits.
        loss: name of the loss.
        promise: the guarantee in one sentence.
        origin: where the passages are from, and the fingerprint of the model as `model`.
    """
    curve = [
        {
            "threshold": threshold,
            "loss": float(measured.losses[:, at].mean()),
            "p_value": found.p_values[at],
            "layers": float(measured.layers[:, at].mean()),
            "right": float(measured.right[:, at].mean()),
            "nats": float(measured.nats[:, at].mean()),
            "exits": measured.exits[at].tolist(),
        }
        for at, threshold in enumerate(measured.thresholds)
    ]
    full = {"right": float(measured.full_right.mean()), "nats": float(measured.full_nats.mean())}
    layers = measured.exits.shape[1]
    return {
        "format": FORMAT,
        "heads": heads,
        "loss": loss,
        "guarantee": promise,
        "calibrated": {name: value for name, value in asdict(found).items() if name not in ("risks", "p_values")},
        "layers": layers,
        "full": full,
        "curve": curve,
        **origin,
    }


def save(folder: Path, calibration: Mapping[str, Any], depth: Depth) -> None:
    """Write a new folder: the calibration, sealed, and the weights of light heads; all of it with checksums.

    Raises:
        ConfigError: it exists. ResourceError: it cannot be written; nothing of it is left.
    """
    require_target(folder, folder=True, new=True)
    files = {DOCUMENT: (json.dumps(checksums.sealed(calibration), indent=1) + "\n").encode()}
    if isinstance(depth, LightExit):
        files[WEIGHTS] = safetensors.torch.save({name: x.contiguous() for name, x in depth.state_dict().items()})
    save_folder(folder, files)


def stored(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The calibration of a folder and the weights of its light heads, verified.

    Raises:
        ConfigError: there is no such folder. CheckpointError: damaged, or of another version.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no calibration in {folder}; regard calibrate makes one")
    files = load_folder(folder)
    try:
        found = checksums.opened(files.get(DOCUMENT, b""))
        weights = safetensors.torch.load(files[WEIGHTS]) if WEIGHTS in files else {}
    except (ValueError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: {error}") from None
    if found.get("format") != FORMAT:
        raise CheckpointError(f"{folder} is of another version of regard; remove it and calibrate again")
    return found, weights


def install(model: LanguageModel, folder: Path) -> dict[str, Any]:
    """Give a model its calibrated exits; without a certified threshold they let no token leave.

    Returns:
        The calibration.

    Raises:
        ConfigError, CheckpointError: as `stored`; a calibration of another model.
        UnsupportedError: weights of 8 bits, or a cache that does not keep everything, of which it promises nothing.
    """
    if model.packed or any(layer.cache is not None for layer in model.layers):
        raise UnsupportedError(
            "a calibration is of a model with weights as they are and everything kept of the text; load this one "
            "without weights=int8, and do not reduce its cache"
        )
    found, weights = stored(folder)
    if found["model"] != fingerprint(model):
        raise CheckpointError(
            f"{folder} was calibrated for other weights than these, for which it promises nothing; remove it and "
            "calibrate again"
        )
    threshold = found["calibrated"]["threshold"]
    if found["heads"] == "light":
        depth = LightExit(model.config).to(model.table.weight)
        try:
            depth.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(f"{folder}: {WEIGHTS} are no heads of this model: {error}") from None
        put(model, depth)
    elif found["heads"] == "own":
        put(model, own_exits(model))
    exits_of(model).threshold = 1.0 if threshold is None else float(threshold)
    return found


def text_facts(text: TextConfig, split: str | None) -> dict[str, Any]:
    """What is kept of the text that passages are drawn from, by which it is known again.

    Args:
        text: the corpus, and how it is cut.
        split: part of it; None: all.
    """
    cut = {name: getattr(text, name) for name in ("holdout", "field", "separator")}
    return {"fingerprint": open_corpus(text).fingerprint(), "split": split, **cut}


def shares(calibration: Mapping[str, Any], text: TextConfig, split: str | None) -> bool | None:
    """Whether a text may hold passages that a calibration was measured on; None: it does not say.

    The files are the same, whatever they are called, and it is not another part of the same cut.
    """
    kept = calibration.get("corpus")
    if kept is None:
        return None
    here = text_facts(text, split)
    cut = all(here[name] == kept[name] for name in here if name not in ("fingerprint", "split"))
    apart = cut and None not in (split, kept["split"]) and split != kept["split"]
    return here["fingerprint"] == kept["fingerprint"] and not apart
