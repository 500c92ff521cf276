"""Universal Transformers: oracles of halting, tied stacks, steps that are left out, and what is refused."""

import math

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError
from regard.models import Encoder, EncoderConfig, EncoderDecoderConfig, LanguageModel, ModelConfig
from regard.models.depth import universal
from regard.models.depth.universal import Halting, Universal
from regard.models.generate import generate
from regard.testing.compare import assert_close
from tests.models.moved import moved

TOKENS = torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(1))


def model_of(depth: str, **options: object) -> LanguageModel:
    shape = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 20, "position": "none", "norm": "post", "seed": 3}
    return moved(LanguageModel(ModelConfig(**{**shape, **options}, depth=depth)))  # type: ignore[arg-type]


def halted(odds: list[float], steps: int) -> Halting:
    """One token of hidden states 1, 10, 100, ... with these probabilities of halting."""
    depth = Universal(ModelConfig(dim=1, heads=1, layers=1), steps=steps)
    hidden = [torch.full((1, 1, 1), 10.0**step, dtype=torch.float64) for step in range(steps)]
    after = Halting.before(torch.zeros(1, 1, 1, dtype=torch.float64), None)
    for step, x in enumerate(hidden):
        depth.odds = lambda x, p=odds[step]: x.new_full(x.shape[:2], p)  # type: ignore[method-assign]
        after = depth.after(after, x, last=step == steps - 1)
    return after


