"""One training or probe of a comparison."""

from regard.models import ModelConfig
from regard_lab.benchmark.quality import Job, perform
from regard_lab.tasks.config import RecallConfig
from regard_lab.training.config import TrainingConfig


def job(tmp_path, **changes) -> Job:
    return Job(
        model=ModelConfig(dim=8, layers=1, heads=1, attention=("softmax",)),
        task_config=RecallConfig(vocab_size=16, length=16, num_pairs=2, num_held_out=8),
        training=TrainingConfig(steps=40, batch_size=2, log_every=5, checkpoint_every=20, device="cpu", threads=1),
        run=str(tmp_path / "run"),
        **changes,
    )


def test_a_training_stops_with_the_step_in_which_its_time_is_over(tmp_path):
    """What it learned until then is measured."""
    found = perform(job(tmp_path, seconds=0.0))
    assert found["steps"] == 1
    assert found["curve"] == []
    assert sum(found["documents"]["tokens"]) == 8 * 2
    assert perform(job(tmp_path / "whole", seconds=600.0))["steps"] == 40


def test_a_probe_says_what_setup_a_step_and_an_example_take(tmp_path):
    found = perform(job(tmp_path, steps_only=3, seconds=600.0))
    assert 0 < found["seconds"] < found["total"]
    assert 0 < found["setup"] < found["total"]
    assert 0 < found["example_seconds"] < found["total"]
    assert not (tmp_path / "run").exists()
