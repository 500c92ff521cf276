"""Batches of every kind of example: tokens, vectors, classes, sources, noise that is drawn anew."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from regard.core.errors import InputError
from regard.models import Classifier, Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig
from regard_lab.tasks.base import IGNORE, Example
from regard_lab.training.batches import collate


@dataclass
class Given:
    examples: list[Example]

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


PAIRS = Given(
    [
        Example(ints(0, 5, 6), ints(5, 6, 0), 0, 3, ints(7, 8, 9, 0)),
        Example(ints(0, 5), ints(5, 0), 1, 2, ints(7, 0)),
    ]
)


def test_both_sides_of_a_pair_are_padded_on_their_own():
    batch = collate(PAIRS, [1, 0], 10)
    assert batch.inputs.tolist() == [[0, 5, 0], [0, 5, 6]]
    assert batch.targets.tolist() == [[5, 0, IGNORE], [5, 6, 0]]
    assert batch.source.tolist() == [[7, 0, 0, 0], [7, 8, 9, 0]]
    assert batch.key_mask.tolist() == [[True, True, False], [True] * 3]
    assert batch.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert (batch.tokens, batch.positions) == (5, 5 + 6)
    assert collate(PAIRS, [0], 10).source_mask is None


def test_padding_changes_no_logit():
    """Float32, layers of width 16: 2e-6 of logits below 1."""
    model = EncoderDecoder(EncoderDecoderConfig(dim=16, heads=2, vocab_size=10)).eval()
    together, alone = collate(PAIRS, [1, 0], 10).through(model).logits[0], collate(PAIRS, [1], 10).through(model).logits
    torch.testing.assert_close(together[:2], alone[0], rtol=0, atol=2e-6)


def test_models_get_the_marks_that_they_read():
    given = Given(
        [
            Example(ints(0, 5, 6), ints(5, 6, 0), 0, 3, None, ints(-1, 1, 2), ints(-100, 7, -100)),
            Example(ints(0, 5), ints(5, 0), 1, 2, None, ints(-2, 2), ints(-100, -100)),
        ]
    )
    batch = collate(given, [0, 1], 10)
    assert batch.marks is not None
    assert batch.contents is not None
    assert batch.marks.tolist() == [[-1, 1, 2], [-2, 2, 0]]
    assert batch.contents.tolist() == [[-100, 7, -100], [-100] * 3]
    assert collate(PAIRS, [0], 10).marks is None
    for reads, expected in {
        "none": {},
        "tokens": {"marks": [[-1, 0, 0], [-2, 0, 0]]},
        "segments": {"marks": batch.marks.tolist(), "contents": batch.contents.tolist()},
    }.items():

        def model(inputs, *, key_mask, **others):
            return {name: x.tolist() for name, x in others.items()}

        assert batch.through(model) == {}
        model.reads_marks = reads
        assert batch.through(model) == expected


def test_vectors_and_classes():
    draw = np.random.default_rng(0)
    images = Given([Example(draw.standard_normal((n, 3)).astype(np.float32), ints(n), n, 0) for n in (2, 4)])
    batch = collate(images, [0, 1], 0, num_targets=5)
    assert batch.inputs.shape == (2, 4, 3)
    assert batch.targets.tolist() == [[2], [4]]
    assert batch.positions == 6
    model = Classifier(Encoder(EncoderConfig(dim=16, heads=2, vocab_size=0, input_dim=3)), classes=5)
    assert batch.through(model).logits.shape == (2, 5)
    images.examples[1].inputs[3, 1] = np.nan
    with pytest.raises(InputError, match=r"example 1, position 3: input .* must be finite numbers"):
        collate(images, [0, 1], 0, num_targets=5)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example(ints(0), ints(10), 0, 0), "example 0, position 0: target 10 must be from 0 to 9, or -100"),
        (Example(ints(0, 10), ints(1, 1), 0, 0), "example 0, position 1: input 10 must be from 0 to 9"),
        (Example(ints(0), ints(1), 0, 0, ints(3, -1)), "example 0, position 1: source -1 must be from 0 to 9"),
        (Example(ints(IGNORE), ints(1), 0, 0), "input -100 must be"),
    ],
)
def test_ids_outside_the_vocabulary_are_named(example, message):
    with pytest.raises(InputError, match=message):
        collate(Given([example]), [0], 10)


class Noise(Given):
    def redrawn(self, index: int, epoch: int) -> Example:
        return Example(ints(index), ints(epoch), 0, 0)


def test_noise_is_drawn_for_the_epoch_of_each_example():
    examples = Noise([Example(ints(0), ints(9), 0, 0)] * 3)
    assert collate(examples, [2, 0], 10, epochs=[4, 5]).targets.tolist() == [[4], [5]]
    assert collate(examples, [2, 0], 10).targets.tolist() == [[9], [9]]
    assert collate(Given(examples.examples), [2], 10, epochs=[4]).targets.tolist() == [[9]]


def test_models_that_read_targets_get_them_with_the_mask():
    class Reads:
        reads_targets = True

        def __call__(self, inputs, **given):
            return given

    batch = collate(
        Given([Example(ints(0, 5, 6), ints(5, 6, 0), 0, 3), Example(ints(0, 5), ints(5, 0), 1, 2)]), [0, 1], 10
    )
    given = batch.through(Reads())
    assert given["key_mask"].tolist() == [[True] * 3, [True, True, False]]
    assert given["targets"] is batch.targets
