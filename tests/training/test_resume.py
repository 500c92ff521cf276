"""A run that was killed gives the same bits as one that was not."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import evidence
import regard
from evidence.campaign import equal
from regard_lab.training import Interrupted, RunConfig, toml, train
from regard_lab.training.checkpoint import newest
from regard_lab.training.interruption import Signals

PROGRAM = Path(__file__).with_name("killed_run.py")


def require_equal(run: Path, whole: Path) -> None:
    assert equal.runs(run, whole) == []


def test_killed_before_every_file_operation(small, tmp_path):
    """SIGKILL before each open, write to disk, rename and removal of a run that keeps one checkpoint."""
    settings = replace(small.training, steps=2, log_every=1, evaluate_every=1, checkpoint_every=1, keep=1)
    small = replace(small, training=settings, task=replace(small.task, num_held_out=2))
    toml.save(small, tmp_path / "config.toml")
    source = os.pathsep.join(str(Path(package.__file__).parents[1]) for package in (regard, evidence))
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(PROGRAM), str(tmp_path / "config.toml"), str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    results = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(results) > 40
    for number, killed, finished in results:
        assert killed == (0 if number == len(results) else -signal.SIGKILL)
        assert finished == 0
        require_equal(tmp_path / f"run.{number}", tmp_path / "run.whole")


def test_a_run_continues_with_the_same_bits_within_an_epoch_and_after_one(kinds, tmp_path, trained):
    """Stopped within an epoch and after one; dropout and the noise of masked are those of a run that was not."""
    config, run = kinds["masked"], tmp_path / "run"
    for step in (3, 5):
        with pytest.raises(Interrupted):
            train(config, run, resume=True, on_progress=_at("step", step, lambda: signal.raise_signal(signal.SIGTERM)))
    train(config, run, resume=True)
    require_equal(run, trained(config).path)


MOMENTS = [("step", 7), ("step", 12), ("train", 5), ("evaluate", 6), ("checkpoint", 8)]


@pytest.mark.parametrize(
    ("received", "code", "moment"),
    [
        *((signal.SIGTERM, 143, moment) for moment in MOMENTS),
        (signal.SIGINT, 130, MOMENTS[0]),
        (signal.SIGHUP, 129, MOMENTS[4]),
    ],
)
def test_a_signal_saves_and_leaves_with_its_code(small, tmp_path, received, code, moment, trained):
    handler = signal.getsignal(received)

    def interrupt() -> None:
        for _ in range(1 + (received == signal.SIGHUP)):  # a terminal that is closed sends several
            signal.raise_signal(received)

    with pytest.raises(Interrupted) as caught:
        train(small, tmp_path / "run", on_progress=_at(*moment, interrupt))
    assert caught.value.code == code
    assert signal.getsignal(received) is handler
    found = newest(tmp_path / "run" / "checkpoints")[0]
    assert found is not None
    assert found.progress.step == caught.value.step == moment[1]
    train(small, tmp_path / "run", resume=True)
    require_equal(tmp_path / "run", trained(small).path)


def test_a_signal_during_an_evaluation_does_not_wait_for_its_end(small, tmp_path, monkeypatch, trained):
    """The checkpoint is saved before the evaluation, which the resumed run makes up for."""
    import regard_lab.training.trainer as trainer

    score = trainer.score
    calls = []

    def interrupted_score(*arguments, stopped, **options):
        signal.raise_signal(signal.SIGTERM)
        assert stopped()
        calls.append(score(*arguments, stopped=stopped, **options))
        return calls[-1]

    monkeypatch.setattr(trainer, "score", interrupted_score)
    with pytest.raises(Interrupted):
        train(small, tmp_path / "run")
    assert calls == [None]
    monkeypatch.undo()
    train(small, tmp_path / "run", resume=True)
    require_equal(tmp_path / "run", trained(small).path)


def test_a_checkpoint_saved_before_its_evaluation_is_saved_again_with_it(small, tmp_path, monkeypatch, trained):
    import regard_lab.training.trainer as trainer

    small = replace(small, training=replace(small.training, evaluate_every=4))

    def give_up(*arguments, **options) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(trainer, "score", give_up)
    with pytest.raises(Interrupted):
        train(small, tmp_path / "run")
    monkeypatch.undo()
    first = newest(tmp_path / "run" / "checkpoints")[0]
    assert first is not None
    assert (first.progress.step, first.progress.score) == (4, None)
    stop = _at("checkpoint", 4, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(small, tmp_path / "run", resume=True, on_progress=stop)
    second = newest(tmp_path / "run" / "checkpoints")[0]
    assert second is not None
    assert second.progress.step == 4
    assert second.progress.score is not None
    train(small, tmp_path / "run", resume=True)
    require_equal(tmp_path / "run", trained(small).path)


def test_a_second_signal_acts_at_once(small, tmp_path):
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small, tmp_path / "run", on_progress=_at("step", 2, twice))


def test_a_signal_at_the_very_end_is_not_swallowed(small, tmp_path):
    with pytest.raises(Interrupted):
        train(small, tmp_path / "run", on_progress=_at("checkpoint", 12, lambda: signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt), Signals():
        signal.raise_signal(signal.SIGINT)


def test_outside_the_main_thread_signals_are_left_alone():
    handler = signal.getsignal(signal.SIGTERM)
    seen = []

    def work() -> None:
        with Signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [handler]


def test_continuing_a_finished_run_changes_nothing(small, tmp_path, trained, finished):
    run, first = finished(small), replace(trained(small), path=tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert train(small, run, resume=True) == first
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def _at(kind: str, step: int, act: Callable[[], None]) -> Callable[[dict[str, object]], None]:
    """Something to do at one event."""

    def on_progress(event: dict[str, object]) -> None:
        if (event["kind"], event["step"]) == (kind, step):
            act()

    return on_progress


def test_the_small_run_uses_its_random_state(small: RunConfig, tmp_path, trained):
    """Otherwise the tests above would not see a random state that is not restored."""
    from regard_lab.training import random_states

    with pytest.raises(Interrupted):
        train(small, tmp_path / "run", on_progress=_at("step", 7, lambda: signal.raise_signal(signal.SIGTERM)))
    found = newest(tmp_path / "run" / "checkpoints")[0]
    assert found is not None
    whole = trained(small).path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_states, "use_rng_states", lambda *states: None)
        train(small, tmp_path / "run", resume=True)
    with pytest.raises(AssertionError):
        require_equal(tmp_path / "run", whole)
