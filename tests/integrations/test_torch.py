"""The drop-in for torch's multi-head attention, against torch's own, and the replacement of attention inside models."""

import copy
import inspect
import itertools

import pytest
import torch
from torch import nn

import regard
from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard.integrations.torch import MultiheadAttention, losses, replace_attention
from regard.testing.compare import assert_close, assert_identical

BATCH, HEADS, DIM, TOLERANCE = 3, 2, 8, 1e-10


def randn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pair(**options):
    """torch's module and ours with its weights, every one of them signed random."""
    theirs = nn.MultiheadAttention(DIM, HEADS, dtype=torch.float64, **options)
    ours = MultiheadAttention(DIM, HEADS, dtype=torch.float64, **options)
    with torch.no_grad():
        for at, weight in enumerate(theirs.parameters()):
            weight.copy_(randn(*weight.shape, seed=100 + at) * 0.5)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def padding(keys, kind):
    if kind is None:
        return None
    mask = torch.zeros(BATCH, keys, dtype=torch.bool)
    mask[0, -2:], mask[1, 1] = True, True
    if kind == "bool":
        return mask
    hidden = torch.zeros(BATCH, keys, dtype=torch.float64).masked_fill(mask, -torch.inf)
    return hidden if kind == "-inf" else hidden + randn(BATCH, keys, seed=7)


def blocked(queries, keys, kind):
    """A mask under which every query of every row still sees its first key."""
    if kind is None:
        return None
    shape = (queries, keys) if kind[0] == "2" else (BATCH * HEADS, queries, keys)
    if kind[1:] == "causal":
        mask = torch.ones(shape, dtype=torch.bool).triu(1)
        return torch.zeros(shape, dtype=torch.float64).masked_fill(mask, -torch.inf) if kind[0] == "3" else mask
    mask = randn(*shape, seed=3) > 0.5
    mask[..., 0] = False
    if kind[1:] == "bool":
        return mask
    return randn(*shape, seed=4).masked_fill(mask, -torch.inf)


PADDINGS = (None, "bool", "-inf", "float")
MASKS = (None, "2bool", "2float", "3bool", "3float", "2causal", "3causal")


def inputs(queries, keys, widths, *, batched, batch_first, shared):
    """query, key, value in the layout asked for; one tensor if shared."""
    shapes = [(queries, DIM), (keys, widths[0]), (keys, widths[1])]
    made = []
    for at, (length, width) in enumerate(shapes):
        x = randn(BATCH, length, width, seed=20 + at)
        made.append((x if batch_first else x.transpose(0, 1)) if batched else x[0])
    made = [x.clone().requires_grad_() for x in made]
    return [made[0]] * 3 if shared else made


def both(theirs, ours, given, **call):
    """Outputs, weights and every gradient agree."""
    for parameter in (*theirs.parameters(), *ours.parameters()):
        parameter.grad = None
    leaves = list({id(x): x for x in given}.values())
    if call.get("attn_mask") is not None and call["attn_mask"].requires_grad:
        leaves.append(call["attn_mask"])
    results = []
    for module in (theirs, ours):
        out, seen = module(*given, **call)
        loss = (out * randn(*out.shape, seed=50)).sum()
        loss = loss if seen is None else loss + (seen * randn(*seen.shape, seed=51)).sum()
        gradients = torch.autograd.grad(loss, [*leaves, *module.parameters()])
        results.append((out, seen, gradients))
    (out, seen, gradients), (own_out, own_seen, own_gradients) = results
    assert not out.isnan().any()
    assert own_out.shape == out.shape
    assert_close(own_out, out, tolerance=TOLERANCE, what="output")
    assert (seen is None) == (own_seen is None)
    if seen is not None:
        assert own_seen.shape == seen.shape
        assert_close(own_seen, seen, tolerance=TOLERANCE, what="weights")
    for at, (mine, other) in enumerate(zip(own_gradients, gradients, strict=True)):
        assert_close(mine, other, tolerance=TOLERANCE, what=f"gradient {at}")


