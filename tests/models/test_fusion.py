"""Fusion against its formula, written out in loops, with any modality missing."""

import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError, ShapeError
from regard.models import presets
from regard.models.encoder_config import EncoderConfig
from regard.models.fusion import Fusion, FusionClassifier
from regard.models.fusion_config import FusionConfig

TINY = {"input_dim": 6, "dim": 16, "layers": 1, "heads": 2, "mlp_dim": 24, "max_length": 9}


def drawn(module: Fusion) -> Fusion:
    """In float64, with every weight random."""
    noise = generator(3)
    module = module.double().eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=noise, dtype=torch.float64))
    return module


def vectors_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def test_golden_values() -> None:
    # W = 1, b = (0, -1), c = (1, 2): alpha = relu(x) + 2 relu(y - 1)
    module = Fusion(2).double()
    with torch.no_grad():
        module.inner.weight.copy_(torch.eye(2))
        module.inner.bias.copy_(torch.tensor([0.0, -1.0]))
        module.query.copy_(torch.tensor([1.0, 2.0]))
    vectors = torch.tensor([[[1.0, -3.0], [-5.0, 2.0], [0.0, 0.5]]], dtype=torch.float64)  # alpha = 1, 2, 0
    e = math.e
    total = e + e**2 + 1
    fused = module(vectors)
    expected = torch.tensor([[e / total, e**2 / total, 1 / total]], dtype=torch.float64)
    torch.testing.assert_close(fused.weights, expected, rtol=0, atol=1e-14)
    expected = torch.tensor([[(e - 5 * e**2) / total, (-3 * e + 2 * e**2 + 0.5) / total]], dtype=torch.float64)
    torch.testing.assert_close(fused.values, expected, rtol=0, atol=1e-13)
    without = module(vectors, present=torch.tensor([[True, False, True]]))
    expected = torch.tensor([[e / (e + 1), 0.0, 1 / (e + 1)]], dtype=torch.float64)
    torch.testing.assert_close(without.weights, expected, rtol=0, atol=1e-14)


