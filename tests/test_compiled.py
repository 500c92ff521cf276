"""torch.compile and torch.export with a length that is not fixed; what one graph cannot serve is said here."""

import pytest
import torch
from torch import nn

import regard
from regard import catalog
from regard.core.errors import UnsupportedError
from regard.integrations.torch import MultiheadAttention, replace_attention
from regard.models import EncoderDecoder, EncoderDecoderConfig
from regard.testing.inputs import Subject, draw, run

LONGEST = 2048
NO_RANGE = {
    "mixed_chunk": "a bound of its number of chunks, which the exporter does not find",
}
"""what torch.export writes down for one length only, and why"""
if torch.__version__.startswith("2.11."):
    NO_RANGE["randomized"] = "torch 2.11 does not see that min(8 n, 16 n) is 8 n"


class Values(nn.Module):
    """A mechanism as torch.export takes it: positional arguments, one tensor out."""

    def __init__(self, mechanism):
        super().__init__()
        self.mechanism = mechanism

    def forward(self, q, k, v, inputs):
        return self.mechanism(q, k, v, inputs=inputs).values


def inputs(subject, mechanism, length):
    return draw(mechanism.heads, subject.info, length, length, 2, "exported").map(torch.Tensor.contiguous)


def exported(subject, mechanism):
    """The program of a mechanism for lengths from 64 on, above the sizes of every first sample."""
    x, length = inputs(subject, mechanism, 100), torch.export.Dim("length", min=64, max=LONGEST - 1)
    sizes = {"q": {2: length}, "k": {2: length}, "v": {2: length}, "inputs": {name: {2: length} for name in x.more}}
    return torch.export.export(Values(mechanism), (x.q, x.k, x.v, dict(x.more)), dynamic_shapes=sizes).module()


@pytest.mark.parametrize("name", sorted(set(catalog.names()) - set(NO_RANGE)))
def test_an_exported_program_serves_a_range_of_lengths(name):
    cls, _ = catalog.resolve(name)
    subject = Subject(cls, cls.samples[0])
    mechanism = subject.build(subject.modes[0], max_length=LONGEST)
    program = exported(subject, mechanism)
    for length in (64, 301):
        x = inputs(subject, mechanism, length)
        with torch.no_grad():
            got = program(x.q, x.k, x.v, dict(x.more))
        assert torch.allclose(got, run(mechanism, x).values, atol=1e-5)


@pytest.mark.parametrize("name", NO_RANGE)
def test_one_length_is_exported_where_a_range_is_not(name):
    cls, _ = catalog.resolve(name)
    subject = Subject(cls, cls.samples[0])
    mechanism = subject.build(subject.modes[-1], max_length=LONGEST)
    with pytest.raises(torch._dynamo.exc.UserError, match="Constraints violated"):
        exported(subject, mechanism)
    x = inputs(subject, mechanism, 100)
    program = torch.export.export(Values(mechanism), (x.q, x.k, x.v, dict(x.more))).module()
    assert torch.allclose(program(x.q, x.k, x.v, dict(x.more)), run(mechanism, x).values, atol=1e-5)


