"""Attention maps against what the layers computed, and against the matrix itself."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from regard.core.errors import ConfigError, UnsupportedError
from regard.functional import weights
from regard.models import Encoder, LanguageModel, presets
from regard.models.config import ModelConfig
from regard_lab.attention_maps import LayerMaps, NoMaps, attention_maps

TOKENS = [104, 101, 121, 32, 106, 117, 100, 101, 44, 32, 97, 104, 33]
LENGTH = len(TOKENS)


def decoder(*attention: str, position: str = "rotary", **options: object) -> LanguageModel:
    shape = {"dim": 16, "heads": 4, "layers": len(attention), "max_length": 32, "attention": attention, **options}
    return LanguageModel(ModelConfig(position=position, **shape)).train()


def calls(model):
    """What the mechanism of every layer took and gave, in evaluation mode."""
    found = []
    hooks = [
        mechanism.register_forward_hook(lambda *call: found.append(call), with_kwargs=True)
        for mechanism in model.mechanisms
    ]
    model.eval()
    with torch.no_grad():
        model(torch.tensor([TOKENS]))
    model.train()
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(
    ("attention", "position", "options"),
    [
        (("softmax", "local(window=2)", "linear", "performer(num_features=8)"), "rotary", {"kv_heads": 2}),
        (("softmax", "local(window=2)"), "alibi", {}),
        (("softmax", "local(window=3):2 + linear:2", "forgetting"), "none", {}),
        (("softmax", "local(window=3)"), "transformer_xl", {}),
        (("shaw", "additive"), "learned", {}),
    ],
)
def test_weights_times_values_are_what_the_layer_computed(attention, position, options):
    """With the positions, biases, gates and shared heads of the layer itself."""
    model = decoder(*attention, position=position, **options)
    made = calls(model)
    maps = attention_maps(model, TOKENS)
    assert [each.mechanism for each in maps] == list(attention)
    for each, (mechanism, (q, k, v), named, answer) in zip(maps, made, strict=True):
        assert isinstance(each, LayerMaps)
        assert each.cells.shape == (4, LENGTH, LENGTH)
        assert each.causal
        empty = mechanism.eval()(q, k, torch.zeros_like(v), bias=named["bias"], inputs=named["inputs"]).values
        v = v.repeat_interleave(4 // v.shape[1], 1)
        assert torch.allclose(torch.from_numpy(each.cells) @ v[0], (answer.values - empty)[0], atol=2e-5)


def test_numbers_are_those_of_the_matrix():
    model = decoder("softmax", "linear")
    for each, (mechanism, (q, k, _), *_) in zip(attention_maps(model, TOKENS, pairs=5), calls(model), strict=True):
        assert isinstance(each, LayerMaps)
        for head, matrix in enumerate(weights(mechanism, q, k)[0]):
            away = [sum(p * abs(i - j) for j, p in enumerate(row)) for i, row in enumerate(matrix.tolist())]
            entropy = [-sum(p * math.log(p) for p in row if p > 0) for row in matrix.tolist()]
            assert each.distance[head] == pytest.approx(sum(away) / LENGTH, rel=1e-4)
            assert each.effective_keys[head] == pytest.approx(sum(map(math.exp, entropy)) / LENGTH, rel=1e-4)
            assert each.entropy[head] == pytest.approx(sum(entropy) / LENGTH, rel=1e-4)
            listed = sorted(
                ((float(matrix[i, j]), i, j) for i in range(1, LENGTH) for j in range(i + 1)), reverse=True
            )[:5]
            assert [pair[:2] for pair in each.pairs[head]] == [(i, j) for _, i, j in listed]
            assert [pair[2] for pair in each.pairs[head]] == pytest.approx([x for x, *_ in listed], rel=1e-5)


@pytest.mark.parametrize("block", [4, 5, 40])
def test_blocks_are_means_over_queries_of_sums_over_keys(block):
    """The numbers beside them do not depend on the blocks."""
    model = decoder("softmax", "linear")
    for whole, coarse in zip(attention_maps(model, TOKENS), attention_maps(model, TOKENS, block=block), strict=True):
        assert isinstance(whole, LayerMaps)
        assert isinstance(coarse, LayerMaps)
        cuts = range(0, LENGTH, block)
        wanted = [[whole.cells[:, i : i + block, j : j + block].sum(2).mean(1) for j in cuts] for i in cuts]
        assert np.allclose(coarse.cells, np.moveaxis(np.array(wanted), 2, 0), atol=1e-6)
        assert (coarse.pairs, coarse.entropy.tolist()) == (whole.pairs, whole.entropy.tolist())


def test_a_layer_without_a_matrix_says_why_and_the_others_are_there():
    model = decoder("linear", "linear(post=softmax)", "softmax")
    first, second, third = attention_maps(model, TOKENS)
    assert isinstance(second, NoMaps)
    assert "not affine in the values, so it has no attention matrix" in second.reason
    assert isinstance(first, LayerMaps)
    assert isinstance(third, LayerMaps)
    assert model.training
    assert not any(mechanism._forward_pre_hooks for mechanism in model.mechanisms)


def test_weights_that_are_not_finite_are_named():
    model = decoder("softmax")
    torch.nn.init.constant_(next(model.layers[0].projections.parameters()), math.nan)
    assert attention_maps(model, TOKENS) == [NoMaps("softmax", "its weights are not finite")]


def test_an_encoder_looks_ahead():
    encoder = Encoder(presets.build("bert", vocab_size=128, dim=16, layers=2, heads=2, max_length=32))
    for each in attention_maps(encoder, TOKENS):
        assert isinstance(each, LayerMaps)
        assert not each.causal
        assert np.allclose(each.cells.sum(-1), 1, atol=1e-5)
        assert (np.triu(each.cells[0], 1) > 0).any()


def test_rows_with_projections_of_their_own_are_named():
    config = presets.build("longformer", vocab_size=128, dim=16, layers=1, heads=2, max_length=32)
    (only,) = attention_maps(Encoder(config), TOKENS)
    assert isinstance(only, NoMaps)
    assert "its global tokens have projections of their own" in only.reason


def test_what_is_refused():
    with pytest.raises(UnsupportedError, match=r"memory='recent\(length=8\)' reads in segments"):
        attention_maps(decoder("softmax", position="transformer_xl", memory="recent(length=8)"), TOKENS)
    for wrong in ({"block": 0}, {"pairs": 0}):
        with pytest.raises(ConfigError, match="block and pairs must be at least 1"):
            attention_maps(decoder("softmax"), TOKENS, **wrong)


def test_what_another_thread_reads_meanwhile_is_not_shown():
    model = decoder("softmax", "local(window=2)")
    expected = attention_maps(model, TOKENS)

    def read(*_: object) -> None:
        hook.remove()
        with ThreadPoolExecutor(1) as other, torch.no_grad():
            other.submit(model, torch.tensor([TOKENS[:5]])).result()

    hook = model.blocks[0].mlp.register_forward_pre_hook(read)  # type: ignore[union-attr]
    found = attention_maps(model, TOKENS)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, LayerMaps)
        assert isinstance(other, LayerMaps)
        np.testing.assert_array_equal(one.cells, other.cells)
