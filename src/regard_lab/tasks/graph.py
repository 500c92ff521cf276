"""Nodes of a graph that are to be told apart by what is written at them and at their neighbours."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from regard import catalog
from regard.core.errors import ConfigError
from regard.patterns import parse as parse_pattern
from regard.patterns.edges import Edges, dealt_blocks
from regard.specs import Spec, options_of, parse
from regard_lab.tasks.base import IGNORE, SPLITS, Example, Split, Task, checked_index
from regard_lab.tasks.config import GraphConfig

_OPTION = "neighbours"
"""of a mechanism that takes a graph"""


class GraphTask(Task):
    """The class of every node of a stochastic block model, some of which are known.

    The whole graph is one sequence of words, a token each: words of class c are C + c W .. C + (c + 1) W - 1, with C
    classes of W words, and the tokens below C are the classes, which are targets and never inputs. With probability
    `signal` a node has a word of its own class, else any word: the word alone tells signal + (1 - signal) / C of the
    nodes, and neighbours, most of whom are of the same class, tell the rest.

    The split is transductive: all nodes and edges are there in training, and the classes of some nodes are not. An
    example of training counts all nodes that are trained on; one of validation or test counts one node, so that nodes
    are what a bootstrap draws. The order of the nodes says nothing of their class.

    Args:
        config: sizes and seed.

    Example:
        >>> task = GraphTask(GraphConfig(nodes=40, inside=4))
        >>> example = task.examples("train")[0]
        >>> len(example.inputs), int((example.targets != IGNORE).sum())
        (40, 8)
        >>> task.placed("graph")
        "graph(neighbours='block_model(40, 4, 4, 2, 0)')"

    Source: Holland, Laskey & Leinhardt 1983 (the graph); Yang, Cohen & Salakhutdinov 2016 (the split).
    """

    name: ClassVar[str] = "graph"
    metric: ClassVar = "accuracy"

    def __init__(self, config: GraphConfig):
        self.config = config
        classes, words = config.num_classes, config.words
        self.length, self.vocab_size = config.nodes, classes * (1 + words)
        self.neighbours = f"block_model({config.nodes}, {classes}, {config.inside}, {config.outside}, {config.seed})"
        self.labels = dealt_blocks(config.nodes, classes, config.seed).numpy()
        draw = np.random.default_rng([config.seed, 1])
        own = classes + self.labels * words + draw.integers(words, size=config.nodes)
        other = draw.integers(classes, self.vocab_size, size=config.nodes)
        self.words = np.where(draw.random(config.nodes) < config.signal, own, other)
        order = draw.permutation(config.nodes)
        known = min(max(round(config.labelled * config.nodes), 1), config.nodes - 2)
        half = known + (config.nodes - known) // 2
        parts = (order[:known], order[known:half], order[half:])
        self.nodes = {split: np.sort(part) for split, part in zip(SPLITS, parts, strict=True)}
        self.fingerprint = hashlib.sha256(repr(config).encode()).hexdigest()

    @property
    def num_targets(self) -> int:
        """Of the tokens, so that the output layer is that of a masked language model."""
        return self.vocab_size

    def examples(self, split: Split) -> "Nodes":
        if split not in self.nodes:
            raise ConfigError(f"task {self.name}: there is no split {split!r}; splits are {', '.join(SPLITS)}")
        nodes = self.nodes[split]
        return Nodes(self, nodes[None] if split == "train" else nodes[:, None])

    def placed(self, spec: str) -> str:
        """A mechanism's specification with the graph in it, where the mechanism takes one and none is given."""
        return catalog.rewritten(spec, self._with_neighbours)

    def _with_neighbours(self, spec: str) -> str:
        parsed = parse(spec)
        if _OPTION in parsed.options or _OPTION not in options_of(catalog.resolve(spec)[0]):
            return spec
        return str(Spec(parsed.name, {**parsed.options, _OPTION: self.neighbours}))

    def guesses(self) -> dict[str, Float64[np.ndarray, "nodes classes"]]:
        """The probabilities of the classes by rules that need no training: how often a class is, the word of a node,
        and the words of a node and its neighbours, each as if it were drawn by itself.

        Frequencies and words are counted on the nodes that are trained on, beginning at 1. The last is a control that
        knows the graph: what uses the graph well does not fall far behind it.
        """
        classes, train = self.config.num_classes, self.nodes["train"]
        frequency = 1.0 + np.bincount(self.labels[train], minlength=classes)
        counts = np.ones((classes, self.vocab_size))
        np.add.at(counts, (self.labels[train], self.words[train]), 1.0)
        of_word = np.log(counts / counts.sum(1, keepdims=True)).T[self.words]
        rule = parse_pattern(self.neighbours).rule
        assert isinstance(rule, Edges)
        summed = np.zeros_like(of_word)
        row, column = rule.pairs.numpy()  # the node itself is among them
        np.add.at(summed, row, of_word[column])
        prior = np.log(frequency / frequency.sum())
        return {
            "majority": _normalised(np.broadcast_to(prior, of_word.shape)),
            "word": _normalised(prior + of_word),
            "neighbours": _normalised(prior + summed),
        }


def _normalised(logits: Float64[np.ndarray, "nodes classes"]) -> Float64[np.ndarray, "nodes classes"]:
    odds = np.exp(logits - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


@dataclass(frozen=True)
class Nodes:
    """The graph, once for every group of nodes that count."""

    task: GraphTask
    groups: Int64[np.ndarray, "examples counted"]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> Example:
        group = self.groups[checked_index(index, len(self))]
        targets = np.full(self.task.length, IGNORE, np.int64)
        targets[group] = self.task.labels[group]
        return Example(self.task.words, targets, int(group[0]), 0)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))