class TestEqualToTorch:
    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize("kind", PADDINGS)
    def test_every_mask_in_every_layout(self, kind, mask):
        theirs, ours = {}, {}
        for batch_first in (False, True):
            theirs[batch_first], ours[batch_first] = pair(batch_first=batch_first)
        for batch_first, shared, need, average in itertools.product((False, True), repeat=4):
            if average and not need:
                continue
            queries, keys = (5, 5) if shared else (5, 7)
            both(
                theirs[batch_first],
                ours[batch_first],
                inputs(queries, keys, (DIM, DIM), batched=True, batch_first=batch_first, shared=shared),
                key_padding_mask=padding(keys, kind),
                attn_mask=blocked(queries, keys, mask),
                need_weights=need,
                average_attn_weights=average,
                is_causal=shared and mask is not None and "causal" in mask,
            )

    @pytest.mark.parametrize("zero", [False, True])
    @pytest.mark.parametrize("extra", [False, True])
    @pytest.mark.parametrize("bias", [False, True])
    @pytest.mark.parametrize("widths", [(DIM, DIM), (6, 4)])
    def test_every_constructor_argument(self, bias, extra, zero, widths):
        names = {"kdim": widths[0], "vdim": widths[1]} if widths != (DIM, DIM) else {}
        theirs, ours = pair(bias=bias, add_bias_kv=extra, add_zero_attn=zero, **names)
        for kind, mask, need in itertools.product((None, "bool", "float"), (None, "2bool", "3float"), (False, True)):
            both(
                theirs,
                ours,
                inputs(5, 7, widths, batched=True, batch_first=False, shared=False),
                key_padding_mask=padding(7, kind),
                attn_mask=blocked(5, 7, mask),
                need_weights=need,
            )
        if widths == (DIM, DIM):
            causal = blocked(5, 5, "2causal")
            both(
                theirs,
                ours,
                inputs(5, 5, widths, batched=True, batch_first=False, shared=True),
                attn_mask=causal,
                key_padding_mask=padding(5, "bool"),
            )

    @pytest.mark.parametrize("need", [False, True])
    @pytest.mark.parametrize("average", [False, True])
    def test_unbatched(self, need, average):
        theirs, ours = pair(batch_first=True)
        heads_mask = blocked(5, 7, "3float")[:HEADS]
        for mask, hidden in itertools.product(
            (None, blocked(5, 7, "2bool"), heads_mask), (None, padding(7, "bool")[0])
        ):
            both(
                theirs,
                ours,
                inputs(5, 7, (DIM, DIM), batched=False, batch_first=True, shared=False),
                attn_mask=mask,
                key_padding_mask=hidden,
                need_weights=need,
                average_attn_weights=average,
            )

    def test_gradients_reach_a_mask_of_numbers(self):
        theirs, ours = pair()
        for shape in ((5, 7), (BATCH * HEADS, 5, 7)):
            mask = randn(*shape, seed=9).requires_grad_()
            given = inputs(5, 7, (DIM, DIM), batched=True, batch_first=False, shared=False)
            both(theirs, ours, given, attn_mask=mask, key_padding_mask=padding(7, "float"))

    def test_the_same_seed_draws_the_same_weights(self):
        torch.manual_seed(5)
        theirs = nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True, kdim=4)
        state = torch.get_rng_state()
        torch.manual_seed(5)
        ours = MultiheadAttention(DIM, HEADS, add_bias_kv=True, kdim=4)
        assert_identical(torch.get_rng_state(), state, what="random state")
        for name, weight in theirs.state_dict().items():
            assert_identical(ours.state_dict()[name], weight, what=name)
        ours._reset_parameters()
        theirs.load_state_dict(ours.state_dict())

    def test_signatures(self):
        for method in ("__init__", "forward"):
            theirs = inspect.signature(getattr(nn.MultiheadAttention, method)).parameters
            ours = inspect.signature(getattr(MultiheadAttention, method)).parameters
            positional = [p for p in ours.values() if p.kind is not p.KEYWORD_ONLY]
            assert [(p.name, p.default) for p in positional] == [(p.name, p.default) for p in theirs.values()]
        assert inspect.signature(MultiheadAttention).parameters["spec"].default == "softmax"


