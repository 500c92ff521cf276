"""`linear` against double loops written from SPEC F1, F1b, 0.5, B5 and K5."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import ConfigError, Heads, UnsupportedError

IMPLS = ("auto", "quadratic", "recurrent", "reference")
OPTIONS: list[dict] = [
    {},
    {"feature_map": "relu"},
    {"feature_map": "sigmoid", "key_feature_map": "elu_plus_one"},
    {"feature_map": "softmax_features"},
    {"feature_map": "taylor"},
    {"feature_map": "identity", "normalise": False},
    {"normalise": False},
    {"rotary": True},
    {"rotary": True, "normalise": False},
    {"post": "softmax"},
    {"rotary": True, "post": "softmax"},
]


def features(name: str, x: list[float]) -> list[float]:
    match name:
        case "elu_plus_one":
            return [a + 1 if a > 0 else math.exp(a) for a in x]
        case "relu":
            return [max(a, 0.0) for a in x]
        case "sigmoid":
            return [1 / (1 + math.exp(-a)) for a in x]
        case "softmax_features":
            return [math.exp(a) / sum(math.exp(b) for b in x) for a in x]
        case "taylor":
            return [1.0, *x, *(a * b / math.sqrt(2) for a in x for b in x)]
    assert name == "identity"
    return x


def rotated(x: list[float], slot: int) -> list[float]:
    out = []
    for c in range(len(x) // 2):
        angle = slot * 10000 ** (-2 * c / len(x))
        a, b = x[2 * c], x[2 * c + 1]
        out += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
    return out


def loops(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, options: dict) -> Tensor:
    """One weight after another. The queries are the last positions."""
    of_q = options.get("feature_map", "elu_plus_one")
    of_k = options.get("key_feature_map", of_q)
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    group, past = heads // k.shape[1], keys - queries if causal else 0
    out = torch.zeros(batch, heads, queries, v.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                fq, total, any_key = features(of_q, q[b, h, i].tolist()), 0.0, False
                row = [0.0] * v.shape[3]
                for j in range(keys):
                    if (causal and j > i + past) or (mask is not None and not mask[b, j]):
                        continue
                    fk = features(of_k, k[b, h // group, j].tolist())
                    pair = (rotated(fq, i + past), rotated(fk, j)) if options.get("rotary") else (fq, fk)
                    weight = sum(x * y for x, y in zip(*pair, strict=True))
                    total += sum(x * y for x, y in zip(fq, fk, strict=True))
                    row = [r + weight * a for r, a in zip(row, v[b, h // group, j].tolist(), strict=True)]
                    any_key = True
                if options.get("normalise", True):
                    row = [r / total if total else 0.0 for r in row]
                if options.get("post") == "softmax":
                    row = [math.exp(r) / sum(math.exp(s) for s in row) if any_key and total else 0.0 for r in row]
                out[b, h, i] = torch.tensor(row, dtype=torch.float64)
    return out


def draw(queries: int = 9, keys: int = 9, seed: int = 0, value: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((2, 4, queries, 4), (2, 2, keys, 4), (2, 2, keys, value))
    q, k, v = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes)
    return q, k, v


def heads(causal: bool, value: int = 3) -> Heads:
    return Heads(count=4, kv_count=2, key_dim=4, value_dim=value, causal=causal)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_form_is_the_double_loop(options: dict) -> None:
    mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(5)) > 0.4
    mask[0, :2] = False
    mask[1] = False
    for causal in (True, False):
        for key_mask in (None, mask):
            q, k, v = draw()
            expected = loops(q, k, v, causal, key_mask, options)
            for impl in IMPLS:
                mechanism = regard.build("linear", heads(causal), impl=impl, **options)
                found = mechanism(q, k, v, key_mask=key_mask).values
                assert (found - expected).abs().max() < 1e-12 * max(1, expected.abs().max()), (impl, causal)


def test_a_row_without_common_features_is_0() -> None:
    """relu: the first query meets keys on the other side only; no epsilon, no NaN, no gradient."""
    q = torch.tensor([[[[1.0, -1.0], [1.0, 1.0]]]], dtype=torch.float64).requires_grad_()
    k = torch.tensor([[[[-1.0, 2.0], [-3.0, 1.0]]]], dtype=torch.float64).requires_grad_()
    v = torch.tensor([[[[5.0], [8.0]]]], dtype=torch.float64)
    mechanism = regard.build("linear", Heads(count=1, key_dim=2, value_dim=1, causal=True), feature_map="relu")
    out = mechanism(q, k, v).values
    assert out.flatten().tolist() == pytest.approx([0.0, (2 * 5 + 8) / 3])
    grads = torch.autograd.grad(out.sum(), (q, k))
    assert all(g.isfinite().all() for g in grads)
    assert not grads[0][0, 0, 0].any()


def test_post_softmax_keeps_the_order_and_sums_to_one() -> None:
    q, k, v = draw(value=5)
    plain = regard.build("linear", heads(True, 5))(q, k, v).values
    post = regard.build("linear", heads(True, 5), post="softmax")(q, k, v).values
    assert torch.allclose(post.sum(-1), torch.ones(2, 4, 9, dtype=torch.float64), atol=1e-14)
    assert torch.equal(post.argsort(-1), plain.argsort(-1))


def test_decoding_makes_few_small_operations() -> None:
    """One token costs the same after any past, and no chunk machinery."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    mechanism = regard.build("linear", Heads(count=2, key_dim=8, causal=True)).eval()
    seen = []
    for past in (3, 500):
        x = torch.randn(3, 1, 2, past, 8)
        state = mechanism(*x, state=mechanism.initial_state(1)).state
        with Operations() as operations, torch.no_grad():
            mechanism(*torch.randn(3, 1, 2, 1, 8), state=state)
        seen.append(operations.names)
    assert seen[0] == seen[1]
    assert not any("regard" in name for name in seen[0])
    assert len(seen[0]) < 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "elu"}, "option feature_map='elu' is not valid: did you mean 'relu'"),
        ({"feature_map": "positive_random"}, "option feature_map='positive_random' is not valid: valid: elu_plus"),
        ({"key_feature_map": "positive_random"}, "option key_feature_map='positive_random' is not valid: valid: elu_"),
        ({"feature_map": "identity"}, "pass normalise=False"),
        ({"feature_map": "taylor", "key_feature_map": "relu"}, "features of one size"),
        ({"feature_map": "taylor", "rotary": True}, "must be even"),
        ({"impl": "flex"}, "option impl='flex' is not valid: valid: auto, quadratic"),
        ({"post": "relu"}, "option post='relu' is not valid: valid: none, softmax"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    from regard.attention.kernel.linear import Linear

    with pytest.raises(ConfigError, match=message):
        Linear(heads(True), **options)


def test_what_is_not_supported_is_refused() -> None:
    q, k, v = draw()
    with pytest.raises(UnsupportedError, match="no term can be added to a logit"):
        regard.build("linear", heads(True))(q, k, v, bias=regard.ScoreBias(table=torch.zeros(1, 1, 9, 9)))
    with pytest.raises(UnsupportedError, match="one sequence of slots"):
        regard.build("linear", heads(False), rotary=True)(q, k[:, :, :5], v[:, :, :5])


SMALL = [("elu_plus_one", -47.0, 1.0), ("elu_plus_one", -60.0, 1.0), ("sigmoid", -60.0, 0.5), ("relu", 0.0, 1e-25)]
"""map, shift and scale of queries and keys whose features have products below float32's smallest number"""


def drawn(shift: float, scale: float, length: int = 70) -> list[Tensor]:
    g = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, 2, length, 4, generator=g) for _ in range(3))
    return [q * scale + shift, k * scale + shift, v]


