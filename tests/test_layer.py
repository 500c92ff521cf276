"""AttentionLayer and HeadMix: projections, streaming, memory, prepared sources, mixes over heads."""

import pytest
import torch

import regard
from regard import AttentionLayer, Heads, catalog
from regard.attention.head_mix import HeadMix
from regard.errors import ConfigError, ShapeError, UnsupportedError

STREAMS = [name for name in catalog.names(supports=["causal", "state"]) if not catalog.outline(name).leaks]
CROSS = catalog.names(supports=["cross", "bidirectional"])
MIX = "local(window=3):2 + linear:2"


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(spec, **options):
    return AttentionLayer(16, spec, heads=4, max_length=64, **options).double().eval()


def sampled(name):
    options = ", ".join(f"{key}={value!r}" for key, value in catalog.resolve(name)[0].samples[0].items())
    return f"{name}({options})" if options else name


@pytest.mark.parametrize("name", [*STREAMS, MIX])
def test_streaming_equals_the_whole(name):
    built = layer(name if ":" in name else sampled(name))
    x = draw(2, 13, 16)
    whole, state, parts = built(x).hidden, built.initial_state(2), []
    for first, last in ((0, 5), (5, 6), (6, 13)):
        got = built(x[:, first:last], state=state)
        state = got.state
        parts.append(got.hidden)
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-9


@pytest.mark.parametrize("position", ["rotary", "alibi", "transformer_xl", "sinusoidal", "learned"])
def test_positions_stream_and_read_a_memory(position):
    built = layer(
        "local(window=6)", position=position, memory=None if position in ("sinusoidal", "learned") else "recent"
    )
    x = draw(2, 12, 16)
    whole, state, parts = built(x).hidden, built.initial_state(2), []
    for first, last in ((0, 4), (4, 8), (8, 12)):
        got = built(x[:, first:last], state=state)
        state = got.state
        parts.append(got.hidden)
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-9
    if built.memory is None:
        return
    memory, parts = built.memory.initial(2, 16, dtype=torch.float64), []
    for first, last in ((0, 4), (4, 8), (8, 12)):
        got = built(x[:, first:last], memory=memory)
        memory = got.memory
        parts.append(got.hidden)
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-9


def test_positions_matter():
    x = draw(1, 8, 16).expand(1, 8, 16)
    for position in ("rotary", "alibi", "transformer_xl", "sinusoidal", "learned"):
        with_it, without = layer("softmax", position=position)(x).hidden, layer("softmax")(x).hidden
        assert (with_it - without).abs().max() > 1e-6


@pytest.mark.parametrize("name", CROSS)
def test_a_prepared_source_equals_the_source(name):
    built = layer(sampled(name), context_dim=10)
    x, context = draw(2, 5, 16), draw(2, 9, 10, seed=1)
    keep = torch.arange(9) < torch.tensor([[9], [6]])
    whole = built(x, context, key_mask=keep).hidden
    state = built.prepare(context, key_mask=keep)
    assert (built(x, state=state).hidden - whole).abs().max() < 1e-9
    if built.attention.info.sees_content_only:
        assert (built(x[:, 2:3], state=state).hidden - whole[:, 2:3]).abs().max() < 1e-9
    assert (built(x, context).hidden - whole).abs().max() > 1e-6


def test_a_mix_gives_each_head_its_own_mechanism():
    heads = Heads(count=4, key_dim=4, causal=True, kv_count=2)
    mix = regard.build(MIX, heads).double().eval()
    q, k, v = draw(2, 4, 9, 4), draw(2, 2, 9, 4, seed=1), draw(2, 2, 9, 4, seed=2)
    part = Heads(count=2, key_dim=4, causal=True, kv_count=1)
    expected = [
        regard.build(spec, part).double()(q[:, 2 * at : 2 * at + 2], k[:, at : at + 1], v[:, at : at + 1]).values
        for at, spec in enumerate(("local(window=3)", "linear"))
    ]
    assert torch.equal(mix(q, k, v).values, torch.cat(expected, 1))
    assert (mix(q, k, v).values - mix.reference(q, k, v)).abs().max() < 1e-10
    state = mix(q, k, v, state=mix.initial_state(2, dtype=torch.float64)).state
    assert state.nbytes == mix.state_nbytes(2, 9, torch.float64)
    assert isinstance(mix, HeadMix)
    assert catalog.describe(MIX).supports == mix.info.supports
    assert not mix.info.supports.bias


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("local(window=3):2 + linear:4", "6 heads"),
        ("local(window=3):1 + linear:3", "groups of 2"),
        ("local(window=3) + linear:2", "name its heads"),
    ],
)
def test_mixes_that_do_not_add_up(spec, message):
    with pytest.raises(ConfigError, match=message):
        regard.build(spec, Heads(count=4, key_dim=4, causal=True, kv_count=2))


def test_only_what_is_read_is_projected():
    assert layer("uniform").query is None
    assert layer("uniform").key is None
    assert layer("dense_synthesizer").key is None
    assert layer("lsh(bucket_size=8)").key is None
    assert layer("lsh(bucket_size=8)").query is not None


def test_impossible_layers_are_refused_when_they_are_built():
    for options, error, message in (
        ({"spec": "linear", "position": "alibi"}, UnsupportedError, "bias"),
        ({"spec": "uniform", "position": "rotary"}, UnsupportedError, "queries and keys"),
        ({"spec": "softmax", "position": "rotary", "context_dim": 8}, UnsupportedError, "two"),
        ({"spec": "local", "context_dim": 8}, UnsupportedError, "cross"),
        ({"spec": "linformer"}, UnsupportedError, "mixes all positions"),
        ({"spec": "lsh(bucket_size=8)", "kv_heads": 2}, ConfigError, "kv_heads"),
    ):
        with pytest.raises(error, match=message):
            layer(**options)
    with pytest.raises(ConfigError, match="divide"):
        AttentionLayer(10, "softmax", heads=4)
    with pytest.raises(ShapeError, match="context"):
        layer("softmax")(draw(1, 3, 16), draw(1, 3, 16))
