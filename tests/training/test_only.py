"""Parts of a network that learn alone: they learn as in a whole training, and the others keep their bits."""

import re
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from regard.core.errors import ConfigError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard_lab.tasks import TextConfig, build_task
from regard_lab.training import RunConfig, Trainer, TrainingConfig, evaluate, resume, toml, train
from regard_lab.training.checkpoint import newest
from regard_lab.training.only import learning
from regard_lab.training.ranks import Ranks
from tests.training.conftest import stop_after

SHAPE = {"dim": 16, "heads": 2, "layers": 3, "vocab_size": 20, "max_length": 12, "seed": 3}
KINDS = {
    "residual": {},
    "parallel": {"block": "parallel"},
    "unit": {"block": "gated_unit", "mlp": "none", "attention": ("relu_squared",), "unit_gain": 1.0},
    "reversible": {"block": "reversible"},
    "blocks again": {"checkpoint": "block"},
    "attention again": {"checkpoint": "attention"},
    "exits": {"depth": "early_exit(exits=aligned)"},
    "loop": {"depth": "universal(steps=3)", "layers": 1},
    "patterns": {"attention": ("local(window=3)", "linear", "performer(num_features=8)")},
    "routed": {"attention": ("lsh(bucket_size=4)", "routing(num_clusters=3)", "strided(stride=3)")},
    "distances": {"position": "transformer_xl"},
    "segments": {"memory": ("none:2", "memorizing(pairs=8, top=2)"), "max_length": 4},
    "recent": {"memory": "recent(length=4)", "max_length": 4},
    "compressed": {
        "memory": "compressive(length=4, compressed=4, rate=2, function=convolution)", "max_length": 4, "layers": 2,
    },
}  # fmt: skip
PARTS = {
    "last": lambda layers: (f"blocks.{layers - 1}",),
    "first": lambda layers: ("blocks.0",),
    "output": lambda layers: ("*.projections.output", "norm"),
    "query": lambda layers: ("*.projections.query.weight",),
    "value": lambda layers: ("*.projections.value",),
    "norms": lambda layers: ("*norm",),
    "table": lambda layers: ("embeddings",),
}


