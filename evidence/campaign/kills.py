"""kill -9 at any moment: what goes on afterwards gives the same bits as what was never killed."""

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

from evidence.campaign import children, equal, injected, several, works
from evidence.campaign.log import ROOT, Outcome
from evidence.campaign.works import Work

NAME = "kills"
FRESH, LAUNCHED = "fresh processes", "processes of torchrun"
"""python -m regard, of which each imports everything anew; and two of them, of which one is killed"""
_ANEW = {FRESH: "text", LAUNCHED: "two processes"}
KINDS = {**dict.fromkeys(works.names(), 12), **dict.fromkeys(_ANEW, 4)}
"""every work, and two of them in processes of their own; each case has one to three kills"""
JUDGED = {kind: 3 if kind.startswith("two processes") else 2 for kind in KINDS}
"""2: every file that a command leaves is compared. Before, of an export nothing was, of an addition its manifest, and
of a run its newest checkpoint and its metrics. 3, of several processes: each reads tensors in an order of its own,
which forked ones shared before."""
SHORT = {"text": 1, "codebooks": 1, "datastore": 1}
BATCH = 20
_WARM = 3


def cases(kind: str, folder: Path) -> Callable[[int], Outcome]:
    """The cases of a kind."""
    scene = Scene(works.work(_ANEW.get(kind, kind)), folder)
    return partial(_case if kind not in _ANEW else _anew, scene)


