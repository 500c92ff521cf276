"""What exits learn, by hand: the oracle's exit, smoothing, odds that sum to 1, what is balanced, and how losses add."""

import math

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError, InputError, ShapeError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import Threads, build_depth
from regard.models.depth._lessons import best, exit_weights, log_geometric, smoothed
from regard.models.depth.early_exit import EarlyExit
from regard.testing.compare import assert_close, assert_identical
from regard.testing.inputs import randn

TOKENS = torch.arange(3 * 9).reshape(3, 9) * 7 % 20


def model_of(depth: str, **options: object) -> LanguageModel:
    config = ModelConfig(**{"dim": 16, "heads": 2, "layers": 4, "vocab_size": 20, **options}, depth=depth)
    model = LanguageModel(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return model.double()


@pytest.mark.parametrize(
    ("scores", "penalty", "exit"),
    [
        ([-3.0, -2.0, -1.0], 0.0, 2),  # monotone, and depth is free: the last
        ([-3.0, -2.0, -1.0], math.inf, 0),
        ([-3.0, -2.0, -1.0], 1e9, 0),
        ([-3.0, -2.0, -1.0], 1.0, 0),  # all equal: the lowest
        ([-3.0, -1.0, -1.0], 0.0, 1),
        ([-3.0, -1.0, -0.5], 0.75, 1),  # -3.75, -2.5, -2.75
        ([0.0, 1.0, 1.0], 0.5, 1),
    ],
)
def test_the_exit_of_an_oracle(scores: list[float], penalty: float, exit: int) -> None:
    assert best(torch.tensor(scores), penalty).item() == exit


def test_without_a_width_smoothing_is_the_identity() -> None:
    scores, counted = randn(2, 7, 3, seed="scores").double(), torch.ones(2, 7, dtype=torch.bool)
    assert_identical(smoothed(scores, 0.0, counted), scores, what="sigma = 0")
    assert_identical(smoothed(scores, 1e-4, counted), scores, what="sigma -> 0")
    flat = smoothed(scores, 1e12, counted)
    assert_close(flat, scores.sum(1, keepdim=True).expand_as(flat), tolerance=1e-9, what="sigma -> inf")


def test_odds_of_stopping_sum_to_one() -> None:
    logits = randn(5, 7, 3, seed="odds").double() * 3
    log_q = log_geometric(logits)
    assert log_q.shape == (5, 7, 4)
    assert_close(log_q.exp().sum(-1), torch.ones(5, 7, dtype=torch.float64), tolerance=1e-14, what="sum of q")
    for row in range(5):
        chi = [1 / (1 + math.exp(-x)) for x in logits[row, 0].tolist()]
        q = [chi[0], (1 - chi[0]) * chi[1], (1 - chi[0]) * (1 - chi[1]) * chi[2]]
        q.append((1 - chi[0]) * (1 - chi[1]) * (1 - chi[2]))
        assert log_q[row, 0].tolist() == pytest.approx([math.log(x) for x in q], rel=1e-10)
    far = log_geometric(torch.tensor([1000.0, -1000.0, 1000.0]))
    assert far.tolist() == [0.0, -2000.0, -1000.0, -2000.0], "logs, where the odds themselves are 0"
    far = torch.full((3,), 200.0, requires_grad=True)
    log_geometric(far)[3].backward()
    assert far.grad.isfinite().all()


@pytest.mark.parametrize("weights", ["uniform", "rising"])
def test_the_objective_of_aligned_exits_is_their_weighted_mean(weights: str) -> None:
    """CE_N + weight . loss, in units of the last exit's weight, is sum_n w_n CE_n with weights that sum to 1."""
    model = model_of(f"early_exit(exits=aligned, weights={weights}, confidence=geometric)").train()
    got = model(TOKENS)

    def nats(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())

    x, each = model.embeddings(TOKENS), []
    for block in model.blocks:
        x = block(x).hidden
        each.append(nats(model.logits(model.norm(x))))
    w = {"uniform": [0.25] * 4, "rising": [0.1, 0.2, 0.3, 0.4]}[weights]
    assert exit_weights(weights, 4) == pytest.approx(w)
    wanted = sum(part * loss for part, loss in zip(w, each, strict=True)) / w[-1]
    actual = nats(got.logits) + model.loss_weights["depth.exits"] * got.losses["depth.exits"]
    assert_close(actual, wanted, tolerance=1e-12, what="objective")
    assert model.loss_weights["depth.choice"] == pytest.approx(0.1 / w[-1])


def test_targets_are_the_next_tokens_unless_given() -> None:
    model = model_of("early_exit(exits=aligned, confidence=multinomial)").train()
    after = torch.cat([TOKENS[:, 1:], torch.full((3, 1), -100)], 1)
    assert model(TOKENS).losses == model(TOKENS, targets=after).losses
    keep = torch.ones(TOKENS.shape, dtype=torch.bool)
    keep[1, 6:] = False
    after[1, 5:] = -100
    assert model(TOKENS, key_mask=keep).losses == model(TOKENS, key_mask=keep, targets=after).losses
    other = model(TOKENS, targets=(after + 1).where(after >= 0, after) % 20).losses
    assert all(other[name] != loss for name, loss in model(TOKENS, targets=after).losses.items())
    nothing = model(TOKENS, targets=torch.full_like(TOKENS, -100)).losses
    assert all(loss == 0 for loss in nothing.values())


def test_a_map_of_its_own_starts_as_the_shared_head() -> None:
    config = ModelConfig(dim=16, heads=2, layers=3, vocab_size=20)
    model = LanguageModel(config).double().eval()
    told = TOKENS % 3 + 1
    model.depth = build_depth("early_exit", config).eval()
    wanted = model(TOKENS, depths=told).logits
    model.depth = build_depth("early_exit(heads=layer, exits=mixed)", config).double().eval()
    assert_identical(model(TOKENS, depths=told).logits, wanted, what="logits")


def test_a_compiled_call_learns_the_same() -> None:
    model = model_of("early_exit(exits=aligned, heads=layer, confidence=geometric, smoothing=2.0)", layers=2).train()
    wanted = model(TOKENS)
    got = torch.compile(model, backend="eager", fullgraph=True)(TOKENS)
    assert_close(got.logits, wanted.logits, tolerance=1e-12, what="logits")
    for name, loss in wanted.losses.items():
        assert_close(got.losses[name], loss, tolerance=1e-12, what=name)


def test_recomputed_blocks_learn_the_same() -> None:
    """A mixed call draws its depths once, outside of what is computed again."""
    slopes = []
    for checkpoint in ("none", "block"):
        model = model_of("early_exit(exits=mixed)", checkpoint=checkpoint).train()
        torch.manual_seed(3)
        model(TOKENS).logits.square().mean().backward()
        slopes.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, slope in slopes[0].items():
        assert_close(slopes[1][name], slope, tolerance=1e-12, what=name)


def test_what_has_no_use_together_is_refused() -> None:
    for options, message in (
        ("heads=layer", "are trained with exits='aligned' or exits='mixed'"),
        ("exits=mixed, confidence=geometric", "exits='mixed' has one of each"),
        ("decaying=True, confidence=sequence", "leave decaying out"),
        ("decaying=True, confidence=multinomial", "leave decaying out"),
        ("exits=some", "exits"),
        ("penalty=-1.0", "penalty"),
        ("smoothing=-1.0", "smoothing"),
        ("choice=-1.0", "choice"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of(f"early_exit({options})")
    with pytest.raises(ConfigError, match="no exit to train below the last"):
        model_of("early_exit(exits=aligned)", layers=1)


def test_targets_and_depths_are_looked_at() -> None:
    model, told = model_of("early_exit(exits=aligned)"), torch.ones_like(TOKENS)
    with pytest.raises(UnsupportedError, match="takes no depths of tokens; use depth='early_exit'"):
        model_of("fixed")(TOKENS, depths=told)
    for wrong in (0, 5):
        with pytest.raises(InputError, match=f"depths: {wrong} is out of range, they are from 1 to 4"):
            model.eval()(TOKENS, depths=told * wrong)
    with pytest.raises(ShapeError, match="depths must be int64"):
        model(TOKENS, depths=told[:, :3])
    model.train()
    with pytest.raises(UnsupportedError, match="learns from every exit of a token"):
        model(TOKENS, depths=told)
    with pytest.raises(InputError, match="targets: 20 is out of range, they are at most 19"):
        model(TOKENS, targets=told * 20)
    with pytest.raises(ShapeError, match="targets must be int64"):
        model(TOKENS, targets=told[0])
    with pytest.raises(InputError, match="no tokens in this model; give targets"):
        model_of("early_exit(exits=aligned)", targets=5, tied=False).train()(TOKENS)
    model = model_of("early_exit(exits=aligned, confidence=saturation)").train()
    with pytest.raises(ConfigError, match="learns from targets in training"):
        EarlyExit(model.config, exits="aligned", confidence="saturation").train()(
            list(model.blocks),
            model.embeddings(TOKENS),
            Threads([None] * 4, [None] * 4),
            readout=model.logits,
        )
