"""Thresholds one after the other, against a call of the model at each of them."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from regard.core.errors import ConfigError
from regard.models import LanguageModel, ModelConfig
from regard.testing.compare import assert_close, assert_identical
from regard.testing.inputs import randn
from regard_lab.benchmark.exits import leaving_at, measure
from regard_lab.benchmark.rereading import Rereading

ITEMS = (np.arange(12 * 10).reshape(12, 10) * 7 % 23 * 11 % 20).astype(np.int64)
THRESHOLDS = (0.75, 0.68, 0.64, 0.6, 0.56, 0.5, 0.4, 0.2, 0.0)


def model_of(depth: str, **options: object) -> LanguageModel:
    config = ModelConfig(**{"dim": 16, "heads": 2, "layers": 5, "vocab_size": 20, **options}, depth=depth)
    model = LanguageModel(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_((0.6 if "judge" in name or "chooser" in name else 0.2) * randn(*weight.shape, seed=name))
    return model.double().eval()


@pytest.mark.parametrize(
    ("depth", "scale", "loss"),
    [
        ("light_exit", 1.0, "disagreement"),
        ("light_exit(whole=0)", 1.0, "last"),
        ("early_exit", 0.15, "disagreement"),
        ("early_exit", 0.15, "last"),
        ("early_exit", 0.15, "accuracy"),
        ("early_exit(whole=2)", 0.15, "accuracy"),
        ("early_exit(decaying=True, horizon=6)", 0.2, "disagreement"),
        ("early_exit(confidence=saturation)", 1.3, "accuracy"),
        ("early_exit(confidence=classifier, exits=aligned, heads=layer)", 1.0, "disagreement"),
        ("early_exit(confidence=geometric, exits=aligned)", 1.0, "last"),
    ],
)
@pytest.mark.parametrize("batch_size", [5, 16])
def test_every_threshold_is_a_call_of_its_own(depth, scale, loss, batch_size):
    model, grid = model_of(depth), [min(scale * one, 0.99) for one in THRESHOLDS]
    grid = sorted(set(grid), reverse=True)
    told: list[str] = []
    got = measure(model, ITEMS, grid, loss=loss, batch_size=batch_size, tell=told.append)
    tokens, targets = torch.from_numpy(ITEMS[:, :-1]), torch.from_numpy(ITEMS[:, 1:])
    with torch.no_grad():
        full = model(tokens).logits
        right = (full.argmax(-1) == targets).double().mean(1)
        assert_identical(torch.from_numpy(got.full_right), right, what="right of all blocks")
        for at, threshold in enumerate(grid):
            with leaving_at(model, threshold):
                wanted = model(tokens)
            assert wanted.steps is not None
            differs = (wanted.logits.argmax(-1) != full.argmax(-1)).double()
            rights = (wanted.logits.argmax(-1) == targets).double().mean(1)
            nats = torch.nn.functional.cross_entropy(wanted.logits.float().mT, targets, reduction="none").double()
            losses = {"disagreement": differs.mean(1), "last": differs[:, -1]}
            expected = losses.get(loss, (right - rights).clamp(min=0))
            what = f"{depth} at {threshold}"
            assert_identical(torch.from_numpy(got.losses[:, at]), expected, what=f"losses of {what}")
            assert_identical(torch.from_numpy(got.layers[:, at]), wanted.steps.double().mean(1), what=f"blocks, {what}")
            assert_close(torch.from_numpy(got.nats[:, at]), nats.mean(1), tolerance=1e-6, what=f"nats of {what}")
            assert got.exits[at].tolist() == torch.bincount(wanted.steps.flatten(), minlength=6)[1:].tolist()
    assert len({tuple(one) for one in got.exits.tolist()}) > 3, "thresholds that all give the same show too little"
    assert 0 < float(got.losses.mean()) < 1
    assert sum(line.startswith("read ") for line in told) == -(-len(ITEMS) // batch_size)


def test_what_does_not_change_is_not_computed_again():
    """Blocks below the first new exit, and passages without one."""
    model, ran = model_of("light_exit"), []
    for at, block in enumerate(model.blocks):
        block.register_forward_hook(lambda _, given, got, at=at: ran.append((at, len(given[0]))))
    with torch.no_grad():
        steps = [model(torch.from_numpy(ITEMS[:, :-1])).steps]
        for threshold in THRESHOLDS:
            with leaving_at(model, threshold):
                steps.append(model(torch.from_numpy(ITEMS[:, :-1])).steps)
    ran.clear()
    told: list[str] = []
    measure(model, ITEMS, THRESHOLDS, tell=told.append)
    wanted = [(at, len(ITEMS)) for at in range(5)]
    for before, now in pairwise(steps):
        rows = (now != before).any(1)
        if rows.any():
            first = int(now[now < before].min())
            last = int(now[rows].max())
            wanted += [(at, int(rows.sum())) for at in range(first, last)]
    assert ran == wanted
    assert len(ran) < 5 * len(THRESHOLDS)
    again = sum(rows for _, rows in wanted[5:]) / (5 * len(ITEMS) * len(THRESHOLDS))
    assert f"read 12 of 12 passages; {again:.0%} of blocks again at each threshold" in told


@torch.no_grad()
def test_confidences_are_asked_again_above_what_leaves_anew():
    """Only of tokens at or behind it that are there; what is above where others left before is not begun earlier."""
    model, asked, tokens = model_of("early_exit"), [], torch.from_numpy(ITEMS)
    with leaving_at(model, 1.0):
        reading = Rereading(model, tokens)
    sureness = model.depth.sureness
    model.depth.sureness = lambda x, *rest, **named: asked.append(len(x[0])) or sureness(x, *rest, **named)
    before, least, blocks = torch.full((12, 9), 5), 0, 0
    for threshold in (0.3, 0.12, 0.117, 0.114, 0.09, 0.089):
        with leaving_at(model, threshold):
            now = model(tokens[:, :-1]).steps
            asked.clear()
            assert_identical(reading.at_threshold().steps, now, what=f"blocks at {threshold}")
        same = torch.where(now < before, now, 5).cummin(1).values
        changed = same[:, -1] < 5
        assert sum(asked) == sum(int(((now >= n) & (n > same))[changed].sum()) for n in range(1, 5))
        if changed.any():
            blocks += int(changed.sum()) * int(now[changed].amax() - same.amin())
            least = max(least, int(same.amin()))
        assert reading.computed == blocks
        before = now
    assert least > 1, "at every threshold a token leaves behind the first block"


@torch.no_grad()
def test_tokens_may_go_further_at_a_lower_threshold():
    """Because one before them leaves now, and its keys make them less sure."""
    model, tokens, further = model_of("early_exit"), torch.from_numpy(ITEMS), 0
    with leaving_at(model, 1.0):
        reading = Rereading(model, tokens)
    before = reading.answers.steps.clone()
    for threshold in np.linspace(0.12, 0, 40).tolist():
        with leaving_at(model, threshold):
            wanted, got = model(tokens[:, :-1]), reading.at_threshold()
        assert_identical(got.steps, wanted.steps, what=f"blocks at {threshold}")
        assert_identical(got.likeliest, wanted.logits.argmax(-1), what=f"answers at {threshold}")
        further += int((wanted.steps > before).sum())
        before = wanted.steps
    assert further


def test_thresholds_fall():
    with pytest.raises(ConfigError, match="thresholds must fall from the safest on"):
        measure(model_of("light_exit"), ITEMS, (0.5, 0.6))
