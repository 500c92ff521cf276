"""Continue a text, streaming; translate, classify, fill in masks, draw images or converse, as the model was trained."""

import io
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from regard.core.errors import ConfigError, InputError
from regard_lab.cli._batch import AT_A_TIME, Prompt, answer, continued, prompts, told
from regard_lab.cli._cache import reduce
from regard_lab.cli._datastore import KnnOptions, looked_up, mixing, require_datastore
from regard_lab.cli._depth import leave_early, machine, require_as_measured
from regard_lab.cli._options import Device, Ignore, Trust
from regard_lab.cli._output import weights_of, will_write, write

if TYPE_CHECKING:
    from regard.integrations.pretrained import PublishedModel
    from regard.models import LanguageModel
    from regard.models.continuing import Continuing
    from regard.text.reader import Reader
    from regard_lab.training import TrainedModel


@dataclass(frozen=True)
class Options:
    """The run, its prompt, and how the output is made."""

    run: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, what `pretrained.save`
    wrote, or package:NAME"""
    prompt: tyro.conf.Positional[str | None] = None
    """the text to continue, classify, or fill in (masked: with [MASK] for every hidden token); the sentences to
    translate, one a line; - reads standard input; nothing for images"""
    batch: str | None = None
    """instead of a prompt, a file with one on every line; - reads standard input. Every answer is a line of JSON"""
    chat: bool = False
    """published instruct weights: a conversation, a line for what you say; Ctrl-D ends it"""
    system: str | None = None
    """with --chat: what the model is told first; None: what its template says"""
    max_new_tokens: int | None = None
    """most new tokens; None: 200, or for translations as many as the run was trained on"""
    temperature: float | None = None
    """continuing and drawing: 0 is always the likeliest; 1 unless given"""
    top_k: int | None = None
    """continuing and drawing: only the k likeliest"""
    top_p: float | None = None
    """continuing and drawing: only the likeliest that together have this probability"""
    seed: int | None = None
    """continuing and drawing: of the draws; None: 0"""
    stop: tuple[str, ...] = ()
    """continuing: texts that end it"""
    beam: int | None = None
    """translating: partial translations kept at every step; None: 4"""
    length_penalty: float | None = None
    """translating: exponent of the length that log-probabilities are divided by; None: 0.6"""
    out: str | None = None
    """drawing: the .png file to write, which must not exist"""
    count: int | None = None
    """drawing: images; None: 16"""
    complete: bool = False
    """drawing: the upper half of held-out images is given. The file then has three rows: what is given, what was drawn,
    the images themselves; so it has after super_resolution"""
    attention: str | None = None
    """published weights: attention of every layer instead of theirs, such as local(window=256)"""
    max_length: int | None = None
    """published weights: positions instead of as many as they have; a position table repeats its rows"""
    weights: Literal["int8"] | None = None
    """continuing: int8 keeps the weights at 8 bits, which a token reads in less time; on --device cpu"""
    cache: str | None = None
    """continuing: policy for what every layer keeps of the text, such as h2o(budget=256), see regard list; None: all"""
    lookup: int | None = None
    """continuing with --temperature 0: guess up to so many tokens at a time, those that followed the last ones earlier
    in the text, and check them in one call: the same text in fewer calls; None: no guesses"""
    datastore: str | None = None
    """continuing: also look every token up in this folder of regard knn build; None, of a run that mixes neighbours in:
    that of its training"""
    knn: KnnOptions = field(default_factory=KnnOptions)
    exits: str | None = None
    """continuing: leave early by the threshold of regard calibrate: calibrated is what the run keeps, else a folder"""
    json: bool = False
    """continuing one prompt: machine output on stdout, with the blocks of every token where a depth decides them"""
    device: Device = "auto"
    trust: Trust = False
    ignore: Ignore = ()


_SAMPLING_OPTIONS = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop")
_CONTINUING_OPTIONS = (*_SAMPLING_OPTIONS, "weights", "datastore", "cache", "lookup", "exits", "json")
_DRAWING_OPTIONS = ("temperature", "top_k", "top_p", "seed", "out", "count", "complete")
_BEAM_OPTIONS = ("max_new_tokens", "beam", "length_penalty")


def run(options: Options) -> int:
    """Write what the model makes of the prompt to stdout, in UTF-8 whatever the locale."""
    for text in (sys.stdin, sys.stdout):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(encoding="utf-8", errors="surrogateescape" if text is sys.stdin else "strict")
    if options.system is not None and not options.chat:
        raise ConfigError("--system goes with --chat; leave it out, or write it into the prompt")
    will_write(options.out, new=True)
    if options.batch is not None and (options.prompt is not None or options.chat):
        beside = "--chat" if options.chat else repr(options.prompt)
        raise ConfigError(f"--batch {options.batch} has the prompts; leave {beside} out")
    if options.chat and options.json:
        raise ConfigError("--json is for one prompt; leave it out of --chat")
    if options.knn.own or (options.chat and options.datastore is not None):
        given = "--knn.own" if options.knn.own else "--chat"
        raise ConfigError(f"--datastore looks up what continues a text: {given} has no use for it; leave one out")
    require_as_measured(options.exits, weights=options.weights, cache=options.cache, datastore=options.datastore)
    with weights_of(options.run):
        return _written(options)


def _written(options: Options) -> int:
    from regard.integrations import pretrained

    if pretrained.recognised(options.run):
        if options.datastore is None:
            require_datastore(options.knn)
        published = pretrained.load(
            options.run,
            device=options.device,
            attention=options.attention,
            max_length=options.max_length,
            weights=options.weights or "float32",
            trust=options.trust,
            ignore=options.ignore,
        )
        if options.exits is not None:
            leave_early(published.decoder, options.exits, options.run, published=True)
        if options.chat:
            return _converse(options, published)
        model = _beside(options, published.decoder, published.reader)
        return _continue(options, model, published.reader, published.stop_tokens)
    from regard.models import LanguageModel
    from regard_lab.training import load

    loaded = load(options.run, device=options.device, trust=options.trust)
    if options.chat:
        raise ConfigError(f"{options.run} is a run, and no run is trained to converse: --chat is for published weights")
    for name in ("attention", "max_length"):
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"{options.run} is a run, whose model is as trained: --{flag} is for published weights")
    task = loaded.config.task.name
    mixes = isinstance(loaded.model, LanguageModel) and loaded.model.config.neighbours > 0
    if options.datastore is None and not mixes:
        require_datastore(options.knn)
    if task == "translation":
        return _translate(options, loaded)
    if task == "classification":
        return _classify(options, loaded)
    if task == "masked":
        return _fill(options, loaded)
    if loaded.grid is not None:
        return _draw(options, loaded)
    if loaded.tokenizer is None or not isinstance(loaded.model, LanguageModel):
        raise ConfigError(f"{options.run} was trained on {task}, which has no text to continue")
    if options.exits is not None:
        leave_early(loaded.model, options.exits, options.run, published=False)
    if options.weights is not None:
        from regard.models.packed import pack

        pack(loaded.model)
    model = _beside(options, loaded.model, loaded.tokenizer, loaded if mixes else None)
    return _continue(options, model, loaded.tokenizer, loaded.stop_tokens)


def _beside(
    options: Options, model: "LanguageModel", tokenizer: "Reader", loaded: "TrainedModel | None" = None
) -> "LanguageModel | Continuing":
    """The model with its cache reduced and a datastore beside it; `loaded`: the run of one that mixes neighbours in."""
    reduce(model, options.cache)
    if loaded is not None:
        from regard_lab.retrieval import Spalm

        found = mixing(options, loaded)
        return Spalm(model, found).eval()
    if options.datastore is not None:
        return looked_up(options.datastore, options.knn, model, tokenizer)
    return model


def _continue(
    options: Options, model: "LanguageModel | Continuing", tokenizer: "Reader", stop_tokens: tuple[int, ...]
) -> int:
    """The continuation of the prompt, as it comes; of every prompt of a batch, when it is whole."""
    from regard.models.generate import stream

    sampling = _sampling(options, does="continues text")
    decoder: Any = getattr(model, "model", model)  # what a datastore stands beside
    if options.batch is not None and options.json:
        raise ConfigError("--batch writes lines of JSON; --json is for one prompt: leave it out")
    if options.lookup is not None:
        if options.temperature != 0:
            raise ConfigError(f"--lookup {options.lookup} guesses the likeliest tokens; add --temperature 0")
        sampling["lookup"] = options.lookup
    if options.batch is None:
        prompt = _prompt(options)
        pieces = stream(model, [prompt], stop_tokens=stop_tokens, tokenizer=tokenizer, **sampling)
        if options.json:
            machine(prompt, pieces, decoder.depth.most)
            return 0
        for piece in pieces:
            write(piece.text)
        write("\n")
        return 0
    given, ids = _prompts(options), []
    for prompt in given:
        with told(prompt.where):
            ids.append(tokenizer.encode(prompt.text))
            if not len(ids[-1]):
                raise InputError("the tokenizer makes no token of it, and a model continues at least one")
    longest = max(range(len(ids)), key=lambda row: len(ids[row]))
    with told(given[longest].where):
        pieces = stream(model, ids, stop_tokens=stop_tokens, tokenizer=tokenizer, batch_size=AT_A_TIME, **sampling)
    continued(given, pieces)
    return 0


def _sampling(options: Options, *, does: str) -> dict[str, Any]:
    """Options of what continues text."""
    from regard.models.sampling import Sampling

    _only(options, *_CONTINUING_OPTIONS, does=does)
    return {
        "max_new_tokens": 200 if options.max_new_tokens is None else options.max_new_tokens,
        "temperature": Sampling().temperature if options.temperature is None else options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "seed": 0 if options.seed is None else options.seed,
        "stop": options.stop,
    }


def _converse(options: Options, published: "PublishedModel") -> int:
    """A reply for every line."""
    from regard_lab.cli._chat import converse

    if options.prompt is not None:
        raise ConfigError(f"--chat reads what you say line by line; leave {options.prompt!r} out")
    if options.lookup is not None:
        raise ConfigError("--lookup continues one text: --chat has no use for it; leave one out")
    reduce(published.decoder, options.cache)
    return converse(published, options.system, _sampling(options, does="converses"))


def _translate(options: Options, loaded: "TrainedModel") -> int:
    """A line for every line, as many at a time as share a batch."""
    from regard_lab.training.trained_model import BEAMS, LENGTH_PENALTY

    _only(options, *_BEAM_OPTIONS, does="translates")
    if options.batch is None:
        texts = _prompt(options).removesuffix("\n").split("\n")  # str.splitlines also cuts at U+2028 and others
        given = [Prompt(f"line {number}", text) for number, text in enumerate(texts, 1)]
    else:
        given = _prompts(options)
    for prompt in given:
        if not prompt.text.strip():
            raise InputError(f"{prompt.where} is empty: give some text, a sentence in every line")
    for first in range(0, len(given), AT_A_TIME):
        some = given[first : first + AT_A_TIME]
        with told(f"lines {first + 1} to {first + len(some)}"):
            translated = loaded.translate(
                [prompt.text for prompt in some],
                beams=BEAMS if options.beam is None else options.beam,
                length_penalty=LENGTH_PENALTY if options.length_penalty is None else options.length_penalty,
                max_new_tokens=options.max_new_tokens,
                batch_size=AT_A_TIME,
            )
        for prompt, text in zip(some, translated, strict=True):
            if options.batch is None:
                write(f"{text}\n")
            else:
                answer(prompt, text=text)
    return 0


def _classify(options: Options, loaded: "TrainedModel") -> int:
    """A line for every class: its probability and its name, the most probable one first."""
    _only(options, does="classifies")
    if loaded.tokenizer is None:
        raise ConfigError(
            f"{options.run} was trained on images, which are no text: use regard evaluate, or in Python "
            f"regard.load({options.run!r}).classify(image)"
        )
    if options.batch is not None:
        for prompt in _prompts(options):
            with told(prompt.where):
                answer(prompt, classes=loaded.classify(prompt.text))
        return 0
    for name, probability in loaded.classify(_prompt(options)).items():
        write(f"{probability:.4f}\t{name}\n")
    return 0


def _fill(options: Options, loaded: "TrainedModel") -> int:
    """The prompt with its masks filled in."""
    _only(options, does="fills in masks")
    if options.batch is not None:
        for prompt in _prompts(options):
            with told(prompt.where):
                answer(prompt, text=loaded.fill(prompt.text))
        return 0
    write(loaded.fill(_prompt(options)).rstrip("\n") + "\n")
    return 0


def _draw(options: Options, loaded: "TrainedModel") -> int:
    """A PNG file of new images, or of held-out ones drawn from a part of each."""
    import numpy as np

    from regard.files.folders import save_file
    from regard.models.sampling import Sampling
    from regard_lab.report.png import png, tiled
    from regard_lab.tasks import ImagesTask, SuperResolutionTask, build_task
    from regard_lab.tasks.pixels import reduced
    from regard_lab.training.evaluation import measured

    _only(options, *_DRAWING_OPTIONS, does="draws images")
    out, count = options.out, 16 if options.count is None else options.count
    for given in (options.prompt, options.batch):
        if given is not None:
            raise ConfigError(f"{options.run} draws images and reads no text; leave {given!r} out")
    if out is None or not out.endswith(".png"):
        raise ConfigError(f"{options.run} draws images: say where with --out grid.png")
    if count < 1:
        raise ConfigError(f"--count must be at least 1, got {count}")
    task = None
    if options.complete or loaded.config.task.name == SuperResolutionTask.name:
        task = build_task(loaded.config.task)
        assert isinstance(task, ImagesTask)
    upper = small = images = shown = None
    if task is not None:
        examples = task.examples("valid")
        if count > len(examples):
            raise ConfigError(f"--count is at most the {len(examples)} held-out images of {options.run}, got {count}")
        images = examples.images[measured(len(examples), count)]
        shown = np.full_like(images, 255)
        if task.factor > 1:
            small = reduced(images, task.factor)
            shown = small.repeat(task.factor, 1).repeat(task.factor, 2)
        if options.complete:
            upper = images[:, : task.grid.height // 2]
            shown[:, : upper.shape[1]] = upper
    drawn = loaded.draw(
        count,
        upper=upper,
        small=small,
        temperature=Sampling().temperature if options.temperature is None else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=0 if options.seed is None else options.seed,
    )
    columns = math.ceil(math.sqrt(len(drawn)))
    if images is not None and shown is not None:
        drawn, columns = np.concatenate([shown, drawn, images]), len(drawn)
    save_file(Path(out), png(tiled(drawn, columns, zoom=max(1, 112 // drawn.shape[1]))))
    print(out)
    return 0


def _prompt(options: Options) -> str:
    if options.prompt is None:
        raise ConfigError(f"{options.run} reads text: give it after the run, or - for standard input")
    return sys.stdin.read() if options.prompt == "-" else options.prompt


def _prompts(options: Options) -> list[Prompt]:
    assert options.batch is not None
    return prompts(options.batch, sys.stdin.buffer if options.batch == "-" else ())


def _only(options: Options, *allowed: str, does: str) -> None:
    """Refuse options of another task: ignored, they would look like they worked."""
    for name in dict.fromkeys((*_CONTINUING_OPTIONS, *_BEAM_OPTIONS, *_DRAWING_OPTIONS)):
        if name not in allowed and getattr(options, name) not in (None, (), False):
            raise ConfigError(f"{options.run} {does}: --{name.replace('_', '-')} has no use for it; leave it out")
