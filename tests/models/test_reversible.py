"""Reversible stacks against the same stacks under autograd: gradients, memory, dropout, codebooks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn.modules.module import register_module_forward_hook

from regard.attention.routed import lsh, routing, shortlist, vector_quantized
from regard.core import randomness
from regard.core.errors import ConfigError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.blocks import Block, reversible
from regard.models.blocks.reversible import Reversible
from regard.testing.compare import assert_close
from regard_lab.benchmark.cost import kept_bytes
from tests.models.moved import moved

TOKENS = torch.randint(20, (2, 24), generator=torch.Generator().manual_seed(1))


def model_of(**options: Any) -> LanguageModel:
    shape = {"dim": 16, "layers": 3, "heads": 2, "vocab_size": 20, "block": "reversible", "seed": 3, **options}
    return moved(LanguageModel(ModelConfig(**shape)))


def gradients(model: LanguageModel, loss: Callable[[Any], Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss(model(TOKENS)).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same stacks, whose activations autograd keeps."""
    monkeypatch.setattr(Reversible, "stack", classmethod(lambda cls, calls, x: Block.stack.__func__(cls, calls, x)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_kind": "rms", "mlp": "swiglu", "bias": True},
        {"mlp_chunks": 5},
        {"attention": ("linear", "softmax", "local(window=3)"), "position": "none"},
        {"attention": ("softmax",), "position": "t5_bias"},
        {"attention": ("lsh(num_buckets=4, rounds=2)",)},
        {"layers": 1},
        {"both_streams": True, "tied": False, "output_bias": True},
    ],
)
def test_gradients_are_those_of_the_ordinary_stack(options, monkeypatch):
    def loss(out: Any) -> Tensor:
        return out.logits.square().sum()

    model = model_of(**options).train()
    got, value = gradients(model, loss), model(TOKENS).logits
    ordinary(monkeypatch)
    wanted = gradients(model, loss)
    assert_close(value, model(TOKENS).logits, tolerance=1e-12, what="logits")
    assert got.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    for name, gradient in wanted.items():
        assert_close(got[name], gradient, tolerance=1e-9, what=name)


def test_losses_have_their_gradients_and_codebooks_learn_once(monkeypatch):
    """Three steps: every call measures the commitment, and moves the codes by what the call before has seen."""

    def loss(out: Any) -> Tensor:
        return out.logits.square().mean() + 0.3 * sum(out.losses.values())

    after = []
    for plain in (False, True):
        if plain:
            ordinary(monkeypatch)
        model = model_of(attention=("vector_quantized(num_codes=4, block_size=5, decay=0.5)",)).train()
        found = [gradients(model, loss) for _ in range(3)]
        after.append((found, {name: x.clone() for name, x in model.named_buffers()}))
    (got, codes), (wanted, others) = after
    assert {name for name in codes if name.endswith("code_sum")}
    for name, x in others.items():
        assert_close(codes[name], x, tolerance=1e-10, what=name)
    for one, other in zip(got, wanted, strict=True):
        for name, gradient in other.items():
            assert_close(one[name], gradient, tolerance=1e-9, what=name)


def test_features_that_are_drawn_again_are_replayed(monkeypatch):
    """Two calls before a backward pass: each sees the features that it drew."""
    results = []
    for plain in (False, True):
        if plain:
            ordinary(monkeypatch)
        model = model_of(attention=("performer(num_features=8, redraw_interval=1)",)).train()
        first, second = model(TOKENS).logits.square().sum(), model(TOKENS.flip(1)).logits.square().sum()
        results.append(torch.autograd.grad(first + second, list(model.parameters())))
    for one, other in zip(*results, strict=True):
        assert_close(one, other, tolerance=1e-9, what="a weight")


