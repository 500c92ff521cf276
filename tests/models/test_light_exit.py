"""Light heads: formulas by hand, what tokens that have left save, and what is fitted."""

import copy

import pytest
import torch

from regard.core.errors import ConfigError, DataError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import light_exit
from regard.models.depth.light_exit import of_unit_size
from regard.models.generate import generate
from regard.testing.compare import assert_close, assert_identical
from regard.testing.inputs import randn
from regard_lab.training.exit_heads import fit_light_heads, passages_needed

TOKENS = torch.arange(4 * 9).reshape(4, 9) * 7 % 20


def model_of(depth: str, **options: object) -> LanguageModel:
    config = ModelConfig(**{"dim": 16, "heads": 2, "layers": 4, "vocab_size": 20, **options}, depth=depth)
    model = LanguageModel(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.2 * randn(*weight.shape, seed=name))
    return model.double().eval()


def test_each_token_by_the_formulas():
    """Confidence, guess and the keys of copied states, a token and a block at a time."""
    model = model_of("light_exit(threshold=0.55)", position="none")
    depth = model.depth
    with torch.no_grad():
        got = model.hidden(TOKENS)
        for row, start in enumerate(model.embeddings(TOKENS)):
            entering: list[list[torch.Tensor]] = [[] for _ in model.blocks]
            for t, x in enumerate(start):
                steps = stands = 0
                for at, block in enumerate(model.blocks):
                    entering[at].append(x)
                    if stands:
                        continue
                    x, steps = block(torch.stack(entering[at])[None]).hidden[0, -1], steps + 1
                    a = x / (sum(float(one) ** 2 for one in x) / 16) ** 0.5
                    if at < 3 and t > 0:
                        c = 1 / (1 + torch.exp(-(sum(depth.judge[at] * a) + depth.judge_bias[at])))
                        stands = c >= 0.55
                assert got.steps[row, t] == steps
                wanted = x if steps == 4 else a + depth.guess[steps - 1] @ a + depth.guess_bias[steps - 1]
                assert_close(got.hidden[row, t], model.norm(wanted), tolerance=1e-10, what=f"token {t} of row {row}")
    assert len(got.steps[:, 1:].unique()) > 1
    assert (got.steps[:, 0] == 4).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-30, 1e-5, 1.0, 300.0, 6e4, 1e20])
def test_unit_size_whatever_the_squares(dtype, size, monkeypatch):
    """A float16 number above 256 has a square beyond float16, one of float32 above 2e19 beyond float32."""
    hidden = torch.tensor([[size, -size / 2, 0, size], [0, 0, 0, 0]]).to(dtype)
    if not hidden.isfinite().all() or not hidden.any():
        pytest.skip("no such numbers")
    exact = hidden[0].double() / hidden[0].double().abs().amax()
    wanted = exact / exact.square().mean().sqrt()
    slopes = torch.tensor([1.0, 2, 3, 4]).to(dtype)
    for looks in (True, False):  # a compiled call looks at no number
        if not looks:
            monkeypatch.setattr(light_exit, "known_within", lambda *_: False)
        hidden = hidden.detach().requires_grad_()
        got = of_unit_size(hidden)
        assert_close(got[0].double(), wanted, tolerance=4 * torch.finfo(dtype).eps, what="h / rms(h)")
        assert not got[1].any()
        (slope,) = torch.autograd.grad((got * slopes).sum(), [hidden])
        assert not slope[1].any(), "of the zeros"
        scale = exact.square().mean().sqrt() * hidden[0].double().abs().amax()
        by_hand = (slopes.double() - wanted * (slopes.double() * wanted).mean()) / scale
        if by_hand.abs().amax() < torch.finfo(dtype).max:
            bound = 8 * torch.finfo(dtype).eps * by_hand.abs().amax() + torch.finfo(dtype).smallest_normal
            assert (slope[0].double() - by_hand).abs().amax() <= bound


def test_no_token_leaves_at_one():
    full, light = model_of("fixed"), model_of("light_exit")
    with torch.no_grad():
        assert_identical(light(TOKENS).logits, full(TOKENS).logits, what="logits")


@pytest.mark.parametrize("depth", ["light_exit(threshold=0.5, whole=0)", "early_exit(threshold=0.05, whole=2)"])
def test_first_tokens_are_those_of_the_text(depth):
    """Whatever the call that reads them, and the padding in front."""
    model = model_of(depth)
    keep = torch.ones(4, 12, dtype=torch.bool)
    keep[:, :3] = False
    positions = (torch.arange(12) - 3).clamp(min=0).expand(4, 12)
    with torch.no_grad():
        whole = model(TOKENS)
        start = model(TOKENS[:, :1], state=model.initial_state(4))
        rest = model(TOKENS[:, 1:], state=start.state)
        padded = model(torch.cat([TOKENS[:, :3], TOKENS], 1), key_mask=keep, positions=positions)
    assert_identical(torch.cat([start.steps, rest.steps], 1), whole.steps, what="blocks")
    assert_identical(padded.steps[:, 3:], whole.steps, what="blocks behind padding")
    if "whole=2" in depth:
        assert (whole.steps[:, :2] == 4).all()
        assert (whole.steps[:, 2:] < 4).any()


