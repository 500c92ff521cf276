import json
import os
from pathlib import Path

import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, ResourceError
from regard.files.checksums import sealed
from regard_lab.training import metrics
from regard_lab.training.metrics import Interval, MetricsLog, Stopwatch


def test_lines_after_the_offset_are_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"kind": "train", "step": 1, "loss": 0.1})
    offset = log.sync()
    log.write({"kind": "train", "step": 2, "loss": 0.2})
    log.close()
    path.write_bytes(path.read_bytes() + b'{"kind": "tra')
    assert [line["step"] for line in metrics.read(path)] == [1, 2]
    log = MetricsLog(path, offset=offset, step=1)
    log.write({"kind": "train", "step": 2, "loss": 0.3})
    log.close()
    assert metrics.read(path) == [
        {"kind": "train", "step": 1, "loss": 0.1},
        {"kind": "train", "step": 2, "loss": 0.3},
    ]


def test_a_file_shorter_than_the_checkpoint_says_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"3 bytes.*step 7.*after 4"):
        MetricsLog(path, offset=4, step=7)
    assert path.read_text() == "{}\n"


PASTS = {
    "last newline": lambda lines: [*lines[:3], lines[3][:-1] + b"\x0b", *lines[4:]],
    "carriage returns": lambda lines: [line[:-1] + b"\r\n" for line in lines],
    "cut": lambda lines: [lines[0][1:], *lines[1:]],
}


@pytest.mark.parametrize("kind", PASTS)
def test_a_past_that_is_not_what_was_written_is_refused_as_it_is(tmp_path, kind):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 7):
        log.write({"kind": "train", "step": step, "loss": 0.5})
        if step == 4:
            offset = log.sync()
    log.close()
    MetricsLog(path, offset=path.stat().st_size, step=6).close()
    path.write_bytes(b"".join(PASTS[kind](path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"metrics.jsonl, line \d is damaged"):
        MetricsLog(path, offset=offset, step=4)
    assert path.read_bytes() == before


def test_damaged_lines_are_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for damage in ("{,}", "3", "{}"):
        path.write_text(f"{json.dumps(sealed({}))}\n{damage}\n")
        with pytest.raises(CheckpointError, match="line 2"):
            metrics.read(path)


def test_a_line_is_visible_at_once_and_a_full_disk_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"kind": "train", "step": 1})
    assert len(metrics.read(path)) == 1
    log.close()
    if os.path.exists("/dev/full"):
        log = MetricsLog(tmp_path / "other")
        log._file.close()
        log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
        with pytest.raises(ResourceError, match="No space left"):
            log.write({"kind": "train", "step": 2})
        log.close()


def test_numbers_that_are_not_finite_are_not_written(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        log.write({"loss": float("nan")})
    log.close()


def test_an_interval_weighs_losses_by_token_and_survives_json():
    interval = Interval()
    interval.add({"steps": 1, "nats": 6.0, "tokens": 3, "objective": 2.5, "gradient_norm": 1.0, "losses.commit": 0.1})
    interval = Interval(json.loads(json.dumps(interval.sums)))
    interval.add({"steps": 1, "nats": 1.0, "tokens": 4, "objective": 0.5, "gradient_norm": 2.0, "losses.commit": 0.3})
    assert interval.line() == {
        "loss": 1.0,
        "objective": 1.5,
        "losses": {"commit": pytest.approx(0.2)},
        "gradient_norm": 1.5,
    }


def test_the_stopwatch_reads_once(monkeypatch):
    times = iter([10.0, 12.0, 20.0, 21.0])
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: next(times))
    watch = Stopwatch(torch.device("cpu"))
    for positions in (30, 60):
        watch.start()
        watch.stop(positions)
    timing = watch.read()
    assert (timing["seconds"], timing["tokens_per_second"]) == (3.0, 30.0)
    assert watch.read()["seconds"] == 0


def test_peak_bytes_sees_memory():
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("only Linux tells the peak in /proc/self/status")
    kibibytes = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    assert metrics.peak_bytes(torch.device("cpu")) == pytest.approx(kibibytes * 1024, rel=0.05)


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard", reason="the log extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "board")
    for step, loss in ((1, 3.0), (2, 2.0)):
        log.write({"kind": "train", "step": step, "loss": loss, "losses": {"commit": 0.5}, "timing": {"seconds": 1.0}})
    log.close()
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert set(board.Tags()["scalars"]) == {"train/loss", "train/losses.commit", "train/timing.seconds"}
    assert [(event.step, event.value) for event in board.Scalars("train/loss")] == [(1, 3.0), (2, 2.0)]


def test_tensorboard_that_is_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="regard\\[log\\]"):
        MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "board")
