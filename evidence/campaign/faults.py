"""Signals, full disks, folders that cannot be written, little memory, no home: named, nothing lost, goes on."""

import errno
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evidence.campaign import children, injected, works
from evidence.campaign.kills import Scene
from evidence.campaign.log import Outcome

NAME = "faults"
BATCH = 50
WORKS = ("text", "codebooks", "recent memory", "datastore", "addition", "indices", "calibration", "export")
"""that meet every fault"""
SEVERAL = ("two processes", "two processes with sequences")
"""works of several processes, of which one meets what can happen to one alone"""
ERRORS = {
    "full disk": (errno.ENOSPC, False),
    "disk that stays full": (errno.ENOSPC, True),
    "no permission": (errno.EACCES, True),
    "read-only": (errno.EROFS, True),
    "broken disk": (errno.EIO, False),
}
"""name -> error, and whether it stays from then on"""
OTHERS = ("signal at a moment", "signal at an operation", "little memory", "no home")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
KINDS = {
    f"{work}: {fault}": 80 if "full" in fault else 16
    for works_of, faults in ((WORKS, (*ERRORS, *OTHERS)), (SEVERAL, (*ERRORS, *OTHERS[:2])))
    for work in works_of
    for fault in faults
}
"""every work with every fault: with a full disk, every operation of a work fails once at least"""
JUDGED = {kind: 2 for kind in KINDS if kind.endswith(OTHERS[:3])}
"""2: a signal ends a command with its exit code and a word, and limits of memory are chosen where it needs more.
Before, a command that a signal ended without a word was right, and few limits were met."""
SHORT = {"text: full disk": 2, "text: signal at a moment": 2}
_CODES = {signal.SIGTERM: (143,), signal.SIGINT: (130,)}
_WORD = re.compile(r"regard( \w+)?: interrupted; \S|\w+: SIG\w+: saved at step \d+; continue with --resume$")
"""what a command that a signal ends says last: what is left, or how to go on; of several processes one of them"""


def cases(kind: str, folder: Path) -> Callable[[int], Outcome]:
    """The cases of a kind."""
    name, _, fault = kind.partition(": ")
    scene = Scene(works.work(name), folder)
    if fault in ERRORS:
        return partial(_refused, scene, *ERRORS[fault])
    act = {
        "signal at a moment": _signalled,
        "signal at an operation": _signalled_at,
        "little memory": _without_memory,
        "no home": _without_home,
    }[fault]
    return partial(act, scene)


def _refused(scene: Scene, error: int, for_good: bool, seed: int) -> Outcome:
    """An operation on a file fails; in turn every one."""
    round_, at = divmod(seed, max(1, len(scene.operations)))
    number, place = at + 1, scene.place(f"case{seed}")
    act = injected.refused(number, error, for_good=for_good)
    done = scene.go_on(place, before=lambda: injected.before_operations(act, place), **_which(scene, round_))
    what = f"{os.strerror(error)} at operation {number} of {len(scene.operations)} ({_kind(scene, number)})"
    return _judged(scene, place, done, what, codes=(6,), says=os.strerror(error))


def _which(scene: Scene, number: int) -> dict[str, int]:
    """The process that meets it, where there are several: in turn every one."""
    return {"rank": number % scene.work.processes} if scene.work.processes > 1 else {}


def _kind(scene: Scene, number: int) -> str:
    if number > len(scene.operations):
        return "none"
    kind, _, path = scene.operations[number - 1].partition(" ")
    return f"{kind} {Path(path).name}"


