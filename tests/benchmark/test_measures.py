"""Which task a comparison has, from what its mechanisms support."""

import pytest

from regard.core.errors import ConfigError, UnsupportedError
from regard.core.info import Info, Supports
from regard_lab.benchmark.config import CompareConfig
from regard_lab.benchmark.measures import TASKS, check_settings, chosen
from regard_lab.tasks.config import ClassificationConfig, MaskedConfig, TextConfig

BOTH, CAUSAL, AROUND, UNMASKED = (
    {"causal": True, "bidirectional": True, "key_mask": True},
    {"causal": True, "key_mask": True},
    {"bidirectional": True, "key_mask": True},
    {"bidirectional": True},
)


def facts(**supports) -> dict[str, Info]:
    return {name: Info(title=name, source="", supports=Supports(**given)) for name, given in supports.items()}


def choice(task=None, *, classification=None, **supports) -> str:
    config = CompareConfig(
        specs=tuple(supports), task=task, classification=classification or ClassificationConfig(length=128)
    )
    return chosen(config, facts(**supports))


@pytest.mark.parametrize(
    ("supports", "task"),
    [
        ({"a": BOTH}, "lm"),
        ({"a": BOTH, "b": CAUSAL}, "lm"),
        ({"a": BOTH, "b": AROUND}, "mlm"),
        ({"a": AROUND}, "mlm"),
    ],
)
def test_the_default_is_what_all_can_do(supports, task):
    assert choice(**supports) == task


@pytest.mark.parametrize("task", TASKS)
def test_the_task_that_is_named(task):
    assert choice(task, a=BOTH) == task


def test_none_can_be_chosen():
    with pytest.raises(UnsupportedError) as caught:
        choice(a=CAUSAL, b=AROUND)
    assert str(caught.value).splitlines() == [
        "b cannot do lm: b does not support causal=True",
        "a cannot do mlm: a does not support causal=False",
        "no task serves all of them; lm: a; mlm: b; classify: b; recall: a",
    ]


def test_what_is_lacking_is_named():
    with pytest.raises(UnsupportedError) as caught:
        choice("classify", a=BOTH, b=UNMASKED, c=CAUSAL)
    assert str(caught.value).splitlines() == [
        "b cannot do classify: b does not support key_mask",
        "c cannot do classify: c does not support causal=False",
        "no task serves all of them; lm: a, c; mlm: a; classify: a; recall: a, c",
    ]
    with pytest.raises(UnsupportedError, match=r"all of them can do --task lm or recall$"):
        choice("mlm", a=BOTH, c=CAUSAL)


def test_images_are_of_one_length_and_need_no_mask():
    assert choice("classify", classification=ClassificationConfig(data="fashion.npz"), a=UNMASKED) == "classify"


def test_every_layer_counts():
    config = CompareConfig(specs=("a / b",), task="lm")
    with pytest.raises(UnsupportedError, match=r"^a / b cannot do lm: b does not support causal=True\n"):
        chosen(config, facts(a=BOTH, b=AROUND))


def test_text_options_are_those_of_masked_text():
    config = CompareConfig(text=TextConfig(corpus="song_ci", length=64), masked_rate=0.3, task="mlm")
    (measure,) = TASKS["mlm"]
    assert measure.task(config) == MaskedConfig(corpus="song_ci", length=64, rate=0.3)
    assert measure.option(config, "batch_size") == config.masked_batch_size
    assert [m.option(config, "batch_size") for m in TASKS["lm"]] == [config.batch_size, config.recall_batch_size]


def test_shares_of_a_budget():
    assert {task: pytest.approx(sum(measure.share for measure in found)) for task, found in TASKS.items()} == (
        dict.fromkeys(TASKS, 0.7)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masked_rate": 1.0}, "masked_rate must be more than 0 and less than 1, got 1.0"),
        ({"masked_steps": 0}, "masked_steps must be at least 1, got 0"),
        ({"classification_batch_size": 0}, "classification_batch_size must be at least 1, got 0"),
        ({"classification_learning_rate": 0.0}, "classification_learning_rate must be positive, got 0.0"),
        ({"classification_evaluate_examples": -1}, "classification_evaluate_examples must be at least 0 (all), got -1"),
        ({"baselines": ("mlp", "mlp")}, "baselines must differ from one another, got ['mlp', 'mlp']"),
    ],
)
def test_settings_that_make_no_sense(change, message):
    with pytest.raises(ConfigError) as caught:
        CompareConfig(**change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("task", "change", "lines"),
    [
        (
            "lm",
            {"classification": ClassificationConfig(data="song_ci"), "masked_rate": 0.3},
            [
                "masked_rate is read by --task mlm, and this comparison is by lm",
                "classification is read by --task classify, and this comparison is by lm",
            ],
        ),
        ("mlm", {"ngram": 2}, ["ngram is read by --task lm, and this comparison is by mlm"]),
        ("classify", {"text_steps": 5}, ["text_steps is read by --task lm, and this comparison is by classify"]),
        ("recall", {"text": TextConfig()}, ["text is read by --task lm or mlm, and this comparison is by recall"]),
    ],
)
def test_settings_of_another_task_are_refused(task, change, lines):
    config = CompareConfig(**change)
    with pytest.raises(ConfigError) as caught:
        check_settings(config, task)
    assert str(caught.value).splitlines() == [*lines, "leave it out, or name the task"]


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("lm", {"ngram": 2, "recall_steps": 9, "text_steps": 9, "seeds": 2}),
        ("mlm", {"text": TextConfig(), "masked_steps": 9}),
        ("classify", {"classification_steps": 9, "baselines": ()}),
        ("recall", {"recall_steps": 9, "evaluate_examples": 9, "threads": 1}),
    ],
)
def test_settings_of_the_task_are_read(task, change):
    check_settings(CompareConfig(**change), task)