def by_loops(module: Fusion, vectors: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """alpha_p = sum_e c_e max(0, sum_d W_ed h_pd + b_e), one number at a time."""
    inner, bias, query = (x.tolist() for x in (module.inner.weight, module.inner.bias, module.query))
    values, weights = torch.zeros_like(vectors[:, 0]), torch.zeros_like(vectors[..., 0])
    for row in range(len(vectors)):
        there = [p for p in range(vectors.shape[1]) if present[row, p]]
        h = vectors[row].tolist()
        alpha = {
            p: sum(
                query[e] * max(0.0, sum(inner[e][d] * h[p][d] for d in range(module.dim)) + bias[e])
                for e in range(len(query))
            )
            for p in there
        }
        for p in there:
            weights[row, p] = math.exp(alpha[p]) / math.fsum(math.exp(alpha[other]) for other in there)
            values[row] += weights[row, p] * vectors[row, p]
    return values, weights


@pytest.mark.parametrize("hidden", [None, 3])
def test_definition(hidden: int | None) -> None:
    module, vectors = drawn(Fusion(4, hidden=hidden)), vectors_of(6, 5, 4) / 2
    present = torch.rand(6, 5, generator=generator(1)) < 0.6
    present[0], present[1] = True, False
    values, weights = by_loops(module, vectors, present)
    fused = module(vectors, present=present)
    torch.testing.assert_close(fused.weights, weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(fused.values, values, rtol=0, atol=1e-12)


def test_positions_are_fused_one_by_one() -> None:
    module, vectors = drawn(Fusion(4)), vectors_of(2, 3, 5, 4)
    fused = module(vectors)
    assert fused.values.shape == (2, 3, 4)
    torch.testing.assert_close(fused.values[1, 2], module(vectors[1, 2][None]).values[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_a_missing_modality_has_no_influence(junk: float) -> None:
    module, vectors = drawn(Fusion(4)), vectors_of(3, 3, 4)
    present = torch.tensor([[True, False, True], [False, False, True], [False] * 3])
    dirty = vectors.masked_fill(~present[..., None], junk).requires_grad_()
    fused = module(dirty, present=present)
    torch.testing.assert_close(fused.values[:1], module(vectors[:1, [0, 2]]).values, rtol=0, atol=1e-12)
    assert torch.equal(fused.values[1], vectors[1, 2])
    assert torch.equal(fused.values[2], torch.zeros(4).double())
    assert torch.equal(fused.weights[2], torch.zeros(3).double())
    (fused.values.square().sum() + fused.weights.square().sum()).backward()
    assert dirty.grad is not None
    assert torch.equal(dirty.grad[~present], torch.zeros(6, 4).double())
    assert dirty.grad[0, 0].abs().sum() > 0
    assert all(weight.grad is not None and torch.isfinite(weight.grad).all() for weight in module.parameters())


def test_misuse_is_refused() -> None:
    module = Fusion(4)
    with pytest.raises(ShapeError, match="dim=4"):
        module(torch.randn(2, 3, 5))
    with pytest.raises(ShapeError, match="present must be bool"):
        module(torch.randn(2, 3, 4), present=torch.ones(2, 3))
    with pytest.raises(ShapeError, match="present must be bool"):
        module(torch.randn(2, 3, 4), present=torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ConfigError, match="at least 1"):
        Fusion(4, hidden=0)
    with pytest.raises(ConfigError, match="at least one modality"):
        FusionConfig(encoders=())
    with pytest.raises(ConfigError, match=r"agree in dim.*\[16, 32\]\n.*hidden.*\n.*dropout"):
        FusionConfig(encoders=(EncoderConfig(dim=16), EncoderConfig(dim=32)), hidden=0, dropout=1.0)
    with pytest.raises(ConfigError, match="at least 1 class"):
        FusionClassifier(presets.build("fusion", **TINY), classes=0)
    model, x = FusionClassifier(presets.build("fusion", **TINY), classes=3), torch.randn(2, 5, 6)
    with pytest.raises(ShapeError, match="takes 2 modalities"):
        model((x,))
    with pytest.raises(ShapeError, match="one batch"):
        model((x, x[:1]))
    with pytest.raises(ShapeError, match=r"present must be bool \(2, 2\)"):
        model((x, x), present=torch.ones(2, 3, dtype=torch.bool))


def inputs_of(batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    left, right = torch.randn(2, batch, 8, 6, generator=generator(seed))
    return left, right


def test_the_preset_trains_evaluates_saves_and_loads() -> None:
    model, inputs = FusionClassifier(presets.build("fusion", **TINY), classes=3).train(), inputs_of(12)
    labels = torch.randint(0, 3, (12,), generator=generator(1))
    present = torch.rand(12, 2, generator=generator(2)) < 0.7
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss() -> Tensor:
        return cross_entropy(model(inputs, present=present).logits, labels)

    before = loss().item()
    for _ in range(30):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.7 * before
    model.eval()
    got = model(inputs, present=present)
    assert torch.equal(got.logits, model(inputs, present=present).logits)
    assert torch.equal(got.weights == 0, ~present)
    fresh = FusionClassifier(presets.build("fusion", **TINY, seed=4), classes=3).eval()
    assert not torch.equal(fresh(inputs).logits, model(inputs).logits)
    fresh.load_state_dict(load(save(model.state_dict())))
    assert torch.equal(fresh(inputs, present=present).logits, got.logits)


def test_modalities_of_different_kinds() -> None:
    text = EncoderConfig(vocab_size=11, dim=16, heads=2, layers=1, pooling="mean")
    routed = EncoderConfig(
        vocab_size=0, input_dim=6, dim=16, heads=2, layers=1, attention=("vector_quantized(num_codes=8,block_size=4)",)
    )
    model = FusionClassifier(FusionConfig(encoders=(text, routed), hidden=5), classes=3)
    tokens = torch.randint(0, 11, (2, 7), generator=generator(0))
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None]
    out = model((tokens, inputs_of(2)[0]), key_masks=(mask, None))
    assert out.losses
    assert set(out.losses) == set(model.loss_weights)
    assert all(name.startswith("1.") for name in out.losses)
    tokens[1, 4:] = 0
    model.eval()
    short = model((tokens[1:, :4], inputs_of(2)[0][1:]))
    torch.testing.assert_close(model((tokens, inputs_of(2)[0]), key_masks=(mask, None)).logits[1:], short.logits)
    with pytest.raises(InputError):
        model((tokens + 11, inputs_of(2)[0]))
    junk = torch.where(torch.tensor([[True], [False]]), tokens, 99)
    model((junk, inputs_of(2)[0]), present=torch.tensor([[True, True], [False, True]]))


EXAMPLE = Path(__file__).parents[2] / "examples" / "two_views.py"


def test_two_views_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    draw = np.random.default_rng(0)
    labels = {"train": draw.integers(0, 3, 240), "test": draw.integers(0, 3, 90)}
    arrays = {}
    for split, classes in labels.items():
        images = draw.integers(0, 60, (len(classes), 28, 28))
        for image, label in zip(images, classes, strict=True):  # a bright band, seen from both sides
            image[8 * label : 8 * label + 8] += 150
        arrays |= {f"{split}_images": images.astype(np.uint8), f"{split}_labels": classes.astype(np.uint8)}
    path = tmp_path / "bands.npz"
    np.savez(path, **arrays)
    monkeypatch.setattr(
        sys, "argv", ["two_views.py", str(path), "--steps", "60", "--batch", "32", "--dim", "16", "--layers", "1"]
    )
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed.splitlines() if "|" in line]
    accuracies = {name.strip(): [float(share) for share in shares] for name, *shares in rows}
    assert set(accuracies) == {"fusion", "mean", "sum", "concatenation"}
    assert min(accuracies["fusion"]) > 0.8