@pytest.mark.parametrize("need", [False, True])
@pytest.mark.parametrize("way", ["padding", "-inf", "mask"])
def test_a_sample_that_is_all_padding_gets_the_bias_and_no_nan(need, way):
    ours = MultiheadAttention(DIM, HEADS, batch_first=True, dtype=torch.float64)
    nn.init.normal_(ours.out_proj.bias)
    x = randn(2, 5, DIM).requires_grad_()
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[1] = True
    if way == "mask":
        call = {"attn_mask": hidden.repeat_interleave(HEADS, 0)[:, None].expand(-1, 5, -1)}
    elif way == "-inf":
        call = {"key_padding_mask": torch.zeros(2, 5, dtype=torch.float64).masked_fill(hidden, -torch.inf)}
    else:
        call = {"key_padding_mask": hidden}
    out, seen = ours(x, x, x, need_weights=need, **call)
    assert_identical(out[1], ours.out_proj.bias.expand(5, DIM), what="all padding")
    assert seen is None or (seen[1] == 0).all()
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in ours.parameters())


class TestAnyMechanism:
    @pytest.mark.parametrize("name", regard.names(supports=["bidirectional"]))
    def test_the_layer_with_the_same_weights(self, name):
        """Against `AttentionLayer`; and the weights are those of `regard.weights`, or refused with the way out."""
        ours = MultiheadAttention(16, 2, batch_first=True, spec=name, causal=False, max_length=16, bias=False)
        ours = ours.double().eval()
        layer = regard.AttentionLayer(16, name, heads=2, causal=False, max_length=16).double().eval()
        layer.attention.load_state_dict(ours.attention["bidirectional"].state_dict())
        with torch.no_grad():
            given = zip(
                (layer.projections.query, layer.projections.key, layer.projections.value),
                ours.in_proj_weight.chunk(3),
                strict=True,
            )
            for own, weight in given:
                if own is not None:
                    own.weight.copy_(weight)
            layer.projections.output.weight.copy_(ours.out_proj.weight)
        x, keep = randn(2, 9, 16), torch.arange(9) < torch.tensor([[9], [6]])
        with torch.no_grad():
            expected = layer(x, key_mask=keep).hidden
            out, _ = ours(x, x, x, key_padding_mask=~keep, need_weights=False)
            assert_close(out, expected, tolerance=TOLERANCE, what=name)
        if not regard.describe(name).affine_in_value:
            with pytest.raises(UnsupportedError, match="need_weights=False"):
                ours(x, x, x)
            return
        out, seen = ours(x, x, x, key_padding_mask=~keep, average_attn_weights=False)
        assert seen.shape == (2, 2, 9, 9)
        assert (seen[1, :, :, 6:] == 0).all()
        if regard.describe(name).linear_in_value:
            value = (x @ ours.in_proj_weight[32:].T).unflatten(-1, (2, 8)).transpose(1, 2)
            again = (seen @ value).transpose(1, 2).flatten(2) @ ours.out_proj.weight.T
            assert_close(again, out, tolerance=TOLERANCE, what="weights times values")

    @pytest.mark.parametrize("name", [n for n in regard.names() if regard.describe(n).inputs])
    def test_what_needs_more_than_queries_keys_and_values_is_refused(self, name):
        with pytest.raises(UnsupportedError, match="also needs"):
            MultiheadAttention(16, 2, spec=name, causal=True)

    @pytest.mark.parametrize("spec", ["linear", "local(window=2)", "uniform"])
    def test_the_causal_mask_selects_the_causal_form(self, spec):
        decides, built = (
            MultiheadAttention(8, 2, batch_first=True, spec=spec, causal=causal).eval() for causal in (None, True)
        )
        built.load_state_dict(decides.state_dict())
        x = torch.randn(2, 6, 8)
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        for given in (mask, torch.zeros(6, 6).masked_fill(mask, -torch.inf), mask.expand(4, 6, 6)):
            assert_identical(decides(x, x, x, attn_mask=given)[0], built(x, x, x)[0], what=spec)
        assert not torch.equal(decides(x, x, x)[0], built(x, x, x)[0])

    def test_other_masks_are_biases(self):
        ours = MultiheadAttention(8, 2, batch_first=True, spec="local(window=2)").eval()
        x, mask = torch.randn(1, 6, 8), torch.ones(6, 6, dtype=torch.bool).triu(2)
        _, seen = ours(x, x, x, attn_mask=mask)
        i, j = torch.arange(6)[:, None], torch.arange(6)
        assert torch.equal(seen[0] > 0, ((i - j).abs() <= 2) & (j <= i + 1))

    @pytest.mark.parametrize("number", [-1e4, -1e9, torch.finfo(torch.float64).min])
    def test_large_negative_numbers_hide(self, number):
        """As torch's, a padding of such numbers is a key mask, and a triangle of them the causal mask."""
        theirs, ours = pair(batch_first=True)
        x, hidden = randn(BATCH, 5, DIM), padding(5, "bool")
        numbers = torch.zeros(BATCH, 5, dtype=torch.float64).masked_fill(hidden, number)
        both(theirs, ours, [x.requires_grad_()] * 3, key_padding_mask=numbers)
        future = torch.zeros(5, 5, dtype=torch.float64).masked_fill(torch.ones(5, 5).triu(1).bool(), number)
        both(theirs, ours, [x] * 3, attn_mask=future, is_causal=True)
        linear = MultiheadAttention(DIM, HEADS, batch_first=True, dtype=torch.float64, spec="linear")
        for name, some, same in (("key_padding_mask", numbers, hidden), ("attn_mask", future, future < 0)):
            assert_identical(linear(x, x, x, **{name: some})[0], linear(x, x, x, **{name: same})[0], what=name)
        bias = future.clamp(min=-5)  # a small one stays a bias
        both(theirs, ours, [x] * 3, attn_mask=bias)
        assert not torch.equal(ours(x, x, x, attn_mask=bias)[0], ours(x, x, x, attn_mask=future)[0])

    @pytest.mark.parametrize(
        "spec",
        [
            "longformer(window=2, num_global=1)",
            "regard_lab.published.sigmoid_published:SigmoidPublished",
            "local(window=2)",
        ],
    )
    def test_documents_in_one_row_are_as_alone_or_refused(self, spec):
        ours, x, document = MultiheadAttention(8, 2, batch_first=True, spec=spec), torch.randn(1, 7, 8), torch.arange(7)
        apart = (document[:, None] < 3) != (document < 3)
        if "local" in spec:
            assert_close(ours(x, x, x, attn_mask=apart)[0][:, 3:], ours(*[x[:, 3:]] * 3)[0], tolerance=1e-6, what=spec)
            return
        with pytest.raises(UnsupportedError, match="packed documents"):
            ours(x, x, x, attn_mask=apart)
        padded = torch.zeros(7, 7).masked_fill(document < 3, -1e9)
        with pytest.raises(UnsupportedError, match="left padding"):
            ours(x, x, x, attn_mask=padded)
        ours(x, x, x, attn_mask=(document > 4).expand(7, 7))  # padding on the right

    def test_a_causal_mechanism_takes_more_masks_but_none_that_shows_the_future(self):
        ours = MultiheadAttention(8, 2, batch_first=True, spec="local(window=3)", causal=True).eval()
        x, future = torch.randn(1, 6, 8), torch.ones(6, 6, dtype=torch.bool).triu(1)
        more = future.clone()
        more[:, 2] = True
        assert (ours(x, x, x, attn_mask=more)[1][0, 4] > 0).tolist() == [False, True, False, True, True, False]
        with pytest.raises(UnsupportedError, match="lets a query see a later key"):
            ours(x, x, x, attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(2))

    def test_queries_that_are_the_last_positions(self):
        """A causal mask over a longer past is lower-right, and the causal form serves it."""
        ours = MultiheadAttention(8, 2, batch_first=True, spec="linear").eval()
        x = torch.randn(1, 6, 8)
        whole = ours(x, x, x, attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1))[0]
        last = ours(x[:, 4:], x, x, attn_mask=torch.ones(2, 6, dtype=torch.bool).triu(5))[0]
        assert_close(last, whole[:, 4:], tolerance=1e-6, what="last two")

    def test_losses_are_kept(self):
        ours = MultiheadAttention(8, 2, spec="vector_quantized(num_codes=4)")
        x = torch.randn(6, 1, 8)
        ours(x, x, x)
        assert list(ours.losses) == ["commitment"]
        ours.eval()(x, x, x)
        assert ours.losses == {}


