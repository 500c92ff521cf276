"""The decoder: causality, streaming, masks, losses, counts, seeds and refusals on the full stack."""

import copy

import pytest
import torch
from safetensors.torch import load, save

from regard.catalog import describe
from regard.core.errors import ConfigError, InputError, LimitError, ShapeError, UnsupportedError
from regard.models import LanguageModel, ModelConfig, presets

TINY = {"vocab_size": 23, "dim": 16, "heads": 2, "layers": 2, "max_length": 32, "short_convolution": 2, "mlp_dim": 24}


def model_of(spec: str | tuple[str, ...], *, seed: int = 0, **fields: object) -> LanguageModel:
    specs = (spec,) if isinstance(spec, str) else spec
    scheme = "rotary" if all({"q", "k"} <= set(describe(s).reads) for s in specs) else "learned"
    config = ModelConfig(**{**TINY, "position": scheme, "attention": specs, "seed": seed, **fields})
    return LanguageModel(config).double().eval()


def tokens_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_absolute_positions_are_added_to_the_embeddings() -> None:
    tokens, at = tokens_of(2, 7), torch.arange(7)
    seen = []
    for position in ("learned", "sinusoidal"):
        model = model_of("softmax", position=position, short_convolution=0)
        model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        model(tokens)
        table = model.table.weight
        if position == "learned":
            expected = table[tokens] + model.state_dict()["embeddings.position.table"][:7]
        else:
            angle = at[:, None] * 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
            expected = 4 * table[tokens] + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)  # sqrt(16)
        torch.testing.assert_close(seen[-1], expected, rtol=0, atol=1e-12)


def test_hybrids_give_each_layer_its_mechanism() -> None:
    specs = ("linear", "local(window=3)", "softmax", "local(window=2):1 + softmax:1")
    model = model_of(specs, layers=4)
    assert [type(m).__name__ for m in model.mechanisms] == ["Linear", "Local", "Softmax", "HeadMix"]
    tokens = tokens_of(2, 20)
    first = model(tokens[:, :11], state=model.initial_state(2))
    second = model(tokens[:, 11:], state=first.state)
    got = torch.cat([first.logits, second.logits], 1)
    torch.testing.assert_close(got, model(tokens).logits, rtol=0, atol=1e-10)


def test_state_counts_its_bytes() -> None:
    model, tokens = model_of(("softmax", "linear")), tokens_of(2, 8)
    state = model(tokens, state=model.initial_state(2)).state
    assert state is not None
    tail = 2 * 1 * 16 * 8  # batch, width - 1 slots, dim, bytes
    parts = sum(mechanism.state_nbytes(2, 8, torch.float64) for mechanism in model.mechanisms)
    assert state.nbytes == parts + tail


def counted(config: ModelConfig) -> int:
    """The formula of the docstring, for mechanisms without weights."""
    dim, width, kv = config.dim, config.mlp_width, (config.kv_heads or config.heads) * config.key_dim
    matrices = {"gelu": 2, "gelu_tanh": 2, "relu": 2, "swiglu": 3, "none": 0}[config.mlp]
    norms = 1 if config.mlp == "none" else 2
    layer = 2 * dim * (dim + kv) + matrices * dim * width + norms * dim
    total = config.vocab_size * dim * (1 if config.tied else 2) + config.layers * layer
    if config.norm == "pre":
        total += dim
    if config.position.startswith("learned"):
        total += config.max_length * dim * (config.layers if "per_layer" in config.position else 1)
    if config.bias:
        outputs = dim + 2 * kv + dim + (dim + (matrices - 1) * width if matrices else 0)
        shifts = 0 if config.norm_kind == "rms" else norms * dim
        total += config.layers * (outputs + shifts) + (dim if config.norm == "pre" and shifts else 0)
    return total


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tied": False},
        {"kv_heads": 1},
        {"mlp": "swiglu"},
        {"mlp": "none"},
        {"norm": "post"},
        {"norm_kind": "rms"},
        {"position": "learned"},
        {"position": "learned(per_layer=True)"},
        {"bias": True, "mlp": "swiglu", "kv_heads": 2},
        {"bias": True, "norm_kind": "rms", "position": "learned"},
        {"bias": True, "norm": "post"},
    ],
)
def test_parameter_count_formula(fields: dict) -> None:
    config = ModelConfig(vocab_size=50, dim=16, heads=4, layers=3, max_length=32, **fields)
    assert LanguageModel(config).parameter_count() == counted(config)


