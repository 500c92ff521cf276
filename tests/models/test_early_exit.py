"""Tokens that leave early: formulas, what is left out and what is not, other blocks and mechanisms, generation."""

import math
from dataclasses import replace

import pytest
import torch

from regard.core.errors import ConfigError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import Threads
from regard.models.depth.early_exit import EarlyExit
from regard.models.encoder import Encoder
from regard.models.encoder_config import EncoderConfig
from regard.testing.compare import assert_close, assert_identical
from regard.testing.inputs import randn

TOKENS = torch.arange(4 * 9).reshape(4, 9) * 7 % 20


def model_of(depth: str, **options: object) -> LanguageModel:
    """Weights far from where they start, so that tokens leave after different blocks."""
    config = ModelConfig(**{"dim": 16, "heads": 2, "layers": 4, "vocab_size": 20, **options}, depth=depth)
    model = LanguageModel(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return model.double().eval()


def test_the_fall_of_the_threshold():
    depth = EarlyExit(ModelConfig(), threshold=0.8, decaying=True, temperature=4.0, horizon=10)
    limit = depth.limit(torch.tensor([0, 5, 10]))
    wanted = [0.72 + 0.1 * math.exp(-4 * t / 10) for t in (0, 5, 10)]
    assert_close(limit, torch.tensor(wanted, dtype=torch.float64), tolerance=1e-14, what="lambda'")
    depth = EarlyExit(ModelConfig(), threshold=0.999, decaying=True, temperature=0.0)
    assert depth.limit(torch.tensor([3])).tolist() == pytest.approx([0.9991], rel=1e-14)
    assert EarlyExit(ModelConfig(), threshold=0.8).limit(torch.tensor([0, 9])) == 0.8


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({}, True),
        ({"confidence": "geometric", "exits": "aligned"}, True),
        ({"thresholds": (0.5, None)}, False),
        ({"confidence": "multinomial"}, False),
        ({"confidence": "sequence"}, False),
    ],
)
def test_who_asks_for_one_threshold(options, asks):
    assert EarlyExit(ModelConfig(layers=3), **options).asks is asks


def test_blocks_that_no_token_needs_are_left_out_but_for_their_keys():
    """Keys above are W norm(h) of the state that the token left with."""
    model, ran = model_of("early_exit(threshold=0.0)", position="none"), []
    for at, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, at=at: ran.append(at))
    with torch.no_grad():
        got = model(TOKENS, state=model.initial_state(4))
        left = model.blocks[0](model.embeddings(TOKENS)).hidden
        assert ran == [0, 0]
        kept = got.state.tensors()
        for at, block in list(enumerate(model.blocks))[1:]:
            k, v = block.attention.projections(block.attended(left))
            assert_close(kept[f"layers.{at}.k"], k, tolerance=1e-12, what=f"keys of block {at}")
            assert_close(kept[f"layers.{at}.v"], v, tolerance=1e-12, what=f"values of block {at}")
        ran.clear()
        model(TOKENS)
    assert ran == [0], "without a state nothing is kept"