def _signalled(scene: Scene, seed: int) -> Outcome:
    draw = random.Random(f"signal {scene.work.name} {seed}")
    number, when = SIGNALS[seed % 2], draw.uniform(0, scene.seconds)
    place = scene.place(f"case{seed}")
    done = scene.go_on(place, stop=(when, number), **_which(scene, seed // 2))
    return _judged(scene, place, done, f"{number.name} after {when:.3f} s", codes=_CODES[number])


def _signalled_at(scene: Scene, seed: int) -> Outcome:
    number, at = SIGNALS[seed % 2], 1 + seed // 2 * 5 % max(1, len(scene.operations))
    place = scene.place(f"case{seed}")
    act = injected.signalled(at, number)
    done = scene.go_on(place, before=lambda: injected.before_operations(act, place), **_which(scene, seed // 2))
    return _judged(scene, place, done, f"{number.name} at operation {at} ({_kind(scene, at)})", codes=_CODES[number])


def _without_memory(scene: Scene, seed: int) -> Outcome:
    """An address space that ends on the way: less than the command took before, beside what it begins with."""
    most = random.Random(f"memory {scene.work.name} {seed}").randrange(max(1, scene.peak))
    place = scene.place(f"case{seed}")
    done = scene.go_on(place, memory=most)
    return _judged(scene, place, done, f"{most} bytes of memory", codes=(6,), says="memory")


def _without_home(scene: Scene, seed: int) -> Outcome:
    """Nowhere to keep anything but the working folder, and a command that keeps something where it is usual."""
    place = scene.place(f"case{seed}")
    homes = (None, "/dev/null", "/proc", "", str(place / "in" / "words.txt"))
    home = homes[seed % len(homes)]

    def before() -> None:
        for name in ("XDG_CACHE_HOME", "HOME"):
            os.environ.pop(name, None)
        if home is not None:
            os.environ["HOME"] = home

    words = list(scene.work.words(place))
    if "--task.cache" in words:
        at = words.index("--task.cache")
        del words[at : at + 2]
    done = children.command(words, place, before=before)
    return _judged(scene, place, done, f"HOME={home}", codes=(6,))


def _judged(
    scene: Scene, place: Path, done: children.Ended, what: str, *, codes: tuple[int, ...], says: str = ""
) -> Outcome:
    """A named error, or none was needed; what was kept is enough to go on with the same bits."""
    wrong = []
    named, several = done.code != 0, scene.work.processes > 1
    interrupted = codes[0] > 128 and done.code in (codes if not several else (*codes, 6))
    words = (done.err.splitlines() or [""])[0 if several else -1 :]
    whole = scene.says_whole(done)
    if done.hung:
        wrong.append("hung")
    if done.traceback:
        wrong.append(f"a traceback: {done.said}")
    elif done.code not in (0, *codes) and not interrupted and not whole:
        wrong.append(f"exit code {done.code}: {done.said}")
    elif named and done.code > 0 and says and says not in done.err and not whole:
        wrong.append(f"does not say {says!r}: {done.said}")
    elif interrupted and not any(_WORD.match(line) for line in words):
        wrong.append(f"exit code {done.code} without a word of what is left: {done.said}")
    elif 0 < done.code < 128 and not any(line.startswith("regard") for line in done.err.splitlines()):
        wrong.append(f"exit code {done.code} without an error: {done.said}")
    elif named and 0 < done.code < 128 and len(_lines(done.err, several)) > scene.work.processes:
        wrong.append(f"says it in {len(_lines(done.err, several))} lines: {done.said}")
    if not wrong:
        wrong, _ = scene.finished(place)
        wrong = [f"afterwards: {each}" for each in wrong]
    shutil.rmtree(place)
    if wrong:
        return Outcome(f"{what}: {'; '.join(wrong)}", True, seconds=done.seconds, peak=done.peak)
    said = "did not matter" if not named else "named, then the same bits"
    return Outcome(said, seconds=done.seconds, peak=done.peak)


def _lines(text: str, several: bool) -> list[str]:
    """Of the error: what progress is shown ends where it begins; among several processes torch says things too."""
    lines = [line for line in text.splitlines() if line.startswith("regard") or not several]
    first = next((at for at, line in enumerate(lines) if line.startswith("regard")), 0)
    return lines[first:]
