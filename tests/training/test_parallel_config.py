import pytest

from regard.core.errors import ConfigError
from regard_lab.cli import train
from regard_lab.training import ParallelConfig


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"heads": 0}, "parallel.heads must be at least 1"),
        ({"sequence": -1}, "parallel.sequence must be at least 1"),
        ({"shard": True, "heads": 2}, "--parallel.shard and --parallel.heads 2 do not go together"),
        ({"heads": 2, "sequence": 2}, "--parallel.heads 2 and --parallel.sequence 2 do not go together"),
        ({"heads": "2"}, "heads"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        ParallelConfig(**wrong)


def test_one_process_of_each_is_nothing_to_share():
    assert ParallelConfig().named == ParallelConfig(heads=1, sequence=1).named == []
    assert ParallelConfig(heads=4).named == ["--parallel.heads 4"]
    assert ParallelConfig(shard=True, sequence=2).named == ["--parallel.shard", "--parallel.sequence 2"]


def test_it_may_be_said_beside_resume_and_anything_else():
    assert train.parse(["--resume", "run", "--parallel.shard"]).parallel == ParallelConfig(shard=True)
    assert train.parse(["--parallel.heads", "2", "--steps", "3"]).parallel == ParallelConfig(heads=2)
    with pytest.raises(ConfigError, match=r"--model\.dim=8 would change nothing"):
        train.parse(["--resume", "run", "--parallel.heads", "2", "--model.dim=8"])