class Scene:
    """A work, its inputs, and what it leaves when nobody disturbs it."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder
        works.write_inputs(folder / "in")
        for words in work.prepare:
            done = children.command(words, folder / "in")
            if done.code:
                raise RuntimeError(f"{work.name} cannot be prepared: {done.said}")
        self.whole = self.place("whole")
        seconds, self.peak = [], 0
        for number in range(_WARM):  # in this process first: what is imported now no child imports again
            place = self.place(f"warm{number}")
            began = time.monotonic()
            here = not number and work.processes == 1
            done = _here(work.words(place), place) if here else self.go_on(place)
            seconds.append(time.monotonic() - began)
            self.peak = max(self.peak, done.peak)
            if done.code:
                raise RuntimeError(f"{work.name} fails without being disturbed: {done.said}")
            if number < _WARM - 1:
                shutil.rmtree(place)
            else:
                shutil.rmtree(self.whole)
                place.rename(self.whole)
        self.seconds = min(seconds[1:])
        self.operations = self._operations()

    def place(self, name: str) -> Path:
        """A new folder with the inputs."""
        place = self.folder / name
        shutil.copytree(self.folder / "in", place / "in", copy_function=os.link)
        return place

    def go_on(self, place: Path, **options: object) -> children.Ended:
        """The next command in a folder, in a child, or in as many as the work has."""
        command = children.command if self.work.processes == 1 else several.command
        return command(self.work.words(place), place, **options)  # type: ignore[operator]

    def _operations(self) -> list[str]:
        """What one command does to files, by its kinds."""
        place, report = self.place("counted"), self.folder / "operations"
        done = self.go_on(place, before=lambda: injected.before_operations(injected.counted(report), place))
        if done.code:
            raise RuntimeError(f"{self.work.name} fails where operations are counted: {done.said}")
        different = self.work.differences(place / self.work.result, self.whole / self.work.result)
        if different:
            raise RuntimeError(f"{self.work.name} gives other bits when it is done again: {', '.join(different)}")
        shutil.rmtree(place)
        return report.read_text(encoding="utf-8").splitlines()

    def says_whole(self, done: children.Ended) -> bool:
        """Whether a command was refused because what it makes is there."""
        said = self.work.whole_again
        return done.code in (2, 6) and said is not None and said in done.err and not done.traceback

    def finished(self, place: Path) -> tuple[list[str], children.Ended]:
        """Go on to the end: what is wrong then, and how it went."""
        done = self.go_on(place)
        if self.says_whole(done):
            done = replace(done, code=0)
        if done.code or done.traceback:
            return [f"goes on with exit code {done.code}: {done.said}"], done
        try:
            wrong = self.work.differences(place / self.work.result, self.whole / self.work.result)
            return [*dict.fromkeys([*wrong, *equal.leftovers(place)])], done
        except Exception as error:  # whatever is unreadable is a defect too
            return [f"{type(error).__name__}: {error}"], done


def _here(words: object, place: Path) -> children.Ended:
    """A command in this very process."""
    from regard.cli.main import main

    back, said = os.getcwd(), io.StringIO()
    os.chdir(place)
    try:
        with redirect_stdout(said), redirect_stderr(said):
            code = main([*words])  # type: ignore[misc]
    finally:
        os.chdir(back)
    return children.Ended(code, "", said.getvalue(), 0.0, 0.0, 0)


def _moments(scene: Scene, seed: int) -> Iterator[tuple[str, float]]:
    """When one case kills: at operations, of which each is met in turn, and after times."""
    draw = random.Random(f"{scene.work.name} {seed}")
    for number in range(draw.randint(1, 3)):
        if scene.operations and draw.random() < 0.5:
            at = 1 + (seed * 3 + number) * 7 % len(scene.operations) if draw.random() < 0.5 else 0
            yield "operation", at or draw.randint(1, len(scene.operations))
        else:
            yield "seconds", draw.uniform(0.0, scene.seconds)


def _case(scene: Scene, seed: int) -> Outcome:
    place, kills, told = scene.place(f"case{seed}"), 0, []
    most, peak, wrong = 0.0, 0, []
    for how, when in _moments(scene, seed):
        if how == "operation":
            act = injected.killed(int(when))
            done = scene.go_on(place, before=partial(injected.before_operations, act, place))
        else:
            which = {"rank": seed % scene.work.processes} if scene.work.processes > 1 else {}
            done = scene.go_on(place, stop=(when, signal.SIGKILL), **which)
        told.append(f"{how} {when:.3f}")
        most, peak = max(most, done.seconds), max(peak, done.peak)
        kills += done.code == -signal.SIGKILL and not done.hung
        if done.hung:
            wrong = ["hung"]
        elif done.code not in (0, -signal.SIGKILL) and not scene.says_whole(done):
            wrong = [f"exit code {done.code}: {done.said}"]
        if wrong:
            return _outcome(f"killed at {told}", wrong, kills, most, peak)
    wrong, done = scene.finished(place)
    shutil.rmtree(place)
    return _outcome(f"killed at {told}", wrong, kills, max(most, done.seconds), max(peak, done.peak))


def _anew(scene: Scene, seed: int) -> Outcome:
    """A real process, killed behind a line of its metrics; or one of those of a real torchrun, which ends the other."""
    count = scene.work.processes
    place, draw = scene.place(f"case{seed}"), random.Random(f"{'fresh' if count == 1 else 'launched'} {seed}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)) if count > 1 else ()
    command = [sys.executable, *launcher, "-m", "regard", *scene.work.words(place)]
    with (scene.folder / "said").open("w+") as said:
        started = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        metrics, wanted = place / "run" / "metrics.jsonl", draw.randint(0, 2)
        until = time.monotonic() + children.SECONDS
        while time.monotonic() < until and started.poll() is None:
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= wanted:
                break
            time.sleep(0.002)
        own = _children(started.pid) if count > 1 else [started.pid]
        if own and started.poll() is None:
            os.kill(own[seed % len(own)], signal.SIGKILL)
        code = started.wait(children.SECONDS)
        said.seek(0)
        text = said.read()
    kills = int(bool(own) and code not in (0, None))
    wrong, done = scene.finished(place)
    shutil.rmtree(place)
    if count > 1 and kills and f"process {seed % len(own)}, which left without" not in text and "Signal 9" not in text:
        wrong = [*wrong, f"nobody names the process that was killed: {text[-300:]}"]
    return _outcome(f"killed after {wanted} lines", wrong, kills, done.seconds, done.peak)


def _children(pid: int) -> list[int]:
    """The processes that one has started, in their order."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _outcome(what: str, wrong: list[str], kills: int, seconds: float, peak: int) -> Outcome:
    counts = {"kills": kills}
    if wrong:
        return Outcome(f"{what}: {'; '.join(wrong)}", True, counts, seconds, peak)
    return Outcome("same bits" if kills else "was done before it was killed", False, counts, seconds, peak)
