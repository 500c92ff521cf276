"""The results of a comparison as plain data: everything measured, everything concluded, and how to repeat it."""

import json
import os
import platform
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from regard import __version__
from regard.benchmark import sweep
from regard.benchmark.config import FORMAT, CompareConfig
from regard.benchmark.quality import FEW
from regard.benchmark.verdict import Estimate, Sample, Standing, estimates, recommend, ties


@dataclass(frozen=True)
class Expected:
    """What a comparison will take, measured on a few steps of every specification."""

    text_steps: int
    recall_steps: int
    minutes: float
    peak_bytes: int


def assemble(
    config: CompareConfig,
    expected: Expected,
    quality: dict[tuple[str, int, str], dict[str, Any]],
    costs: dict[str, list[dict[str, Any]]],
    baselines: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Everything measured and everything concluded, as plain data."""
    text = {spec: _sample([quality[spec, s, "text"] for s in range(config.seeds)], "bits") for spec in config.specs}
    recall = {spec: _sample([quality[spec, s, "recall"] for s in range(config.seeds)], "hits") for spec in config.specs}
    bits, hits = estimates(text), estimates(recall)
    best_text, text_ties = ties(text, larger_is_better=False)
    best_recall, recall_ties = ties(recall, larger_is_better=True)
    rows = [sweep.Row(**row) for row in costs["fixed"]]
    entries = [_entry(config, spec, quality, bits[spec], hits[spec], rows, costs["default"]) for spec in config.specs]
    standings = [
        Standing(
            entry["spec"],
            entry["text"]["bits_per_byte"]["middle"],
            entry["recall"]["accuracy"]["middle"],
            entry["text"]["tokens_per_second"],
            entry["decode"][-1]["state_bytes"] if entry["decode"] else None,
            {row["length"]: row["seconds"] for row in entry["cost"] if row["kind"] == "both"},
        )
        for entry in entries
    ]
    without = [_baseline(baseline) for baseline in baselines]
    chance = 2 / config.recall.vocab_size
    floor = (without[0]["name"], without[0]["bits_per_byte"]["middle"])
    advice = recommend(standings, text_ties, recall_ties, length=config.text.length, floor=floor, chance=chance)
    return {
        "format": FORMAT,
        "version": __version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "config": json.loads(json.dumps(asdict(config))),
        "expected": asdict(expected),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count(),
            "threads": config.threads,
        },
        "entries": entries,
        "baselines": without,
        "ties": {
            "text": {"best": best_text, "specs": text_ties},
            "recall": {"best": best_recall, "specs": recall_ties},
        },
        "unit": quality[config.specs[0], 0, "text"]["unit"],
        "recall_chance": chance,
        "recommendation": asdict(advice),
        "reproduce": reproduce(config, expected),
    }


def reproduce(config: CompareConfig, expected: Expected) -> str:
    """The command that repeats a comparison: what differs from the defaults, with steps instead of a budget."""
    fixed = replace(config, budget=None, text_steps=expected.text_steps, recall_steps=expected.recall_steps)
    words = ["regard", "compare", *([] if config.specs == CompareConfig().specs else map(shlex.quote, config.specs))]
    words += _flags("--", asdict(fixed), asdict(CompareConfig()))
    return " ".join(words)


def _flags(prefix: str, values: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        if name == "specs" or value == defaults[name]:
            continue
        flag = f"{prefix}{name}".replace("_", "-")
        if isinstance(value, dict):
            words += _flags(f"{prefix}{name}.", value, defaults[name])
        elif isinstance(value, tuple | list):
            words += [flag, *(shlex.quote(str(one)) for one in value)]
        else:
            words.append(shlex.quote(f"{flag}={value}"))  # one word: the value may begin with a dash
    return words


def _sample(jobs: Sequence[dict[str, Any]], kind: str) -> Sample:
    tables = [job["documents"] for job in jobs]
    if kind == "bits":
        top = np.array([table["nats"] for table in tables]) / np.log(2)
        return Sample(top, np.array([table["bytes"] for table in tables], dtype=float))
    return Sample(
        np.array([table["correct"] for table in tables], dtype=float),
        np.array([table["tokens"] for table in tables], dtype=float),
    )


def _entry(
    config: CompareConfig,
    spec: str,
    quality: dict[tuple[str, int, str], dict[str, Any]],
    bits: Estimate,
    hits: Estimate,
    rows: Sequence[sweep.Row],
    default: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    text = [quality[spec, seed, "text"] for seed in range(config.seeds)]
    recall = [quality[spec, seed, "recall"] for seed in range(config.seeds)]
    layers = config.layers(spec)
    own = _stacked(spec, layers, rows)
    exact = _stacked("softmax", ("softmax",) * len(layers), rows)
    defaults = {(row.length, row.kind): row for row in _stacked(spec, layers, [sweep.Row(**row) for row in default])}
    together = [*own, *(replace(row, spec="exact") for row in exact)]
    return {
        "spec": spec,
        "layers": list(layers),
        "parameters": text[0]["parameters"],
        "text": {
            "bits_per_byte": asdict(bits),
            "seeds": [_sample([job], "bits").value for job in text],
            "curves": [job["curve"] for job in text],
            "tokens_per_second": float(np.median([job["tokens_per_second"] for job in text])),
            "peak_bytes": max(job["peak_bytes"] for job in text),
        },
        "recall": {
            "accuracy": asdict(hits),
            "seeds": [_sample([job], "hits").value for job in recall],
            "curves": [job["curve"] for job in recall],
        },
        "cost": [
            {
                **{name: getattr(row, name) for name in ("length", "kind", "seconds", "low", "high")},
                "default_seconds": defaults[row.length, row.kind].seconds
                if (row.length, row.kind) in defaults
                else None,
            }
            for row in own
            if row.kind != "decode"
        ],
        "decode": [
            {"length": row.length, "microseconds": row.seconds * 1e6, "state_bytes": row.state_bytes}
            for row in own
            if row.kind == "decode"
        ],
        "crossover": {
            kind: None if layers == ("softmax",) * len(layers) else sweep.crossover(together, spec, "exact", kind)
            for kind in ("forward", "both")
        },
        "pictures": text[0]["pictures"],
    }


def _stacked(name: str, layers: Sequence[str], rows: Sequence[sweep.Row]) -> list[sweep.Row]:
    """The attention cost of a stack of layers: the sum over its layers, at the lengths that all of them reached."""
    found = {(row.spec, row.length, row.kind): row for row in rows}
    stacked = []
    for length, kind in dict.fromkeys((row.length, row.kind) for row in rows):
        parts = [found.get((layer, length, kind)) for layer in layers]
        here = [part for part in parts if part is not None]
        if len(here) == len(parts):
            sizes = [part.state_bytes for part in here if part.state_bytes is not None]
            stacked.append(
                sweep.Row(
                    name,
                    length,
                    kind,
                    *(sum(getattr(part, field) for part in here) for field in ("seconds", "low", "high")),
                    state_bytes=sum(sizes) if sizes else None,
                )
            )
    return stacked


def _baseline(found: dict[str, Any]) -> dict[str, Any]:
    """An interval is given only where there are enough documents to resample."""
    bits, sizes = (np.array([found["documents"][name]], dtype=float) for name in ("bits", "bytes"))
    if bits.size < FEW:
        value = {"middle": float(bits.sum() / sizes.sum()), "low": None, "high": None}
    else:
        value = asdict(estimates({"it": Sample(bits, sizes)})["it"])
    return {"name": found["name"], "bits_per_byte": value}