def test_weights_of_positions_and_convolutions_are_counted_once() -> None:
    plain = LanguageModel(ModelConfig(dim=16, heads=2, layers=3)).parameter_count()
    shared = LanguageModel(ModelConfig(dim=16, heads=2, layers=3, position="transformer_xl")).parameter_count()
    assert shared - plain == 2 * 16 + 2 * 16 * 8  # u, v (heads, key_dim); W_R (heads, dim, key_dim)
    bound = LanguageModel(ModelConfig(dim=16, heads=2, layers=3, short_convolution=3)).parameter_count()
    assert bound - plain == 3 * 16


def test_published_sizes() -> None:
    assert counted(presets.build("gpt")) == 124_439_808
    assert counted(presets.build("llama")) == 6_738_415_616


def test_seed_decides_everything_and_the_global_generator_nothing() -> None:
    before = torch.get_rng_state()
    one, same, other = (model_of(("performer", "linear"), seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    tokens = tokens_of(1, 8)
    assert torch.equal(one(tokens).logits, same(tokens).logits)
    assert not torch.equal(one(tokens).logits, other(tokens).logits)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_draw_from_seeds_of_their_own() -> None:
    model = model_of("softmax", layers=3)
    seeds = {mechanism.heads.seed for mechanism in model.mechanisms}
    assert len(seeds) == 3
    weights = [block.attention.projections.value.weight for block in model.blocks]
    assert not torch.equal(weights[0], weights[1])


def test_copies_agree() -> None:
    model, tokens = model_of("softmax", position="transformer_xl", bias=True), tokens_of(2, 10)
    expected = model(tokens).logits
    assert torch.equal(copy.deepcopy(model)(tokens).logits, expected)
    other = model_of("softmax", position="transformer_xl", bias=True, seed=1)
    assert not torch.equal(other(tokens).logits, expected)
    other.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(other(tokens).logits, expected)


def test_layers_share_one_relative_position() -> None:
    model = model_of("softmax", position="transformer_xl", layers=3)
    assert all(block.attention.position is model.embeddings.position for block in model.blocks)
    keys = [name for name in model.state_dict() if "position" in name]
    assert sorted(keys) == [f"embeddings.position.{name}" for name in ("content", "distance", "relative")]


def test_losses_of_layers_add_up() -> None:
    spec = "vector_quantized(block_size=4, num_codes=8)"
    tokens, losses = tokens_of(2, 12), []
    model = model_of(spec).train()
    assert model.loss_weights == dict(model.mechanisms[0].info.losses)
    for block in model.blocks:
        block.attention.register_forward_hook(lambda module, args, output: losses.append(output.losses))
    got = model(tokens).losses
    assert set(got) == set(model.loss_weights)
    for name, loss in got.items():
        assert loss.item() == pytest.approx(sum(x[name].item() for x in losses), rel=1e-12)
        assert loss.item() > 0
    assert model.eval()(tokens).losses == {}
    assert model_of("softmax").train()(tokens).losses == {}


@pytest.mark.parametrize("tokens", [torch.tensor([[1, 23]]), torch.tensor([[1, -1]])])
def test_ids_out_of_range_are_named(tokens: torch.Tensor) -> None:
    with pytest.raises(InputError, match=rf"id {tokens[0, 1]} is out of range, ids are 0 to 22"):
        model_of("softmax")(tokens)


def test_misuse_is_refused() -> None:
    model, tokens = model_of("softmax"), tokens_of(2, 6)
    with pytest.raises(ShapeError, match="tokens must be integers"):
        model(tokens.double())
    with pytest.raises(ShapeError, match="tokens must be integers"):
        model(tokens[0])
    with pytest.raises(ShapeError, match="key_mask must be bool"):
        model(tokens, key_mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(UnsupportedError, match="counts slots only"):
        model_of("softmax", position="alibi")(tokens, positions=torch.arange(6))
    with pytest.raises(ShapeError, match="positions must be"):
        model_of("softmax", position="learned")(tokens, positions=torch.arange(5))
    with pytest.raises(LimitError, match="max_length=32"):
        model_of("softmax", position="learned")(tokens_of(1, 33))
    with pytest.raises(UnsupportedError, match="linformer does not support causal=True"):
        LanguageModel(ModelConfig(**TINY, attention=("linformer",)))
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        LanguageModel(ModelConfig(**TINY, attention=("sofmax",)))
    with pytest.raises(ConfigError, match="unknown position 'rotari'"):
        LanguageModel(ModelConfig(**TINY, position="rotari"))
    with pytest.raises(UnsupportedError, match="does not support"):
        LanguageModel(ModelConfig(**TINY, attention=("linear",), attention_dropout=0.1))


def test_dropout_acts_in_training_only() -> None:
    model, tokens = model_of("softmax", dropout=0.5), tokens_of(2, 6)
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    model.train()
    assert not torch.equal(model(tokens).logits, model(tokens).logits)