@pytest.mark.parametrize("spec", ["softmax", "linear", "performer"])
def test_a_layer_is_exported_with_its_weights(spec):
    layer = regard.AttentionLayer(16, spec, heads=2, causal=True, max_length=LONGEST).eval()

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x).hidden

    sizes = {"x": {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", min=2, max=LONGEST)}}
    program = torch.export.export(Hidden(), (torch.randn(2, 40, 16),), dynamic_shapes=sizes).module()
    for batch, length in ((1, 2), (3, 600)):
        x = torch.randn(batch, length, 16)
        with torch.no_grad():
            assert torch.allclose(program(x), layer(x).hidden, atol=1e-5)
    if spec != "softmax":  # its sums before every chunk are not in the graph
        with pytest.raises(UnsupportedError, match="keeps nothing for a backward pass"):
            program(torch.randn(1, 40, 16)).sum().backward()


@pytest.mark.parametrize(
    ("name", "options", "causal"),
    [
        ("lsh", {"num_buckets": 2, "rounds": 1, "bucket_size": 2}, True),
        ("length_switch", {"exact_keys": 100}, True),
        ("length_switch", {"exact_keys": 100}, False),
    ],
)
def test_what_is_chosen_by_length_is_chosen_inside_of_one_graph(name, options, causal):
    """As many numbers meet in a bucket as the length says, and the tiles are as large; few keys are compared."""
    cls, _ = catalog.resolve(name)
    subject = Subject(cls, options)
    mechanism, graphs = subject.build(causal, max_length=256), []

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(mechanism, backend=backend, fullgraph=True, dynamic=True)
    for length in (24, 200, 100, 101):
        x = inputs(subject, mechanism, length)
        assert torch.allclose(run(compiled, x).values, run(mechanism, x).values, atol=1e-6)
    assert len(graphs) == 1


def stack(spec, causal):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    replace_attention(encoder, spec, causal=causal)
    return encoder.eval()


def in_one_graph(module):
    torch._dynamo.reset()
    return torch.compile(module, backend="eager", fullgraph=True, dynamic=True)


def triangle(length, dtype):
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    return mask if dtype.is_floating_point else mask < 0


@pytest.mark.parametrize(
    ("spec", "causal", "mask"),
    [
        ("softmax", None, torch.float32),  # the mask selects the causal form
        ("softmax", False, torch.bool),  # the mask is a bias
        ("linear", True, torch.float32),
        ("local(window=4)", None, None),
        ("linear", None, "padding"),
    ],
)
def test_layers_of_torch_stay_one_graph(spec, causal, mask):
    encoder = stack(spec, causal)
    compiled = in_one_graph(encoder)
    for length in (9, 33):
        x, given = torch.randn(2, length, 16), {}
        if isinstance(mask, torch.dtype):
            given = {"mask": triangle(length, mask), "is_causal": True}
        elif mask is not None:
            given = {"src_key_padding_mask": torch.arange(length).expand(2, -1) >= length - 2}
        with torch.no_grad():
            assert torch.allclose(compiled(x, **given), encoder(x, **given), atol=1e-5)


def test_without_is_causal_a_compiled_mask_is_a_bias_or_refused():
    x, mask = torch.randn(1, 9, 16), triangle(9, torch.float32)
    attention = MultiheadAttention(16, 2, batch_first=True, spec="softmax").eval()
    got = in_one_graph(attention)(x, x, x, need_weights=False, attn_mask=mask)[0]
    assert torch.allclose(got, attention(x, x, x, attn_mask=mask)[0], atol=1e-5)
    linear = MultiheadAttention(16, 2, batch_first=True, spec="linear").eval()
    with pytest.raises(Exception, match="pass is_causal=True with the causal mask"):
        in_one_graph(linear)(x, x, x, need_weights=False, attn_mask=mask)


@pytest.mark.parametrize(
    ("spec", "causal", "given", "message"),
    [
        ("softmax", None, {"attn_mask": torch.zeros(9, 9), "is_causal": True}, "is_causal says"),
        ("softmax", True, {"attn_mask": torch.zeros(9, 9)}, "lets a query see a later key"),
        ("linear", True, {"attn_mask": torch.zeros(9, 9)}, "no attn_mask but the causal one"),
        ("softmax", None, {"key_padding_mask": torch.full((1, 9), 0.5)}, "0 and -inf alone"),
    ],
)
def test_what_was_said_of_a_mask_is_asserted_when_the_graph_runs(spec, causal, given, message):
    attention = MultiheadAttention(16, 2, batch_first=True, spec=spec, causal=causal).eval()
    x = torch.randn(1, 9, 16)
    with pytest.raises(RuntimeError, match=message):
        in_one_graph(attention)(x, x, x, need_weights=False, **given)


def test_an_encoder_decoder_is_one_graph():
    model = EncoderDecoder(EncoderDecoderConfig(dim=16, heads=2, layers=1, vocab_size=20))
    source, tokens = torch.arange(14).reshape(2, 7), torch.arange(10).reshape(2, 5)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(source, tokens).logits, model(source, tokens).logits, atol=1e-5)
