"""Runs that go on with other processes: how `kept` of `processes.py` is asked for them, and what all must end with."""

from pathlib import Path

from regard_lab.training import checkpoint

Jobs = dict[str, tuple[str, int, str, str]]
"""name -> scenario, processes, the step that it ends at, and the job that it goes on from, or none"""


def words(jobs: Jobs, folder: Path, config: str) -> list[str]:
    """Of the command line, each job behind a `then` but the first."""
    found: list[str] = []
    for name, (scenario, count, until, before) in jobs.items():
        there = [str(folder / before)] if before else []
        found += ["then", scenario, str(count), str(folder / name), config, until, *there]
    return found[1:]


def codes(jobs: Jobs) -> list[list[int]]:
    """Where all is well."""
    return [[0] * max(count, 1) for _, count, _, _ in jobs.values()]


def require_alike(jobs: Jobs, folder: Path, tolerance: float = 1e-9) -> None:
    """Jobs that end where `whole` does have its weights and moments."""
    found = {}
    for name, (_, _, until, _) in jobs.items():
        saved, _ = checkpoint.newest(folder / name / "run" / "checkpoints")
        assert saved is not None
        assert saved.progress.step == int(until)
        if until == jobs["whole"][2]:
            found[name] = saved
    assert len(found) > 1
    for name, saved in found.items():
        assert saved.progress.tokens == found["whole"].progress.tokens
        for part in ("model", "optimizer"):
            ours, theirs = getattr(saved, part), getattr(found["whole"], part)
            assert ours.keys() == theirs.keys()
            alike = (ours[key].allclose(x, rtol=tolerance, atol=1e-3 * tolerance) for key, x in theirs.items())
            assert all(alike), (name, part)
