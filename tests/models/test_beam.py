"""Beam search against greedy decoding and against every sequence there is, enumerated."""

from itertools import product

import pytest
import torch

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError, LimitError, NumericsError
from regard.models.beam import Hypothesis, beam_search, length_penalty
from regard.models.config import ModelConfig
from regard.models.decoder import LanguageModel
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.models.generate import generate

TINY = {"dim": 16, "heads": 2, "layers": 1, "max_length": 24, "seed": 1}


def sharpened(model: torch.nn.Module) -> torch.nn.Module:
    """Large random weights, so that the next token depends on the past."""
    draw = generator(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.7 * torch.randn(weight.shape, generator=draw))
    return model.double().eval()


def decoder(vocab_size: int = 4, **fields: object) -> LanguageModel:
    return sharpened(LanguageModel(ModelConfig(**{**TINY, "vocab_size": vocab_size, **fields})))


def translator(vocab_size: int = 4, **fields: object) -> EncoderDecoder:
    return sharpened(
        EncoderDecoder(EncoderDecoderConfig(**{**TINY, "vocab_size": vocab_size, "end_token": 3, **fields}))
    )


def likelihood(model: torch.nn.Module, prompt: list[int], tokens: tuple[int, ...]) -> float:
    """log p(tokens | prompt), from the parallel form."""
    if isinstance(model, EncoderDecoder):
        logits = model(torch.tensor([prompt]), model.shift(torch.tensor([tokens]))).logits[0]
    else:
        logits = model(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
    return logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)].sum().item()


def every(vocab_size: int, longest: int, end: int) -> list[tuple[int, ...]]:
    """Every sequence that ends with `end` or at the longest length."""
    going = [token for token in range(vocab_size) if token != end]
    short = [(*body, end) for length in range(longest) for body in product(going, repeat=length)]
    return short + list(product(going, repeat=longest))


def plain(rows: list[list[Hypothesis]]) -> list[list[tuple]]:
    return [[(found.tokens.tolist(), found.ended) for found in row] for row in rows]


@pytest.mark.parametrize("make", [decoder, translator])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_enough_beams_find_the_best_of_all_sequences(make, alpha: float) -> None:
    model, prompt = make(), [1, 2, 0, 1]
    sequences = every(4, 3, end=3)
    assert len(sequences) == 1 + 3 + 9 + 27
    (found,) = beam_search(model, [prompt], max_new_tokens=3, beams=40, alpha=alpha, end_token=3)
    truth = {tokens: (likelihood(model, prompt, tokens), ((5 + len(tokens)) / 6) ** alpha) for tokens in sequences}
    ranked = sorted(truth, key=lambda tokens: -truth[tokens][0] / truth[tokens][1])
    assert [tuple(one.tokens.tolist()) for one in found] == ranked
    for one in found:
        chance, penalty = truth[tuple(one.tokens.tolist())]
        assert one.log_probability == pytest.approx(chance, abs=1e-10)
        assert one.score == pytest.approx(chance / penalty, abs=1e-10)
        assert one.ended == ("stop" if one.tokens[-1] == 3 else "length")


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_one_beam_is_greedy(alpha: float) -> None:
    model, prompts = decoder(12), [[1, 2, 3], [4, 5], [6, 7, 8]]
    found = beam_search(model, prompts, max_new_tokens=10, beams=1, alpha=alpha)
    greedy = generate(model, prompts, max_new_tokens=10, temperature=0)
    assert [row[0].tokens.tolist() for row in found] == [row.tokens.tolist() for row in greedy]
    end = int(greedy[0].tokens[4])
    first = greedy[0].tokens.tolist().index(end)
    (stopped,) = beam_search(model, prompts[:1], max_new_tokens=10, beams=1, alpha=alpha, end_token=end)
    assert stopped[0].tokens.tolist() == greedy[0].tokens[: first + 1].tolist()
    assert stopped[0].ended == "stop"


@pytest.mark.parametrize("make", [decoder, translator])
def test_rows_are_independent(make) -> None:
    model = make(9)
    rows = [[1, 2, 3], [4], [5, 6, 7], [8, 1, 2, 3, 4], [2, 2]]
    together = beam_search(model, rows, max_new_tokens=6, beams=3, end_token=3)
    alone = [beam_search(model, [row], max_new_tokens=6, beams=3, end_token=3)[0] for row in rows]
    assert plain(together) == plain(alone)
    for row, same in zip(together, alone, strict=True):
        for one, other in zip(row, same, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-10)


def test_a_finished_sequence_keeps_its_score_and_its_place() -> None:
    """Its score is that of its own tokens, whatever the others go on to do, and it takes one of the beams."""
    model = decoder()
    lengths = set()
    for prompt in product(range(4), repeat=2):
        (found,) = beam_search(model, [list(prompt)], max_new_tokens=6, beams=3, alpha=0.6, end_token=3)
        assert len(found) == 3
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        for one in found:
            tokens = tuple(one.tokens.tolist())
            chance = likelihood(model, list(prompt), tokens)
            assert one.log_probability == pytest.approx(chance, abs=1e-10)
            assert one.score == pytest.approx(chance / ((5 + len(tokens)) / 6) ** 0.6, abs=1e-10)
            assert 3 not in tokens[:-1]
            lengths.add(len(tokens))
    assert len(lengths) > 2


def test_the_length_penalty_by_hand() -> None:
    assert length_penalty(1, 0.7) == 1
    assert length_penalty(13, 0.5) == pytest.approx(3**0.5, abs=1e-15)
    assert length_penalty(4, 0.0) == 1
    assert length_penalty(25, 1.0) == 5


def test_mechanisms_that_take_no_mask_search_each_length_on_its_own() -> None:
    model = translator(9, encoder_attention=("linformer(rank=4)",))
    assert model.pads == model.encoder.mechanisms[0].info.supports.key_mask
    rows = [[1, 2, 3], [4, 1], [5, 6, 7]]
    together = beam_search(model, rows, max_new_tokens=4, beams=2)
    assert plain(together) == plain([beam_search(model, [row], max_new_tokens=4, beams=2)[0] for row in rows])


def test_the_model_keeps_its_mode() -> None:
    model = decoder(dropout=0.5).train()
    first, second = (plain(beam_search(model, [[1, 2]], max_new_tokens=4, beams=2)) for _ in range(2))
    assert first == second
    assert model.training


def test_misuse_is_refused() -> None:
    model = decoder(position="learned")
    with pytest.raises(ConfigError, match="at least 1, got 3 and 0"):
        beam_search(model, [[1]], max_new_tokens=3, beams=0)
    with pytest.raises(ConfigError, match="alpha must be at least 0, got -1"):
        beam_search(model, [[1]], max_new_tokens=3, alpha=-1)
    with pytest.raises(ConfigError, match="end_token must be a token below vocab_size=4, got 4"):
        beam_search(model, [[1]], max_new_tokens=3, end_token=4)
    with pytest.raises(InputError, match="prompt 1 is empty"):
        beam_search(model, [[1], []], max_new_tokens=3)
    with pytest.raises(LimitError, match="max_length=24"):
        beam_search(model, [[1]], max_new_tokens=25)
    with pytest.raises(LimitError, match="max_length=24, got 25"):
        beam_search(translator(position="learned"), [[1]], max_new_tokens=25)
    with torch.no_grad():
        model.table.weight.fill_(float("nan"))
    with pytest.raises(NumericsError, match="not finite"):
        beam_search(model, [[1]], max_new_tokens=3)
