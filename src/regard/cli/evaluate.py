"""Evaluate a trained run: nats per token, bits per byte, accuracy."""

from dataclasses import dataclass, replace
from typing import Literal

import tyro

from regard.cli._output import console, emit, table
from regard.errors import ConfigError
from regard.tasks.config import TextConfig


@dataclass(frozen=True)
class Options:
    """What to evaluate, and on what."""

    run: tyro.conf.Positional[str]
    """directory of a run"""
    split: Literal["train", "valid", "test"] = "valid"
    """which part of the data"""
    corpus: str | None = None
    """other text than the run's: a bundled corpus, a .txt or .jsonl file, or a folder of .txt files"""
    limit: int = 0
    """as many examples, evenly spaced; 0: all"""
    batch_size: int = 16
    """examples at a time"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu"""
    json: bool = False
    """machine output on stdout, with the sums of every document"""


def run(options: Options) -> int:
    """Evaluate and print."""
    from regard.training import evaluate, load

    loaded = load(options.run, device=options.device)
    task = None
    if options.corpus is not None:
        if not isinstance(loaded.config.task, TextConfig):
            raise ConfigError(f"{options.run} was trained on {loaded.config.task.name}, which takes no --corpus")
        task = replace(loaded.config.task, corpus=options.corpus)
    found = evaluate(loaded, task, options.split, batch_size=options.batch_size, limit=options.limit)
    if options.json:
        emit(found)
        return 0
    rows = [
        (key, f"{value:.4f}" if isinstance(value, float) else value)
        for key, value in found.items()
        if key != "documents" and value is not None and not (key == "bytes" and not value)
    ]
    console().print(table("what", "value", rows=rows))
    return 0
