"""Linformer against the softmax that it is for special projections, and by value at every length."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(length: int, **options: object) -> regard.Attention:
    return regard.build("linformer", regard.Heads(count=2, key_dim=4, max_length=length), **options).double()


def with_projection(length: int, matrix: torch.Tensor) -> regard.Attention:
    mechanism = build(length, rank=matrix.shape[0], share="key_value")
    with torch.no_grad():
        mechanism.mixtures.key.copy_(matrix)
    return mechanism


def test_the_identity_and_a_permutation_give_softmax() -> None:
    q, k, v = (draw(2, 2, 9, 4, seed=s) for s in range(3))
    order = torch.tensor([3, 0, 8, 1, 5, 2, 7, 4, 6])
    for matrix in (torch.eye(9), torch.eye(9)[order]):
        got = with_projection(9, matrix)(q, k, v).values
        torch.testing.assert_close(got, regard.attend(q, k, v), rtol=0, atol=1e-12)


def test_means_over_constant_blocks_give_softmax() -> None:
    q = draw(2, 2, 12, 4)
    k, v = (draw(2, 2, 4, 4, seed=s).repeat_interleave(3, 2) for s in (1, 2))
    got = build(12, rank=4, projection="mean")(q, k, v).values
    torch.testing.assert_close(got, regard.attend(q, k, v), rtol=0, atol=1e-12)


def slots_by_hand(mechanism: regard.Attention, x: list[list[float]], head: int, kind: str) -> list[list[float]]:
    """The `rank` slots of the keys or values of a head, number by number, of a sequence as long as it is."""
    rank, length, keys, dim = mechanism.rank, mechanism.heads.max_length, len(x), len(x[0])
    head = head if mechanism.share == "none" else 0
    members = [[j for j in range(length) if j * rank // length == r] for r in range(rank)]
    match mechanism.projection:
        case "learned":
            e = getattr(mechanism.mixtures, kind)[head].tolist()
        case "mean":
            e = [[(j in block) / max(len(block), 1) for j in range(length)] for block in members]
        case "convolution":
            w = getattr(mechanism.mixtures, kind)[head].tolist()
            size = math.ceil(length / rank)
            e = [[w[j - r * size] if 0 <= j - r * size < size else 0 for j in range(length)] for r in range(rank)]
        case _:
            there = [[x[j] for j in block if j < keys] or [[0.0] * dim] for block in members]
            return [[max(column) for column in zip(*block, strict=True)] for block in there]
    return [[sum(e[r][j] * x[j][c] for j in range(keys)) for c in range(dim)] for r in range(rank)]


@pytest.mark.parametrize("projection", ["learned", "mean", "max", "convolution"])
def test_every_length_by_value(projection: str) -> None:
    """Ranks that do and do not divide max_length; sequences that end inside a block, and leave blocks empty."""
    for length, rank in ((12, 4), (13, 5), (7, 9)):
        mechanism = build(length, rank=rank, projection=projection)
        for keys in range(1, length + 1):
            q, k, v = draw(1, 2, 3, 4), draw(1, 2, keys, 4, seed=keys), draw(1, 2, keys, 4, seed=100 + keys)
            got = mechanism(q, k, v).values
            for head in range(2):
                mixed_k = slots_by_hand(mechanism, k[0, head].tolist(), head, "key")
                mixed_v = slots_by_hand(mechanism, v[0, head].tolist(), head, "value")
                for i, row in enumerate(q[0, head].tolist()):
                    odds = [math.exp(sum(a * b for a, b in zip(row, key, strict=True)) / 2) for key in mixed_k]
                    expected = [
                        sum(o * x for o, x in zip(odds, column, strict=True)) / sum(odds)
                        for column in zip(*mixed_v, strict=True)
                    ]
                    torch.testing.assert_close(got[0, head, i].tolist(), expected, rtol=0, atol=1e-12)


def test_golden_values_of_blocks() -> None:
    """Of four positions in two blocks three are there: -1, -3 and -4. A query of 0 weighs both slots alike."""
    q, x = torch.zeros(1, 1, 1, 1), torch.tensor([-1.0, -3.0, -4.0])[None, None, :, None]
    heads = regard.Heads(count=1, key_dim=1, max_length=4)
    mean = regard.build("linformer", heads, rank=2, projection="mean")
    assert mean(q, x, x).values.item() == -2  # of -4 / 2 and -4 / 2: what is missing is a 0 in the mean
    highest = regard.build("linformer", heads, rank=2, projection="max")
    assert highest(q, x, x).values.item() == -2.5  # of -1 and -4: what is missing is no candidate
    assert highest(q, x, x, key_mask=torch.tensor([[True, True, False]])).values.item() == -0.5  # of -1 and nothing
    kernel = regard.build("linformer", heads, rank=2, projection="convolution")
    with torch.no_grad():
        kernel.mixtures.value.copy_(torch.tensor([[1.0, 10.0]]))
    assert kernel(q, x, x).values.item() == -17.5  # of -1 - 30 and -4


def test_a_kernel_of_means_and_the_matrix_that_it_is() -> None:
    q, k, v = (draw(2, 2, 12, 4, seed=s) for s in range(3))
    kernel, means = build(12, rank=4, projection="convolution"), build(12, rank=4, projection="mean")
    with torch.no_grad():
        for weight in kernel.parameters():
            weight.fill_(1 / 3)
    torch.testing.assert_close(kernel(q, k, v).values, means(q, k, v).values, rtol=0, atol=1e-12)


def test_maxima_are_declared_not_linear() -> None:
    assert not regard.describe("linformer(projection=max)").affine_in_value
    assert regard.describe("linformer(projection=convolution)").linear_in_value


def test_loops() -> None:
    mechanism = build(7, rank=3)
    q, k, v = draw(1, 2, 5, 4), draw(1, 2, 6, 4, seed=1), draw(1, 2, 6, 4, seed=2)
    e, f = mechanism.mixtures.key, mechanism.mixtures.value
    got = mechanism(q, k, v).values
    for head in range(2):
        keys = [sum(e[head, r, j] * k[0, head, j] for j in range(6)) for r in range(3)]
        values = [sum(f[head, r, j] * v[0, head, j] for j in range(6)) for r in range(3)]
        for i in range(5):
            odds = torch.stack([torch.exp(q[0, head, i] @ key / 2) for key in keys])
            expected = sum(odd * value for odd, value in zip(odds / odds.sum(), values, strict=True))
            torch.testing.assert_close(got[0, head, i], expected, rtol=0, atol=1e-12)


def test_what_is_shared() -> None:
    heads = regard.Heads(count=4, key_dim=2, kv_count=2, max_length=10)
    sizes = {
        share: sum(p.numel() for p in regard.build("linformer", heads, rank=3, share=share).parameters())
        for share in ("none", "head", "key_value", "layer")
    }
    assert sizes == {"none": 2 * 2 * 30, "head": 2 * 30, "key_value": 30, "layer": 30}
    kernels = {
        share: sum(
            p.numel()
            for p in regard.build("linformer", heads, rank=3, share=share, projection="convolution").parameters()
        )
        for share in ("none", "head", "key_value", "layer")
    }
    assert kernels == {"none": 2 * 2 * 4, "head": 2 * 4, "key_value": 4, "layer": 4}
    for projection in ("mean", "max"):
        assert not list(regard.build("linformer", heads, projection=projection).parameters())


def test_layers_share_a_module() -> None:
    one, two = (build(8, rank=3, share="layer") for _ in range(2))
    two.mixtures = one.mixtures
    q = draw(1, 2, 8, 4)
    (one(q, q, q).values + two(q, q, q).values).sum().backward()
    both = one.mixtures.key.grad.clone()
    one.mixtures.key.grad = None
    one(q, q, q).values.sum().backward()
    torch.testing.assert_close(both, 2 * one.mixtures.key.grad)


def test_full_rank_attention_is_out_of_reach() -> None:
    eye = 10 * torch.eye(32, dtype=torch.float64)[None, None]
    heads = regard.Heads(count=1, key_dim=32, max_length=32)
    sharp = regard.weights(regard.build("softmax", heads, scale=1.0), eye, eye)
    low = regard.weights(regard.build("linformer", heads, rank=4).double(), eye, eye)
    assert torch.linalg.matrix_rank(sharp[0, 0]) == 32
    assert torch.linalg.matrix_rank(low[0, 0]) <= 4


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({"max_length": None}, {}, regard.ConfigError, "max_length"),
        ({"causal": True}, {}, regard.UnsupportedError, "its projection mixes all positions"),
        ({}, {"rank": 0}, regard.ConfigError, "rank"),
        ({}, {"share": "all"}, regard.ConfigError, "share"),
        ({}, {"projection": "conv"}, regard.ConfigError, "projection"),
        ({}, {"projection": "mean", "share": "head"}, regard.ConfigError, "share belongs to projections with weights"),
        ({}, {"projection": "max", "share": "layer"}, regard.ConfigError, "got share='layer' with projection='max'"),
    ],
)
def test_refusals(changes: dict[str, object], options: dict[str, object], error: type[Exception], message: str) -> None:
    heads = regard.Heads(**{"count": 1, "key_dim": 2, "max_length": 8, **changes})
    with pytest.raises(error, match=message):
        regard.build("linformer", heads, **options)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_too_many_keys(impl: str) -> None:
    q = draw(1, 2, 9, 4)
    with pytest.raises(regard.LimitError, match="max_length=8"):
        build(8, rank=2, impl=impl)(q, q, q)


def test_names_of_weights() -> None:
    assert list(build(8).state_dict()) == ["mixtures.key", "mixtures.value"]
    assert list(build(8, share="layer").state_dict()) == ["mixtures.key"]
    assert list(build(8, projection="convolution").state_dict()) == ["mixtures.key", "mixtures.value"]
    for projection in ("mean", "max"):
        assert list(build(8, projection=projection).state_dict()) == []