@pytest.mark.parametrize(
    "spec",
    [
        "lsh(num_buckets=8, rounds=2)",
        "routing(num_clusters=4)",
        "shortlist(num_keys=3)",
        "vector_quantized(num_codes=8)",
    ],
)
def test_choices_are_those_of_the_first_pass(spec, monkeypatch):
    """Streams that come back with an error of 1e-2, far beyond rounding, change no bucket, cluster, list or code."""
    made: list[Any] = []
    whole = randomness.decided
    for module in (lsh, routing, shortlist, vector_quantized):
        monkeypatch.setattr(module, "decided", lambda choose: made.append(whole(choose)) or made[-1])
    undone = reversible._Pass.backward

    def inexact(one: Any, streams: Any, slopes: Any, of_losses: Any) -> Any:
        return undone(one, reversible.Streams(*(x + 1e-2 * torch.randn_like(x) for x in streams)), slopes, of_losses)

    monkeypatch.setattr(reversible._Pass, "backward", inexact)
    model = model_of(attention=(spec,)).train()
    model(TOKENS).logits.sum().backward()
    assert len(made) == 6
    for first, again in zip(made[:3], made[:2:-1], strict=True):
        assert first is again


def dropping_in_parts(model: LanguageModel, where: str) -> None:
    for block in model.blocks:
        owner = block.attention.projections if where == "value" else block
        setattr(owner, where, nn.Sequential(getattr(owner, where), nn.Dropout(0.3)))


@pytest.mark.parametrize("where", ["value", "mlp", "mlp_norm", "attention_norm", "mechanisms"])
def test_whatever_draws_is_replayed(where, monkeypatch):
    """Dropout of an adapter in a model without any, and of single modules that train in one that does not."""
    model = model_of(attention_dropout=0.3 if where == "mechanisms" else 0.0, mlp_chunks=2).train()
    if where == "mechanisms":
        model.eval()
        for mechanism in model.mechanisms:
            mechanism.train()
    else:
        dropping_in_parts(model, where)
    results = []
    for plain in (False, True):
        if plain:
            ordinary(monkeypatch)
        torch.manual_seed(5)
        loss = model(TOKENS).logits.square().mean()
        torch.manual_seed(6)
        state = torch.get_rng_state()
        results.append(torch.autograd.grad(loss, list(model.parameters())))
        assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(*results, strict=True):
        assert_close(one, other, tolerance=1e-9, what="a weight")


HOOKS = {
    "forward": lambda block, seen: block.register_forward_hook(lambda *_: seen.append(1)),
    "before": lambda block, seen: block.register_forward_pre_hook(lambda *_: seen.append(1)),
    "backward": lambda block, seen: block.register_full_backward_hook(lambda *_: seen.append(1)),
    "before backward": lambda block, seen: block.register_full_backward_pre_hook(lambda *_: seen.append(1)),
    "global": lambda block, seen: register_module_forward_hook(lambda part, *_: seen.extend([1] * (part is block))),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_a_block_run(kind):
    model, seen = model_of().train(), []
    handle = HOOKS[kind](model.blocks[1], seen)
    try:
        model(TOKENS).logits.sum().backward()
    finally:
        handle.remove()
    assert seen == [1]


class Wrapped(Block):
    """A block within another, as one that is compiled by itself."""

    def __init__(self, block: Block) -> None:
        nn.Module.__init__(self)
        self.block, self.attention, self.position = block, block.attention, None

    def forward(self, x: Tensor, **given: Any) -> Any:
        return self.block(x, **given)

    def run(self, x: Tensor, **given: Any) -> Any:
        return self.block.run(x, **given)

    def attended(self, x: Tensor) -> Tensor:
        return self.block.attended(x)


def test_no_block_of_another_kind_is_left_out():
    model = model_of().train()
    wanted = gradients(model, lambda out: out.logits.square().sum())
    model.zero_grad()
    weights = dict(model.named_parameters())
    model.blocks[1] = Wrapped(model.blocks[1])
    model(TOKENS).logits.square().sum().backward()
    for name, weight in weights.items():
        assert_close(weight.grad, wanted[name], tolerance=1e-9, what=name)


@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_is_refused(power):
    """Also where the slope that comes in is a constant. In forward mode the stack is an ordinary one."""
    model = model_of(attention=("linear(impl='reference')",), position="none").train()
    weight = model.blocks[0].mlp.up.weight

    def loss(values: Tensor) -> Tensor:
        return functional_call(model, {"blocks.0.mlp.up.weight": values}, (TOKENS,)).logits.pow(power).sum()

    (slope,) = torch.autograd.grad(loss(weight), weight, create_graph=True)
    with pytest.raises(UnsupportedError, match=r"block='reversible' has a first derivative only.*block='residual'"):
        slope.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"autograd\.Function"):
        grad(loss)(weight.detach())
    _, tangent = jvp(loss, (weight.detach(),), (weight.detach(),))
    torch.testing.assert_close(tangent, (slope.detach() * weight.detach()).sum())


