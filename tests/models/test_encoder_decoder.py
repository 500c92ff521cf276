"""The encoder-decoder: torch's own layers, streaming, sources and their padding, what is shared and saved."""

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError, LimitError, ShapeError, UnsupportedError
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.models.parts import Mlp

TINY = {"vocab_size": 23, "dim": 16, "heads": 2, "layers": 2, "max_length": 32, "mlp_dim": 24}
POSITIONS = ["none", "learned", "learned(per_layer=True)", "sinusoidal", "rotary", "alibi", "transformer_xl"]


def model_of(*, draw: int = 7, **fields: object) -> EncoderDecoder:
    """A tiny float64 model whose every weight, biases and norms included, is random."""
    model = EncoderDecoder(EncoderDecoderConfig(**{**TINY, **fields})).double().eval()
    noise = generator(draw)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=noise, dtype=torch.float64))
    return model


def tokens_of(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(seed))


MASK = torch.arange(11) < torch.tensor([11, 6, 1])[:, None]


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_any_split_streams_to_the_parallel_form(position: str, norm: str) -> None:
    model = model_of(position=position, norm=norm)
    source, tokens = tokens_of(3, 11), tokens_of(3, 14, seed=1)
    whole = model(source, tokens, source_mask=MASK).logits
    start = model.prepare(source, key_mask=MASK)
    for cuts in ([14], [1] * 14, [5, 1, 8]):
        state, parts = start, []
        for piece in tokens.split(cuts, 1):
            logits, state, _ = model.decode(piece, state)
            parts.append(logits)
        assert state.length == 14
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    assert start.length == 0


@pytest.mark.parametrize("cross", ["softmax", "linear", "additive"])
@pytest.mark.parametrize("own", ["softmax", "linear", "local(window=3)"])
def test_any_mechanism_that_can_serves_each_place(own: str, cross: str) -> None:
    model = model_of(attention=(own,), encoder_attention=(own,), cross_attention=(cross,), layers=1, encoder_layers=3)
    source, tokens = tokens_of(3, 11), tokens_of(3, 9, seed=1)
    state = model.prepare(source, key_mask=MASK)
    first = model.decode(tokens[:, :4], state)
    second = model.decode(tokens[:, 4:], first.state)
    got = torch.cat([first.logits, second.logits], 1)
    torch.testing.assert_close(got, model(source, tokens, source_mask=MASK).logits, rtol=0, atol=1e-10)


def test_a_mechanism_that_mixes_queries_is_refused_in_a_decoder() -> None:
    with pytest.raises(UnsupportedError, match="depend on other queries"):
        model_of(cross_attention=("lara(num_landmarks=2)",))


def test_padding_of_the_source_changes_nothing() -> None:
    model, source, tokens = model_of(), tokens_of(3, 11), tokens_of(3, 8, seed=1)
    logits = model(source, tokens, source_mask=MASK).logits
    for row, length in enumerate((11, 6, 1)):
        alone = model(source[row : row + 1, :length], tokens[row : row + 1]).logits[0]
        torch.testing.assert_close(logits[row], alone, rtol=0, atol=1e-10)
    assert not torch.allclose(model(source, tokens).logits[1], logits[1], atol=1e-3)


@pytest.mark.parametrize("spec", ["softmax", "linear"])
def test_nan_in_a_masked_source_reaches_nothing(spec: str) -> None:
    model, hidden = model_of(cross_attention=(spec,)), torch.randn(3, 11, 16, generator=generator(1)).double()
    x = torch.randn(3, 5, 16, generator=generator(2)).double()
    block = model.blocks[0]
    expected = block(x, hidden, source_mask=MASK).hidden
    dirty = hidden.masked_fill(~MASK[..., None], float("nan"))
    assert torch.equal(block(x, dirty, source_mask=MASK).hidden, expected)
    prepared = block.cross.prepare(dirty, key_mask=MASK)
    torch.testing.assert_close(block(x, prepared=prepared).hidden, expected, rtol=0, atol=1e-10)


