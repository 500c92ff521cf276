"""A dense network with sparse attention: the same as long as everything is visible, and what else becomes of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.core.errors import ConfigError, NumericsError, UnsupportedError
from regard.integrations import pretrained
from regard.integrations.pretrained import PublishedModel
from regard.models import (
    Classifier,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    Regressor,
    presets,
)
from regard_lab.networks import evaluation

TINY = {"vocab_size": 29, "dim": 12, "layers": 2, "heads": 2, "max_length": 20, "mlp_dim": 20, "dropout": 0.1}
LENGTH = 17
HEADS = {
    "bare": lambda encoder: encoder,
    "masked": MaskedLanguageModel,
    "classes": lambda encoder: Classifier(encoder, classes=3, activation="gelu_tanh"),
    "numbers": lambda encoder: Regressor(encoder, targets=2),
}


def loaded(model: nn.Module) -> PublishedModel:
    """Random numbers everywhere, where biases and norms begin as 0 and 1; in float64."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=draw))
    config = getattr(model, "config", None) or model.encoder.config  # type: ignore[union-attr]
    return PublishedModel(model.double().eval(), None, config, (), "tiny", Path("tiny"))  # type: ignore[arg-type]


def encoder(preset: str = "bert", head: str = "bare") -> PublishedModel:
    return loaded(HEADS[head](Encoder(presets.build(preset, **TINY))))


def decoder(preset: str = "llama") -> PublishedModel:
    return loaded(LanguageModel(presets.build(preset, **{**TINY, "dropout": 0.0})))


