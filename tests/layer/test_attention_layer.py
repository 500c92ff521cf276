"""AttentionLayer: projections, positions and memory around any mechanism, in training, streaming and across sources."""

import math
import subprocess
import sys
from typing import ClassVar

import pytest
import torch

import regard
from regard import AttentionLayer, catalog
from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard.layer import Prepared
from regard.memory import MemoryState
from regard.testing.compare import assert_close, assert_identical

LENGTH = 13
MIX = "local(window=3):2 + linear:2"


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer(spec: str = "softmax", dim: int = 16, **options) -> AttentionLayer:
    causal = options.get("context_dim") is None
    return AttentionLayer(dim, spec, **{"heads": 4, "causal": causal, "max_length": 32, **options}).double().eval()


def heads_of(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def sample(name: str) -> str:
    """A specification with a small option set of the mechanism's own."""
    if name == MIX:
        return name
    options = catalog.resolve(name)[0].samples[0]
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def test_it_is_the_formula_of_the_paper():
    """head_i = softmax(q_i k_i / sqrt(d)) v_i, out = concat(head) W^o, with the layer's own matrices."""
    attention = layer(kv_heads=2, bias=True)
    x = randn(2, LENGTH, 16)
    q = heads_of(x @ attention.projections.query.weight.T + attention.projections.query.bias, 4)
    k, v = (
        heads_of(x @ p.weight.T + p.bias, 2).repeat_interleave(2, 1)
        for p in (attention.projections.key, attention.projections.value)
    )
    logits = (q @ k.mT / 2).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
    wanted = (logits.softmax(-1) @ v).transpose(1, 2).flatten(
        2
    ) @ attention.projections.output.weight.T + attention.projections.output.bias
    assert_close(attention(x).hidden, wanted, tolerance=1e-12, what="hidden")
    assert {name for name, _ in attention.named_parameters()} == {
        f"projections.{part}.{kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")
    }


def test_only_what_the_mechanism_reads_is_projected():
    assert layer("uniform").projections.query is None
    assert layer("uniform").projections.key is None
    lsh = layer(sample("lsh")).projections
    assert (lsh.query is not None, lsh.key) == (True, None)
    assert layer("dense_synthesizer").projections.key is None
    assert layer("linear").projections.key is not None


def test_widths_and_weights_from_the_seed():
    first, again, other = (
        AttentionLayer(12, "softmax", heads=2, key_dim=5, value_dim=7, seed=s, causal=True) for s in (3, 3, 4)
    )
    assert first.projections.query.weight.shape == (10, 12)
    assert first.projections.value.weight.shape == (14, 12)
    assert first.projections.output.weight.shape == (12, 14)
    assert torch.equal(first.projections.query.weight, again.projections.query.weight)
    assert not torch.equal(first.projections.query.weight, other.projections.query.weight)
    assert not torch.equal(first.projections.query.weight, first.projections.key.weight)
    big = AttentionLayer(512, "softmax", heads=8, causal=True)
    assert big.projections.query.weight.std().item() == pytest.approx(512**-0.5, rel=0.02)


def test_the_size_of_its_output_is_a_loss():
    """lambda sum |W_o concat(heads)| of real tokens, in training alone; it changes no output."""
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 3]])
    x = randn(2, LENGTH, 16)
    x[~keep] = float("nan")
    plain, sized = (layer("linear", bias=True, output_l1=weight).train() for weight in (0.0, 0.25))
    got = sized(x, key_mask=keep)
    heads = sized.values(x, key_mask=keep).values.transpose(1, 2).flatten(2)
    output = sized.projections.output
    wanted = 0.25 * sum((row @ output.weight.T + output.bias).abs().sum() for row in heads[keep])
    assert got.losses["output_l1"].item() == pytest.approx(wanted.item(), abs=1e-10)
    assert torch.equal(got.hidden[keep], plain(x, key_mask=keep).hidden[keep])
    assert plain(x).losses == sized.eval()(x).losses == {}
    half = sized.half().train()(torch.full((1, 9, 16), 6e3).half())  # the sum leaves float16
    assert (half.losses["output_l1"].dtype, half.losses["output_l1"].isfinite().item()) == (torch.float32, True)


@pytest.mark.parametrize("name", catalog.names(supports=["cross", "bidirectional"]))
def test_cross_attention_and_a_source_prepared_once(name):
    attention = layer(sample(name), context_dim=10)
    x, source = randn(2, 5, 16), randn(2, 9, 10, seed=1)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    with torch.no_grad():
        whole = attention(x, source, key_mask=mask).hidden
        prepared = attention.prepare(source, key_mask=mask)
        assert_close(attention(x, state=prepared).hidden, whole, tolerance=1e-9, what=name)
        if attention.attention.info.sees_content_only:
            pieces = [attention(piece, state=prepared).hidden for piece in x.split([2, 3], 1)]
            assert_close(torch.cat(pieces, 1), whole, tolerance=1e-9, what=f"{name} in pieces")
        assert prepared.length == 9
        assert (attention(x, source).hidden - whole).abs().max() > 1e-6


