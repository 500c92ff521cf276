"""Continue a text with a trained run, streaming what is generated."""

import io
import sys
from dataclasses import dataclass
from typing import Literal

import tyro

from regard.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """What to continue, and how."""

    run: tyro.conf.Positional[str]
    """directory of a run"""
    prompt: tyro.conf.Positional[str]
    """the text to continue; - reads standard input"""
    max_new_tokens: int = 200
    """most new tokens"""
    temperature: float = 0.8
    """0: always the likeliest token"""
    top_k: int | None = None
    """only the k likeliest tokens"""
    top_p: float | None = None
    """only the likeliest tokens that together have this probability"""
    seed: int = 0
    """of the draws"""
    stop: tuple[str, ...] = ()
    """texts that end the continuation"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu"""


def run(options: Options) -> int:
    """Write the prompt's continuation to stdout as it comes, in UTF-8 whatever the locale."""
    from regard.models.generate import stream
    from regard.training import load

    for text in (sys.stdin, sys.stdout):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(encoding="utf-8", errors="surrogateescape" if text is sys.stdin else "strict")
    loaded = load(options.run, device=options.device)
    if loaded.tokenizer is None:
        raise ConfigError(f"{options.run} was trained on {loaded.config.task.name}, which has no text to continue")
    for piece in stream(
        loaded.model,
        [sys.stdin.read() if options.prompt == "-" else options.prompt],
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop=options.stop,
        tokenizer=loaded.tokenizer,
    ):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0