def kept(layers: int, **options: Any) -> int:
    """Bytes that the forward pass keeps for the backward one, weights apart."""
    model = LanguageModel(ModelConfig(dim=32, layers=layers, heads=2, vocab_size=20, **options)).train()
    tokens = torch.zeros(2, 256, dtype=torch.long)
    return kept_bytes(model, lambda: model(tokens).logits.sum())


def test_activations_do_not_grow_with_depth():
    few, many = (kept(layers, block="reversible", dropout=0.1) for layers in (6, 24))
    assert many <= 1.15 * few
    assert kept(24, block="residual", dropout=0.1) > 3.5 * kept(6, block="residual", dropout=0.1)


def test_chunks_of_the_mlp_change_nothing():
    whole, pieces = (model_of(mlp_chunks=chunks).eval() for chunks in (1, 7))
    pieces.load_state_dict(whole.state_dict())
    assert_close(pieces(TOKENS).logits, whole(TOKENS).logits, tolerance=1e-12, what="logits")
    for block in ("residual", "parallel"):
        whole, pieces = (model_of(block=block, mlp_chunks=chunks).eval() for chunks in (1, 7))
        pieces.load_state_dict(whole.state_dict())
        assert_close(pieces(TOKENS).logits, whole(TOKENS).logits, tolerance=1e-12, what=block)


def test_a_state_and_a_memory_go_on():
    model = model_of().eval()
    whole, state, parts = model(TOKENS).logits, model.initial_state(2), []
    for piece in TOKENS.split([5, 1, 18], 1):
        got = model(piece, state=state)
        state = got.state
        parts.append(got.logits)
    assert_close(torch.cat(parts, 1), whole, tolerance=1e-10, what="pieces")
    segmented = model_of(memory="recent(length=8)", max_length=8).train()
    segmented(TOKENS).logits.sum().backward()
    assert all(weight.grad is not None for weight in segmented.parameters())


@torch.no_grad()
def test_the_output_layer_may_read_both_streams():
    """Each has its own half of the norm's and the output layer's weights, and the bias is added."""
    model = model_of(both_streams=True, tied=False, output_bias=True, norm_kind="rms").double().eval()
    seen: list[Tensor] = []
    hook = model.blocks[-1].register_forward_hook(lambda _, given, got: seen.append(got.hidden))
    got = model(TOKENS).logits
    hook.remove()
    (stream,) = seen
    assert stream.shape[-1] == model.output.in_features == 32
    level = stream.square().mean(-1, keepdim=True) + model.norm.eps
    wanted = (stream / level.sqrt() * model.norm.weight) @ model.output.weight.T + model.output.bias
    assert_close(got, wanted, tolerance=1e-12, what="logits")
    assert (model.output.weight[:, :16] != model.output.weight[:, 16:]).any()


def test_compiled_it_is_an_ordinary_stack():
    model = model_of(layers=2).train()
    wanted = gradients(model, lambda out: out.logits.square().sum())
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    model.zero_grad()
    compiled(TOKENS).logits.square().sum().backward()
    for name, weight in model.named_parameters():
        assert_close(weight.grad, wanted[name], tolerance=1e-9, what=name)


def test_what_it_refuses():
    for options, message in (
        ({"norm": "post"}, "has no norm='post'; set norm='pre'"),
        ({"mlp": "none"}, "second stream would never change"),
        ({"checkpoint": "block"}, "where nothing is kept"),
    ):
        with pytest.raises(ConfigError, match=message):
            model_of(**options)
    with pytest.raises(ConfigError, match="mlp_chunks must be at least 1"):
        model_of(mlp_chunks=0)
    with pytest.raises(ConfigError, match="mlp_chunks=4 has no use with mlp='none'"):
        model_of(block="gated_unit", mlp="none", mlp_chunks=4)
    with pytest.raises(UnsupportedError, match="leave out per_layer=True"):
        model_of(position="learned(per_layer=True)")(TOKENS)
