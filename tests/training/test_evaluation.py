import math

import numpy as np
import pytest
import torch

from regard.core.errors import DataError
from regard_lab.tasks.base import IGNORE, Example
from regard_lab.training.evaluation import measure, score


def by_hand(model, examples) -> dict[int, list[float]]:
    """nats, tokens, right answers and bytes of each document, target by target in float64."""
    model = model.eval()
    documents: dict[int, list[float]] = {}
    for example in examples:
        sums = documents.setdefault(example.document, [0.0, 0, 0, 0])
        sums[3] += example.nbytes
        logits = model(torch.from_numpy(example.inputs)[None]).logits[0].detach().double().numpy()
        for row, target in zip(logits, example.targets, strict=True):
            if target != IGNORE:
                sums[0] += math.log(np.exp(row).sum()) - row[target]
                sums[1] += 1
                sums[2] += int(row.argmax() == target)
    return documents


@pytest.mark.parametrize("lengths", [(9,), (3, 9, 1)])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_sums_equal_the_definition(lookup, pairs, lengths, batch_size):
    """Float32 logits and log-softmax against float64: 2e-6 relative."""
    task = pairs(lengths=lengths)
    model = lookup(task.vocab_size)
    examples = task.examples("valid")
    found = score(model, examples, task.vocab_size, batch_size=batch_size)
    expected = by_hand(model, examples)
    assert found is not None
    assert found.documents.keys() == expected.keys() == {0, 1, 2, 3}
    for document, (nats, tokens, correct, nbytes) in expected.items():
        sums = found.documents[document]
        assert sums.nats == pytest.approx(nats, rel=2e-6)
        assert (sums.tokens, sums.correct, sums.nbytes) == (tokens, correct, nbytes)
    nats, tokens, correct, nbytes = (sum(column) for column in zip(*expected.values(), strict=True))
    summary = found.summary()
    assert summary["nats_per_token"] == pytest.approx(nats / tokens, rel=2e-6)
    assert summary["bits_per_byte"] == pytest.approx(nats / math.log(2) / nbytes, rel=2e-6)
    assert summary["accuracy"] == correct / tokens
    assert (summary["tokens"], summary["bytes"]) == (tokens, nbytes)
    table = found.table()
    assert table["document"] == [0, 1, 2, 3]
    assert sum(table["nats"]) == pytest.approx(found.total.nats, rel=1e-12)
    assert sum(table["correct"]) == correct


def test_evaluation_leaves_no_trace(lookup, pairs):
    task = pairs()
    model = lookup(task.vocab_size).train()
    state = torch.get_rng_state()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    score(model, task.examples("valid"), task.vocab_size)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    model.eval()
    score(model, task.examples("valid"), task.vocab_size)
    assert not model.training


def test_a_limit_takes_evenly_spaced_examples(lookup, pairs):
    task = pairs(count=10)
    model = lookup(task.vocab_size)
    examples = task.examples("valid")
    found = score(model, examples, task.vocab_size, limit=4)
    expected = by_hand(model, [examples[index] for index in (0, 2, 5, 7)])
    assert found is not None
    assert found.total.nats == pytest.approx(sum(row[0] for row in expected.values()), rel=2e-6)
    whole = score(model, examples, task.vocab_size, limit=99)
    assert whole is not None
    assert whole.total == score(model, examples, task.vocab_size).total


def test_it_stops_when_told(lookup, pairs):
    task = pairs()
    answers = iter([False, False, True])
    assert score(lookup(11), task.examples("valid"), 11, batch_size=2, stopped=lambda: next(answers)) is None
    assert next(answers, None) is None


def test_bfloat16_is_autocast_and_the_loss_is_float32(lookup, pairs):
    task = pairs()
    model = lookup(task.vocab_size)
    exact = score(model, task.examples("valid"), 11)
    rounded = score(model, task.examples("valid"), 11, dtype=torch.bfloat16)
    assert exact is not None
    assert rounded is not None
    assert rounded.total.nats != exact.total.nats
    assert rounded.total.nats == pytest.approx(exact.total.nats, rel=1e-2)
    logits = torch.randn(1, 3, 11, dtype=torch.bfloat16)
    targets = torch.tensor([[1, IGNORE, 10]])
    nats, _ = measure(logits, targets)
    expected = -torch.log_softmax(logits.double(), -1)[0, [0, 2], [1, 10]].sum()
    torch.testing.assert_close(nats[0], expected, rtol=2e-6, atol=0)


def test_nothing_to_predict_is_an_error(lookup):
    nothing = [Example(np.array([1, 2]), np.array([IGNORE, IGNORE]), 0, 0)]
    for examples in ([], nothing):
        with pytest.raises(DataError, match="no target"):
            score(lookup(11), Given(examples), 11)


def test_without_bytes_there_are_no_bits_per_byte(lookup):
    examples = [Example(np.array([1, 2]), np.array([3, IGNORE]), 0, 0)]
    found = score(lookup(11), Given(examples), 11)
    assert found is not None
    assert found.summary()["bits_per_byte"] is None


class Given(list):
    """Examples as a split."""
