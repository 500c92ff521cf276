"""The contrastive loss of hidden sentences, from its definition."""

import math

import pytest
import torch
from torch import Tensor

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError
from regard.models import Encoder, EncoderConfig, MaskedLanguageModel
from regard.models.contrast import alone, contrast

TINY = {"vocab_size": 31, "dim": 32, "heads": 4, "layers": 1, "position": "none", "max_length": 64}
MASK, SUMMARY = 29, 30


def loss_by_loops(predicted: Tensor, content: Tensor) -> float:
    predicted, content, total = predicted.detach(), content.detach(), 0.0
    for i in range(len(predicted)):
        scores = [
            sum(float(predicted[i, c]) * float(content[j, c]) for c in range(predicted.shape[1]))
            / math.sqrt(predicted.shape[1])
            for j in range(len(content))
        ]
        total -= math.log(math.exp(scores[i]) / sum(math.exp(score) for score in scores))
    return total / len(predicted)


def test_the_loss_is_its_definition() -> None:
    draw = generator(0)
    predicted, content = (torch.randn(5, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    assert contrast(predicted, content).item() == pytest.approx(loss_by_loops(predicted, content), abs=1e-12)
    assert contrast(predicted[:1], content[:1]) == 0
    right = contrast(3 * content, content)
    assert right < contrast(3 * content, content.roll(1, 0))


def documents(draw: torch.Generator, batch: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Four sentences of two to four equal words each; the third is hidden, and is that of the first once more."""
    words = torch.stack([torch.randperm(20, generator=draw)[:4] for _ in range(batch)])
    lengths = torch.randint(2, 5, (4,), generator=draw)
    lengths[2] = lengths[0]
    numbers = torch.repeat_interleave(torch.arange(1, 5), lengths).expand(batch, -1)
    words[:, 2] = words[:, 0]
    text = words.gather(1, numbers - 1)
    hidden = numbers == 3
    fronts = torch.full((batch, 4), SUMMARY)
    tokens = torch.cat([fronts, text.masked_fill(hidden, MASK)], 1)
    contents = torch.cat([torch.full((batch, 4), -100), text.masked_fill(~hidden, -100)], 1)
    marks = torch.cat([-torch.arange(1, 5).expand(batch, -1), numbers], 1)
    return tokens, contents, marks


def test_hidden_sentences_stand_alone() -> None:
    tokens, contents, marks = documents(generator(1))
    contents[1] = -100  # nothing is hidden in the second row
    contents[2, -1] = 7  # and another sentence in the third
    found = alone(tokens, contents, marks)
    expected = []
    for row in range(4):
        for place in range(tokens.shape[1]):
            own = [int(c) for c, m in zip(contents[row], marks[row], strict=True) if c >= 0 and m == -marks[row, place]]
            if marks[row, place] < 0 and own:
                expected.append((row, place, [SUMMARY, *own]))
    got = [
        (int(row), int(place), of_row[kept].tolist())
        for row, place, of_row, kept in zip(found.row, found.place, found.tokens, found.key_mask, strict=True)
    ]
    assert got == expected
    assert len(got) == 4
    assert (found.marks[:, 0] == -1).all()
    assert torch.equal(found.marks[:, 1:] == 1, found.key_mask[:, 1:])


@pytest.mark.parametrize("cls_token", [False, True])
def test_a_model_compares_its_global_tokens_with_those_that_see_the_sentence_alone(cls_token: bool) -> None:
    spec = "etc(window=2, num_global=0)"
    config = EncoderConfig(**TINY, attention=(spec,), cpc_weight=0.25, cls_token=cls_token)
    model = MaskedLanguageModel(Encoder(config)).double().train()
    tokens, contents, marks = documents(generator(2))
    output = model(tokens, marks=marks, contents=contents)
    hidden = model.encoder(tokens, marks=marks).hidden[:, int(cls_token) :]
    seen = []
    for row in range(4):
        body = contents[row, contents[row] >= 0]
        single = torch.cat([torch.tensor([SUMMARY]), body])[None]
        own = torch.tensor([[-1, *[1] * len(body)]])
        seen.append(model.encoder(single, marks=own).hidden[0, int(cls_token)])
    expected = loss_by_loops(hidden[:, 2], torch.stack(seen))
    assert output.losses["cpc"].item() == pytest.approx(expected, abs=1e-10)
    assert model.loss_weights == {"cpc": 0.25}
    nothing = model(tokens, marks=marks, contents=torch.full_like(contents, -100)).losses["cpc"]
    assert nothing == 0
    assert nothing.requires_grad
    assert model.eval()(tokens, marks=marks, contents=contents).losses == {}


def test_what_cannot_be_contrasted_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cpc_weight=0.5 is for global tokens that summarise segments.*softmax"):
        MaskedLanguageModel(Encoder(EncoderConfig(**TINY, cpc_weight=0.5)))
    with pytest.raises(ConfigError, match="cpc_weight must be at least 0"):
        EncoderConfig(**TINY, cpc_weight=-1.0)
    config = EncoderConfig(**TINY, attention=("etc",), cpc_weight=0.5)
    tokens, contents, _ = documents(generator(5))
    with pytest.raises(InputError, match="contents of hidden sentences need marks"):
        MaskedLanguageModel(Encoder(config)).train()(tokens, contents=contents)