def test_a_prepared_source_of_a_mechanism_without_state():
    attention = layer("linformer(rank=3)", context_dim=16)
    x, source = randn(1, 5, 16), randn(1, 8, 16, seed=1)
    prepared = attention.prepare(source)
    assert isinstance(prepared, Prepared)
    with torch.no_grad():
        assert_close(
            attention(x, state=prepared).hidden, attention(x, source).hidden, tolerance=1e-12, what="linformer"
        )
    loaded = prepared.load(prepared.dump())
    assert loaded.length == 8
    assert_identical(loaded.content["k"], prepared.content["k"], what="k")


def test_the_output_is_a_sum_over_heads():
    """sum_i head_i W^o_i over the block rows of W^o; heads change places with their rows, and nothing changes."""
    attention, x = layer(causal=False), randn(2, LENGTH, 16)
    weight = attention.projections.output.weight.detach()
    with torch.no_grad():
        whole, total = attention(x).hidden, torch.zeros(2, LENGTH, 16, dtype=torch.float64)
        for head in range(4):
            own = slice(4 * head, 4 * head + 4)
            q, k, v = (
                x @ part.weight[own].T
                for part in (attention.projections.query, attention.projections.key, attention.projections.value)
            )
            total = total + (q @ k.mT / 2).softmax(-1) @ v @ weight[:, own].T
        assert_close(whole, total, tolerance=1e-12, what="sum over heads")
        order = torch.tensor([2, 0, 3, 1])
        for part in (attention.projections.query, attention.projections.key, attention.projections.value):
            part.weight.copy_(part.weight.unflatten(0, (4, 4))[order].flatten(0, 1))
        attention.projections.output.weight.copy_(weight.unflatten(1, (4, 4))[:, order].flatten(1))
        assert_close(attention(x).hidden, whole, tolerance=1e-12, what="heads in another order")


def test_one_head_with_weights_of_one_is_the_mechanism():
    attention, x = layer(heads=1, causal=False), randn(2, LENGTH, 16)
    with torch.no_grad():
        for part in (
            attention.projections.query,
            attention.projections.key,
            attention.projections.value,
            attention.projections.output,
        ):
            part.weight.copy_(torch.eye(16))
        wanted = regard.attend(*(x[:, None],) * 3)[:, 0]
        assert_close(attention(x).hidden, wanted, tolerance=1e-12, what="identity weights")


@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_without_projections(causal):
    """Queries, keys and values are the hidden states of each head, and nothing follows."""
    attention = AttentionLayer(16, "softmax", heads=4, projections="none", causal=causal).double().eval()
    assert list(attention.parameters()) == []
    x = randn(2, LENGTH, 16)
    each = heads_of(x, 4)
    logits = each @ each.mT / 2
    if causal:
        logits = logits.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
    wanted = (logits.softmax(-1) @ each).transpose(1, 2).flatten(2)
    assert_close(attention(x).hidden, wanted, tolerance=1e-12, what="hidden")


def test_cross_attention_and_positions_without_projections():
    x, source = randn(2, 5, 16), randn(2, 9, 16, seed=1)
    attention = layer(projections="none", context_dim=16)
    q, k = heads_of(x, 4), heads_of(source, 4)
    wanted = ((q @ k.mT / 2).softmax(-1) @ k).transpose(1, 2).flatten(2)
    assert_close(attention(x, source).hidden, wanted, tolerance=1e-12, what="cross")
    prepared = attention.prepare(source)
    assert_close(attention(x, state=prepared).hidden, wanted, tolerance=1e-12, what="prepared")
    turned = layer(projections="none", position="rotary")(x).hidden
    assert (turned - layer(projections="none")(x).hidden).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_dim": 10}, "context_dim=10, not dim=16"),
        ({"kv_heads": 2}, "kv_heads=2, not heads=4"),
        ({"key_dim": 5}, "key_dim=5, not dim / heads = 4"),
        ({"value_dim": 5}, "value_dim=5, not dim / heads = 4"),
        ({"bias": True}, "a bias, which belongs to a projection"),
        ({"output_bias": True}, "a bias, which belongs to a projection"),
        ({"heads": 3, "key_dim": 5, "value_dim": 5}, "heads=3, which does not divide dim=16"),
    ],
)
def test_what_needs_a_projection_is_refused_without(options, message):
    layer(**options)
    with pytest.raises(ConfigError, match=message):
        layer(projections="none", **options)


