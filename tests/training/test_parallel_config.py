import pytest

from regard.core.errors import ConfigError
from regard_lab.cli import train
from regard_lab.training import ParallelConfig


@pytest.mark.parametrize("wrong", [-1, "2"])
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError, match="sequence"):
        ParallelConfig(sequence=wrong)


def test_one_process_of_each_is_nothing_to_share():
    assert ParallelConfig().named == ParallelConfig(sequence=1).named == []
    assert ParallelConfig(sequence=2).named == ["--parallel.sequence 2"]


def test_it_may_be_said_beside_resume_and_anything_else():
    assert train.parse(["--resume", "run", "--parallel.sequence", "2"]).parallel == ParallelConfig(sequence=2)
    assert train.parse(["--parallel.sequence", "2", "--steps", "3"]).parallel == ParallelConfig(sequence=2)
    with pytest.raises(ConfigError, match=r"--model\.dim=8 would change nothing"):
        train.parse(["--resume", "run", "--parallel.sequence", "2", "--model.dim=8"])
