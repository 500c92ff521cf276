"""Nodes of a graph: who is known, what a word tells, rules that count by hand, and a network that uses the edges."""

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import ConfigError
from regard.models.encoder_config import EncoderConfig
from regard.patterns import parse
from regard_lab.tasks import IGNORE, GraphConfig, GraphTask, build_task
from regard_lab.training import TrainingConfig, network
from regard_lab.training.config import RunConfig


def test_classes_are_of_equal_size_and_a_number_says_nothing_of_a_class() -> None:
    task = GraphTask(GraphConfig(nodes=400, num_classes=4))
    assert np.bincount(task.labels).tolist() == [100] * 4
    assert (task.labels == np.arange(400) % 4).mean() < 0.35
    assert np.mean(task.labels[1:] == task.labels[:-1]) < 0.35


def test_edges_join_nodes_of_one_class_for_the_most_part() -> None:
    config = GraphConfig(nodes=400, inside=9, outside=3, seed=5)
    task = GraphTask(config)
    row, column = parse(task.neighbours).rule.pairs.numpy()
    alike = task.labels[row] == task.labels[column]
    assert abs(alike.sum() / 400 - 1 - 9) < 0.8  # a node is its own neighbour too
    assert abs((~alike).sum() / 400 - 3) < 0.3


@pytest.mark.parametrize("signal", [0.0, 0.4, 1.0])
def test_a_word_is_of_the_class_as_often_as_said(signal: float) -> None:
    task = GraphTask(GraphConfig(nodes=2000, num_classes=5, words=3, signal=signal))
    of = (task.words - 5) // 3
    assert task.words.min() >= 5
    assert task.words.max() < task.vocab_size == 20
    assert abs((of == task.labels).mean() - (signal + (1 - signal) / 5)) < 0.04


def test_every_node_counts_in_one_split_and_the_whole_graph_is_read_in_all() -> None:
    task = GraphTask(GraphConfig(nodes=60, labelled=0.25, inside=4))
    counted: list[int] = []
    for split, (examples, nodes) in {"train": (1, 15), "valid": (22, 1), "test": (23, 1)}.items():
        found = list(task.examples(split))
        assert len(found) == examples
        for example in found:
            here = (example.targets != IGNORE).nonzero()[0]
            assert len(here) == nodes
            assert example.document == here[0]
            assert (example.targets[here] == task.labels[here]).all()
            assert (example.inputs == task.words).all()
            counted += here.tolist()
    assert sorted(counted) == list(range(60))
    with pytest.raises(ConfigError, match="there is no split 'all'"):
        task.examples("all")  # type: ignore[arg-type]


def test_the_seed_of_the_task_alone_decides() -> None:
    one, same, other = (GraphTask(GraphConfig(seed=seed)) for seed in (3, 3, 4))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    assert (one.words == same.words).all()
    assert (one.words != other.words).any()
    assert isinstance(build_task(GraphConfig(seed=3), seed=9), GraphTask)


def test_rules_that_count_are_those_by_hand() -> None:
    task = GraphTask(GraphConfig(nodes=40, num_classes=2, words=2, inside=5))
    train, pairs = task.nodes["train"], set(map(tuple, parse(task.neighbours).rule.pairs.T.tolist()))
    told = task.guesses()
    for node in range(40):
        odds: dict[str, list[float]] = {"majority": [], "word": [], "neighbours": []}
        for label in range(2):
            known = [n for n in train if task.labels[n] == label]
            prior = (len(known) + 1) / (len(train) + 2)

            def share(at: int, known: list[int] = known) -> float:
                return (sum(task.words[n] == task.words[at] for n in known) + 1) / (len(known) + task.vocab_size)

            around = [share(at) for at in range(40) if (node, at) in pairs]
            odds["majority"].append(prior)
            odds["word"].append(prior * share(node))
            odds["neighbours"].append(prior * float(np.prod(around)))
        for name, both in odds.items():
            np.testing.assert_allclose(told[name][node], np.array(both) / sum(both), rtol=0, atol=1e-12)


def test_a_mechanism_that_takes_neighbours_gets_those_of_the_task() -> None:
    task = GraphTask(GraphConfig(nodes=40, inside=4, seed=2))
    text = "block_model(40, 4, 4, 2, 2)"
    assert task.placed("graph(slope=0.1)") == f"graph(slope=0.1, neighbours={text!r})"
    own = "graph(neighbours='block_model(40, 2, 1, 1, 0)')"
    assert [task.placed(spec) for spec in ("softmax", own)] == ["softmax", own]
    mixed = network.fitted(EncoderConfig(attention=("graph:2 + softmax:2", "softmax")), task)
    assert mixed.attention[0].startswith(f"graph(neighbours={text!r})")
    assert (mixed.vocab_size, mixed.attention[1]) == (task.vocab_size, "softmax")
    with pytest.raises(ConfigError, match="cls_token puts a vector in front of the nodes"):
        network.fitted(EncoderConfig(cls_token=True), task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 9}, "nodes=9 is not possible; it must be at least 10"),
        ({"num_classes": 1}, "num_classes=1"),
        ({"inside": 40}, "inside=40 is not possible; it must be from 0 to 37: half of the nodes that there are"),
        ({"outside": 113}, "outside=113 is not possible; it must be from 0 to 112"),
        ({"signal": 1.5}, "signal=1.5"),
        ({"labelled": 0.0}, "labelled=0.0"),
        ({"words": 0}, "words=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_no_graph(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GraphConfig(**options)


def test_a_run_uses_the_edges_is_evaluated_and_goes_on(tmp_path: Path) -> None:
    """Weights alone could not: a network without the edges knows a node by its word."""
    model = EncoderConfig(dim=16, heads=2, layers=2, position="none", attention=("graph",), dropout=0.0)
    task = GraphConfig(nodes=80, num_classes=2, words=2, inside=8, outside=1, labelled=0.5)
    training = TrainingConfig(steps=40, batch_size=1, warmup=4, learning_rate=1e-2, evaluate_every=40)
    result = regard.train(RunConfig(model, task, training), tmp_path / "run")
    told = GraphTask(task)
    nodes = told.nodes["valid"]
    by_word = (told.guesses()["word"].argmax(1) == told.labels)[nodes].mean()
    assert result.evaluation["accuracy"] > by_word + 0.1
    assert "graph(neighbours='block_model(80, 2, 8, 1, 0)')" in (tmp_path / "run" / "config.toml").read_text()
    loaded = regard.load(tmp_path / "run")
    logits = loaded.model.eval()(torch.from_numpy(told.words)[None]).logits[0]
    right = (logits.argmax(-1).numpy() == told.labels)[nodes].mean()
    assert right == pytest.approx(result.evaluation["accuracy"])
