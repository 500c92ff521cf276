"""Generation: greedy equals the full forward, rows ignore each other, stop texts and UTF-8 come out whole."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Words
from tokenizers import decoders, models, pre_tokenizers

from regard.catalog import describe
from regard.core.errors import ConfigError, InputError, LimitError, NumericsError, ShapeError
from regard.models import LanguageModel, ModelConfig
from regard.models.conversation import Conversation
from regard.models.generate import generate, stream
from regard.text.pretrained_tokenizer import PretrainedTokenizer
from regard.text.tokenizer import ByteTokenizer

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5], [3, 5, 8]]
POSITIONS = ["none", "learned", "learned(per_layer=True)", "sinusoidal", "rotary", "alibi", "transformer_xl"]
BYTES = ByteTokenizer()


def model_of(spec: str, *, vocab_size: int = 29, **fields: object) -> LanguageModel:
    scheme = "rotary" if {"q", "k"} <= set(describe(spec).reads) else "learned"
    shape = {"dim": 16, "heads": 2, "layers": 2, "max_length": 48, "position": scheme, "short_convolution": 2, **fields}
    model = LanguageModel(ModelConfig(vocab_size=vocab_size, attention=(spec,), **shape)).double().eval()
    with torch.no_grad():  # larger weights: greedy paths that move around instead of repeating a token
        for weight in model.parameters():
            weight.mul_(2.5)
    return model


def greedy(model: LanguageModel, prompt: list[int], count: int) -> list[int]:
    """The definition: the arg max of the full forward, token by token."""
    tokens = torch.tensor([prompt])
    for _ in range(count):
        with torch.no_grad():
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    return tokens[0, len(prompt) :].tolist()


def test_greedy_equals_the_full_forward(causal_spec: str) -> None:
    model = model_of(causal_spec)
    expected = [greedy(model, prompt, 20) for prompt in PROMPTS]
    assert len({token for row in expected for token in row}) > 3
    for use_state in (True, False):
        rows = generate(model, PROMPTS, max_new_tokens=20, temperature=0, use_state=use_state)
        assert [row.tokens.tolist() for row in rows] == expected


@pytest.mark.parametrize("position", POSITIONS)
def test_unequal_prompts_share_a_batch_under_every_position(position: str) -> None:
    model = model_of("softmax", position=position)
    assert model.pads
    for use_state in (True, False):
        rows = generate(model, PROMPTS, max_new_tokens=12, temperature=0, use_state=use_state)
        assert [row.tokens.tolist() for row in rows] == [greedy(model, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("spec", ["softmax", "local(window=4)", "linear"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_batch_says_what_each_prompt_would_alone(spec: str, temperature: float) -> None:
    """Left padded and masked; the draws depend on the row, so each is alone in the row that it has."""
    model = model_of(spec, vocab_size=256)
    options = {"max_new_tokens": 9, "temperature": temperature, "seed": 3}
    prompts = [*PROMPTS, [7] * 11, [4, 4]]
    together = generate(model, prompts, tokenizer=BYTES, **options)
    for batch_size in (1, 2, 5, 99):
        rows = generate(model, prompts, tokenizer=BYTES, batch_size=batch_size, **options)
        assert [(row.tokens.tolist(), row.text) for row in rows] == [(x.tokens.tolist(), x.text) for x in together]
    alone = generate(model, prompts[:1], tokenizer=BYTES, **options)
    assert alone[0].tokens.tolist() == together[0].tokens.tolist()
    with pytest.raises(ConfigError, match="batch_size must be at least 1, got 0"):
        generate(model, prompts, batch_size=0, **options)


def test_a_mechanism_on_absolute_slots_runs_each_length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("softmax")
    widths = []
    hidden = model.hidden

    def watched(tokens: torch.Tensor, **rest: object):
        widths.append((tuple(tokens.shape), rest["key_mask"] is not None))
        return hidden(tokens, **rest)

    monkeypatch.setattr(model, "hidden", watched)
    generate(model, [[1, 2], [3], [4, 5]], max_new_tokens=1)
    assert widths == [((3, 2), True)]
    widths.clear()
    monkeypatch.setattr(type(model), "pads", False)
    generate(model, [[1, 2], [3], [4, 5]], max_new_tokens=1)
    assert widths == [((2, 2), False), ((1, 1), False)]


def test_streaming_reads_one_token_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("softmax")
    shapes = []
    hidden = model.hidden

    def watched(tokens: torch.Tensor, **rest: object):
        shapes.append(tuple(tokens.shape))
        return hidden(tokens, **rest)

    monkeypatch.setattr(model, "hidden", watched)
    generate(model, [[1, 2, 3]], max_new_tokens=3)
    assert shapes == [(1, 3), (1, 1), (1, 1)]
    shapes.clear()
    generate(model, [[1, 2, 3]], max_new_tokens=3, use_state=False)
    assert shapes == [(1, 3), (1, 4), (1, 5)]


def test_seed_decides_and_rows_ignore_each_other() -> None:
    model = model_of("softmax")
    options = {"max_new_tokens": 15, "temperature": 1.5, "top_k": 20, "top_p": 0.95}
    before = torch.get_rng_state()
    rows = generate(model, PROMPTS, seed=3, **options)
    again = generate(model, PROMPTS, seed=3, **options)
    other = generate(model, PROMPTS, seed=4, **options)
    changed = generate(model, [[7, 7, 7, 7], *PROMPTS[1:]], seed=3, **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(rows, again, strict=True))
    assert not any(torch.equal(a.tokens, b.tokens) for a, b in zip(rows, other, strict=True))
    assert not torch.equal(rows[0].tokens, changed[0].tokens)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(rows[1:], changed[1:], strict=True))
    twins = generate(model, [[3], [3]], seed=3, **options)
    assert not torch.equal(twins[0].tokens, twins[1].tokens)


def scripted(text: bytes) -> LanguageModel:
    """A model of bytes that continues the k-th byte of `text` with the next one, whatever the rest."""
    model = LanguageModel(ModelConfig(vocab_size=256, dim=256, heads=4, layers=1, position="none", mlp="none"))
    successor = dict(pairwise(text))
    assert len(set(text)) == len(text), "every byte has one successor"
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        assert model.norm is not None
        model.norm.weight.fill_(1)
        model.table.weight.copy_(torch.eye(256))
    model.output = torch.nn.Linear(256, 256, bias=False)
    with torch.no_grad():
        model.output.weight.zero_()
        for byte, after in successor.items():
            model.output.weight[after, byte] = 1
    return model.eval()


@pytest.mark.parametrize(
    ("stop", "text", "count", "ended"),
    [
        (("d",), "bc", 3, "stop"),
        (("cde",), "b", 4, "stop"),
        (("ef", "de"), "bc", 4, "stop"),
        (("cdX", "gX"), "bcdefg", 6, "length"),
        (("zz",), "bcdefg", 6, "length"),
        (("bcdefg",), "", 6, "stop"),
        (("efg", "f"), "bcde", 5, "stop"),  # the first stop text to be complete ends the row
    ],
)
def test_stop_texts_cut_across_tokens(stop: tuple[str, ...], text: str, count: int, ended: str) -> None:
    model = scripted(b"abcdefg")
    options = {"max_new_tokens": 6, "temperature": 0.0, "tokenizer": BYTES, "stop": stop}
    row = generate(model, ["a"], **options)[0]
    assert (row.text, len(row.tokens), row.ended) == (text, count, ended)
    pieces = list(stream(model, ["a"], **options))
    assert "".join(piece.text for piece in pieces) == text
    shown = ""
    for piece in pieces:
        shown += piece.text
        assert text.startswith(shown), "nothing of a stop text is ever shown"


@pytest.mark.parametrize(
    ("stop", "text", "count"), [((), " be\n or", 3), ((" be",), "", 1), ((" ",), "", 1), (("\n",), " be", 2)]
)
def test_a_continuation_has_its_first_space(stop: tuple[str, ...], text: str, count: int) -> None:
    """Decoded alone, the first word of such a tokenizer has none; and a single byte may not be all of a character."""
    pieces = ["<unk>", "▁to", "▁be", "<0x0A>", "▁or", "<0xFF>"]
    words = Words(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    words.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])  # type: ignore[assignment]
    model, tokenizer = scripted(bytes([1, 2, 3, 4])), PretrainedTokenizer(words, 256)
    options = {"max_new_tokens": 3, "temperature": 0, "stop": stop}
    row = generate(model, [[1]], tokenizer=tokenizer, **options)[0]
    assert (row.text, row.tokens.tolist()) == (text, [2, 3, 4][:count])
    assert "".join(piece.text for piece in Conversation(model, tokenizer).reply([1], **options)) == text


def test_rows_that_stopped_leave_the_batch() -> None:
    model = scripted(b"abcdefghijk")
    rows = generate(model, ["a", "e", "xd"], max_new_tokens=4, temperature=0, tokenizer=BYTES, stop=("g",))
    assert [row.text for row in rows] == ["bcde", "f", "ef"]
    assert [row.ended for row in rows] == ["length", "stop", "stop"]


@pytest.mark.parametrize("use_state", [True, False])
def test_rows_that_go_on_keep_their_own_past(use_state: bool) -> None:
    model = model_of("softmax", vocab_size=256, position="learned")
    options = {"max_new_tokens": 10, "temperature": 0, "tokenizer": BYTES, "use_state": use_state}
    free = generate(model, PROMPTS, **options)
    stop = (free[0].text[3],)
    rows = generate(model, PROMPTS, stop=stop, **options)
    alone = [generate(model, [prompt], stop=stop, **options)[0] for prompt in PROMPTS]
    assert [row.tokens.tolist() for row in rows] == [row.tokens.tolist() for row in alone]
    assert len(rows[0].tokens) < max(len(row.tokens) for row in rows)


def test_text_streams_as_whole_characters() -> None:
    text = "né€😀"
    pieces = list(stream(scripted(text.encode()), ["n"], max_new_tokens=9, temperature=0, tokenizer=BYTES))
    assert [piece.text for piece in pieces] == ["", "é", "", "", "€", "", "", "", "😀"]
    cut = generate(scripted(text.encode()), ["n"], max_new_tokens=4, temperature=0, tokenizer=BYTES)[0]
    assert cut.text == "é\ufffd"


def test_pieces_come_one_by_one_and_agree_with_generate() -> None:
    model = model_of("softmax", vocab_size=256)
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 2, "tokenizer": BYTES}
    rows = generate(model, ["some", "words"], **options)
    pieces = list(stream(model, ["some", "words"], **options))
    assert [piece.row for piece in pieces] == [0, 1] * 12
    for at, row in enumerate(rows):
        own = [piece for piece in pieces if piece.row == at]
        assert [piece.token for piece in own] == row.tokens.tolist()
        assert "".join(piece.text for piece in own) == row.text == BYTES.decode(row.tokens.numpy())
        assert [piece.ended for piece in own] == [None] * 11 + ["length"]


def test_prompts_may_be_texts_lists_arrays_or_one_tensor() -> None:
    model = model_of("softmax", vocab_size=256)
    ids = BYTES.encode("ab")
    ids.setflags(write=False)
    for prompts in (["ab", "ab"], [[97, 98]] * 2, [ids, ids], [torch.tensor([97, 98])] * 2, np.array([[97, 98]] * 2)):
        rows = generate(model, prompts, max_new_tokens=5, temperature=0, tokenizer=BYTES)
        assert rows[0].tokens.tolist() == rows[1].tokens.tolist() == greedy(model, [97, 98], 5)
    tensor = generate(model, torch.tensor([[97, 98]]), max_new_tokens=5, temperature=0)[0]
    assert tensor.tokens.tolist() == greedy(model, [97, 98], 5)
    assert tensor.text == ""


def test_nothing_to_do() -> None:
    model = model_of("softmax")
    assert generate(model, [], max_new_tokens=5) == []
    row = generate(model, [[1]], max_new_tokens=0)[0]
    assert (row.tokens.tolist(), row.text, row.ended) == ([], "", "length")


def test_the_model_is_left_as_it_was() -> None:
    model = model_of("softmax", dropout=0.5).train()
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    expected = greedy(model_of("softmax"), PROMPTS[0], 8)
    pieces = stream(model, PROMPTS[:1], max_new_tokens=8, temperature=0)
    tokens = [next(pieces).token]
    assert [module.training for module in model.modules()] == modes
    tokens += [piece.token for piece in pieces]
    assert tokens == expected
    assert [module.training for module in model.modules()] == modes
    assert all(weight.grad is None and not weight.is_inference() for weight in model.parameters())
    model(torch.tensor([PROMPTS[0]])).logits.sum().backward()


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_only_what_has_a_limit_keeps_it(position: str) -> None:
    model = model_of("softmax", position=position, max_length=10)
    if position == "rotary":
        assert model.limit is None
        assert len(generate(model, [[1, 2, 3]], max_new_tokens=20)[0].tokens) == 20
        return
    assert model.limit == 10
    assert len(generate(model, [[1, 2, 3]], max_new_tokens=8)[0].tokens) == 8
    with pytest.raises(LimitError, match="generate at most 8 tokens"):
        stream(model, [[1], [1, 2, 3]], max_new_tokens=9)


def test_misuse_is_refused_at_the_call() -> None:
    model = model_of("softmax", vocab_size=256)
    refused: list[tuple[type[Exception], str, list, dict]] = [
        (ConfigError, "max_new_tokens", [[1]], {"max_new_tokens": -1}),
        (ConfigError, "temperature", [[1]], {"temperature": -1.0}),
        (ConfigError, "top_k", [[1]], {"top_k": 0}),
        (ConfigError, "stop texts need a tokenizer", [[1]], {"stop": ("a",)}),
        (ConfigError, "not empty", [[1]], {"stop": ("",), "tokenizer": BYTES}),
        (ConfigError, "tuple of texts", [[1]], {"stop": "ab", "tokenizer": BYTES}),
        (ConfigError, "no tokenizer", ["ab"], {}),
        (InputError, "prompt 1 is empty", [[1], []], {}),
        (ShapeError, "prompt 0 must be integers", [[0.5]], {}),
    ]
    for error, message, prompts, options in refused:
        with pytest.raises(error, match=message):
            stream(model, prompts, **{"max_new_tokens": 3, **options})
    with pytest.raises(ConfigError, match="prompts is a list"):
        stream(model, "text", max_new_tokens=3, tokenizer=BYTES)
    with pytest.raises(InputError, match="id 256 is out of range"):
        generate(model, [[256]], max_new_tokens=1)


def test_more_tokens_than_a_model_was_made_for_are_said(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("softmax")
    generate(model, [[1, 2]], max_new_tokens=model.config.max_length - 2)
    assert not caplog.records
    generate(model, [[1, 2]], max_new_tokens=model.config.max_length - 1)
    assert f"was made for {model.config.max_length} tokens" in caplog.text


def test_a_diverged_model_is_an_error() -> None:
    model = model_of("softmax")
    with torch.no_grad():
        model.table.weight[3, 0] = float("nan")
    with pytest.raises(NumericsError, match="not finite"):
        generate(model, [[1, 2]], max_new_tokens=2)
