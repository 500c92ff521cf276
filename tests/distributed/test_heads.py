"""Processes that share the heads: the steps of one process, checkpoints as of one, and refusals by facts."""

import json
from dataclasses import replace

import pytest
import torch.distributed as dist

from regard.core.errors import UnsupportedError
from regard.distributed.group import Group
from regard_lab.distributed.heads import SharedHeads
from regard_lab.training import TrainingConfig, checkpoint
from tests.distributed import going_on


@pytest.mark.processes
def test_every_step_is_that_of_one_process_and_so_is_the_checkpoint(started, tmp_path):
    """In float64, of two processes and of two sets of two.

    Grouped heads, gated MLPs, biases, weights of each head, recomputed blocks; a weight that seldom takes part.
    """
    one, two, four = (tmp_path / name for name in ("one", "two", "four"))
    heads = "heads_curves@heads=2"
    codes, said = started("heads_curves", 0, one, "then", heads, "2", str(two), "then", heads, "4", str(four))
    assert codes == [[0], [0, 0], [0, 0, 0, 0]], said
    expected = json.loads((one / "0.json").read_text())
    of_two = [json.loads((two / f"{rank}.json").read_text()) for rank in range(2)]
    of_four = [json.loads((four / f"{rank}.json").read_text()) for rank in range(4)]
    assert of_four[:2] == of_four[2:], "sets have other weights"
    several = of_two + of_four
    for name, alone in expected.items():
        for found in several:
            for curve in ("losses", "norms", "valid"):
                assert found[name][curve] == pytest.approx(alone[curve], rel=1e-9), (name, curve)
            assert found[name]["saved"].keys() == alone["saved"].keys()
            for key, values in alone["saved"].items():
                assert found[name]["saved"][key] == pytest.approx(values, rel=1e-9, abs=1e-9), (name, key)
            sizes = [sum(map(len, each["tensors"].values())) for each in (found[name], alone)]
            assert sizes[0] < 0.75 * sizes[1], "every process has all of the weights"
        assert alone["losses"][-1] != pytest.approx(alone["losses"][0], rel=1e-3), "nothing was learned"


@pytest.mark.processes
def test_a_run_goes_on_with_shared_heads_and_without(started, config, tmp_path):
    jobs = {
        "whole": ("kept", 0, "8", ""),
        "begun": ("kept", 0, "4", ""),
        "heads": ("kept@heads=2", 2, "4", ""),
        "plain": ("kept", 0, "8", "heads"),
        "shards": ("kept@shard=yes", 2, "8", "heads"),
        "again": ("kept@heads=2", 2, "8", "begun"),
        "sets": ("kept@heads=2", 4, "8", "heads"),
    }
    scenario, count, _, *rest = going_on.words(jobs, tmp_path, config)
    codes, said = started(scenario, int(count), tmp_path / "whole", *rest)
    assert codes == going_on.codes(jobs), said
    going_on.require_alike(jobs, tmp_path)


@pytest.mark.processes
def test_every_set_draws_its_own_dropout_and_a_killed_run_goes_on_to_the_same_bits(started, config, tmp_path):
    heads = "trained@heads=2"
    words = [word for name in ("killed", "whole") for word in ("then", heads, "4", str(tmp_path / name), config)]
    codes, _ = started("killed@heads=2", 4, tmp_path / "killed", config, *words)
    assert codes == [[6, -9, 6, 6], [0] * 4, [0] * 4]
    ends = []
    for name in ("killed", "whole"):
        end, _ = checkpoint.newest(tmp_path / name / "run" / "checkpoints")
        assert end is not None
        ends.append(end)
    for part in ("model", "optimizer", "rng"):
        first, second = (getattr(end, part) for end in ends)
        assert first.keys() == second.keys()
        assert all(first[name].equal(second[name]) for name in first), part
    assert ends[0].rng.keys() == {"cpu", "cpu@1"}
    assert not ends[0].rng["cpu"].equal(ends[0].rng["cpu@1"])


@pytest.mark.processes
def test_heads_that_cannot_be_shared_are_refused_with_the_reason(started, tmp_path):
    codes, said = started("refused@heads=2", 2, tmp_path)
    assert codes == [0, 0], said
    wanted = (
        "strided in blocks.0.attention: its heads need each other, or their numbers",
        "performer in blocks.0.attention: its features are drawn again, for all heads; set redraw_interval=None",
        "routing in blocks.0.attention: it has losses",
        "softmax in blocks.0.attention: its position scheme has terms for each head",
        "softmax in blocks.0.attention: it has a memory",
        "2 heads with 1 of keys cannot be shared by 2 processes",
        "the width 33 of blocks.0.mlp does not divide",
        "head_mix in blocks.1.attention: its heads need each other",
        "additive in blocks.1.attention shares weights with blocks.0.attention",
    )
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(found) == len(wanted)
        assert all(part in line for part, line in zip(wanted, found, strict=True)), found


@pytest.mark.processes
def test_other_processes_than_parts_are_refused(started, config, tmp_path):
    codes, said = started("trained@heads=2", 3, tmp_path, config)
    assert codes == [2, 2, 2]
    assert all("--parallel.heads 2 does not divide 3 processes; start 2 of them or a multiple" in line for line in said)


def test_sets_of_processes_carry_no_memories(monkeypatch):
    """One of them does: all have what its rows remember."""
    monkeypatch.setattr(Group, "among", lambda *_: None)
    several, one = (SharedHeads(Group(0, count, dist.HashStore()), 2) for count in (4, 2))
    config = TrainingConfig(batch_size=8, carry=True)
    one.require(config)
    several.require(replace(config, carry=False))
    with pytest.raises(UnsupportedError, match=r"training\.carry keeps what each row remembers in one set"):
        several.require(config)


@pytest.mark.processes
def test_a_signal_to_one_during_evaluation_stops_all(started, config, tmp_path):
    codes, said = started("stopped_while_evaluating@heads=2", 2, tmp_path / "run", config)
    assert codes == [143, 143], said
