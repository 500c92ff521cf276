"""Continue a text, streaming; translate, classify or fill in masks, whatever the run was trained on."""

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import tyro

from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.models import LanguageModel
    from regard.models.generate import Tokenizer
    from regard.training import Loaded


@dataclass(frozen=True)
class Options:
    """What to read, and what to make of it."""

    run: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, or package:NAME"""
    prompt: tyro.conf.Positional[str]
    """the text to continue, classify, or fill in (masked: with [MASK] for every hidden token); the sentences to
    translate, one a line; - reads standard input"""
    max_new_tokens: int | None = None
    """most new tokens; None: 200, or for translations as many as the run was trained on"""
    temperature: float | None = None
    """continuing: 0 is always the likeliest token; None: 0.8"""
    top_k: int | None = None
    """continuing: only the k likeliest tokens"""
    top_p: float | None = None
    """continuing: only the likeliest tokens that together have this probability"""
    seed: int | None = None
    """continuing: of the draws; None: 0"""
    stop: tuple[str, ...] = ()
    """continuing: texts that end it"""
    beam: int | None = None
    """translating: partial translations kept at every step; None: 4"""
    length_penalty: float | None = None
    """translating: exponent of the length that log-probabilities are divided by; None: 0.6"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: cuda, else mps, else cpu"""


_SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop")
_LINES = 16
_BEAM = ("max_new_tokens", "beam", "length_penalty")


def run(options: Options) -> int:
    """Write what the model makes of the prompt to stdout, in UTF-8 whatever the locale."""
    for text in (sys.stdin, sys.stdout):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(encoding="utf-8", errors="surrogateescape" if text is sys.stdin else "strict")
    from regard.integrations import pretrained

    if pretrained.recognised(options.run):
        published = pretrained.load(options.run, device=options.device)
        return _continue(options, published.decoder, published.reader, published.stop_tokens)
    from regard.models import LanguageModel
    from regard.training import load

    loaded = load(options.run, device=options.device)
    task = loaded.config.task.name
    if task == "translation":
        return _translate(options, loaded)
    if task == "classification":
        return _classify(options, loaded)
    if task == "masked":
        return _fill(options, loaded)
    if loaded.tokenizer is None or not isinstance(loaded.model, LanguageModel):
        raise ConfigError(f"{options.run} was trained on {task}, which has no text to continue")
    return _continue(options, loaded.model, loaded.tokenizer, ())


def _continue(options: Options, model: "LanguageModel", tokenizer: "Tokenizer", stop_tokens: tuple[int, ...]) -> int:
    """The continuation of the prompt, as it comes."""
    from regard.models.generate import stream

    _only(options, *_SAMPLING, does="continues text")
    for piece in stream(
        model,
        [_prompt(options)],
        max_new_tokens=200 if options.max_new_tokens is None else options.max_new_tokens,
        temperature=0.8 if options.temperature is None else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=0 if options.seed is None else options.seed,
        stop=options.stop,
        stop_tokens=stop_tokens,
        tokenizer=tokenizer,
    ):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def _translate(options: Options, loaded: "Loaded") -> int:
    """A line for every line, as many at a time as share a batch."""
    from regard.training.loaded import BEAMS, LENGTH_PENALTY

    _only(options, *_BEAM, does="translates")
    lines = _prompt(options).splitlines() or [""]
    for first in range(0, len(lines), _LINES):
        translated = loaded.translate(
            lines[first : first + _LINES],
            beams=BEAMS if options.beam is None else options.beam,
            length_penalty=LENGTH_PENALTY if options.length_penalty is None else options.length_penalty,
            max_new_tokens=options.max_new_tokens,
            batch_size=_LINES,
        )
        print("\n".join(translated), flush=True)
    return 0


def _classify(options: Options, loaded: "Loaded") -> int:
    """A line for every class: its probability and its name, the most probable one first."""
    _only(options, does="classifies")
    if loaded.tokenizer is None:
        raise ConfigError(
            f"{options.run} was trained on images, which are no text: use regard evaluate, or in Python "
            f"regard.load({options.run!r}).classify(image)"
        )
    for name, probability in loaded.classify(_prompt(options)).items():
        print(f"{probability:.4f}\t{name}")
    return 0


def _fill(options: Options, loaded: "Loaded") -> int:
    """The prompt with its masks filled in."""
    _only(options, does="fills in masks")
    sys.stdout.write(loaded.fill(_prompt(options)).rstrip("\n") + "\n")
    return 0


def _prompt(options: Options) -> str:
    return sys.stdin.read() if options.prompt == "-" else options.prompt


def _only(options: Options, *allowed: str, does: str) -> None:
    """Refuse options of another task: ignored, they would look like they worked."""
    for name in dict.fromkeys((*_SAMPLING, *_BEAM)):
        if name not in allowed and getattr(options, name) not in (None, ()):
            raise ConfigError(f"{options.run} {does}: --{name.replace('_', '-')} has no use for it; leave it out")