@pytest.mark.parametrize(
    "options",
    [
        {"attention": ("linear",)},
        {"attention": ("local(window=3)", "linear") * 2},
        {"block": "parallel"},
        {"block": "gated_unit", "mlp": "none"},
        {"norm": "post"},
        {"position": "learned(per_layer=True)", "max_length": 16},
        {"tied": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("depth", ["early_exit(threshold=0.04)", "early_exit(threshold=0.6, confidence=saturation)"])
def test_rows_that_leave_at_different_depths_stream(depth, options):
    """Together, token by token, equals each row in one piece, whatever the blocks are made of."""
    model = model_of(depth, **options)
    with torch.no_grad():
        whole, state, pieces = model(TOKENS), model.initial_state(4), []
        for at in range(TOKENS.shape[1]):
            pieces.append(model(TOKENS[:, at : at + 1], state=state))
            state = pieces[-1].state
    assert len(whole.steps.unique()) > 1, "every token leaves at the same depth, so nothing is tested"
    assert any(len(piece.steps.unique()) > 1 for piece in pieces)
    assert_identical(torch.cat([piece.steps for piece in pieces], 1), whole.steps, what="blocks of each token")
    logits = torch.cat([piece.logits for piece in pieces], 1)
    assert_close(logits, whole.logits, tolerance=1e-11, what="logits")


def test_left_padding_counts_where_a_token_is():
    """A row that starts late has the threshold of its own tokens, not that of the slots."""
    model = model_of("early_exit(threshold=0.05, decaying=True, horizon=4)", position="rotary")
    padded = torch.cat([TOKENS[:, :3], TOKENS], 1)
    keep = torch.ones(padded.shape, dtype=torch.bool)
    keep[:, :3] = False
    positions = (torch.arange(12) - 3).clamp(min=0).expand(4, 12)
    with torch.no_grad():
        wanted, got = model(TOKENS), model(padded, key_mask=keep, positions=positions)
    assert len(wanted.steps.unique()) > 1
    assert_identical(got.steps[:, 3:], wanted.steps, what="blocks of each token")
    assert not got.steps[:, :3].any()
    assert_close(got.logits[:, 3:], wanted.logits, tolerance=1e-12, what="logits")


def test_training_takes_every_block():
    early, full = model_of("early_exit(threshold=0.0)").train(), model_of("fixed").train()
    wanted, got = full(TOKENS), early(TOKENS)
    assert_identical(got.logits, wanted.logits, what="logits")
    assert (got.steps == 4).all()
    got.logits.square().mean().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in early.blocks[-1].parameters())


def test_an_encoder_saturates():
    shape = EncoderConfig(dim=16, heads=2, layers=3, vocab_size=20)
    encoder = Encoder(replace(shape, depth="early_exit(confidence=saturation, threshold=0.0)")).eval()
    assert (encoder(TOKENS).steps == 2).all()
    with pytest.raises(ConfigError, match="reads an output layer, which an encoder does not have"):
        Encoder(replace(shape, depth="early_exit"))


def test_what_it_cannot_run_is_refused():
    for options, message in (
        ({"block": "reversible"}, "blocks of one stream"),
        ({"memory": "recent(length=8)", "max_length": 8}, "leave the memory out"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of("early_exit", **options)
    for option in ("threshold=1.5", "threshold=-0.1", "confidence=entropy", "temperature=-1.0", "horizon=0"):
        with pytest.raises(ConfigError, match=option.partition("=")[0]):
            model_of(f"early_exit({option})")
    model = model_of("early_exit")
    with pytest.raises(ConfigError, match="needs the output layer of a model"):
        model.depth(list(model.blocks), model.embeddings(TOKENS), Threads([None] * 4, [None] * 4))


def test_each_block_may_have_a_threshold_of_its_own():
    shared, own = (
        model_of(f"early_exit({options}, whole=1)") for options in ("threshold=0.04", "thresholds=(0.04, 0.04, 0.04)")
    )
    never = model_of("early_exit(thresholds=(2.0, 0.0, 2.0))")
    with torch.no_grad():
        assert_identical(own(TOKENS).steps, shared(TOKENS).steps, what="blocks at one threshold for all")
        assert_identical(own(TOKENS).logits, shared(TOKENS).logits, what="logits")
        assert (never(TOKENS).steps == 2).all()
    sure = model_of("early_exit(confidence=classifier, thresholds=(None, 1.0, None))")
    with torch.no_grad():
        sure.depth.chooser.bias.fill_(99)
        assert (sure(TOKENS).steps == 2).all(), "None is no threshold of 1, which a confidence may reach"
    for options, message in (
        ("thresholds=(0.5, 0.5)", "thresholds are 3 numbers or None, one for every block but the last"),
        ("thresholds=(0.5, 0.5, 0.5), decaying=True", "thresholds of each block do not decay"),
        ("thresholds=(0.5, 0.5, 0.5), confidence=multinomial", "planned exits ask for none"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of(f"early_exit({options})")
