from dataclasses import fields, replace

import numpy as np
import pytest

from regard.core.errors import ConfigError
from regard_lab.tasks import IGNORE, MaskedConfig, MaskedTask, Redrawn, TextConfig, build_task


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
    return {field.name: getattr(config, field.name) for field in fields(TextConfig)}


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


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> MaskedConfig:
    folder = tmp_path_factory.mktemp("sentences")
    path = folder / "said.txt"
    path.write_text(" ".join(f"The {at}th is {at % 7}." for at in range(900)), encoding="utf-8")
    return MaskedConfig(corpus=str(path), length=96, cache=str(folder / "cache"), summaries=4, hidden_sentences=0.3)


def test_whole_sentences_are_hidden_behind_tokens_that_stand_for_them(sentences):
    task, plain = build_task(sentences), build_task(TextConfig(**without(sentences)))
    assert (task.vocab_size, task.mask, task.summary, task.length) == (258, 256, 257, 100)
    for index in range(0, len(task.examples("train")), 17):
        example, text = task.examples("train")[index], plain.examples("train")[index].targets
        text = text[text != IGNORE]
        count = int((example.inputs == 257).sum())
        assert 1 < count <= 4
        assert example.marks[:count].tolist() == [-1 - at for at in range(count)]
        assert example.marks[count:].min() == 1
        assert (np.diff(example.marks[count:]) >= 0).all()
        assert (example.targets[:count] == IGNORE).all()
        assert (example.contents[:count] == IGNORE).all()
        inputs, marks = example.inputs[count:], example.marks[count:]
        targets, contents = example.targets[count:], example.contents[count:]
        hidden = contents != IGNORE
        whole = set(marks[hidden].tolist())
        assert len(whole) == max(1, round(0.3 * count))
        assert (hidden == np.isin(marks, list(whole))).all()
        assert (inputs[hidden] == 256).all()
        assert (targets[hidden] == IGNORE).all()
        known = np.where(hidden, contents, np.where(targets != IGNORE, targets, inputs))
        assert (known == text).all()
        assert int((targets != IGNORE).sum()) == max(1, round(0.15 * int((~hidden & (text != 0)).sum())))


def test_sentences_follow_from_the_epoch_and_change_the_fingerprint(sentences):
    task = build_task(sentences)
    epochs = [task.examples("train").redrawn(5, epoch).contents for epoch in range(8)]
    assert any(not np.array_equal(epochs[0], other) for other in epochs)
    assert np.array_equal(epochs[0], task.examples("train")[5].contents)
    without_hidden = build_task(replace(sentences, hidden_sentences=0.0))
    assert without_hidden.examples("train")[5].contents is None
    assert without_hidden.examples("train")[5].marks is not None
    assert without_hidden.fingerprint != task.fingerprint


def test_what_a_contrasting_model_gets():
    found = MaskedConfig().contrasting()
    assert (found.summaries, found.hidden_sentences) == (32, 0.15)
    assert MaskedConfig(summaries=5, hidden_sentences=0.5).contrasting().summaries == 5
    for wrong in ({"summaries": 0}, {"hidden_sentences": 0.0}):
        with pytest.raises(ConfigError, match="more than 0 for a model with a cpc_weight"):
            MaskedConfig(**wrong).contrasting()
    with pytest.raises(ConfigError, match="0 without summaries"):
        MaskedConfig(summaries=0, hidden_sentences=0.2)
