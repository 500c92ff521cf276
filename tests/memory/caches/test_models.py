"""Cache policies in layers and models: positions, padding, generation."""

import pytest
import torch

from regard import AttentionLayer
from regard.core.errors import ShapeError, UnsupportedError
from regard.memory.caches import names
from regard.models import LanguageModel, ModelConfig
from regard.models.generate import generate

SPECS = ["streaming(budget=9)", "h2o(budget=8)", "key_norm(budget=8)", "random(budget=8)", "snapkv(budget=40)"]
SPECS += ["quantized(recent=8, group=4)"]


def model_of(position="rotary", **options):
    shape = {
        "dim": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "vocab_size": 20,
        "max_length": 64,
        "seed": 3,
        **options,
    }
    return LanguageModel(ModelConfig(position=position, **shape)).double().eval()


def tokens_of(length, batch=1, seed=1):
    return torch.randint(20, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_every_policy_is_tried_here():
    assert {spec.partition("(")[0] for spec in SPECS} == set(names())


@torch.no_grad()
@pytest.mark.parametrize("position", ["rotary", "alibi", "t5_bias", "transformer_xl", "learned", "none"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_split_of_a_text_is_the_whole(spec, position):
    model, tokens = model_of(position), tokens_of(26)
    plain = model(tokens).logits
    model.reduce_cache(spec)
    whole = model(tokens).logits
    for sizes in ([1] * 26, [10, 16]):
        state, parts, first = model.initial_state(1), [], 0
        for size in sizes:
            got = model(tokens[:, first : first + size], state=state)
            state, first = got.state, first + size
            parts.append(got.logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-11)
    assert torch.allclose(whole, plain) == spec.startswith("snapkv")
    model.reduce_cache(None)
    assert torch.equal(model(tokens).logits, plain)


@torch.no_grad()
def test_a_state_belongs_to_its_policy_and_its_options():
    """Also of policies that keep the same tensors, and after it was picked, rewound or read from a file."""
    specs = [*SPECS, "h2o(budget=9)", "streaming(budget=9, sinks=2)", "quantized(recent=8, group=4, bits=8)"]
    model, tokens, states = model_of(), tokens_of(6, batch=2), {}
    for spec in specs:
        model.reduce_cache(spec)
        empty = model.initial_state(2)
        state = model(tokens, state=empty).state
        states[spec] = state.select(torch.tensor([1, 0])).rewind(0).detach().where(torch.tensor([True, False]), state)
        model(tokens, state=empty.load(states[spec].dump()))

    def load_as(of, spec):
        model.reduce_cache(spec)
        model.initial_state(2).load(states[of].dump())

    for spec in specs:
        model.reduce_cache(spec)
        for of, state in states.items():
            if of == spec:
                model(tokens, state=state)
                continue
            with pytest.raises(ShapeError, match=f"cache {spec.partition('(')[0]} goes on from a state of its own"):
                model(tokens, state=state)
    with pytest.raises(ShapeError, match=r"state of cache streaming\(sinks=4,.*must be of cache streaming\(sinks=2,"):
        load_as(SPECS[0], "streaming(budget=9, sinks=2)")
    with pytest.raises(ShapeError, match="the state of cache quantized"):
        load_as("quantized(recent=8, group=4, bits=8)", SPECS[-1])
    with pytest.raises(ShapeError, match="the state of cache h2o"):
        load_as("h2o(budget=9)", SPECS[1])
    model.reduce_cache("quantized(recent=8, group=4, bits=8)")
    with pytest.raises(ShapeError, match=r"got that of cache quantized\(.*bits=4.*must be of .*bits=8"):
        model(tokens, state=states[SPECS[-1]])
    model.reduce_cache(SPECS[2])
    with pytest.raises(ShapeError, match=r"got that of cache h2o\(.*; begin anew"):
        model(tokens, state=states[SPECS[1]])
    model.reduce_cache(None)
    with pytest.raises(ShapeError, match=r"softmax: this is the state of cache h2o\(.*; begin with"):
        model(tokens, state=states[SPECS[1]])


@torch.no_grad()
@pytest.mark.parametrize("position", ["alibi", "t5_bias", "transformer_xl"])
def test_biases_are_read_at_the_distances_that_slots_have(position):
    """Sinks and a window in a layer, as the same layer under a mask of its keys."""
    layer = AttentionLayer(16, "softmax", heads=2, position=position, causal=True).double().eval()
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(weight.numel()))
    x = torch.randn(2, 20, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = []
    for i in range(20):
        seen = ((torch.arange(i + 1) < 2) | (torch.arange(i + 1) > i - 6)).expand(2, -1)
        rows.append(layer(x[:, : i + 1], key_mask=seen).hidden[:, -1:])
    layer.cache = layer.cache_of("streaming(budget=7, sinks=2)").eval()
    torch.testing.assert_close(layer(x).hidden, torch.cat(rows, 1))


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_prompts_of_unequal_length_go_on_as_each_alone(spec):
    model = model_of()
    model.reduce_cache(spec)
    prompts = [tokens_of(n, seed=n)[0].tolist() for n in (21, 5, 13)]
    together = generate(model, prompts, max_new_tokens=6, temperature=0)
    for prompt, row in zip(prompts, together, strict=True):
        (alone,) = generate(model, [prompt], max_new_tokens=6, temperature=0)
        assert row.tokens.tolist() == alone.tokens.tolist()
        fed = torch.tensor([prompt + alone.tokens.tolist()])
        assert model(fed).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == alone.tokens.tolist()


@torch.no_grad()
def test_a_nan_under_padding_reaches_no_weight():
    layer = AttentionLayer(16, "softmax", heads=2, position="rotary", causal=True).double().eval()
    layer.cache = layer.cache_of("h2o(budget=6)").eval()
    x = torch.randn(1, 20, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(1, 20, dtype=torch.bool)
    mask[:, [0, 3, 11]] = False
    outputs = [layer(x.masked_fill(~mask[..., None], fill), key_mask=mask).hidden[mask] for fill in (0.0, float("nan"))]
    assert torch.equal(*outputs)


@torch.no_grad()
def test_a_skipped_layer_remembers_as_it_would_have_attended():
    for spec in ("streaming(budget=9)", "key_norm(budget=8)"):
        layer = AttentionLayer(16, "softmax", heads=2, position="rotary", causal=True).double().eval()
        layer.cache = layer.cache_of(spec).eval()
        x = torch.randn(1, 20, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        attended = layer(x, state=layer.initial_state(1)).state
        remembered = layer.remember(x, state=layer.initial_state(1))
        for name, kept in attended.tensors().items():
            assert torch.equal(kept, remembered.tensors()[name])


def test_layers_that_have_no_list_of_slots_of_their_own():
    for options in ({"memory": "recent(length=4)", "causal": True}, {"context_dim": 8}):
        with pytest.raises(UnsupportedError, match="self-attention without a memory"):
            AttentionLayer(16, "softmax", heads=2, **options).cache_of("h2o")
    model = model_of(attention=("softmax", "linear"))
    with pytest.raises(UnsupportedError, match="keeps sums"):
        model.reduce_cache("h2o")
    assert all(layer.cache is None for layer in model.layers)
    model = model_of()
    model.reduce_cache("h2o")
    with pytest.raises(UnsupportedError, match="for evaluation"):
        model.train()(tokens_of(5))


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_no_dtype_is_that_of_the_process(spec):
    """A float32 model under a default of float64."""
    model, tokens = model_of().float(), tokens_of(26)
    model.reduce_cache(spec)
    wanted, seen = model(tokens).logits, model.initial_state(1)
    torch.set_default_dtype(torch.float64)
    try:
        got, state = model(tokens).logits, model.initial_state(1)
        for at in range(26):
            seen, state = (model(tokens[:, at : at + 1], state=past).state for past in (seen, state))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got, wanted)
    assert {name: x.dtype for name, x in state.tensors().items()} == {n: x.dtype for n, x in seen.tensors().items()}
    assert torch.float64 not in {x.dtype for x in state.tensors().values()}


@torch.no_grad()
@pytest.mark.parametrize("spec", ["streaming(budget=9)", "h2o(budget=8)"])
@pytest.mark.parametrize("attention", ["strided(stride=3)", "pattern(rule='window(5) | strided(3)')"])
@pytest.mark.parametrize("position", ["transformer_xl", "t5_bias"])
def test_rows_and_heads_of_keys_keep_to_themselves(attention, position, spec):
    """Of mechanisms that count positions, whose slots are put back for every head of keys."""
    model, tokens = model_of(position, attention=(attention,)), tokens_of(26, batch=2)
    model.reduce_cache(spec)
    together = model(tokens).logits
    for row in range(2):
        torch.testing.assert_close(together[row], model(tokens[row : row + 1]).logits[0], rtol=1e-9, atol=1e-11)
