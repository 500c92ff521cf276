"""Options, specifications and configurations that make no sense: named, in time, in little memory."""

import io
import json
import os
import random
import resource
import shlex
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from evidence.campaign import children, inputs, works
from evidence.campaign.log import Outcome

NAME = "fuzz"
BATCH = 25
INPUTS = 20
"""of a case: one child reads them one after the other"""
SECONDS, BYTES = 5.0, 2 << 30
"""of a processor, and of memory, for an input"""
_WORKED = 2
"""seconds after which a command that was accepted is interrupted"""
_CODES = (0, 2, 3, 4, 5, 6, 7, 130)
SHORT = {"commands": 1, "specifications": 3, "configurations": 1}
KINDS = {"commands": 250, "specifications": 450, "configurations": 125}
"""cases of the full form: 16,500 inputs"""
JUDGED: dict[str, int] = {}
BASES: dict[str, Sequence[str]] = {
    words.split()[0]: shlex.split(words)
    for words in (
        f"train {' '.join(works.TINY)} --model.layers 1 --steps 1 --out new --task.corpus in/words.txt "
        "--task.length 16 --task.cache cache",
        "evaluate in/run --limit 2",
        "generate in/run '1 is' --max-new-tokens 2",
        "compare uniform --lengths 32 --out compared --text.corpus in/words.txt",
        "bench softmax --lengths 64 --seconds 0",
        "accuracy linear",
        "capacity linear",
        "rounding linear",
        "retrieval linear",
        "cache in/run --budgets 4",
        "list",
        "info softmax",
        "calibrate in/run --risk 0.5 --passages 20 --length 8",
        "knn stats in/store",
        "explore in/run '1 is' --out page.html",
        "checkpoint list in/run",
        "report in/run",
        "check softmax",
        "doctor",
    )
}
"""good commands, which are changed"""


def cases(kind: str, folder: Path) -> Callable[[int], Outcome]:
    """The cases of a kind."""
    works.write_inputs(folder / "in")
    makers: dict[str, Callable[[Path], Callable[[random.Random], Callable[[], str]]]] = {
        "commands": _commands,
        "specifications": _specifications,
        "configurations": _configurations,
    }
    return partial(_case, kind, makers[kind](folder), folder)


def _case(kind: str, maker: Callable[[random.Random], Callable[[], str]], folder: Path, seed: int) -> Outcome:
    """Inputs of a seed, in a child; what it was at when it died is known from its report."""
    report = folder / "report"
    report.unlink(missing_ok=True)
    place = folder / "place"
    if not place.exists():
        place.mkdir()
        (place / "in").symlink_to(folder / "in")

    def child() -> int:
        with report.open("w", encoding="utf-8", buffering=1) as file:
            for number in range(INPUTS):
                draw = random.Random(f"{kind} {seed} {number}")
                call = maker(draw)
                told = inputs_text(call)
                file.write(json.dumps({"began": told}) + "\n")
                before, peak = time.process_time(), _peak()
                said = _guarded(call)
                took = time.process_time() - before
                file.write(json.dumps({"said": said, "seconds": took, "bytes": max(0, _peak() - peak)}) + "\n")
        return 0

    done = children.call(child, place, memory=BYTES, seconds=300.0)
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    ended = [line for line in lines if "said" in line]
    counts = {"inputs": len(ended), **_tally(line["said"] for line in ended)}
    most, peak = (
        max((line["seconds"] for line in ended), default=0.0),
        max((line["bytes"] for line in ended), default=0),
    )
    wrong = []
    for line, result in zip([line for line in lines if "began" in line], [*ended, None], strict=False):
        if result is None:
            wrong.append(f"{line['began']}: {'hung' if done.hung else f'died, {done.code}'}: {done.said}")
        elif result["said"].startswith("defect"):
            wrong.append(f"{line['began']}: {result['said']}")
        elif result["seconds"] > SECONDS:
            wrong.append(f"{line['began']}: took {result['seconds']:.1f} s")
    if wrong:
        return Outcome("; ".join(wrong), True, counts, most, peak)
    if done.code:
        return Outcome(f"the child failed: {done.said}", True, counts, most, peak)
    return Outcome("all named, or accepted", False, counts, most, peak)


