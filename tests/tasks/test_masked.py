import numpy as np
import pytest

from regard.errors import ConfigError
from regard.tasks import IGNORE, MaskedConfig, MaskedTask, Redrawn, TextConfig, build_task


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> MaskedConfig:
    folder = tmp_path_factory.mktemp("masked")
    words = np.random.default_rng(1).integers(0, 9999, 30_000)
    path = folder / "numbers.txt"
    path.write_text(" ".join(map(str, words)), encoding="utf-8")
    return MaskedConfig(corpus=str(path), length=64, cache=str(folder / "cache"))


def originals(example) -> np.ndarray:
    """The tokens without the noise, where the example tells them."""
    return np.where(example.targets == IGNORE, example.inputs, example.targets)


def test_a_window_is_the_text_and_fifteen_percent_of_it_count(config):
    task, text = build_task(config), build_task(TextConfig(**without(config)))
    assert task.vocab_size == 257
    assert task.mask == 256
    for index in (0, 7, len(task.examples("train")) - 1):
        example = task.examples("train")[index]
        targets = text.examples("train")[index].targets
        assert (originals(example) == targets[targets != IGNORE]).all()
        real = int((originals(example) != 0).sum())
        assert int((example.targets != IGNORE).sum()) == max(1, round(0.15 * real))
        assert example.nbytes == int((example.targets != IGNORE).sum())


def without(config: MaskedConfig) -> dict:
    return {name: value for name, value in vars(config).items() if name != "rate"}


def test_eighty_percent_are_hidden_and_the_rest_half_and_half(config):
    """20,000 choices: shares within 5 standard errors."""
    train = build_task(config).examples("train")
    counts = np.zeros(3)
    seen = set()
    for index in range(len(train)):
        example = train[index]
        chosen = example.targets != IGNORE
        hidden, same = example.inputs[chosen] == 256, example.inputs[chosen] == example.targets[chosen]
        counts += [hidden.sum(), same.sum(), (~hidden & ~same).sum()]
        seen |= set(example.inputs[chosen & (example.inputs != 256) & (example.inputs != example.targets)].tolist())
    # A random token is the original itself once in 255.
    expected = np.array([0.8, 0.1 + 0.1 / 255, 0.1 * 254 / 255])
    error = (expected * (1 - expected) / counts.sum()) ** 0.5
    assert counts.sum() > 15_000
    assert (np.abs(counts / counts.sum() - expected) < 5 * error).all()
    assert 0 not in seen
    assert len(seen) > 240


def test_masks_follow_from_seed_epoch_and_index(config):
    one, same, other = (build_task(config, seed=seed) for seed in (0, 0, 1))
    train = one.examples("train")
    assert isinstance(train, Redrawn)
    assert not isinstance(one.text.examples("train"), Redrawn)

    def masks(task: MaskedTask, split, epoch: int) -> np.ndarray:
        return task.examples(split).redrawn(3, epoch).inputs

    assert (masks(one, "train", 2) == masks(same, "train", 2)).all()
    assert (train[3].inputs == masks(one, "train", 0)).all()
    assert (masks(one, "train", 0) != masks(one, "train", 1)).any()
    assert (masks(one, "train", 0) != masks(other, "train", 0)).any()
    assert (masks(one, "valid", 0) == masks(one, "valid", 1)).all()
    assert (masks(one, "valid", 0) == masks(other, "valid", 0)).all()
    assert (masks(one, "test", 0) != masks(one, "valid", 0)).any()
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_rates_outside_the_open_interval_are_refused(config):
    for rate in (0.0, 1.0, -0.1):
        with pytest.raises(ConfigError, match="rate"):
            MaskedConfig(rate=rate)
