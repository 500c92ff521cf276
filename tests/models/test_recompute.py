"""What is computed again gives the same gradients, learns once, and is not kept."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from regard.attention.routed import lsh, routing, shortlist, vector_quantized
from regard.core.attention import Attention, recomputing
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.randomness import decided
from regard.memory import MemoryState
from regard.models import (
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModel,
    MaskedLanguageModel,
    ModelConfig,
)
from regard.models.block_config import BlockConfig
from regard.models.recompute import Left, recomputed
from regard_lab.benchmark.cost import kept_bytes

TINY = {"dim": 32, "heads": 4, "layers": 3, "vocab_size": 19, "max_length": 24, "seed": 5}
MODELS: dict[str, BlockConfig] = {
    "decoder": ModelConfig(**TINY),
    "post-norm": ModelConfig(**TINY, norm="post", mlp="swiglu"),
    "mixed": ModelConfig(**TINY, attention=("local(window=4):2 + softmax:2", "linear", "performer(num_features=8)")),
    "dropout": ModelConfig(**TINY, dropout=0.3, attention_dropout=0.2),
    "relative": ModelConfig(**TINY, position="t5_bias"),
    "no mlp": ModelConfig(**TINY, mlp="none"),
    "encoder": EncoderConfig(**TINY, dropout=0.1),
    "encoder-decoder": EncoderDecoderConfig(**TINY, dropout=0.1),
    "codebook": ModelConfig(**TINY, position="none", attention=("vector_quantized(num_codes=5, block_size=4)",)),
    "redrawn": ModelConfig(**TINY, attention=("performer(num_features=8, redraw_interval=1)",)),
}
AGAIN = ("block", "attention")


def built(config: BlockConfig) -> nn.Module:
    if isinstance(config, ModelConfig):
        return LanguageModel(config)
    if isinstance(config, EncoderDecoderConfig):
        return EncoderDecoder(config)
    assert isinstance(config, EncoderConfig)
    return MaskedLanguageModel(Encoder(config))


def tokens(seed: int, *, batch: int = 2, length: int = 20) -> Tensor:
    return torch.randint(0, 19, (batch, length), generator=torch.Generator().manual_seed(seed))


def step(model: nn.Module, seed: int) -> Tensor:
    """One backward pass, on a source too where the model reads one; the logits."""
    torch.manual_seed(seed)
    inputs = tokens(seed)
    output = model(tokens(seed + 9), inputs) if isinstance(model, EncoderDecoder) else model(inputs)
    loss = cross_entropy(output.logits.flatten(0, 1), tokens(seed + 1).flatten())
    (loss + sum(output.losses.values(), loss.new_zeros(()))).backward()
    return output.logits.detach()


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_an_ordinary_backward_pass(name: str, again: str) -> None:
    """Three steps, so that what learns in training (codebooks, draws) has learnt; buffers, random state agree too."""
    config = MODELS[name]
    plain, other = built(config).double(), built(replace(config, checkpoint=again)).double()
    for seed in range(3):
        expected = step(plain, seed)
        state = torch.get_rng_state()
        torch.testing.assert_close(step(other, seed), expected, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), state)
        for (key, a), b in zip(plain.named_buffers(), other.buffers(), strict=True):
            assert torch.equal(a, b), key
    for (key, a), b in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), key
        if a.grad is not None and b.grad is not None:
            assert (a.grad - b.grad).abs().max() <= 1e-12 * a.grad.abs().max(), key


def kept(config: BlockConfig, length: int) -> int:
    """Bytes that a forward pass keeps for its backward pass, weights apart."""
    model = built(config)
    return kept_bytes(model, lambda: model(tokens(0, length=length)))


@pytest.mark.parametrize("spec", ["softmax", "local(window=4)", "linear"])
def test_every_recomputed_block_keeps_one_hidden_state(spec: str) -> None:
    config, length = ModelConfig(**TINY, attention=(spec,)), 24

    def growth(again: str) -> float:
        few, many = (kept(replace(config, checkpoint=again, layers=layers), length) for layers in (2, 7))
        return (many - few) / 5

    hidden = 2 * length * config.dim * 4
    assert growth("block") == hidden
    assert growth("block") < growth("attention") < growth("none")


@pytest.mark.parametrize("again", AGAIN)
def test_streaming_is_left_alone(again: str) -> None:
    model = LanguageModel(ModelConfig(**TINY, checkpoint=again))
    whole = model(tokens(0)).logits
    state = model.initial_state(2)
    first = model(tokens(0)[:, :13], state=state)
    second = model(tokens(0)[:, 13:], state=first.state)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole, rtol=0, atol=2e-6 * 10)
    second.logits.sum().backward()


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint: no choice 'blocks'.*block"):
        ModelConfig(checkpoint="blocks")  # type: ignore[arg-type]


DRAWING = {
    name: (name, MODELS["decoder"])
    for name in (
        "rfa(num_features=8, redraw_interval=2)",
        "rfa(num_features=8, gate=True)",
        "performer(num_features=8, redraw_interval=2)",
        "randomized",
        "vector_quantized(num_codes=5, block_size=4)",
        "shortlist(num_keys=4)",
        "performer(num_features=8, redraw_interval=1):2 + vector_quantized(num_codes=5, block_size=4):2",
    )
} | {"lara": ("lara(num_landmarks=3)", MODELS["encoder"]), "dropout": ("softmax", MODELS["dropout"])}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize(("spec", "config"), DRAWING.values(), ids=DRAWING)
def test_two_passes_before_one_backward(spec: str, config: BlockConfig, again: str) -> None:
    """What a pass drew, its recomputation sees, although another pass has drawn since."""
    position = "none" if "vector" in spec else "rotary" if isinstance(config, ModelConfig) else config.position
    gradients = []
    for checkpoint in ("none", again):
        model = built(replace(config, attention=(spec,), position=position, dropout=0.0, checkpoint=checkpoint)).train()
        torch.manual_seed(3)
        first, second = model(tokens(1)), model(tokens(2))
        total = sum(x.logits.square().mean() + sum(x.losses.values(), torch.zeros(())) for x in (first, second))
        total.backward()
        model(tokens(3))
        gradients.append([x.grad for x in model.parameters()] + list(model.buffers()))
    for kept, other in zip(*gradients, strict=True):
        if kept is not None:
            torch.testing.assert_close(other, kept)


RECOMPUTING = {"block": {"checkpoint": "block"}, "attention": {"checkpoint": "attention"}, "reversible": {}}


def computed_again(name: str) -> LanguageModel:
    block = "reversible" if name == "reversible" else "residual"
    shape = ModelConfig(**TINY, dropout=0.3, attention_dropout=0.2, block=block, **RECOMPUTING[name])  # type: ignore[arg-type]
    return LanguageModel(shape).train()


@pytest.mark.parametrize("name", RECOMPUTING)
def test_weights_put_in_for_one_call_are_there_in_the_second_pass(name: str) -> None:
    model = computed_again(name)
    others = {label: (1.5 * x).detach().requires_grad_() for label, x in model.named_parameters()}
    torch.manual_seed(3)
    functional_call(model, others, (tokens(1),)).logits.square().mean().backward()
    with torch.no_grad():
        for label, weight in model.named_parameters():
            assert weight.grad is None
            weight.copy_(others[label])
    torch.manual_seed(3)
    model(tokens(1)).logits.square().mean().backward()
    for label, weight in model.named_parameters():
        torch.testing.assert_close(others[label].grad, weight.grad)


@pytest.mark.parametrize("name", RECOMPUTING)
def test_a_mode_that_is_set_between_the_passes_changes_nothing(name: str) -> None:
    model, gradients = computed_again(name), []
    for between in ("train", "eval"):
        torch.manual_seed(3)
        loss = model(tokens(1)).logits.square().mean()
        getattr(model, between)()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        assert {part.training for part in model.modules()} == {between == "train"}
    for wanted, got in zip(*gradients, strict=True):
        assert torch.equal(wanted, got)


@pytest.mark.parametrize("name", RECOMPUTING)
def test_a_weight_that_changed_between_the_passes_is_refused(name: str) -> None:
    model = computed_again(name)
    loss = model(tokens(1)).logits.square().mean()
    with torch.no_grad():
        model.blocks[1].attention.projections.query.weight.mul_(2)
    with pytest.raises(UnsupportedError, match=r"query\.weight was changed in place before the backward pass"):
        loss.backward()


@pytest.mark.parametrize("name", RECOMPUTING)
@pytest.mark.parametrize("changed", ["key_mask", "positions"])
def test_an_argument_that_changed_between_the_passes_is_refused(changed: str, name: str) -> None:
    """torch itself refuses what is an input of its checkpoint."""
    given = {"key_mask": torch.ones(2, 20, dtype=torch.bool), "positions": torch.arange(20).repeat(2, 1)}
    given["key_mask"][0, 15:] = False
    loss = computed_again(name)(tokens(1), **given).logits.square().mean()
    given[changed].fill_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace|in place before the backward pass") as refused:
        loss.backward()
    if name != "block":
        assert isinstance(refused.value, UnsupportedError)
        assert str(refused.value).startswith(f"{changed} was changed in place")


def test_a_memory_that_changed_between_the_passes_is_refused() -> None:
    content = torch.zeros(3)
    left = Left(nn.Identity(), {"memory": MemoryState({"keys": content}), "key_mask": None})
    with left.again():
        content.add_(1)
    with pytest.raises(UnsupportedError, match=r"memory\.keys was changed in place"), left.again():
        pass


def test_a_memory_is_watched() -> None:
    memory = MemoryState({"keys": torch.zeros(3)})

    def call(x: Tensor, memory: MemoryState, *, state: None) -> Tensor:
        del state
        return (x * memory.content["keys"]).exp().sum()

    x = torch.ones(3, requires_grad=True)
    loss = recomputed(True, partial(call, memory=memory), x, module=nn.Identity())
    memory.content["keys"].add_(1)
    with pytest.raises(UnsupportedError, match=r"memory\.keys was changed in place"):
        loss.backward()


def test_tensors_of_inference_mode_have_no_version() -> None:
    with torch.inference_mode():
        mask = torch.ones(2, 20, dtype=torch.bool)
    loss = computed_again("reversible")(tokens(1), key_mask=mask).logits.square().mean()
    loss.backward()


@pytest.mark.parametrize("name", RECOMPUTING)
@pytest.mark.parametrize("part", ["blocks", "blocks.1.mlp"])
@pytest.mark.parametrize("learns", [False, True])
def test_weights_may_be_frozen_or_set_free_between_the_passes(learns: bool, part: str, name: str) -> None:
    """As of an ordinary stack, whose own frozen weights get no gradient, and whose others get the same one."""
    model, gradients = computed_again(name), []
    for between in (False, True):
        model.get_submodule(part).requires_grad_(not learns)
        torch.manual_seed(3)
        loss = model(tokens(1)).logits.square().mean()
        if between:
            model.get_submodule(part).requires_grad_(learns)
        model.zero_grad()
        loss.backward()
        gradients.append({label: x.grad for label, x in model.named_parameters() if x.grad is not None})
        model.requires_grad_(True)
    wanted, got = gradients
    assert got.keys() == {label for label in wanted if learns or not label.startswith(f"{part}.")}
    for label, gradient in got.items():
        assert torch.equal(gradient, wanted[label]), label


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize(
    "spec",
    [
        "lsh(num_buckets=8, rounds=2)",
        "routing(num_clusters=4)",
        "shortlist(num_keys=3)",
        "vector_quantized(num_codes=8)",
    ],
)
def test_choices_are_those_of_the_first_pass(
    spec: str, again: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recomputed queries and keys with an error of 1e-2, far beyond rounding, change no bucket, cluster, list or code.

    A checkpoint of torch around the whole model changes nothing about that.
    """
    made: list[object] = []
    for module in (lsh, routing, shortlist, vector_quantized):
        monkeypatch.setattr(module, "decided", lambda choose: made.append(decided(choose)) or made[-1])
    model = built(ModelConfig(**TINY, position="none", attention=(spec,), checkpoint=again)).train(training)
    mechanisms = [part for part in model.modules() if isinstance(part, Attention)]
    assert len(mechanisms) == TINY["layers"]

    def inexact(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        del module
        moved = {id(x): x + 1e-2 * torch.randn_like(x) for x in inputs}  # a tensor that is given twice stays one
        return tuple(moved[id(x)] for x in inputs) if recomputing() else None

    for part in mechanisms:
        part.register_forward_pre_hook(inexact)
    model(tokens(0)).logits.sum().backward()
    count = len(made) // 2
    assert count >= len(mechanisms)
    assert all(first is replayed for first, replayed in zip(made[:count], made[: -count - 1 : -1], strict=True))
    made.clear()
    x = torch.randn((), requires_grad=True)
    torch_checkpoint(lambda x: x * model(tokens(0)).logits.sum(), x, use_reentrant=False).backward()
    assert len(made) == 3 * count
    assert all(first is replayed for first, replayed in zip(made[:count], made[: -count - 1 : -1], strict=True))
