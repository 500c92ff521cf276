"""The encoder: padding, positions and types against formulas written out, torch's own layers, weights saved once."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn.functional import conv2d, layer_norm

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError, LimitError, ShapeError, UnsupportedError
from regard.models.encoder import Encoder, patches
from regard.models.encoder_config import EncoderConfig

TINY = {"vocab_size": 23, "dim": 16, "heads": 2, "layers": 2, "max_length": 32, "mlp_dim": 24}
POSITIONS = ["none", "learned", "learned(per_layer=True)", "sinusoidal", "rotary", "alibi", "transformer_xl"]


def encoder_of(*, draw: int = 7, **fields: object) -> Encoder:
    """A tiny float64 encoder whose every weight, biases and norms included, is random."""
    encoder = Encoder(EncoderConfig(**{**TINY, **fields})).double().eval()
    noise = generator(draw)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=noise, dtype=torch.float64))
    return encoder


def tokens_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(seed))


def signed(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_changes_no_real_output(position: str, norm: str) -> None:
    encoder = encoder_of(position=position, norm=norm, token_types=2, embedding_norm=True)
    tokens, mask = tokens_of(3, 12), torch.arange(12) < torch.tensor([12, 7, 1])[:, None]
    hidden = encoder(tokens, key_mask=mask).hidden
    for row, length in enumerate((12, 7, 1)):
        alone = encoder(tokens[row : row + 1, :length]).hidden[0]
        torch.testing.assert_close(hidden[row, :length], alone, rtol=0, atol=1e-10)
    assert not torch.allclose(encoder(tokens).hidden[1, :7], hidden[1, :7], atol=1e-3)


@pytest.mark.parametrize("spec", ["softmax", "linear", "local(window=3)", "uniform"])
def test_vectors_under_the_mask_may_hold_anything(spec: str) -> None:
    encoder = encoder_of(vocab_size=0, input_dim=5, cls_token=True, attention=(spec,), position="learned").train()
    vectors, mask = signed(2, 9, 5), torch.arange(9) < torch.tensor([9, 4])[:, None]
    bad = vectors.masked_fill(~mask[..., None], float("nan"))
    encoded = encoder(bad, key_mask=mask)
    assert encoded.key_mask is not None
    assert encoded.key_mask.tolist() == [[True] * 10, [True] * 5 + [False] * 5]
    torch.testing.assert_close(encoded.hidden[1, :5], encoder(vectors[1:, :4]).hidden[0], rtol=0, atol=1e-10)
    encoded.hidden[encoded.key_mask].square().sum().backward()
    for name, weight in encoder.named_parameters():
        assert weight.grad is None or weight.grad.isfinite().all(), name


@pytest.mark.parametrize("position", ["learned", "learned(per_layer=True)", "sinusoidal"])
def test_positions_of_real_tokens_do_not_depend_on_where_padding_stands(position: str) -> None:
    encoder = encoder_of(position=position, position_offset=2, skip_padding=True)
    tokens, mask = tokens_of(3, 9), torch.ones(3, 9, dtype=torch.bool)
    mask[0, :4], mask[1, 5:], mask[2, 2:4], mask[2, 6:8] = False, False, False, False
    hidden = encoder(tokens, key_mask=mask).hidden
    for row in range(3):
        alone = encoder(tokens[row : row + 1, mask[row]]).hidden[0]
        torch.testing.assert_close(hidden[row, mask[row]], alone, rtol=0, atol=1e-12)
    slots = replace(encoder.config, skip_padding=False)
    by_slots = Encoder(slots).double().eval()
    by_slots.load_state_dict(encoder.state_dict())
    assert torch.allclose(by_slots(tokens, key_mask=mask).hidden[1, :5], hidden[1, :5], rtol=0, atol=1e-12)
    assert not torch.allclose(by_slots(tokens, key_mask=mask).hidden[0, 4:], hidden[0, 4:], atol=1e-3)
    given = encoder(tokens, key_mask=mask, positions=torch.arange(9)).hidden
    assert torch.equal(given[mask], by_slots(tokens, key_mask=mask).hidden[mask])


def copied(layer: nn.Module, block: nn.Module) -> None:
    """torch's encoder layer takes the weights of one of our blocks."""
    ours = block.attention.projections
    layer.self_attn.in_proj_weight.data = torch.cat([x.weight for x in (ours.query, ours.key, ours.value)])
    layer.self_attn.in_proj_bias.data = torch.cat([x.bias for x in (ours.query, ours.key, ours.value)])
    pairs = {"self_attn.out_proj": ours.output, "linear1": block.mlp.up, "linear2": block.mlp.down}
    pairs |= {"norm1": block.attention_norm, "norm2": block.mlp_norm}
    for name, module in pairs.items():
        layer.get_submodule(name).load_state_dict(module.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_equals_the_encoder_of_torch(norm: str, act: str) -> None:
    encoder = encoder_of(norm=norm, mlp=act, position="none")
    layer = nn.TransformerEncoderLayer(
        16, 2, 24, 0.0, act, 1e-5, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    final = nn.LayerNorm(16, dtype=torch.float64) if norm == "pre" else None
    theirs = nn.TransformerEncoder(layer, 2, norm=final, enable_nested_tensor=False).eval()
    for layer, block in zip(theirs.layers, encoder.blocks, strict=True):
        copied(layer, block)
    if final is not None:
        theirs.norm.load_state_dict(encoder.norm.state_dict())
    tokens, mask = tokens_of(3, 10), torch.arange(10) < torch.tensor([10, 6, 3])[:, None]
    x = encoder.embeddings.table(tokens)
    expected = theirs(x, src_key_padding_mask=~mask)[mask]
    torch.testing.assert_close(encoder(tokens, key_mask=mask).hidden[mask], expected, rtol=0, atol=1e-10)


def test_embeddings_are_their_sum() -> None:
    encoder = encoder_of(
        position="learned", position_offset=2, token_types=3, embedding_norm=True, embedding_scale=1.5, norm_eps=1e-12
    )
    tokens, types, weights = tokens_of(2, 7), tokens_of(2, 7, seed=1) % 3, encoder.state_dict()
    assert weights["embeddings.position.table"].shape == (34, 16)
    for given in (types, None):
        x = 1.5 * weights["embeddings.table.weight"][tokens] + weights["embeddings.position.table"][2:9]
        x = x + weights["embeddings.types.weight"][torch.zeros_like(types) if given is None else given]
        x = layer_norm(x, (16,), weights["embeddings.norm.weight"], weights["embeddings.norm.bias"], 1e-12)
        torch.testing.assert_close(encoder.embeddings(tokens, token_types=given), x, rtol=0, atol=1e-12)


def test_sinusoids_have_scaled_tokens_and_cls_is_in_front() -> None:
    encoder = encoder_of(position="sinusoidal", cls_token=True)
    tokens, at = tokens_of(1, 5), torch.arange(6)
    angle = at[:, None] * 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    code = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    x = torch.cat([encoder.embeddings.cls[None], 4 * encoder.embeddings.table.weight[tokens[0]]]) + code
    torch.testing.assert_close(encoder.embeddings(tokens)[0], x, rtol=0, atol=1e-12)
    assert encoder(tokens).hidden.shape == (1, 6, 16)


def test_positions_of_the_caller() -> None:
    for position in ("learned", "rotary", "sinusoidal"):
        encoder, tokens = encoder_of(position=position), tokens_of(2, 6)
        slots = torch.arange(6)
        torch.testing.assert_close(encoder(tokens, positions=slots).hidden, encoder(tokens).hidden, rtol=0, atol=1e-12)
        spread = encoder(tokens, positions=torch.stack([slots, 3 * slots])).hidden
        torch.testing.assert_close(spread[0], encoder(tokens).hidden[0], rtol=0, atol=1e-12)
        assert not torch.allclose(spread[1], encoder(tokens).hidden[1], atol=1e-3)


def test_a_linear_layer_on_patches_is_a_convolution() -> None:
    images, kernel = signed(2, 3, 8, 12), signed(5, 3, 4, 4, seed=1)
    expected = conv2d(images, kernel, stride=4).flatten(2).mT
    torch.testing.assert_close(patches(images, 4) @ kernel.flatten(1).T, expected, rtol=0, atol=1e-12)
    with pytest.raises(ShapeError, match="patch size 5 divides"):
        patches(images, 5)


def test_layers_of_one_specification_share_a_projection_that_is_of_all_layers() -> None:
    """One matrix for the layers of a rank, saved once; other kinds of sharing stay inside a layer."""
    four, three = "linformer(rank=4, share=layer)", "linformer(rank=3, share=layer)"
    encoder = encoder_of(layers=4, attention=(four, three, "linformer(share=layer,rank=4)", three))
    own = [mechanism.mixtures for mechanism in encoder.mechanisms]
    assert own[0] is own[2]
    assert own[1] is own[3]
    assert [mixtures.key.shape for mixtures in own[:2]] == [(1, 4, 32), (1, 3, 32)]
    saved = [name for name in encoder.state_dict() if "mixtures" in name]
    assert saved == [f"blocks.{at}.attention.attention.mixtures.key" for at in (0, 1)]
    fresh = Encoder(encoder.config).double().eval()
    fresh.load_state_dict(load(save(encoder.state_dict())))
    tokens = tokens_of(2, 9)
    assert torch.equal(fresh(tokens).hidden, encoder(tokens).hidden)
    apart = encoder_of(attention=("linformer(rank=4, share=key_value)",)).mechanisms
    assert apart[0].mixtures is not apart[1].mixtures


def test_parts_of_mixed_heads_share_with_those_of_other_layers() -> None:
    encoder = encoder_of(attention=("linformer(rank=4, share=layer):1 + softmax:1",))
    one, two = (mechanism.mechanisms[0].mixtures for mechanism in encoder.mechanisms)
    assert one is two


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 0}, "vocab_size or input_dim must be given"),
        ({"input_dim": 8}, "exclude each other"),
        ({"vocab_size": 0, "input_dim": 8, "token_types": 2}, "token_types=2 has no use"),
        ({"image": (3, 8, 8)}, r"image=\(3, 8, 8\): input_dim=0 is not 3 times the square of a side"),
        ({"vocab_size": 0, "input_dim": 15, "image": (3, 8, 8)}, "input_dim=15 is not 3 times the square of a side"),
        ({"vocab_size": 0, "input_dim": 12, "image": (3, 8, 9)}, "its sides are no multiples of 2, that of a patch"),
        ({"vocab_size": 0, "input_dim": 12, "image": (3, 0, 8)}, "channels, height and width of at least 1"),
        ({"vocab_size": 0, "input_dim": 12, "image": (3, 8)}, "image"),
        ({"embedding_scale": 0.0}, "embedding_scale must be positive"),
        ({"position_offset": -1}, "position_offset must be at least 0"),
        ({"skip_padding": True}, "skip_padding needs a position_offset of at least 1"),
        ({"pooling": "last"}, "pooling: no choice 'last'"),
        ({"heads": 3}, "heads must divide dim"),
    ],
)
def test_nonsense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderConfig(**{**TINY, **fields})