def test_every_reason_at_once_and_the_choices():
    with pytest.raises(ConfigError, match=r"query_dim=6.*key_dim=5.*kv_heads=2.*a bias"):
        layer("additive", projections="none", query_dim=6, key_dim=5, kv_heads=2, bias=True)
    with pytest.raises(ConfigError, match="projections='some'; it has all, none"):
        layer(projections="some")


@pytest.mark.parametrize("name", [name for name in catalog.names() if catalog.resolve(name)[0].compares_widths])
def test_queries_and_keys_of_different_widths(name):
    """The layer asks the mechanism for them, in self-attention, in cross-attention and in streams."""
    attention = layer(name, query_dim=6, key_dim=3)
    assert attention.attention.heads.query_width == 6
    assert attention.projections.query.weight.shape == (24, 16)
    assert attention.projections.key.weight.shape == (12, 16)
    x = randn(2, LENGTH, 16)
    q, k = heads_of(x @ attention.projections.query.weight.T, 4), heads_of(x @ attention.projections.key.weight.T, 4)
    v = heads_of(x @ attention.projections.value.weight.T, 4)
    wanted = attention.attention.definition(q, k, v).transpose(1, 2).flatten(2) @ attention.projections.output.weight.T
    assert_close(attention(x).hidden, wanted, tolerance=1e-10, what=name)
    with torch.no_grad():
        state, pieces = attention.initial_state(2), []
        for piece in x.split([5, 1, 7], 1):
            found = attention(piece, state=state)
            state, _ = found.state, pieces.append(found.hidden)
    assert_close(torch.cat(pieces, 1), wanted.detach(), tolerance=1e-9, what=f"{name} in pieces")
    crossed, source = layer(name, query_dim=6, key_dim=3, context_dim=10), randn(2, 9, 10, seed=1)
    whole = crossed(x, source).hidden
    assert_close(crossed(x, state=crossed.prepare(source)).hidden, whole, tolerance=1e-10, what=f"{name} prepared")


def test_different_widths_are_refused_where_they_cannot_be_compared():
    with pytest.raises(UnsupportedError, match="Mechanisms that compare different widths: additive, bilinear"):
        layer(query_dim=6)
    with pytest.raises(UnsupportedError, match="queries and keys of one width, got query_dim=6, key_dim=4"):
        layer("additive", query_dim=6, position="rotary")
    for scheme in ("alibi", "t5_bias", "shaw_keys"):
        found = layer("additive", query_dim=6, position=scheme)(randn(1, 7, 16)).hidden
        assert (found - layer("additive", query_dim=6)(randn(1, 7, 16)).hidden).abs().max() > 1e-6


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
        regard.build(spec, regard.Heads(count=4, key_dim=4, causal=True, kv_count=2))