def projections(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
    """torch's attention takes the weights of one of ours."""
    layers = [ours.query, ours.key, ours.value]
    theirs.in_proj_weight.data = torch.cat([layer.weight for layer in layers])
    theirs.in_proj_bias.data = torch.cat([layer.bias for layer in layers])
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copied(layer: nn.Module, block: nn.Module) -> None:
    """torch's encoder or decoder layer takes the weights of one of our blocks."""
    projections(layer.self_attn, block.attention.projections)
    norms = [block.attention_norm, block.mlp_norm]
    if hasattr(layer, "multihead_attn"):
        projections(layer.multihead_attn, block.cross.projections)
        norms.insert(1, block.cross_norm)
    for number, norm in enumerate(norms, 1):
        layer.get_submodule(f"norm{number}").load_state_dict(norm.state_dict())
    layer.linear1.load_state_dict(block.mlp.up.state_dict())
    layer.linear2.load_state_dict(block.mlp.down.state_dict())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equals_the_transformer_of_torch(norm: str) -> None:
    model = model_of(norm=norm, mlp="relu", position="none", embedding_scale=4.0)
    options = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre", "dtype": torch.float64}
    theirs = nn.Transformer(16, 2, 2, 2, 24, **options).eval()
    for stack, ours in ((theirs.encoder, model.encoder), (theirs.decoder, model)):
        for layer, block in zip(stack.layers, ours.blocks, strict=True):
            copied(layer, block)
        if norm == "post":
            stack.norm = None
        else:
            stack.norm.load_state_dict(ours.norm.state_dict())
    source, tokens, table = tokens_of(3, 11), tokens_of(3, 8, seed=1), model.embeddings.table.weight
    expected = theirs(
        4 * table[source],
        4 * table[tokens],
        tgt_mask=torch.ones(8, 8, dtype=torch.bool).triu(1),
        src_key_padding_mask=~MASK,
        memory_key_padding_mask=~MASK,
    )
    got = model(source, tokens, source_mask=MASK).logits
    torch.testing.assert_close(got, expected @ table.T, rtol=0, atol=1e-10)


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_layer_is_its_formula(tied: bool) -> None:
    model = model_of(tied=tied, logit_scale=0.25, output_bias=True)
    weights, hidden = model.state_dict(), torch.randn(2, 3, 16, generator=generator(1)).double()
    table = weights["embeddings.table.weight" if tied else "output.weight"]
    torch.testing.assert_close(model.logits(hidden), hidden / 4 @ table.T + weights["bias"], rtol=0, atol=1e-12)
    assert ("output.weight" in weights) != tied


def test_what_is_shared_is_one_module_and_saved_once() -> None:
    model, source, tokens = model_of(position="transformer_xl"), tokens_of(2, 6), tokens_of(2, 5, seed=1)
    names = list(model.state_dict())
    assert [name for name in names if name.endswith("table.weight")] == ["embeddings.table.weight"]
    schemes = {name.rpartition(".")[0] for name in names if ".position." in name}
    assert schemes == {"embeddings.position", "encoder.embeddings.position"}
    expected = model(source, tokens).logits
    other = model_of(position="transformer_xl", draw=8)
    assert not torch.equal(other(source, tokens).logits, expected)
    other.load_state_dict(load(save(model.state_dict())))
    for same in (other, copy.deepcopy(model)):
        assert torch.equal(same(source, tokens).logits, expected)
    apart = model_of(source_vocab_size=9)
    assert apart.encoder.embeddings.table.weight.shape == (9, 16)
    with pytest.raises(InputError, match="ids are 0 to 8"):
        apart(source + 9, tokens)


def test_targets_shift() -> None:
    model = model_of(start_token=5)
    targets = torch.tensor([[7, 8, 1], [9, 1, -100]])
    assert model.shift(targets).tolist() == [[5, 7, 8], [5, 9, 1]]
    assert model.shift(torch.tensor([[-100, -100, 2]])).tolist() == [[5, 5, 5]]


@pytest.mark.parametrize("cross", ["softmax", "linear"])
def test_state_selects_rows_survives_safetensors_and_counts_bytes(cross: str) -> None:
    model = model_of(cross_attention=(cross,), attention=("softmax", "local(window=3)"))
    source, tokens = tokens_of(3, 11), tokens_of(3, 9, seed=1)
    state = model.decode(tokens[:, :5], model.prepare(source, key_mask=MASK)).state
    expected = model.decode(tokens[:, 5:], state).logits
    rows = torch.tensor([2, 0, 2])
    got = model.decode(tokens[rows, 5:], state.select(rows)).logits
    torch.testing.assert_close(got, expected[rows], rtol=0, atol=1e-12)
    read = model.prepare(source, key_mask=MASK).load(load(save(state.dump())))
    assert read.length == 5
    assert torch.equal(model.decode(tokens[:, 5:], read).logits, expected)
    assert state.nbytes == sum(part.nbytes for part in (*state["layers"].parts.values(), *state.sources))
    assert not any(x.requires_grad for x in state.detach().tensors().values())


def test_losses_carry_the_kind_of_attention() -> None:
    coded = "vector_quantized(block_size=4, num_codes=8)"
    model = model_of(attention=(coded,), encoder_attention=(coded,)).train()
    got = model(tokens_of(2, 11), tokens_of(2, 8, seed=1)).losses
    assert set(got) == set(model.loss_weights)
    assert {name.partition(".")[0] for name in got} == {"encoder", "decoder"}
    assert all(loss.item() > 0 for loss in got.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_layers": 0}, "encoder_layers must be at least 1"),
        ({"encoder_layers": 3, "encoder_attention": ("softmax", "linear")}, "encoder_attention must be .* 3 layers"),
        ({"cross_attention": "softmax"}, "cross_attention must be a tuple"),
        ({"start_token": 23}, "start_token must be a token below vocab_size=23, got 23"),
        ({"logit_scale": 0.0}, "logit_scale must be positive"),
        ({"source_vocab_size": 0}, "source_vocab_size must be at least 1"),
    ],
)
def test_nonsense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EncoderDecoderConfig(**{**TINY, **fields})