def test_images_are_read_as_their_patches() -> None:
    encoder = encoder_of(vocab_size=0, input_dim=12, image=(3, 6, 8), cls_token=True, position="learned")
    assert (encoder.config.patch, encoder.config.patches) == (2, 12)
    images, mask = signed(2, 3, 6, 8), torch.arange(12) < torch.tensor([12, 5])[:, None]
    assert torch.equal(encoder(images).hidden, encoder(patches(images, 2)).hidden)
    masked = encoder(images, key_mask=mask)
    assert torch.equal(masked.hidden, encoder(patches(images, 2), key_mask=mask).hidden)
    assert not torch.equal(masked.hidden[1], encoder(images).hidden[1])
    with pytest.raises(ShapeError, match=r"must be \(batch, 3, 6, 8\), got \(2, 3, 8, 6\): .* not interpolated"):
        encoder(images.mT)
    with pytest.raises(ShapeError, match="input_dim=12"):
        encoder(images.to(torch.uint8))
    with pytest.raises(ShapeError, match=r"input_dim=12\), got torch.float64 \(2, 3, 6, 8\)"):
        encoder_of(vocab_size=0, input_dim=12)(images)


def test_misuse_is_refused() -> None:
    encoder, tokens = encoder_of(position="learned"), tokens_of(2, 6)
    with pytest.raises(ShapeError, match="tokens must be integers"):
        encoder(tokens.double())
    with pytest.raises(InputError, match="id 23 is out of range"):
        encoder(tokens + 23 - tokens.max())
    with pytest.raises(ShapeError, match="key_mask must be bool"):
        encoder(tokens, key_mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(UnsupportedError, match="no token types"):
        encoder(tokens, token_types=tokens)
    with pytest.raises(InputError, match="token_types: id"):
        encoder_of(token_types=2)(tokens, token_types=tokens)
    with pytest.raises(LimitError, match="max_length=32, got 33"):
        encoder(tokens_of(1, 33))
    with pytest.raises(UnsupportedError, match="slots only"):
        encoder_of(position="alibi")(tokens, positions=torch.arange(6))
    with pytest.raises(ConfigError, match="position_offset=2"):
        encoder_of(position="alibi", position_offset=2)
    with pytest.raises(ShapeError, match="input_dim=5"):
        encoder_of(vocab_size=0, input_dim=5)(signed(2, 3, 4))