def slopes(model: LanguageModel) -> dict[str, torch.Tensor]:
    """The gradients of a step, as the trainer makes it."""
    tokens = torch.randint(20, (3, 13), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    got = model.train()(tokens[:, :-1])
    objective = cross_entropy(got.logits.flatten(0, 1), tokens[:, 1:].flatten())
    objective = objective + sum(model.loss_weights[name] * x for name, x in got.losses.items())
    objective.backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_what_learns_has_the_gradient_of_a_whole_training(kind):
    """Whatever else does not: engines, recomputed passes and memories ask what needs a gradient."""
    config = ModelConfig(**{**SHAPE, **KINDS[kind]})  # type: ignore[arg-type]
    model = LanguageModel(config).double()
    wanted = slopes(deepcopy(model))
    for part, patterns in PARTS.items():
        ours = deepcopy(model)
        try:
            learning(ours, patterns(config.layers))
        except ConfigError:
            assert part in ("query", "value")  # a unit's queries and values have other names
            continue
        chosen = {name for name, x in ours.named_parameters() if x.requires_grad}
        assert 0 < len(chosen) < len(dict(ours.named_parameters()))
        found = slopes(ours)
        assert found.keys() == wanted.keys() & chosen, part
        for name, slope in found.items():
            assert (slope - wanted[name]).abs().max() <= 1e-10 * wanted[name].abs().max(), (part, name)


@pytest.fixture
def texts(tmp_path) -> RunConfig:
    """Documents of one to seven lines; memories in one layer."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for at in range(20):
        (folder / f"{at}.txt").write_text(" ".join(f"{at + n} after {n}" for n in range(2 + at % 7)))
    return RunConfig(
        ModelConfig(dim=16, heads=2, memory=("none", "memorizing(pairs=40, top=4)"), max_length=6, dropout=0.1),
        TextConfig(corpus=str(folder), length=12, holdout=0.2, cache=str(tmp_path / "cache")),
        TrainingConfig(
            steps=6, batch_size=4, warmup=0, log_every=1, evaluate_every=3, checkpoint_every=1, threads=1,
            learning_rate=0.05, weight_decay=0.5, keep=9, only=("*.memory",),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("training", [{}, {"carry": True}, {"accumulation": 2}, {"only": ("blocks.1", "norm")}])
def test_others_keep_their_bits_and_a_stopped_run_goes_on_to_the_same(texts, tmp_path, training):
    config = replace(texts, training=replace(texts.training, **training))
    whole = train(config, tmp_path / "whole")
    saved = newest(tmp_path / "whole" / "checkpoints")[0]
    assert saved is not None
    before = dict(LanguageModel(whole.config.model).named_parameters())  # type: ignore[arg-type]
    learn = {name for name in before if name.startswith("blocks.1.") or name == "norm.weight"}
    learn = learn if "only" in training else {name for name in before if ".memory." in name}
    changed = {name for name, x in before.items() if not torch.equal(x, saved.model[name])}
    assert changed == learn
    assert {key.rpartition("/")[0] for key in saved.optimizer} == learn
    for step in (1, 4):
        run = tmp_path / f"after {step}"
        with pytest.raises(RuntimeError, match="stopped"):
            train(config, run, on_progress=stop_after(step, "checkpoint"))
        assert resume(run).evaluation == whole.evaluation
        again = newest(run / "checkpoints")[0]
        for part in ("model", "optimizer", "rng", "memory"):
            ours, theirs = getattr(again, part), getattr(saved, part)
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs), (step, part)
    assert toml.load(tmp_path / "whole" / "config.toml") == whole.config
    assert evaluate(tmp_path / "whole")["bits_per_byte"] == pytest.approx(whole.evaluation["bits_per_byte"], rel=1e-6)


def test_a_first_step_whose_memory_is_empty_changes_nothing(texts, tmp_path):
    """Rows that carry segments of one window remember nothing yet, so that nothing which learns takes part."""
    task, model = replace(texts.task, length=6), replace(texts.model, dropout=0.0)
    training = replace(texts.training, carry=True, steps=2)
    run = train(replace(texts, model=model, task=task, training=training), tmp_path / "run")
    norms = [line["gradient_norm"] for line in run.metrics if line["kind"] == "train"]
    assert norms[0] == 0
    assert norms[1] > 0  # type: ignore[operator]


@pytest.mark.parametrize("loss", ["none", "attention"])
def test_who_learnt_nothing_is_told_so(texts, tmp_path, loss):
    """No gradient goes through what a compressive memory keeps: without a loss of its own it does not learn."""
    model = replace(texts.model, memory=f"compressive(length=4, compressed=4, rate=2, loss={loss})")
    events = []
    train(replace(texts, model=model), tmp_path / "run", on_progress=events.append)
    told = [event for event in events if event["kind"] == "untaught"]
    assert told == ([{"kind": "untaught", "step": 6, "only": ["*.memory"]}] if loss == "none" else [])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("memory", "training.only: nothing that learns is called 'memory', "),
        ("memory", "* for anything in a name, as in '*.memory'"),
        ("blocks.1.attention.memory.gate", "did you mean 'blocks.*.attention.memory.gates'?"),
        ("blocks.7", "nothing that learns is called 'blocks.7'"),
        ("", "nothing that learns is called ''"),
    ],
)
def test_a_pattern_that_nothing_has_is_refused(texts, tmp_path, pattern, message):
    config = replace(texts, training=replace(texts.training, only=("*.memory", pattern)))
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused(texts, tmp_path):
    class Two(Ranks):
        count = 2

    task = build_task(texts.task)
    model = LanguageModel(replace(texts.model, vocab_size=task.vocab_size))
    with pytest.raises(UnsupportedError, match=r"training\.only .*train with one process"):
        Trainer(model, task, texts.training, tmp_path / "run", ranks=Two())


def test_patterns():
    model = LanguageModel(ModelConfig(**{**SHAPE, "memory": ("none:2", "memorizing(pairs=8)"), "max_length": 4}))  # type: ignore[arg-type]
    chosen = {
        ("*.memory",): {"blocks.2.attention.memory.log_gain", "blocks.2.attention.memory.gates"},
        ("*.gates", "norm"): {"blocks.2.attention.memory.gates", "norm.weight"},
        ("embeddings.table.weight",): {"embeddings.table.weight"},
        ("blocks.[01].mlp",): {f"blocks.{at}.mlp.{name}.weight" for at in (0, 1) for name in ("up", "down")},
    }
    for patterns, wanted in chosen.items():
        ours = deepcopy(model)
        learning(ours, patterns)
        learning(ours, patterns)
        assert {name for name, x in ours.named_parameters() if x.requires_grad} == wanted
    learning(model, ())
    assert all(x.requires_grad for x in model.parameters())


def test_what_its_owner_froze_stays_so():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    learning(model, ("0",))
    assert [name for name, x in model.named_parameters() if x.requires_grad] == ["0.weight"]
    with pytest.raises(ConfigError, match=r"nothing that learns is called '0\.bias'"):
        learning(model, ("0.bias",))


def test_what_two_modules_share_has_both_names():
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"first": shared, "second": shared, "other": nn.Linear(2, 2)})
    learning(model, ("second.bias",))
    assert [name for name, x in model.named_parameters() if x.requires_grad] == ["first.bias"]


def test_what_no_loss_reaches_is_not_decayed_either(texts, tmp_path):
    """Convolutions of a memory without a loss: the bits of the beginning, however large the weight decay."""
    model = replace(texts.model, memory=("none", "compressive(length=4, compressed=2, rate=2, loss=none)"))
    run = train(replace(texts, model=model), tmp_path / "run")
    saved = newest(tmp_path / "run" / "checkpoints")[0]
    assert saved is not None
    before = dict(LanguageModel(run.config.model).named_parameters())  # type: ignore[arg-type]
    assert [name for name in before if ".memory." in name]
    assert all(torch.equal(x, saved.model[name]) for name, x in before.items())