@pytest.mark.parametrize(
    ("odds", "steps", "count", "rest", "mean"),
    [
        ([1.0] * 3, 3, 1, 1.0, 1.0),
        ([0.2] * 6, 6, 5, 0.2, 0.2 * 11111),
        ([0.005] * 6, 6, 6, 0.975, 0.005 * 11111 + 0.975 * 100000),
        ([0.3, 0.3, 0.6], 3, 3, 0.4, 0.3 + 3 + 40),
        ([0.3, 0.69, 0.1], 3, 2, 0.7, 0.3 + 7),
    ],
)
def test_steps_rest_and_average(odds: list[float], steps: int, count: int, rest: float, mean: float) -> None:
    """SPEC I2's oracles, by hand; the published accumulator gives 41.93 for the fourth."""
    got = halted(odds, steps)
    assert not got.active.any()
    assert got.count.item() == count
    assert math.isclose(got.rest.item(), rest, abs_tol=1e-12)
    assert math.isclose(got.mean.item(), mean, rel_tol=1e-12)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_without_halting_it_is_a_tied_stack_with_coordinates(norm: str, layers: int) -> None:
    model = model_of("universal(steps=3, halting=False)", layers=layers, norm=norm)

    def code(at: int) -> Tensor:
        angles = [at / 10000 ** (2 * (c // 2) / 16) for c in range(16)]
        return torch.tensor([math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)], dtype=torch.float64)

    with torch.no_grad():
        x = model.embeddings(TOKENS)
        for step in (1, 2, 3):
            x = x + torch.stack([code(slot) for slot in range(1, 13)]) + code(step)
            for block in model.blocks:
                x = block(x).hidden
        wanted = model.logits(x if model.norm is None else model.norm(x))
        got = model(TOKENS)
    assert_close(got.logits, wanted, tolerance=1e-6, what="logits")
    assert got.steps is None
    assert model.loss_weights == got.losses == {}


@pytest.mark.parametrize(
    "options", [{}, {"layers": 2}, {"position": "rotary", "norm": "pre"}, {"attention": ("linear",)}]
)
def test_steps_that_no_token_needs_are_left_out_and_change_nothing(options, monkeypatch) -> None:
    model, calls = model_of("universal(steps=9)", **options), []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model.depth.halt.bias.fill_(-0.5)  # type: ignore[union-attr]

        def streamed() -> tuple[Tensor, dict[str, Tensor]]:
            state, pieces = model.initial_state(3), []
            for piece in TOKENS.split([5, 1, 6], 1):
                got = model(piece, state=state)
                state, _ = got.state, pieces.append(got.logits)
            return torch.cat(pieces, 1), state.tensors()

        short, kept = streamed()
        assert len(calls) < 27 if model.config.layers == 1 else len(calls) == 27
        monkeypatch.setattr(universal, "over", lambda *_: False)
        whole, wanted = streamed()
    assert_close(short, whole, tolerance=1e-12, what="logits")
    for name, x in wanted.items():
        assert_close(kept[name], x, tolerance=1e-12, what=name)


def test_an_encoder_ponders_too() -> None:
    encoder = moved(
        Encoder(EncoderConfig(dim=16, heads=2, layers=1, vocab_size=20, position="none", depth="universal"))
    )
    keep = torch.ones(3, 12, dtype=torch.bool)
    keep[1, 5:] = False
    got = encoder.train()(TOKENS, key_mask=keep)
    assert got.steps is not None
    assert not got.steps[~keep].any()
    assert encoder.loss_weights == {"depth.ponder": 0.01}
    alone = encoder(TOKENS[1:2, :5])
    assert_close(alone.hidden, got.hidden[1:2, :5], tolerance=1e-12, what="a row without its padding")
    each = [encoder(TOKENS[row][keep[row]][None]) for row in range(3)]
    counts = keep.sum(1)
    mean = sum(one.losses["depth.ponder"] * count for one, count in zip(each, counts, strict=True)) / counts.sum()
    assert_close(got.losses["depth.ponder"], mean, tolerance=1e-12, what="the mean over real tokens")


def test_losses_of_a_mechanism_are_added_up_over_the_steps() -> None:
    codes = ("vector_quantized(num_codes=5, block_size=4)",)
    model = model_of("universal(steps=3, halting=False)", attention=codes).train()
    model.blocks[0].attention.attention.recomputing = True  # the codebook stays
    losses: list[Tensor] = []
    model.blocks[0].register_forward_hook(lambda _, __, output: losses.append(output.losses["commitment"]))
    got = model(TOKENS).losses["commitment"]
    assert len(losses) == 3
    assert_close(got, sum(losses[1:], losses[0]), tolerance=1e-12, what="commitment")


def test_compiled_it_takes_every_step_and_gives_the_same() -> None:
    model = model_of("universal(steps=3)")
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert_close(compiled(TOKENS).logits, model(TOKENS).logits, tolerance=1e-12, what="logits")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.01, 0.001])
def test_small_odds_add_up_in_every_type(p: float, dtype: torch.dtype) -> None:
    depth = Universal(ModelConfig(dim=4, heads=1, layers=1), steps=1024).to(dtype)
    with torch.no_grad():
        depth.halt.bias.fill_(math.log(p / (1 - p)))
    x = torch.ones(1, 1, 4, dtype=dtype)
    after, true = Halting.before(x, None), depth.halt.bias.double().sigmoid().item()
    with torch.no_grad():
        for step in range(1024):
            after = depth.after(after, x, last=step == 1023)
    assert after.count.item() == math.ceil(0.99 / true)
    torch.testing.assert_close(after.mean, torch.ones(1, 1, 4), rtol=0, atol=1e-4)
    assert model_of("universal(steps=3)").to(dtype)(torch.tensor([[1]])).logits.dtype == dtype


def test_what_it_refuses() -> None:
    for options, message in (
        ({"block": "reversible"}, "runs blocks of one stream"),
        ({"memory": "recent(length=8)"}, "no memory for every step"),
        ({"depth": "universal(steps=0)"}, "steps"),
        ({"depth": "universal(epsilon=1.0)"}, "epsilon"),
        ({"depth": "universal(coordinates=slots)"}, "coordinates"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of(**{"depth": "universal", "norm": "pre", **options})
    with pytest.raises(ConfigError, match="depth must be fixed: the decoder runs blocks that read a source"):
        EncoderDecoderConfig(depth="universal")


@pytest.mark.parametrize("lookup", [0, 3])
def test_generated_tokens_count_blocks_and_not_steps(lookup: int) -> None:
    """A step of two blocks is two."""
    model = model_of("universal(steps=5)", layers=2)
    with torch.no_grad():
        model.depth.halt.weight.mul_(3)
        model.depth.halt.bias.fill_(-1.0)
    (row,) = generate(model, TOKENS[:1], max_new_tokens=6, temperature=0, lookup=lookup)
    steps = model(torch.cat([TOKENS[:1], row.tokens[None]], 1)).steps
    assert len(steps.unique()) > 1
    assert row.layers == tuple((2 * steps[0, 11:17]).tolist())
    assert model.depth.most == 10