def test_the_mlp_is_computed_of_tokens_that_are_there():
    model, seen = model_of("light_exit(threshold=0.55)"), []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda module, given, got: seen.append(given[0].shape[:2].numel()))
    with torch.no_grad():
        steps = model(TOKENS).steps
    assert seen == [int((steps > at).sum()) for at in range(4) if (steps > at).any()]
    assert len(set(seen)) > 2


def test_generated_layers_are_those_of_a_call():
    model = model_of("light_exit(threshold=0.55)")
    (row,) = generate(model, [TOKENS[0].tolist()], max_new_tokens=5, temperature=0.0)
    with torch.no_grad():
        steps = model(torch.cat([TOKENS[0], row.tokens])[None]).steps
    assert row.layers == tuple(steps[0, 8:13].tolist())
    (row,) = generate(model_of("fixed"), [[1, 2]], max_new_tokens=2)
    assert row.layers == ()


def test_heads_learn_what_there_is_to_learn():
    """Blocks that change nothing: every guess is right, and every judge says so."""
    model = LanguageModel(ModelConfig(dim=8, heads=2, layers=3, vocab_size=12))
    with torch.no_grad():
        for block in model.blocks:
            block.attention.projections.output.weight.zero_()
            block.mlp.down.weight.zero_()
    draw = torch.Generator().manual_seed(0)
    passages = torch.randint(12, (passages_needed(model, 6), 6), generator=draw)
    depth = fit_light_heads(model, passages)
    assert depth.guess.abs().max() < 1e-6
    model.depth, depth.threshold = depth, 0.9
    with torch.no_grad():
        steps = model(passages[:4]).steps
    assert (steps[:, 1:] == 1).all()


@pytest.fixture(scope="module")
def fitted():
    """A model whose blocks change a lot, its light heads, the passages they are fitted to, and others."""
    model = model_of("fixed", layers=3, tied=False).float()
    draw = torch.Generator().manual_seed(5)
    passages, new = torch.randint(20, (2, 4 * passages_needed(model, 6), 6), generator=draw)
    return model, fit_light_heads(model, passages, batch_size=7).double(), passages, new


def states_of(model: LanguageModel, passages: torch.Tensor) -> list[torch.Tensor]:
    """The hidden states after every block, in float64, (tokens, dim)."""
    model, hidden = copy.deepcopy(model).double(), []
    with torch.no_grad():
        x = model.embeddings(passages)
        for block in model.blocks:
            x = block(x).hidden
            hidden.append(x.flatten(0, 1))
    return hidden


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x**2).mean(-1, keepdim=True) ** 0.5


def test_guesses_by_gradient(fitted):
    """At W, b the slope of the penalised squares of the first half of the passages is zero, by autograd."""
    model, depth, passages, _ = fitted
    *lower, last = states_of(model, passages[: len(passages) // 2])
    for at, state in enumerate(lower):
        a, y = unit(state), unit(last)
        W, b = (one[at].detach().clone().requires_grad_() for one in (depth.guess, depth.guess_bias))
        squares = ((y - a - a @ W.mT - b) ** 2).sum()
        penalty = 0.02 * (((a - a.mean(0)) ** 2).sum(0) * W**2).sum()
        scale = ((y - a) ** 2).sum()
        for slope in torch.autograd.grad((squares + penalty) / scale, [W, b]):
            assert slope.abs().max() < 1e-6
        assert W.abs().max() > 0.1, "there is nothing to guess"


def test_judges_by_gradient(fitted):
    """At w, c that of the cross-entropy of the other half, of whether the guess says what the full model says."""
    model, depth, passages, _ = fitted
    *lower, last = states_of(model, passages[len(passages) // 2 :])
    with torch.no_grad():
        table, norm = model.logits, model.norm
        answer = table(norm(last.float())).argmax(-1)
        says = [table(norm(depth.guessed(x, at).float())).argmax(-1) for at, x in enumerate(lower)]
    for at, state in enumerate(lower):
        a, right = unit(state), (says[at] == answer).double()
        assert 0.05 < right.mean() < 0.95, "nothing to tell apart"
        w, c = (one[at].detach().clone().requires_grad_() for one in (depth.judge, depth.judge_bias))
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(a @ w + c, right)
        loss = entropy + 0.005 * ((w * a.std(0, correction=0)) ** 2).sum()
        for slope in torch.autograd.grad(loss, [w, c]):
            assert slope.abs().max() < 1e-5


def test_what_it_cannot_serve_is_refused():
    for options, message in (
        ({"block": "reversible"}, "blocks of one stream"),
        ({"memory": "recent(length=8)", "max_length": 8}, "leave the memory out"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of("light_exit", **options)
    with pytest.raises(DataError, match="they need 12 or more"):
        fit_light_heads(model_of("fixed").float(), TOKENS[:3, :6])
    with pytest.raises(UnsupportedError, match="it mixes in neighbours"):
        fit_light_heads(model_of("fixed", neighbours=4).float(), TOKENS)
    with pytest.raises(UnsupportedError, match="run once, in order"):
        fit_light_heads(model_of("early_exit").float(), TOKENS)
