"""What marks do in models: who gets which, and what they change."""

import pytest
import torch
from torch import Tensor, nn

from regard.core.errors import ShapeError, UnsupportedError
from regard.models import (
    Classifier,
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLanguageModel,
)

TINY = {"vocab_size": 23, "dim": 16, "heads": 2, "layers": 2, "max_length": 40, "mlp_dim": 24}
LONGFORMER, ETC = "longformer(window=1, num_global=0)", "etc(window=1, num_global=0)"


def tokens_of(batch: int, length: int) -> Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(0))


def encoder(*specs: str, **options: object) -> Encoder:
    return Encoder(EncoderConfig(**TINY, attention=specs, **options)).double().eval()


def marked(batch: int, length: int, *places: int) -> Tensor:
    marks = torch.zeros(batch, length, dtype=torch.long)
    marks[:, list(places)] = 1
    return marks


def seen_by(model: Encoder, query: int, marks: Tensor | None) -> list[int]:
    """The tokens that the hidden state of a position depends on."""
    tokens = tokens_of(1, 12)
    whole = model(tokens, marks=marks).hidden[0, query]
    found = []
    for at in range(12):
        other = tokens.clone()
        other[0, at] = (other[0, at] + 1) % 23
        if not torch.equal(model(other, marks=marks).hidden[0, query], whole):
            found.append(at)
    return found


@pytest.mark.parametrize("checkpoint", ["none", "block", "attention"])
def test_a_marked_token_sees_all_and_a_window_does_not(checkpoint: str) -> None:
    model = encoder(LONGFORMER, checkpoint=checkpoint)
    assert seen_by(model, 5, None) == [3, 4, 5, 6, 7]
    assert seen_by(model, 5, marked(1, 12, 5)) == list(range(12))
    assert seen_by(model, 0, marked(1, 12, 9)) == list(range(12))  # through 9, in the second layer


@pytest.mark.parametrize(
    ("specs", "reads"),
    [
        (("softmax",), "none"),
        ((LONGFORMER,), "tokens"),
        (("softmax", "bigbird(block_size=4)"), "tokens"),
        ((ETC,), "segments"),
        ((LONGFORMER, ETC), "segments"),
    ],
)
def test_what_a_model_reads_is_a_fact_of_its_mechanisms(specs: tuple[str, ...], reads: str) -> None:
    model = encoder(*specs)
    assert model.reads_marks == reads
    assert Classifier(model, classes=2).reads_marks == MaskedLanguageModel(model).reads_marks == reads


def test_each_layer_gets_the_marks_that_it_has_a_meaning_for() -> None:
    got: list[Tensor | None] = []
    for specs, expected in {
        (ETC, LONGFORMER): [[-1, 1, 0, -2, 2], [-1, 0, 0, -2, 0]],
        (LONGFORMER, "softmax"): [[-1, 1, 0, -2, 2], None],
    }.items():
        model = encoder(*specs, cls_token=True)
        got.clear()
        for mechanism in model.mechanisms:
            mechanism.register_forward_pre_hook(
                lambda module, args, named: got.append(named["marks"]), with_kwargs=True
            )
        model(tokens_of(1, 5), marks=torch.tensor([[-1, 1, 0, -2, 2]]))
        assert [None if x is None else x.tolist() for x in got] == [None if x is None else [[0, *x]] for x in expected]


def test_marks_that_mean_nothing_are_refused() -> None:
    tokens = tokens_of(2, 5)
    with pytest.raises(UnsupportedError, match=r"none of the mechanisms of this encoder \(softmax\) has a meaning"):
        encoder("softmax")(tokens, marks=marked(2, 5, 0))
    for wrong in (marked(2, 4, 0), marked(2, 5, 0).bool(), marked(2, 5, 0).float()):
        with pytest.raises(ShapeError, match=r"marks must be integers \(2, 5\)"):
            encoder(LONGFORMER)(tokens, marks=wrong)


@pytest.mark.parametrize("head", [MaskedLanguageModel, lambda own: Classifier(own, classes=3)])
def test_heads_pass_marks_on(head) -> None:
    model: nn.Module = head(encoder(LONGFORMER)).double().eval()
    tokens = tokens_of(2, 12)
    plain, with_marks = model(tokens).logits, model(tokens, marks=marked(2, 12, 0, 7)).logits
    assert (plain - with_marks).abs().max() > 1e-4
    alone = model(tokens[1:], marks=marked(1, 12, 0, 7)).logits
    torch.testing.assert_close(with_marks[1:], alone, rtol=0, atol=1e-10)


def test_the_source_of_an_encoder_decoder_has_marks() -> None:
    config = EncoderDecoderConfig(
        vocab_size=23, dim=16, heads=2, layers=1, max_length=40, mlp_dim=24, encoder_attention=(LONGFORMER,)
    )
    model = EncoderDecoder(config).double().eval()
    source, tokens, marks = tokens_of(2, 12), tokens_of(2, 5), marked(2, 12, 6)
    whole = model(source, tokens, source_marks=marks).logits
    streamed = model.decode(tokens, model.prepare(source, marks=marks)).logits
    torch.testing.assert_close(streamed, whole, rtol=0, atol=1e-10)
    assert (model(source, tokens).logits - whole).abs().max() > 1e-5