def test_nested_tensors():
    """What torch's own module does with them in evaluation, ours does in training as well."""
    theirs, ours = pair(batch_first=True)
    rows = [randn(length, DIM, seed=length) for length in (5, 2, 4)]
    nested = torch.nested.nested_tensor(rows)
    with torch.no_grad():
        expected = theirs.eval()(nested, nested, nested, need_weights=False)[0]
    out, seen = ours(nested, nested, nested)
    assert seen.shape == (3, 5, 5)
    for row, other in zip(out.unbind(), expected.unbind(), strict=True):
        assert_close(row, other, tolerance=TOLERANCE, what="row")
    with pytest.raises(ShapeError, match="pass no masks"):
        ours(nested, nested, nested, key_padding_mask=torch.zeros(3, 5, dtype=torch.bool))
    with pytest.raises(ShapeError, match="must all be nested"):
        ours(nested, rows[0][None], nested)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"num_heads": 3}, ConfigError, "num_heads must divide embed_dim"),
            ({"spec": "sofmax"}, ConfigError, "did you mean 'softmax'"),
            ({"spec": "linear", "dropout": 0.1}, UnsupportedError, "linear does not support dropout=0.1"),
            ({"spec": "linformer", "causal": True}, UnsupportedError, "linformer does not support causal=True"),
            ({"spec": "local", "add_zero_attn": True}, UnsupportedError, "must see content only"),
            ({"spec": "linformer(rank=2)", "add_bias_kv": True, "max_length": 9}, UnsupportedError, "content only"),
        ],
    )
    def test_at_build(self, options, error, message):
        with pytest.raises(error, match=message):
            MultiheadAttention(**{"embed_dim": 8, "num_heads": 2, **options})

    @pytest.mark.parametrize(
        ("spec", "call", "error", "message"),
        [
            ("softmax", {"is_causal": True}, ConfigError, "it is missing"),
            ("softmax", {"is_causal": True, "attn_mask": torch.zeros(5, 5)}, ConfigError, "it is another"),
            ("softmax", {"attn_mask": torch.zeros(5, 4)}, ShapeError, r"attn_mask must be .*\(5, 5\)"),
            ("softmax", {"attn_mask": torch.zeros(5, 5, dtype=torch.long)}, ShapeError, "boolean or floating"),
            ("softmax", {"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool)}, ShapeError, "key_padding_mask must"),
            ("linear", {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(2)}, UnsupportedError, "bias"),
            ("performer", {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}, UnsupportedError, "causal=True"),
            ("linear", {"key_padding_mask": torch.ones(1, 5)}, UnsupportedError, "bias"),
        ],
    )
    def test_in_a_call(self, spec, call, error, message):
        x = torch.randn(5, 1, 8)
        with pytest.raises(error, match=message):
            MultiheadAttention(8, 2, spec=spec)(x, x, x, **call)

    def test_shapes(self):
        ours, x = MultiheadAttention(8, 2), torch.randn(5, 1, 8)
        with pytest.raises(ShapeError, match="must all be"):
            ours(x, x[0], x)
        with pytest.raises(ShapeError, match="one length"):
            ours(x, x, x[:4])

    def test_one_projection_for_queries_and_keys_needs_one_sequence(self):
        ours, x = MultiheadAttention(8, 2, spec="lsh(num_buckets=2)", causal=True), torch.randn(5, 1, 8)
        with pytest.raises(UnsupportedError, match="a key that is not the query"):
            ours(x, x.clone(), x)


def encoder(**options):
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, dtype=torch.float64, **options)
    return nn.TransformerEncoder(layer, 2)


class TestReplace:
    @pytest.mark.parametrize("grad", [False, True])
    @pytest.mark.parametrize("kind", ["none", "padding", "left padding", "causal", "both"])
    def test_encoder_equals_the_original_in_evaluation(self, kind, grad):
        """Under no_grad torch's fast paths run in the original; padded rows become nested tensors there."""
        model = encoder().eval()
        ours = copy.deepcopy(model)
        assert replace_attention(ours, "softmax").names == ("layers.0.self_attn", "layers.1.self_attn")
        x = randn(3, 6, 16)
        hidden = torch.arange(6) >= torch.tensor([[6], [3], [1]])
        hidden = hidden.flip(1) if kind == "left padding" else hidden
        call = {}
        if kind in ("padding", "left padding"):
            call["src_key_padding_mask"] = hidden
        if kind in ("causal", "both"):
            call["mask"] = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
        if kind == "both":
            call["src_key_padding_mask"] = torch.zeros(3, 6, dtype=torch.float64).masked_fill(hidden, -torch.inf)
        with torch.set_grad_enabled(grad):
            expected, got = model(x, **call), ours(x, **call)
        real = ~hidden if "padding" in kind else torch.ones(3, 6, dtype=torch.bool)
        assert_close(got[real], expected[real], tolerance=TOLERANCE, what=kind)

    @pytest.mark.parametrize("built", [False, True])
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_the_fast_path_does_not_pass_ours_by(self, mode, built):
        """What `uniform` gives with gradients, where torch has no fast path, it gives in every mode and for every mask.

        No hook may count the calls: a hook is itself a reason against the fast path.
        """
        if built:
            layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, dtype=torch.float64)
            layer.self_attn = MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64, spec="uniform")
            model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        else:
            model = encoder().eval()
            replace_attention(model, "uniform", dropout=0.0)
        x, hidden = randn(2, 6, 16), torch.arange(6) >= torch.tensor([[6], [4]])

        def answers():
            return model(x), model(x, src_key_padding_mask=hidden)[~hidden], model.layers[0](x)

        expected = answers()
        with mode():
            for got, wanted in zip(answers(), expected, strict=True):
                assert_close(got, wanted, tolerance=TOLERANCE, what=mode.__name__)

    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("training", [False, True])
    def test_the_whole_transformer(self, norm_first, training):
        model = nn.Transformer(
            16, 2, 2, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first, dtype=torch.float64
        ).train(training)
        ours = copy.deepcopy(model)
        assert replace_attention(ours, "softmax").count == 6
        source, target = randn(2, 7, 16), randn(2, 5, 16, seed=1)
        hidden = torch.arange(7) >= torch.tensor([[7], [4]])
        call = {
            "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
            "src_key_padding_mask": hidden,
            "memory_key_padding_mask": hidden,
        }
        gradients = []
        for each in (model, ours):
            out = each(source, target, **call)
            (out * randn(*out.shape, seed=2)).sum().backward()
            gradients.append((out, {name: weight.grad for name, weight in each.named_parameters()}))
        assert_close(gradients[1][0], gradients[0][0], tolerance=TOLERANCE, what="output")
        for name, expected in gradients[0][1].items():
            assert_close(gradients[1][1][name], expected, tolerance=TOLERANCE, what=name)

    def test_the_parameters_are_the_same_objects(self):
        model = nn.TransformerDecoderLayer(16, 2, 24).eval()
        before = dict(model.named_parameters())
        state = torch.get_rng_state()
        replace_attention(model, "uniform", dropout=0.0)
        assert_identical(torch.get_rng_state(), state, what="random state")
        after = dict(model.named_parameters())
        assert after.keys() == before.keys()
        assert all(after[name] is weight for name, weight in before.items())
        assert not model.self_attn.training

    def test_a_shared_module_stays_shared(self):
        shared = nn.MultiheadAttention(8, 2)
        model = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared])})
        assert replace_attention(model, "linear").names == ("a", "b.0")
        assert model["a"] is model["b"][0]

    def test_places_draw_their_own_weights(self):
        model = encoder()
        replace_attention(model, "performer", dropout=0.0, seed=3)
        first, second = (layer.self_attn.attention["bidirectional"].state_dict() for layer in model.layers)
        assert any(not torch.equal(first[name], second[name]) for name in first)
        assert all(x.dtype == torch.float64 for x in first.values() if x.is_floating_point())

    def test_cross_attention_is_never_causal(self):
        model = nn.TransformerDecoderLayer(16, 2, 24, dropout=0.0)
        replace_attention(model, "linear", causal=True)
        assert list(model.self_attn.attention) == ["causal"]
        assert list(model.multihead_attn.attention) == ["bidirectional"]
        assert model(torch.randn(5, 1, 16), torch.randn(3, 1, 16)).shape == (5, 1, 16)

    @pytest.mark.parametrize(
        ("spec", "options", "error", "message"),
        [
            ("local", {}, UnsupportedError, "multihead_attn: local does not support cross-attention"),
            ("linear", {"dropout": None}, UnsupportedError, "self_attn: linear does not support dropout=0.1"),
            ("linformer", {}, ConfigError, "max_length"),
            ("nope", {}, ConfigError, "unknown mechanism"),
            ("softmax", {"pattern": "x*"}, ConfigError, "no attention that can be replaced"),
        ],
    )
    def test_all_or_nothing(self, spec, options, error, message):
        model = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24), 2)
        before = dict(model.named_modules())
        with pytest.raises(error, match=message):
            replace_attention(model, spec, **{"dropout": 0.0, **options})
        after = dict(model.named_modules())
        assert after.keys() == before.keys()
        assert all(after[name] is part for name, part in before.items())

    def test_what_would_be_lost_is_refused(self):
        class Own(nn.MultiheadAttention):
            pass

        with pytest.raises(UnsupportedError, match="Own has a forward of its own"):
            replace_attention(nn.ModuleList([Own(8, 2)]), "softmax")
        hooked = nn.MultiheadAttention(8, 2)
        hooked.register_forward_hook(lambda *_: None)
        with pytest.raises(UnsupportedError, match="it has hooks"):
            replace_attention(nn.ModuleList([hooked]), "softmax")
        with pytest.raises(ConfigError, match="build MultiheadAttention instead"):
            replace_attention(nn.MultiheadAttention(8, 2), "softmax")

    @pytest.mark.parametrize(
        ("spec", "fits"),
        [
            ("softmax", True),
            ("local(window=2)", True),
            ("longformer(window=2, num_global=1)", True),
            ("pattern(rule='window(2) | first(2)')", True),
            ("linear", False),
            ("performer", False),
            ("cosine", False),
            ("quantized", False),
            ("local_linear", False),  # the same on short texts
            ("nystrom", False),  # exact up to its number of landmarks
            ("softmax(scale=0.1)", False),
            ("softmax(scale=0.3)", False),
            ("softmax:1 + sigmoid:1", False),
        ],
    )
    def test_what_is_not_softmax_is_said_to_need_training(self, spec, fits, caplog):
        replace_attention(encoder(), spec, dropout=0.0)
        notes = [record.getMessage() for record in caplog.records if record.name == "regard"]
        assert notes == (
            [] if fits else [f"{spec} is not the softmax that the weights were trained with: they need training"]
        )

    def test_losses_add_up_over_the_model(self):
        model = encoder()
        replace_attention(model, "vector_quantized(num_codes=4)", dropout=0.0)
        model(randn(1, 6, 16))
        each = [layer.self_attn.losses["commitment"] for layer in model.layers]
        assert_close(losses(model)["commitment"], each[0] + each[1], tolerance=1e-12, what="sum")
