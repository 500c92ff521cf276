"""The user's own score: any function of pairs, checked when the mechanism is built."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def negative_manhattan(q: Tensor, k: Tensor) -> Tensor:
    return -(q[:, :, :, None] - k[:, :, None]).abs().sum(-1)


class Form(nn.Module):
    """q^T W k, with a frozen offset per head that the softmax ignores."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(dim, dim, seed=7).float())
        self.offset = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ self.weight @ k.mT + self.offset


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 6, 17])
def test_pairs_one_at_a_time(length: int, causal: bool) -> None:
    heads = regard.Heads(count=2, key_dim=3, value_dim=2, kv_count=1, causal=causal)
    mechanism = regard.build("score", heads, function=negative_manhattan, depth=3)
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length + 1, 3, seed=1), draw(1, 1, length + 1, 2, seed=2)
    got = mechanism(q, k, v).values[0]
    for head in range(2):
        for i in range(length):
            seen, odds = range(i + 2 if causal else length + 1), []
            for j in seen:
                pairs = zip(q[0, head, i].tolist(), k[0, 0, j].tolist(), strict=True)
                odds.append(math.exp(-sum(abs(a - b) for a, b in pairs)))
            expected = sum(odd * v[0, 0, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_the_default_is_scaled_dot_product(causal: bool) -> None:
    q, k, v = (draw(2, 2, 13, 4, seed=s) for s in range(3))
    expected = regard.attend(q, k, v, causal=causal)
    torch.testing.assert_close(regard.attend(q, k, v, "score", causal=causal), expected, rtol=0, atol=1e-12)


def test_a_function_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "my_scores_of_this_test"
    (tmp_path / f"{module}.py").write_text("def double(q, k):\n    return 2 * q @ k.mT\n\nconstant = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    q, k, v = (draw(1, 1, 5, 4, seed=s) for s in range(3))
    got = regard.attend(q, k, v, f"score(function='{module}:double')")
    torch.testing.assert_close(got, regard.attend(q, k, v, "softmax(scale=2.0)"), rtol=0, atol=1e-12)
    for path in (f"{module}:triple", f"{module}:constant", f"no_{module}:double", "double", f"{module}:", ":double"):
        with pytest.raises(regard.ConfigError, match="score"):
            regard.build("score", regard.Heads(count=1, key_dim=4), function=path)


def test_a_function_given_to_build_passes_the_suite() -> None:
    from regard.testing.checks import check_attention

    results = check_attention("score", options=[{"function": negative_manhattan, "depth": 8}])
    assert [result.message for result in results if result.status == "failed"] == []


def test_a_module_is_trained_along() -> None:
    heads, form = regard.Heads(count=2, key_dim=4, causal=True), Form()
    mechanism = regard.build("score", heads, function=form).double()
    assert set(mechanism.state_dict()) == {"function.weight", "function.offset"}
    leaves = [draw(2, 2, 40, 4, seed=s).requires_grad_() for s in range(3)]
    q, k, v = leaves
    hidden = torch.ones(40, 40).triu(1).bool()
    expected = (q @ form.weight @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v
    got, way = mechanism(q, k, v).values, draw(2, 2, 40, 4, seed=3)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    every = [*leaves, form.weight]
    slopes = (torch.autograd.grad((x * way).sum(), every) for x in (got, expected))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
    torch.testing.assert_close(mechanism.definition(q, k, v), expected, rtol=0, atol=1e-12)


def test_copies_of_a_module_are_independent_and_shared_modules_are_not() -> None:
    heads, form = regard.Heads(count=1, key_dim=4), Form()
    one, two = (regard.build("score", heads, function=form) for _ in range(2))
    copied = copy.deepcopy(one)
    q, k, v = (draw(1, 1, 6, 4, seed=s).float() for s in range(3))
    before = one(q, k, v).values.detach()
    with torch.no_grad():
        form.weight.mul_(-1)
    assert torch.equal(one(q, k, v).values, two(q, k, v).values)
    assert (one(q, k, v).values - before).abs().max() > 0.1
    assert torch.equal(copied(q, k, v).values, before)
    copied.double()
    torch.testing.assert_close(copied(q.double(), k.double(), v.double()).values.float(), before, rtol=0, atol=1e-6)


def test_a_chunk_is_smaller_where_the_score_is_deep() -> None:
    x = [draw(1, 1, 600, 8, seed=s).float() for s in range(3)]
    largest = []
    for depth in (1, 8):
        mechanism = regard.build("score", regard.Heads(count=1, key_dim=8), function=negative_manhattan, depth=depth)
        largest.append(count(lambda: mechanism(*x)).largest)  # noqa: B023 - called before the loop moves on
    assert largest[1] <= 1 << 18 < largest[0]


def normalised(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1)


def coupled_queries(q: Tensor, k: Tensor) -> Tensor:
    return (q - q.mean(2, keepdim=True)) @ k.mT


def coupled_rows(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.abs().amax()


def random_scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT + torch.rand(q.shape[2], k.shape[2])


def transposed(q: Tensor, k: Tensor) -> Tensor:
    return k @ q.mT


def doubled(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT).double()


def failing(q: Tensor, k: Tensor) -> Tensor:
    return q @ k


def returning_nothing(q: Tensor, k: Tensor) -> None:
    return None


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.scale * q @ k.mT


class WithDropout(Form):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.dropout(super().forward(q, k), 0.5, self.training)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (normalised, "every pair by itself"),
        (coupled_queries, "every pair by itself"),
        (coupled_rows, "every pair by itself"),
        (random_scores, "every pair by itself"),
        (WithDropout(), "every pair by itself"),
        (transposed, r"must return \(batch, heads, queries, keys\)"),
        (doubled, "dtype of its inputs"),
        (returning_nothing, "got NoneType"),
        (failing, "failed on queries"),
        (WithBuffer(), "buffers"),
    ],
)
def test_a_function_that_would_mislead_is_refused(function: object, problem: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(regard.ConfigError, match=problem):
        regard.build("score", regard.Heads(count=2, key_dim=4), function=function)
    if function is not random_scores and not isinstance(function, WithDropout):
        assert torch.equal(torch.get_rng_state(), before)


def test_a_weight_that_would_get_no_gradient_is_refused() -> None:
    loose = nn.Parameter(torch.ones(1))
    with pytest.raises(regard.ConfigError, match=r"torch\.nn\.Module"):
        regard.build("score", regard.Heads(count=1, key_dim=4), function=lambda q, k: loose * q @ k.mT)
    constant = torch.ones(1)
    regard.build("score", regard.Heads(count=1, key_dim=4), function=lambda q, k: constant * q @ k.mT)


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="depth"):
        regard.build("score(depth=0)", regard.Heads(count=1, key_dim=2))
