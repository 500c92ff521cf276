"""Continue a text with a trained run or published weights, streaming what is generated."""

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import tyro

from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.models import LanguageModel
    from regard.models.generate import Tokenizer


@dataclass(frozen=True)
class Options:
    """What to continue, and how."""

    run: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, or package:NAME"""
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

    for text in (sys.stdin, sys.stdout):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(encoding="utf-8", errors="surrogateescape" if text is sys.stdin else "strict")
    model, tokenizer, stop_tokens = _opened(options)
    for piece in stream(
        model,
        [sys.stdin.read() if options.prompt == "-" else options.prompt],
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop=options.stop,
        stop_tokens=stop_tokens,
        tokenizer=tokenizer,
    ):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def _opened(options: Options) -> "tuple[LanguageModel, Tokenizer, tuple[int, ...]]":
    """The model, what reads and writes its text, and the tokens that end one."""
    from regard.integrations import pretrained

    if pretrained.recognised(options.run):
        published = pretrained.load(options.run, device=options.device)
        return published.decoder, published.reader, published.stop_tokens
    from regard.training import load

    loaded = load(options.run, device=options.device)
    if loaded.tokenizer is None:
        raise ConfigError(f"{options.run} was trained on {loaded.config.task.name}, which has no text to continue")
    return loaded.model, loaded.tokenizer, ()
