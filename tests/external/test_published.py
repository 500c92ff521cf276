"""Published packages agree with ours where they compute the same thing, and do not where they are known to be wrong."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import Heads
from regard_lab.published.performer_published import PerformerPublished

pytestmark = pytest.mark.external


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(a, b):
    assert a.shape == b.shape
    assert (a - b).abs().max() <= 2e-6 * max(1.0, b.abs().max())


@pytest.mark.filterwarnings("ignore:Triton is not supported")
@pytest.mark.parametrize("length", [1, 40, 300])
def test_forgetting_is_flas_definition(length):
    package = pytest.importorskip("fla.ops.forgetting_attn.naive", reason="fla-core is not installed; `make external`")
    q, (k, v) = draw(2, length, 4, 16), draw(2, 2, length, 2, 16, seed=1)
    gates = F.logsigmoid(draw(2, length, 4, seed=2) + 2)
    mechanism = regard.build("forgetting", Heads(count=4, key_dim=16, kv_count=2, causal=True))
    inputs = {"log_gate": gates.transpose(1, 2)[..., None]}
    ours = mechanism(*(x.transpose(1, 2) for x in (q, k, v)), inputs=inputs).values
    close(ours, package.naive_forgetting_attn(q, k, v, gates).transpose(1, 2))


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_local_is_local_attentions_exact_window(causal, length):
    package = pytest.importorskip("local_attention", reason="local-attention is not installed; `make external`")
    window = 8
    theirs = package.LocalAttention(
        window_size=window,
        causal=causal,
        look_backward=1,
        look_forward=0 if causal else 1,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
        autopad=True,
    )
    q, k, v = draw(3, 2, 4, length, 16)
    close(regard.attend(q, k, v, f"local(window={window})", causal=causal), theirs(q, k, v))


def test_published_performer_is_performer_pytorchs_with_its_projection():
    package = pytest.importorskip(
        "performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed; `make external`"
    )
    heads = Heads(count=2, key_dim=16)
    ours = PerformerPublished(heads, num_features=32).eval()
    with torch.no_grad():
        ours.projection.copy_(ours.projection[:1].expand_as(ours.projection))
    q, k, v = draw(3, 2, 2, 21, 16)
    features = [
        package.softmax_kernel(x, projection_matrix=ours.projection[0], is_query=query)
        for x, query in ((q, True), (k, False))
    ]
    close(ours(q, k, v).values, package.linear_attention(*features, v))


def test_efficient_is_performer_pytorch_without_projection_and_its_causal_form_is_not():
    """Causal, the package divides exp(k) by one sum over all channels: another function (SPEC F2)."""
    package = pytest.importorskip(
        "performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed; `make external`"
    )
    q, k, v = draw(3, 2, 2, 21, 16)
    for causal in (False, True):
        ours = regard.attend(q, k, v, "efficient", causal=causal)
        theirs = package.FastAttention(16, causal=causal, no_projection=True)(q, k, v)
        if causal:
            assert (ours - theirs).abs().max() > 0.1
        else:
            close(ours, theirs)


def test_linformer_layer_is_linformers_with_its_weights():
    package = pytest.importorskip("linformer", reason="linformer is not installed; `make external`")
    theirs = package.LinformerSelfAttention(32, 24, k=6, heads=4)
    layer = regard.AttentionLayer(32, "linformer(rank=6, share=head)", heads=4, causal=False, max_length=24, bias=False)
    with torch.no_grad():
        theirs.to_out.bias.zero_()
        for own, other in (
            (layer.projections.query, theirs.to_q),
            (layer.projections.key, theirs.to_k),
            (layer.projections.value, theirs.to_v),
            (layer.projections.output, theirs.to_out),
        ):
            own.weight.copy_(other.weight)
        layer.attention.mixtures.key.copy_(theirs.proj_k.T[None])
        layer.attention.mixtures.value.copy_(theirs.proj_v.T[None])
    for length in (24, 17):
        x = draw(2, length, 32, seed=length)
        close(layer(x).hidden, theirs(x))


def test_linformer_package_ignores_the_mask_that_ours_honours():
    package = pytest.importorskip("linformer", reason="linformer is not installed; `make external`")
    theirs = package.LinformerSelfAttention(32, 24, k=6, heads=4).eval()
    x, keep = draw(1, 24, 32), (torch.arange(24) < 12)[None]
    assert torch.equal(theirs(x, mask=keep), theirs(x)), "the package now honours masks: compare with it"
    layer = regard.AttentionLayer(32, "linformer(rank=6)", heads=4, causal=False, max_length=24)
    assert not torch.allclose(layer(x, key_mask=keep).hidden, layer(x).hidden)