def test_misuse_is_refused() -> None:
    model, source = model_of(position="learned"), tokens_of(2, 6)
    with pytest.raises(ShapeError, match="key_mask must be bool"):
        model(source, source, key_mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(LimitError, match="max_length=32, got 33"):
        model(source, tokens_of(2, 33))
    state = model.decode(tokens_of(2, 32), model.prepare(source)).state
    with pytest.raises(LimitError, match="max_length=32, got 33"):
        model.decode(source[:, :1], state)
    with pytest.raises(UnsupportedError, match="cross"):
        model_of(cross_attention=("local(window=3)",))
    with pytest.raises(UnsupportedError, match="linformer does not support causal=True"):
        model_of(attention=("linformer",))


def test_attention_to_the_source_shares_a_projection_that_is_of_all_layers() -> None:
    model = model_of(cross_attention=("linformer(rank=4, share=layer)",), max_length=16)
    one, two = (mechanism.mixtures for mechanism in model.cross_mechanisms)
    assert one is two


def test_other_blocks_are_refused() -> None:
    """Not built as the encoder's alone."""
    for block in ("parallel", "gated_unit", "reversible"):
        with pytest.raises(ConfigError, match="block must be residual"):
            EncoderDecoderConfig(dim=16, block=block)


def test_every_mlp_takes_pieces_and_gives_the_same() -> None:
    whole, pieces = (model_of(mlp_chunks=chunks) for chunks in (1, 4))
    source, tokens, seen = tokens_of(2, 11), tokens_of(2, 14, seed=1), []
    for module in pieces.modules():
        if isinstance(module, Mlp):
            module.register_forward_pre_hook(lambda _, x: seen.append(x[0].shape[1]))
    torch.testing.assert_close(pieces(source, tokens).logits, whole(source, tokens).logits, rtol=0, atol=1e-12)
    assert seen == [3, 3, 3, 2] * 2 + [4, 4, 4, 2] * 2