def ids(length: int = LENGTH) -> Tensor:
    return torch.randint(0, 29, (2, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def found(own: PublishedModel, tokens: Tensor, **given: Tensor) -> Tensor:
    got = own.model(tokens, **given)
    return got.hidden if hasattr(got, "hidden") else got.logits


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("attention", "projections"),
    [
        ("local(window=17)", None),
        ("longformer(window=17, num_global=0)", "global"),
        ("longformer(window=17, num_global=2)", "global"),
        ("longformer(window=17)", None),
        ("bigbird(block_size=6)", None),
        ("bigbird(form=etc, block_size=9, num_global=3)", None),
        ("etc(window=17, num_global=2)", "all"),
        ("etc(window=17, num_global=2)", "separate"),
        ("pattern(rule='window(17) | first(2)')", None),
        ("local(window=17):1 + softmax:1", None),
        (("softmax", "local(window=17)"), None),
    ],
)
def test_an_encoder_is_the_dense_one_while_everything_is_visible(
    attention: str | tuple[str, ...], projections: str | None, head: str
) -> None:
    dense = encoder(head=head)
    sparse = pretrained.convert(dense, attention, projections=projections)  # type: ignore[arg-type]
    assert type(sparse.model) is type(dense.model)
    tokens, keep = ids(), torch.arange(LENGTH) < torch.tensor([[LENGTH], [11]])
    wanted, got = found(dense, tokens, key_mask=keep), found(sparse, tokens, key_mask=keep)
    if wanted.ndim == 3:
        wanted, got = wanted[keep], got[keep]
    assert (got - wanted).abs().max() <= 1e-10 * wanted.abs().max()


@pytest.mark.parametrize(
    "attention",
    [
        "local(window=16)",
        "longformer(window=16, num_global=2)",
        "bigbird(block_size=6)",
        "pattern(rule='window(16) | first(2)')",
    ],
)
@pytest.mark.parametrize("preset", ["llama", "gpt"])
def test_a_decoder_is_the_dense_one_while_everything_is_visible(attention: str, preset: str) -> None:
    dense = decoder(preset)
    sparse = pretrained.convert(dense, attention)
    wanted, tokens = found(dense, ids()), ids()
    assert (found(sparse, tokens) - wanted).abs().max() <= 1e-10 * wanted.abs().max()
    state = sparse.decoder.initial_state(2)
    with torch.no_grad():
        first = sparse.model(tokens[:, :9], state=state)
        rest = sparse.model(tokens[:, 9:], state=first.state)
    streamed = torch.cat([first.logits, rest.logits], 1)
    assert (streamed - wanted).abs().max() <= 1e-10 * wanted.abs().max()


@pytest.mark.parametrize(("preset", "offset"), [("bert", 0), ("roberta", 2)])
def test_a_position_table_repeats_its_rows(preset: str, offset: int) -> None:
    dense = encoder(preset)
    old = dense.model.embeddings.position.table  # type: ignore[union-attr]
    sparse = pretrained.convert(dense, "local(window=4)", max_length=47)
    new = sparse.model.embeddings.position.table  # type: ignore[union-attr]
    assert len(old) == 20 + offset
    rows = [*range(offset), *(offset + at for at in [*range(20), *range(20), *range(7)])]
    assert torch.equal(new, old[rows])
    assert sparse.config.max_length == 47
    assert found(sparse, ids(47)).shape == (2, 47, 12)


def test_what_is_not_said_stays() -> None:
    """More positions alone; a window alone, with the projections of global tokens that the network has."""
    dense = encoder()
    assert pretrained.convert(dense, None, max_length=30).config == replace(dense.config, max_length=30)
    first = pretrained.convert(dense, "longformer(window=2)", projections="global")
    own = first.model.blocks[0].attention.projections.global_rows  # type: ignore[union-attr]
    with torch.no_grad():
        own.query.weight.add_(1)
    second = pretrained.convert(first, "longformer(window=5)")
    assert torch.equal(second.model.blocks[0].attention.projections.global_rows.query.weight, own.query.weight)  # type: ignore[union-attr]
    dense.model.train()
    assert pretrained.convert(dense, "local(window=2)").model.training


@pytest.mark.parametrize(
    ("spec", "loss", "note"),
    [
        ("local(window=2)", lambda new: 5.0 if new else 3.0, None),
        (
            "linear",
            lambda new: 5.0 if new else 3.0,
            " (20 tokens of English: 3.00 nats each, now 5.00)",
        ),
        ("linear", lambda new: 3.05 if new else 3.0, None),
        ("linear", None, ""),
        (("softmax", "efficient"), None, ""),
    ],
)
def test_what_the_softmax_of_a_network_cannot_be_is_said_with_its_loss(
    spec: str, loss: Callable[[bool], float] | None, note: str | None, monkeypatch: Any, caplog: Any
) -> None:
    """A decoder says it of its loss on a sample; without a number it is said alone."""
    dense = decoder()

    def evaluate(one: PublishedModel, *_: object, **__: object) -> dict[str, object]:
        if loss is None:
            raise NumericsError("not finite")
        return {"nats_per_token": loss(one is not dense)}

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    other = pretrained.convert(dense, spec)
    name = spec if isinstance(spec, str) else "efficient"
    said = f"{name} is not the softmax that the weights were trained with: they need training{note}"
    assert [record.getMessage() for record in caplog.records] == ([] if note is None else [said])
    caplog.clear()
    if spec == "linear":  # what was no softmax is not said to be one
        pretrained.convert(other, "efficient")
        assert not caplog.records


def test_dropped_weights_stay_where_the_mechanism_drops() -> None:
    dense = encoder()
    assert dense.config.attention_dropout == 0.1
    assert pretrained.convert(dense, None).config.attention_dropout == 0.1
    assert pretrained.convert(dense, "longformer").config.attention_dropout == 0.1
    assert pretrained.convert(dense, "linear").config.attention_dropout == 0


@pytest.mark.parametrize(
    ("attention", "projections", "message"),
    [
        ("linformer(rank=4)", None, r"there are no values for blocks\.0\.attention\.attention\."),
        ("dense_synthesizer", None, r"blocks\.1\.attention\.projections\.key\.weight would have no use"),
    ],
)
def test_weights_without_a_value_or_a_use(attention: str, projections: None, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        pretrained.convert(encoder(), attention, projections=projections)


def test_what_cannot_be_converted() -> None:
    pair = EncoderDecoder(presets.build("bart", **{**TINY, "mlp_dim": 20}))
    whole = PublishedModel(pair, None, pair.config, (), "bart", Path("bart"))
    with pytest.raises(UnsupportedError, match="attention of EncoderDecoder cannot be replaced"):
        pretrained.convert(whole, "local")
    with pytest.raises(ConfigError, match="unknown mechanism 'locl'"):
        pretrained.convert(encoder(), "locl")
    with pytest.raises(ConfigError, match="attention"):
        pretrained.convert(encoder(), ("local", "local", "local"))
    with pytest.raises(ConfigError, match="local has no global tokens"):
        pretrained.convert(encoder(), "local", projections="global")
    lost = pretrained.convert(encoder(), "longformer(window=2)", projections="global")
    with pytest.raises(UnsupportedError, match=r"global_rows\.query\.weight would have no use"):
        pretrained.convert(lost, "local", projections="all")


def test_loading_converts(tmp_path: Path) -> None:
    model = LanguageModel(presets.build("gpt", **{**TINY, "dropout": 0.0})).eval()
    pretrained.export(model, tmp_path / "gpt")
    wide = pretrained.load(tmp_path / "gpt", attention="local(window=40)", max_length=40)
    assert wide.decoder.limit == 40
    assert wide.decoder.config.attention == ("local(window=40)",)
    with torch.no_grad():
        assert torch.allclose(wide.model(ids()).logits, model(ids()).logits, rtol=0, atol=1e-5)
        assert wide.model(ids(40)).logits.shape == (2, 40, 29)


SEGMENT = 5
CLOSED = "memorizing(pairs=64, top=3, gate=-100)"


def test_a_closed_gate_leaves_every_segment_by_itself() -> None:
    """gate -> -inf: what the network says of a segment is what it said of it, without a memory."""
    own = decoder()
    got = pretrained.convert(own, None, memory=("none", CLOSED), max_length=SEGMENT)
    assert got.config.memories == (None, CLOSED)  # type: ignore[union-attr]
    tokens = ids()
    wanted = torch.cat([found(own, part) for part in tokens.split(SEGMENT, 1)], 1)
    assert (found(got, tokens) - wanted).abs().max() <= 1e-12 * wanted.abs().max()
    opened = pretrained.convert(own, None, memory=("none", CLOSED.replace("-100", "0")), max_length=SEGMENT)
    assert torch.equal(found(opened, tokens)[:, :SEGMENT], found(got, tokens)[:, :SEGMENT])
    assert (found(opened, tokens)[:, SEGMENT:] - wanted[:, SEGMENT:]).abs().amax((1, 2)).min() > 1e-3


@pytest.mark.parametrize("length", [LENGTH, SEGMENT])
def test_recent_memories_stand_in_front_where_rotary_positions_put_them(length: int) -> None:
    """With room for all of the text the network says what it says of the whole; one position off would be seen."""
    own, tokens = decoder(), ids()
    got = pretrained.convert(own, None, memory=f"recent(length={length})", max_length=SEGMENT)
    whole, first = found(own, tokens), 2 * SEGMENT
    results = found(got, tokens)
    assert (results[:, :first] - whole[:, :first]).abs().max() <= 1e-10 * whole.abs().max()
    later = (results[:, first:] - whole[:, first:]).abs().max()
    assert later <= 1e-10 * whole.abs().max() if length == LENGTH else later > 1e-3


@pytest.mark.parametrize(
    "memory",
    [
        "recent(length=7)",
        "compressive(length=4, compressed=3, rate=2)",
        "compressive(length=4, compressed=3, rate=2, function=convolution)",
        ("none", "memorizing(pairs=9, top=3)"),
        "memorizing(pairs=9, top=3, recent=4)",
    ],
)
def test_a_network_with_a_memory_is_saved_streams_and_keeps_what_it_had(memory, tmp_path) -> None:
    own = decoder()
    got = pretrained.convert(own, None, memory=memory, max_length=SEGMENT)
    for name, weight in own.model.state_dict().items():
        assert torch.equal(got.model.state_dict()[name], weight), name
    added = got.model.state_dict().keys() - own.model.state_dict().keys()
    assert all(".memory." in name for name in added)
    tokens = ids()
    whole = found(got, tokens)
    state, pieces = got.decoder.initial_state(2), []
    with torch.no_grad():
        for piece in tokens.split([3, 4, 1, 9], 1):
            answer = got.decoder(piece, state=state)
            state, _ = answer.state, pieces.append(answer.logits)
    assert (torch.cat(pieces, 1) - whole).abs().max() <= 1e-10 * whole.abs().max()
    pretrained.save(got, tmp_path / "saved")
    again = pretrained.load(tmp_path / "saved")
    assert again.config == got.config
    assert torch.equal(found(again, tokens), whole)
    with pytest.raises(UnsupportedError, match="memory="):
        pretrained.export(got, tmp_path / "exported")


def test_a_memory_that_grows_keeps_what_it_has_learned() -> None:
    own = pretrained.convert(decoder(), None, memory=("none", "memorizing(pairs=4, top=3)"), max_length=SEGMENT)
    gates = own.decoder.layers[1].memory.gates
    with torch.no_grad():
        gates.copy_(torch.tensor([0.3, -1.7]))
    grown = pretrained.convert(own, None, memory=("none", "memorizing(pairs=64, top=3, gate=-3)"))
    assert torch.equal(grown.decoder.layers[1].memory.gates, gates)
    kept = pretrained.convert(own, "local(window=3)")
    assert torch.equal(kept.decoder.layers[1].memory.gates, gates)
    moved = pretrained.convert(own, None, memory=("memorizing(pairs=4, top=3, gate=-3)", "none"))
    assert torch.equal(moved.decoder.layers[0].memory.gates, torch.full((2,), -3.0, dtype=torch.float64))
    assert pretrained.convert(own, None, memory="none").config == replace(decoder().config, max_length=SEGMENT)


def test_networks_that_take_no_memory() -> None:
    with pytest.raises(UnsupportedError, match="a memory is of earlier segments, which Encoder, an encoder, has not"):
        pretrained.convert(encoder(), None, memory="recent(length=4)")
    with pytest.raises(ConfigError, match="puts earlier segments before one of max_length=5 positions"):
        pretrained.convert(decoder("gpt"), None, memory="recent(length=4)", max_length=5)
    with pytest.raises(ConfigError, match="one for each of the 2 layers, got 3"):
        pretrained.convert(decoder(), None, memory=("none:2", "recent"))
    with pytest.raises(ConfigError, match="pairs=0"):
        pretrained.convert(decoder(), None, memory="memorizing(pairs=0)")