def exact(name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, in float64, in which these products exist."""
    maps = {
        "elu_plus_one": lambda x: torch.where(x > 0, x + 1, x.clamp(max=0).exp()),
        "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
        "relu": lambda x: x.clamp(min=0),
    }
    weights = (maps[name](q) @ maps[name](k).mT).tril()
    total = weights.sum(-1, keepdim=True)
    return weights @ v / total.masked_fill(total == 0, 1)


@pytest.mark.parametrize(
    "spec", ["linear", "linear(impl=quadratic)", "linear(impl=recurrent)", "local_linear(window=0)"]
)
@pytest.mark.parametrize(("name", "shift", "scale"), SMALL)
def test_products_of_features_that_float32_cannot_hold(spec, name, shift, scale):
    q, k, v = drawn(shift, scale)
    heads = Heads(count=2, key_dim=4, causal=True)
    mechanism = regard.build(spec, heads, feature_map=name)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    values = mechanism(*leaves).values
    doubles = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = exact(name, *doubles)
    torch.testing.assert_close(values.double(), wanted, rtol=0, atol=2e-5)
    slopes = torch.autograd.grad(values.square().sum(), leaves)
    for slope, want in zip(slopes, torch.autograd.grad(wanted.square().sum(), doubles), strict=True):
        torch.testing.assert_close(slope.double(), want, rtol=0, atol=1e-4 * want.abs().max().item())
    state = mechanism(q[:, :, :30], k[:, :, :30], v[:, :, :30], state=mechanism.initial_state(2)).state
    rest = [mechanism(*(x[:, :, 30:31] for x in (q, k, v)), state=state)]
    rest.append(mechanism(*(x[:, :, 31:] for x in (q, k, v)), state=rest[0].state))
    streamed = torch.cat([each.values for each in rest], 2)
    torch.testing.assert_close(streamed, values[:, :, 30:], rtol=0, atol=2e-5)


def test_a_later_query_of_tiny_features_changes_no_bit():
    mechanism = regard.build("linear", Heads(count=2, key_dim=4, causal=True))
    q, k, v = drawn(0.0, 1.0)
    whole = mechanism(q, k, v).values
    q[:, :, 40:], k[:, :, 40:] = q[:, :, 40:] - 60, k[:, :, 40:] - 60
    assert torch.equal(mechanism(q, k, v).values[:, :, :40], whole[:, :, :40])


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shift", [-60.0, -80.0, -90.0, -100.0, -110.0])
def test_beyond_float32_is_a_row_without_keys(shift, causal, impl):
    """Keys of -85 or less; gradients stay numbers on the way there."""
    q, k, v = (x.requires_grad_() for x in drawn(shift, 0.1))
    values = regard.build("linear", Heads(count=2, key_dim=4, causal=causal), impl=impl)(q, k, v).values
    assert all(x.isfinite().all() for x in torch.autograd.grad(10 * values.sum(), (q, k, v)))
    if shift < -85:
        assert not values.any()


@pytest.mark.parametrize("impl", ["auto", "quadratic", "recurrent", "reference"])
def test_small_queries_in_float16_are_no_overflow(impl):
    q, k = torch.tensor([[[[5e-7, 3e-7]]]]).half(), torch.ones(1, 1, 1, 2).half()
    linear = regard.build(f"linear(feature_map=relu, impl={impl})", Heads(count=1, key_dim=2, causal=True))
    assert torch.equal(linear(q, k, k).values, k)


@pytest.mark.parametrize("options", ["feature_map=relu", "normalise=False, feature_map=identity"])
def test_rows_without_weight_are_0_after_the_softmax_too(options):
    heads = Heads(count=1, key_dim=2, causal=True)
    q, k = torch.tensor([[[[-1.0, -1.0], [1.0, 0.5]]]]), torch.ones(1, 1, 2, 2)
    q = q.clamp(min=0) if "identity" in options else q
    for impl in ("auto", "quadratic", "reference"):
        values = regard.build(f"linear(post=softmax, {options}, impl={impl})", heads).eval()(q, k, k).values
        assert values[0, 0].tolist() == [[0.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_sum_of_weights_beyond_the_type_is_no_average(impl):
    """Of values of 0.1 the weighted sum is still inside it, and over an infinite weight it would be 0."""
    q = torch.full((1, 1, 4, 2), 1e19)
    values = regard.build(f"linear(impl={impl})", Heads(count=1, key_dim=2, causal=True))(q, q, q * 0 + 0.1).values
    assert values[0, 0, 0].tolist() == pytest.approx([0.1, 0.1])
    assert not values[0, 0, 1:].isfinite().any()


@pytest.mark.parametrize("impl", IMPLS)
def test_weights_that_nothing_divides_by_may_be_as_small_as_they_are(impl):
    """Their sum is no reason to take a row for one without keys, as it is where values are divided by it."""
    q = torch.full((1, 1, 3, 2), 1e-18)
    heads = Heads(count=1, key_dim=2, causal=True)
    linear = regard.build(f"linear(post=softmax, normalise=False, feature_map=relu, impl={impl})", heads).eval()
    assert linear(q, q, q).values.tolist() == [[[[0.5, 0.5]] * 3]]
