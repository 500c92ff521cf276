"""Baselines without attention: causal, blind to padding, reproducible, and able to learn."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard_lab.benchmark import baselines
from regard_lab.benchmark.baselines import BaselineConfig, FlatClassifier, SequenceClassifier, language_model
from regard_lab.tasks.base import IGNORE, Task

DRAW = torch.Generator().manual_seed(0)
TOKENS = torch.randint(0, 50, (3, 17), generator=DRAW)
VECTORS = torch.randn(3, 17, 6, generator=DRAW)
SEQUENCES = ("lstm", "convolution")


class Shaped(Task):
    """A task that is only its sizes."""

    name, metric = "shaped", "accuracy"

    def __init__(self, *, vocab_size=0, input_dim=0, classes=(), length=17):
        self.vocab_size, self.input_dim, self.classes, self.length = vocab_size, input_dim, classes, length

    def examples(self, split):
        raise NotImplementedError


@pytest.mark.parametrize("kind", SEQUENCES)
def test_no_later_token_changes_an_earlier_logit(kind):
    model = language_model(kind, vocab_size=50, dim=16, layers=3)
    before = model(TOKENS).logits
    assert before.shape == (3, 17, 50)
    for at in range(1, 17):
        changed = TOKENS.clone()
        changed[:, at] = (changed[:, at] + 1) % 50
        after = model(changed).logits
        assert torch.equal(after[:, :at], before[:, :at])
        assert not torch.equal(after[:, at], before[:, at])


def test_a_convolution_reaches_as_far_as_it_says():
    """3 blocks of 3 taps: 2 (1 + 2 + 4) = 14 earlier positions."""
    model = language_model("convolution", vocab_size=50, dim=8, layers=3, width=3)
    x = F.one_hot(TOKENS, 50).float().requires_grad_()
    hidden = model.trunk(x @ model.embedding.weight, None)
    hidden[:, 16].square().sum().backward()
    seen = x.grad.abs().sum((0, 2)) > 0
    assert seen.tolist() == [False] * 2 + [True] * 15


@pytest.mark.parametrize("kind", ["linear", "mlp", *SEQUENCES])
@pytest.mark.parametrize("inputs", [TOKENS, VECTORS])
def test_classifiers_look_everywhere(kind, inputs):
    sizes = {"input_dim": 6} if inputs.is_floating_point() else {"vocab_size": 50}
    task = Shaped(classes=("a", "b", "c", "d"), **sizes)
    model = baselines.build(BaselineConfig(kind=kind, dim=16, layers=4), task)
    before = model(inputs).logits
    assert before.shape == (3, 4)
    assert model(inputs).losses == model.loss_weights == {}
    for at in (0, 8, 16):
        changed = inputs.clone()
        changed[:, at] = changed[:, at] + 1 if inputs.is_floating_point() else (changed[:, at] + 1) % 50
        assert (model(changed).logits != before).any(1).all()


@pytest.mark.parametrize("kind", ["linear", "mlp", *SEQUENCES])
def test_padding_changes_nothing(kind):
    """A short text beside a long one, whatever stands in its padding, is classified as on its own."""
    model = baselines.build(BaselineConfig(kind=kind, dim=16), Shaped(vocab_size=50, classes=("a", "b", "c")))
    mask = torch.arange(17) < torch.tensor([[17], [9], [1]])
    padded = model(TOKENS, key_mask=mask).logits
    other = model(torch.where(mask, TOKENS, 7), key_mask=mask).logits
    torch.testing.assert_close(other, padded, rtol=0, atol=0)
    for row, length in enumerate((17, 9, 1)):
        alone = model(TOKENS[row : row + 1, :length]).logits
        torch.testing.assert_close(padded[row : row + 1], alone, rtol=0, atol=2e-6 * padded.abs().max().item())
    assert torch.isfinite(model(TOKENS, key_mask=torch.zeros_like(mask)).logits).all()


@pytest.mark.parametrize("kind", SEQUENCES)
def test_padding_of_a_language_model_changes_nothing(kind):
    model = language_model(kind, vocab_size=50, dim=16)
    mask = torch.arange(17) < torch.tensor([[17], [9], [1]])
    padded, whole = model(TOKENS, key_mask=mask).logits, model(TOKENS).logits
    for row, length in enumerate((17, 9, 1)):
        torch.testing.assert_close(padded[row, :length], whole[row, :length], rtol=0, atol=2e-6)


def test_a_linear_model_is_the_formula():
    model = baselines.build(BaselineConfig(kind="linear"), Shaped(vocab_size=50, classes=("a", "b", "c")))
    assert isinstance(model, FlatClassifier)
    (layer,) = model.layers
    counts = np.stack([np.bincount(row, minlength=50) for row in TOKENS.numpy()])
    expected = torch.log(1 + torch.from_numpy(counts).float()) @ layer.weight.T + layer.bias
    torch.testing.assert_close(model(TOKENS).logits, expected, rtol=0, atol=2e-6)
    model = baselines.build(BaselineConfig(kind="linear"), Shaped(input_dim=6, classes=("a", "b", "c")))
    (layer,) = model.layers
    expected = torch.einsum("bi,ci->bc", VECTORS.reshape(3, -1), layer.weight) + layer.bias
    torch.testing.assert_close(model(VECTORS).logits, expected, rtol=0, atol=4e-6)


def test_weights_are_those_of_the_seed_and_the_global_generator_is_untouched():
    state = torch.get_rng_state()
    a, b, c = (language_model("lstm", vocab_size=50, dim=16, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.embedding.weight, c.embedding.weight)


def trained(model, batches, steps, rate=1e-2) -> float:
    """The mean loss over the last tenth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        inputs, targets = batches()
        loss = F.cross_entropy(model(inputs).logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses[-(steps // 10) :]))


@pytest.mark.parametrize("kind", SEQUENCES)
def test_language_models_learn_what_a_context_of_one_cannot(kind):
    """x_t = x_{t-1} + x_{t-2} mod 8: guessing and any bigram model lose ln 8 = 2.08 nats, memory of two loses none."""
    draw = torch.Generator().manual_seed(1)

    def batches():
        rows = [torch.randint(0, 8, (32,), generator=draw) for _ in range(2)]
        while len(rows) < 13:
            rows.append((rows[-1] + rows[-2]) % 8)
        whole = torch.stack(rows, 1)
        targets = whole[:, 1:].clone()
        targets[:, 0] = IGNORE  # the second number is drawn, and nobody can know it
        return whole[:, :-1], targets

    assert trained(language_model(kind, vocab_size=8, dim=64), batches, 250) < 0.5


@pytest.mark.parametrize(("kind", "learns"), [("linear", False), ("convolution", True)])
def test_only_models_of_sequences_learn_an_order(kind, learns):
    """Class 1 has the token 3 right before the token 5, class 0 right after; counts are the same."""
    draw = torch.Generator().manual_seed(2)

    def batches():
        tokens = torch.randint(6, 12, (32, 12), generator=draw)
        labels = torch.randint(0, 2, (32,), generator=draw)
        at = torch.randint(0, 11, (32,), generator=draw)
        row = torch.arange(32)
        tokens[row, at], tokens[row, at + 1] = torch.where(labels == 1, 3, 5), torch.where(labels == 1, 5, 3)
        return tokens, labels

    model = baselines.build(BaselineConfig(kind=kind, dim=32), Shaped(vocab_size=12, classes=("after", "before")))
    loss = trained(model, batches, 200)
    assert (loss < 0.3) if learns else (loss > 0.65)


def test_what_is_refused():
    with pytest.raises(ConfigError) as caught:
        BaselineConfig(kind="ltsm", dim=0)  # type: ignore[arg-type]
    assert str(caught.value) == "dim must be at least 1, got 0\nkind: no choice 'ltsm': did you mean 'lstm'?"
    with pytest.raises(ConfigError, match="dim must be even"):
        BaselineConfig(kind="lstm", dim=15)
    with pytest.raises(ConfigError, match="mlp is no model of sequences: use lstm or convolution"):
        language_model("mlp", vocab_size=8)
    flat = FlatClassifier(BaselineConfig(kind="mlp"), vocab_size=0, features=17 * 6, classes=3)
    with pytest.raises(ShapeError, match=r"inputs must be 102 numbers for an example, got \(17, 5\)"):
        flat(VECTORS[..., :5])
    with pytest.raises(UnsupportedError, match="some are masked"):
        flat(VECTORS, key_mask=torch.ones(3, 17, dtype=torch.bool))
    assert SequenceClassifier(BaselineConfig(), vocab_size=0, input_dim=6, classes=3)(VECTORS).logits.shape == (3, 3)