class TestRefusals:
    CASES: ClassVar = [
        ({"heads": 3}, ConfigError, "heads must divide dim, got dim=16, heads=3"),
        ({"heads": 0}, ConfigError, "heads must divide dim"),
        ({"kv_heads": 3}, ConfigError, "Heads.kv_count must divide count"),
        ({"spec": "nope"}, ConfigError, "unknown mechanism 'nope'"),
        ({"position": "rotry"}, ConfigError, "did you mean 'rotary'"),
        ({"position": "rotary(bse=1)"}, ConfigError, "position rotary has no option 'bse': did you mean 'base'"),
        ({"memory": "recnt"}, ConfigError, "unknown memory 'recnt': did you mean 'recent'"),
        ({"spec": "linformer"}, UnsupportedError, "linformer does not support causal=True"),
        ({"spec": "local", "context_dim": 8}, UnsupportedError, "local does not support"),
        ({"spec": "uniform", "position": "alibi"}, UnsupportedError, "regard list --supports bias"),
        ({"spec": "uniform", "position": "rotary"}, UnsupportedError, "Uniform reads only v"),
        ({"context_dim": 8, "position": "rotary"}, UnsupportedError, "cross-attention has two"),
        ({"memory": "recent", "causal": False}, UnsupportedError, "decoder's layer: build it with causal=True"),
        ({"spec": "forgetting", "causal": False}, UnsupportedError, "does not support causal=False .*causal=True"),
        ({"output_l1": -1.0}, ConfigError, "output_l1 is the weight of a loss, at least 0, got -1.0"),
        ({"output_l1": 0.1, "context_dim": 8}, ConfigError, "0 in cross-attention"),
        ({"spec": "linear(output_l1=0.1)"}, ConfigError, r"is the layer's, AttentionLayer\(..., output_l1=...\)"),
        ({"spec": "lsh", "kv_heads": 2}, ConfigError, "uses queries as keys, so kv_heads must equal heads=4"),
    ]

    @pytest.mark.parametrize(("options", "error", "message"), CASES)
    def test_at_build(self, options, error, message):
        with pytest.raises(error, match=message):
            layer(**options)

    def test_other_types_without_the_type_checker_of_the_tests(self):
        code = """
import regard
for changes in ({"spec": 3}, {"position": 3}, {"memory": 3}, {"heads": "2"}, {"dim": "16"}, {"causal": "no"}):
    try:
        regard.AttentionLayer(**{"dim": 16, "spec": "softmax", "heads": 4, **changes})
    except regard.core.errors.ConfigError as error:
        print(error)
"""
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        texts = ["a specification is a text such as 'local(window=64)' or 'my_module:Mine', got 3"] * 3
        integers = "AttentionLayer: heads must divide dim, got dim={}, heads={}"
        more = [integers.format(16, "'2'"), integers.format("'16'", 4), "Heads.causal must be True or False, got 'no'"]
        assert found.splitlines() == [*texts, *more]

    def test_in_a_call(self):
        x = randn(1, 4, 16)
        with pytest.raises(ShapeError, match="a self-attention layer takes no context"):
            layer()(x, x)
        with pytest.raises(ShapeError, match="needs a context, or a state from `prepare`"):
            layer(context_dim=16)(x)
        with pytest.raises(UnsupportedError, match="a memory needs a layer built with one"):
            layer()(x, memory=MemoryState({}))
        with pytest.raises(UnsupportedError, match="prepare is for cross-attention"):
            layer().prepare(x)
        with pytest.raises(ShapeError, match="a cross-attention layer has no memory"):
            layer(context_dim=16)(x, x, memory=MemoryState({}))
        remembers = layer(memory="recent", position="rotary")
        with pytest.raises(UnsupportedError, match="a memory has slots only; leave positions out"):
            remembers(x, memory=MemoryState({"hidden": x}, 4), positions=torch.arange(4))


@pytest.mark.parametrize("name", regard.names())
def test_autocast_serves_every_mechanism(name):
    supports = regard.describe(name).supports
    for causal in [mode for mode in (False, True) if (supports.causal if mode else supports.bidirectional)]:
        layer = AttentionLayer(16, name, heads=2, causal=causal, max_length=32)
        x = torch.randn(2, 9, 16, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(x).hidden.float().square().sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_the_default_is_bidirectional_as_in_attend_and_its_state_is_refused():
    x, attention = randn(1, 6, 16), AttentionLayer(16, "softmax", heads=4).double()
    q, k, v = (p(x).unflatten(-1, (4, 4)).transpose(1, 2) for p in list(attention.projections.children())[:3])
    wanted = attention.projections.output(regard.attend(q, k, v).transpose(1, 2).flatten(2))
    assert_close(attention(x).hidden, wanted, tolerance=1e-10, what="hidden")
    with pytest.raises(UnsupportedError, match="not causal: add causal=True"):
        attention.initial_state(1)


def test_a_layer_in_sequential_gives_a_tensor_and_loses_nothing():
    alone, whole = (layer("vector_quantized", return_state=only) for only in (False, True))
    x = randn(1, 6, 16)
    stack = torch.nn.Sequential(alone, torch.nn.Identity())
    assert_identical(stack(x), whole(x).hidden, what="hidden")
    with pytest.raises(UnsupportedError, match=r"return_state=False would lose state; leave it out, and read \.hidden"):
        alone(x, state=alone.initial_state(1))
    remembers = layer("softmax", return_state=False, memory="recent(length=3)")
    with pytest.raises(UnsupportedError, match="would lose memory;"):
        remembers(x, memory=remembers.memory.initial_state(1, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="would lose commitment"):
        stack.train()(x)


def test_other_hidden_states_are_refused():
    """In a process without the type checks of the tests, which refuse them first."""
    code = """
import torch
from regard import AttentionLayer
from regard.core.errors import ShapeError
itself = AttentionLayer(16, "softmax", heads=2, causal=True)
across = AttentionLayer(4, "softmax", heads=2, context_dim=16)
start, q = itself.initial_state(1), torch.randn(1, 3, 4)
for shape in (3, 16), (1, 3, 8), (1, 1, 3, 16):
    for call in (itself, lambda x: itself.remember(x, state=start), across.prepare, lambda x: across(q, x)):
        for x in torch.randn(shape), torch.ones(shape, dtype=torch.long):
            try:
                call(x)
            except ShapeError as error:
                print(str(error).startswith(("x must be floating (batch, length, dim=16), got", "context must be")))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["True"] * 24
