"""`attend` and `weights` against the definition of attention, written here."""

import math

import pytest
import torch

import regard
from regard import catalog
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError, InputError, ShapeError, UnsupportedError
from regard.core.info import Heads
from regard.functional import attend, weight_columns, weights
from regard.testing.compare import assert_close, assert_identical


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def softmax_rows(q, k, v, *, causal=False, window=None, mask=None, scale=None):
    """The sentence of attention as loops: batch, heads, queries."""
    batch, heads, queries, dim = q.shape
    keys, group = k.shape[2], heads // k.shape[1]
    out = torch.zeros(batch, heads, queries, v.shape[-1], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                slot = i + keys - queries
                allowed = [
                    j
                    for j in range(keys)
                    if not (causal and j > slot)
                    and not (window is not None and abs(slot - j) > window)
                    and not (mask is not None and not mask[b, j])
                ]
                if not allowed:
                    continue
                logits = torch.stack([(q[b, h, i] * k[b, h // group, j]).sum() for j in allowed])
                share = torch.softmax(logits * (1 / math.sqrt(dim) if scale is None else scale), 0)
                out[b, h, i] = sum(w * v[b, h // group, j] for w, j in zip(share, allowed, strict=True))
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 7), (1, 5)])
def test_softmax_is_the_definition_and_causal_is_lower_right(causal, queries, keys):
    q, k, v = randn(2, 4, queries, 6), randn(2, 2, keys, 6, seed=1), randn(2, 2, keys, 5, seed=2)
    found = regard.attend(q, k, v, causal=causal)
    assert_close(found, softmax_rows(q, k, v, causal=causal), tolerance=1e-12, what="softmax")


def test_scale_mask_and_window():
    q, k, v = randn(2, 2, 9, 4), randn(2, 2, 9, 4, seed=1), randn(2, 2, 9, 4, seed=2)
    mask = torch.tensor([[1] * 9, [1, 1, 0, 0, 1, 0, 1, 1, 0]], dtype=torch.bool)
    found = attend(q, k, v, scale=0.3, key_mask=mask)
    assert_close(found, softmax_rows(q, k, v, scale=0.3, mask=mask), tolerance=1e-12, what="mask and scale")
    found = attend(q, k, v, "local(window=2)", causal=True, key_mask=mask)
    assert_close(found, softmax_rows(q, k, v, causal=True, window=2, mask=mask), tolerance=1e-12, what="window")


def test_the_scale_of_the_specification_and_of_the_call():
    q, k, v = randn(3, 1, 2, 5, 4)
    wanted = softmax_rows(q, k, v, scale=0.7)
    assert_close(attend(q, k, v, "softmax(scale=0.7)"), wanted, tolerance=1e-12, what="in the specification")
    assert_close(attend(q, k, v, "softmax", scale=0.7), wanted, tolerance=1e-12, what="in the call")
    assert_close(attend(q, k, v, "softmax(scale=0.2)", scale=0.7), wanted, tolerance=1e-12, what="in both")
    with pytest.raises(ConfigError, match=r"linear.* has no option 'scale'"):
        attend(q, k, v, "linear", scale=0.7)


def test_a_bias_is_added_to_the_logits():
    q, k, v = randn(3, 1, 2, 5, 4)
    table = randn(1, 2, 5, 5, seed=9)
    wanted = torch.softmax(q @ k.mT / 2 + table, -1) @ v
    assert_close(attend(q, k, v, bias=ScoreBias(table=table)), wanted, tolerance=1e-12, what="bias")


def test_calls_do_not_disturb_one_another():
    """Mechanisms are built once for each shape and dtype: the second call is as the first."""
    q, k, v = randn(3, 1, 2, 6, 4)
    first = attend(q, k, v, "performer", causal=True)
    attend(q.float(), k.float(), v.float(), "performer", causal=True)
    attend(*randn(3, 1, 2, 9, 4), "performer")
    state = torch.get_rng_state()
    assert_identical(attend(q, k, v, "performer", causal=True), first, what="the same call again")
    assert torch.equal(torch.get_rng_state(), state)


def test_mechanisms_with_weights_are_for_layers():
    q, k, v = randn(3, 1, 2, 6, 4)
    with pytest.raises(UnsupportedError, match="use AttentionLayer"):
        attend(q, k, v, "additive")


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        ("softmx", {}, ConfigError, "did you mean 'softmax'"),
        ("linformer", {"causal": True}, (UnsupportedError, ConfigError), "linformer"),
        ("uniform", {"bias": "table"}, UnsupportedError, "uniform does not support"),
        ("local", {"queries": 3}, UnsupportedError, "local does not support"),
        ("softmax", {"queries": 9, "causal": True}, ShapeError, "queries"),
        ("softmax", {"kv": 3}, (ConfigError, ShapeError), "divide"),
        ("softmax", {"mask": 4}, ShapeError, "key_mask"),
        ("softmax", {"value_keys": 5}, ShapeError, "k has 6 positions, v has 5"),
    ],
)
def test_what_does_not_fit_is_refused(spec, options, error, message):
    queries, kv, causal = options.get("queries", 6), options.get("kv", 2), options.get("causal", False)
    q, k, v = randn(1, 2, queries, 4), randn(1, kv, 6, 4), randn(1, kv, options.get("value_keys", 6), 4)
    bias = ScoreBias(table=randn(1, 2, queries, 6)) if "bias" in options else None
    mask = torch.ones(1, options["mask"], dtype=torch.bool) if "mask" in options else None
    with pytest.raises(error, match=message):
        attend(q, k, v, spec, causal=causal, bias=bias, key_mask=mask)


@pytest.mark.parametrize("shapes", [((6, 4), (6, 4), (6, 4)), ((2, 6, 4), (2, 6, 4), (2, 6, 4))])
def test_tensors_without_four_axes_are_a_shape_error(shapes):
    with pytest.raises(ShapeError, match=r"q must be \(batch=\d, heads=\d, length, dim=4\), got"):
        attend(*(randn(*shape) for shape in shapes))


def mechanisms(*, causal: bool):
    wanted = "causal" if causal else "bidirectional"
    for name in catalog.names(supports=[wanted]):
        cls, _ = catalog.resolve(name)
        if cls.describe(cls.samples[0]).affine_in_value:
            yield name


@pytest.mark.parametrize(
    ("name", "causal"), [(name, causal) for causal in (True, False) for name in mechanisms(causal=causal)]
)
def test_weights_are_the_matrix_of_the_mechanism(name, causal):
    """Whatever the values: output = weights . values, plus what zero values give."""
    cls, _ = catalog.resolve(name)
    mechanism = cls(Heads(count=2, key_dim=4, causal=causal, max_length=16), **cls.samples[0]).double().train()
    q = randn(2, 2, 9, 4)
    k = q if mechanism.info.shares_query_key else randn(2, 2, 9, 4, seed=1)
    v = randn(2, 2, 9, 4, seed=2)
    raw = mechanism.raw_inputs.items() if mechanism.info.inputs else ()
    shapes = {name: each.shape(mechanism.heads) for name, each in raw}
    inputs = dict(mechanism.activate({name: randn(2, heads, 9, width) for name, (heads, width) in shapes.items()}))
    matrix = weights(mechanism, q, k, inputs=inputs)
    assert mechanism.training
    assert matrix.shape == (2, 2, 9, 9)
    mechanism.eval()
    with torch.no_grad():
        values, empty = (mechanism(q, k, x, inputs=inputs).values for x in (v, torch.zeros_like(v)))
    assert_close(matrix @ v, values - empty, tolerance=1e-10, what=f"weights of {name}")
    if causal:
        assert not matrix.triu(1).any()


@pytest.mark.parametrize(
    ("spec", "causal"),
    [(spec, True) for spec in ("softmax", "local(window=3)", "strided(stride=3)", "forgetting", "cosine", "linear")]
    + [("softmax", False), ("local(window=3)", False)],
)
def test_columns_are_those_of_the_matrix(spec, causal):
    """Also in parts of the keys, with every kind of bias, groups, inputs, and more blocks than a value has numbers."""
    heads = Heads(count=4, key_dim=4, kv_count=2, value_dim=3, causal=causal)
    mechanism = regard.build(spec, heads).double().train()
    q, k, table = randn(1, 4, 14, 4), randn(1, 2, 14, 4, seed=1), randn(1, 4, 14, 14, seed=2)
    inputs = {name: -randn(1, 4, 14, 1).abs() for name in mechanism.info.inputs}
    of_queries = {"query": randn(1, 4, 14, 5, seed=4), "relative": randn(4, 27, 5, seed=5)}
    biases = [None, ScoreBias(high=13, curve=randn(4, 27, seed=3), **of_queries), ScoreBias(table=table)]
    for bias in biases if mechanism.info.supports.bias else [None]:
        found = list(weight_columns(mechanism, q, k, bias=bias, inputs=inputs))
        assert mechanism.training
        assert [first for first, _ in found] == [0, 3, 6, 9, 12]
        wanted = weights(mechanism, q, k, bias=bias, inputs=inputs)
        rows = [torch.nn.functional.pad(columns, (0, 0, 14 - columns.shape[2], 0)) for _, columns in found]
        assert_close(torch.cat(rows, -1), wanted, tolerance=1e-12, what=spec)


def test_columns_in_parts_need_two_calls_of_work():
    mechanism, asked = regard.build("softmax", Heads(count=1, key_dim=8, causal=True)), []
    mechanism.register_forward_pre_hook(lambda _, args: asked.append(args[0].shape[2] * args[1].shape[2]))
    list(weight_columns(mechanism, *randn(2, 1, 1, 64, 8)))
    assert len(asked) == 1 + 8
    assert sum(asked) < 2 * 64 * 64


def test_weights_with_mask_bias_and_groups():
    mechanism = regard.build("softmax", Heads(count=4, key_dim=4, kv_count=2, value_dim=3))
    q, k = randn(1, 4, 5, 4), randn(1, 2, 7, 4, seed=1)
    mask = torch.tensor([[True, False, True, True, True, False, True]])
    table = randn(1, 4, 5, 7, seed=3)
    logits = q @ k.repeat_interleave(2, 1).mT / 2 + table
    wanted = torch.softmax(logits.masked_fill(~mask[:, None, None], -math.inf), -1)
    found = weights(mechanism, q, k, key_mask=mask, bias=ScoreBias(table=table))
    assert_close(found, wanted, tolerance=1e-12, what="weights")


def test_weights_of_what_has_none():
    mechanism = regard.build("linear(post=softmax)", Heads(count=1, key_dim=4))
    with pytest.raises(UnsupportedError, match="not affine in the values, so it has no attention matrix"):
        weights(mechanism, *randn(2, 1, 1, 3, 4))
    with pytest.raises(UnsupportedError, match="not affine in the values, so it has no attention matrix"):
        next(weight_columns(mechanism, *randn(2, 1, 1, 3, 4)))


def test_an_error_inside_leaves_the_mode_as_it_was():
    mechanism = regard.build("softmax", Heads(count=1, key_dim=4)).train()
    with pytest.raises((ShapeError, InputError)):
        weights(mechanism, randn(1, 1, 3, 4), randn(1, 1, 3, 5))
    assert mechanism.training


def test_what_inference_mode_built_serves_training():
    x = torch.randn(3, 1, 2, 5, 8)
    with torch.inference_mode():
        regard.attend(*x, "performer(num_features=6)")
    q = x[0].clone().requires_grad_()
    regard.attend(q, x[1], x[2], "performer(num_features=6)").sum().backward()
    assert q.grad is not None


def test_weights_of_a_name():
    with pytest.raises(ConfigError, match=r"weights takes a mechanism that is built, as by build\('cosine', Heads"):
        regard.weights("cosine", *torch.randn(2, 1, 2, 5, 8))


@pytest.mark.parametrize("spec", ["softmax", "linear", "local(window=2)"])
@pytest.mark.parametrize("causal", [True, False])
def test_no_keys_have_no_columns(spec, causal):
    mechanism = regard.build(spec, Heads(count=1, key_dim=4, causal=causal))
    q, none = torch.randn(2, 1, 0 if causal else 3, 4), torch.randn(2, 1, 0, 4)
    if not causal and not mechanism.info.supports.cross:
        q = none
    assert weights(mechanism, q, none).shape == (*q.shape[:3], 0)
    assert sum(columns.shape[-1] for _, columns in weight_columns(mechanism, none, none)) == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_numbers_that_are_not_floating_are_refused(dtype):
    with pytest.raises(ShapeError, match="attend: q, k and v must be floating"):
        attend(*torch.zeros(3, 1, 1, 3, 4, dtype=dtype))


@pytest.mark.parametrize("elsewhere", [0, 1, 2])
def test_tensors_on_two_devices_are_refused(elsewhere):
    given = [x.to("meta") if at == elsewhere else x for at, x in enumerate(torch.randn(3, 1, 1, 3, 4))]
    with pytest.raises(ShapeError, match="must be on one device"):
        attend(*given)
    with pytest.raises(ShapeError, match="must be on one device"):
        regard.build("local(window=2)", Heads(count=1, key_dim=4))(*given)