def _tally(said: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in said:
        name = one.partition(":")[0]
        counts[name] = counts.get(name, 0) + 1
    return counts


def inputs_text(call: Any) -> str:
    """What a call is given, for a report."""
    return str(getattr(call, "keywords", {}).get("told", call))[:300]


def _guarded(call: Callable[[], str]) -> str:
    """What a call says; `defect` for what no caller should see."""
    from regard.core.errors import RegardError

    out, err, hook = io.StringIO(), io.StringIO(), sys.unraisablehook
    sys.unraisablehook = _unraisable
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = call()
    except RegardError as error:
        said = "refused" if str(error).strip() else "defect: an error without a message"
    except KeyboardInterrupt:
        said = "began its work"
    except BaseException:
        said = f"defect: {traceback.format_exc()[-240:]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
    if any(line.startswith("Traceback (most") for line in err.getvalue().splitlines()):
        return f"defect: {err.getvalue()[-300:]}"
    return said


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _alarm(seconds: float) -> None:
    """Interrupt what still works then, and again every second."""
    signal.signal(signal.SIGALRM, _interrupted)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)


def _unraisable(found: Any) -> None:
    """As Python says it, but for an alarm that came while an object was freed: it is lost, and another one follows."""
    if not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)


class _Begins(SystemExit):
    """The work begins: the command was accepted."""


def _begins(*_: object, **__: object) -> None:
    raise _Begins(0)


def _command(words: Sequence[str], told: str) -> str:
    """A command up to where its work begins: training, or processes of its own."""
    import subprocess

    from regard.cli.main import main
    from regard_lab.training.trainer import Trainer

    Trainer.fit = _begins  # type: ignore[method-assign]
    subprocess.Popen.__init__ = _begins  # type: ignore[method-assign]
    _alarm(_WORKED)
    code = main(list(words))
    if code not in _CODES:
        return f"defect: exit code {code}"
    return "accepted" if code == 0 else "began its work" if code == 130 else "refused"


def _commands(folder: Path) -> Callable[[random.Random], Callable[[], str]]:
    run = ("train", "--out", "run", *works.TINY, *works.PACE, "--task.corpus", "words.txt", "--task.length", "16")
    for words in ((*run, "--task.cache", "cache"), ("knn", "build", "--model", "run", "words.txt", "--out", "store")):
        done = children.command(words, folder / "in")
        if done.code:
            raise RuntimeError(done.said)
    options = {verb: inputs.options_of(children.command((verb, "--help"), folder).out) for verb in BASES}
    everyone = sorted({option for each in options.values() for option in each})
    verbs = list(BASES)
    weighted = [*verbs, *["train"] * 8, *["compare", "evaluate", "generate", "knn", "bench", "calibrate"] * 2]

    def maker(draw: random.Random) -> Callable[[], str]:
        verb = draw.choice(weighted)
        given = inputs.words(draw, BASES[verb], options[verb], everyone)
        return partial(_command, given, told=f"regard {' '.join(given)}"[:300])

    return maker


def _configurations(folder: Path) -> Callable[[random.Random], Callable[[], str]]:
    text = works.SETTINGS.replace('cache = "cache"', 'cache = "cache"\ntokenizer = "bytes"').replace(
        "[training]\n",
        "[training]\nlearning_rate = 0.001\nbatch_size = 4\nwarmup = 1\nbetas = [0.9, 0.95]\nthreads = 1\n",
    )

    def maker(draw: random.Random) -> Callable[[], str]:
        written = inputs.configuration(draw, text)
        path = folder / f"{draw.randrange(1 << 60)}.toml"
        path.write_text(written, encoding="utf-8", errors="replace")
        return partial(_command, ("train", "--config", str(path), "--out", "new"), told=written[-300:])

    return maker


def _specifications(folder: Path) -> Callable[[random.Random], Callable[[], str]]:
    import regard
    from regard import catalog

    names = regard.names()
    options = {name: list(catalog.resolve(name)[0].filled({}, name)) for name in names}

    def maker(draw: random.Random) -> Callable[[], str]:
        spec: object = inputs.specification(draw, names, options)
        heads = {"count": draw.choice((1, 2, 3)), "key_dim": draw.choice((2, 4, 8)), "causal": draw.random() < 0.5}
        heads["max_length"] = draw.choice((None, 16, 1, 1 << 40))
        how = draw.choice(("build", "build", "describe", "layer", "check", "attend"))
        return partial(_specified, spec, heads, how, told=f"{how} {spec!r} {heads}")

    return maker


def _specified(spec: Any, heads: dict[str, Any], how: str, told: str) -> str:
    import torch

    import regard

    _alarm(_WORKED * 4)
    if how == "build":
        regard.build(spec, regard.Heads(**heads))
    elif how == "describe":
        regard.describe(spec)
    elif how == "check":
        regard.check(spec, checks=["no_such_check"])
    elif how == "attend":
        x = torch.randn(1, heads["count"], 5, heads["key_dim"])
        regard.attend(x, x, x, spec, causal=heads["causal"])
    else:
        length = heads["max_length"]
        regard.AttentionLayer(12, spec, heads=heads["count"], causal=heads["causal"], max_length=length)
    return "accepted"


assert os.name == "posix", "limits and forks are those of POSIX"
