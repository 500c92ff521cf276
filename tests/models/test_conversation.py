"""Conversations: every reply is that of the whole text, and reads only what is new."""

import pytest
import torch

from regard.core.errors import ConfigError, InputError, LimitError
from regard.models import LanguageModel, ModelConfig
from regard.models.conversation import Conversation
from regard.models.generate import generate
from regard.text.tokenizer import ByteTokenizer

TURNS = [[3, 1, 4, 1, 5, 9, 2, 6], [5], [3, 5, 8], [9, 7, 9]]


def model_of(spec: str = "softmax", **fields: object) -> LanguageModel:
    shape = {"dim": 16, "heads": 2, "layers": 2, "max_length": 96, "position": "rotary", **fields}
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(vocab_size=256, attention=(spec,), **shape)).double().eval()
    with torch.no_grad():  # larger weights: replies that move around instead of repeating a token
        for weight in model.parameters():
            weight.mul_(2.5)
    return model


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each call of the model read."""
    lengths: list[int] = []
    hidden = LanguageModel.hidden

    def counted(self, tokens, **options):
        lengths.append(tokens.shape[1])
        return hidden(self, tokens, **options)

    monkeypatch.setattr(LanguageModel, "hidden", counted)
    return lengths


def said(conversation: Conversation, text: list[int], **options: object) -> list[int]:
    return [piece.token for piece in conversation.reply(text, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("spec", "position"),
    [
        ("softmax", "rotary"),
        ("softmax", "learned"),
        ("softmax", "alibi"),
        ("local(window=4)", "rotary"),
        ("linear", "none"),
    ],
)
def test_a_turn_reads_what_is_new_and_replies_as_to_the_whole(fed, spec, position, temperature) -> None:
    model = model_of(spec, position=position)
    conversation, text = Conversation(model, ByteTokenizer()), []
    for number, turn in enumerate(TURNS):
        text = [*text, *turn]
        fed.clear()
        reply = said(conversation, text, max_new_tokens=7, temperature=temperature, seed=2)
        # the last token of the reply before was drawn, and not read
        assert fed == [len(turn) + (number > 0), *[1] * 6]
        # row `number` of a batch has the draws of turn `number`
        rows = generate(model, [text] * (number + 1), max_new_tokens=7, temperature=temperature, seed=2)
        assert reply == rows[-1].tokens.tolist()
        text += reply


def test_a_text_that_changed_is_read_from_where_it_did(fed) -> None:
    model = model_of()
    conversation = Conversation(model, ByteTokenizer())
    reply = said(conversation, TURNS[0], max_new_tokens=7, temperature=0)
    fed.clear()
    other = [*TURNS[0], *reply[:3], 200, 201]  # as a template that writes replies in another way
    changed = said(conversation, other, max_new_tokens=7, temperature=0)
    assert fed[0] == 5
    assert changed == generate(model, [other], max_new_tokens=7, temperature=0)[0].tokens.tolist()
    fed.clear()
    assert (
        said(conversation, [7, 7], max_new_tokens=3, temperature=0)
        == generate(model, [[7, 7]], max_new_tokens=3, temperature=0)[0].tokens.tolist()
    )
    assert fed[0] == 2


def test_a_text_that_is_asked_again_is_read_from_the_state_before_it(fed) -> None:
    """Its own state says nothing of its last token; asked often, it pushes out no state of another text."""
    model = model_of()
    conversation, text = Conversation(model, ByteTokenizer()), TURNS[0]
    reply = said(conversation, text, max_new_tokens=3, temperature=0)
    longer = [*text, *reply, 7]
    wanted = generate(model, [longer], max_new_tokens=3, temperature=0)[0].tokens.tolist()
    for _ in range(4):
        fed.clear()
        assert said(conversation, longer, max_new_tokens=3, temperature=0) == wanted
        assert fed[0] == 2
    fed.clear()
    said(conversation, [*text, 1, 2, 3], max_new_tokens=1)
    assert fed == [3]


def test_a_model_without_states_reads_all_of_it(fed, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    wanted = generate(model, [TURNS[0]], max_new_tokens=5, temperature=0)[0].tokens.tolist()
    monkeypatch.setattr(LanguageModel, "streams", False)
    fed.clear()
    assert said(Conversation(model, ByteTokenizer()), TURNS[0], max_new_tokens=5, temperature=0) == wanted
    assert fed == [8, 9, 10, 11, 12]


def test_a_reply_that_is_not_read_to_its_end_is_none(fed) -> None:
    model = model_of()
    conversation = Conversation(model, ByteTokenizer())
    next(conversation.reply(TURNS[0], max_new_tokens=7, temperature=0))
    fed.clear()
    text = [*TURNS[0], *TURNS[1]]
    wanted = generate(model, [text], max_new_tokens=7, temperature=0)[0].tokens.tolist()
    fed.clear()
    assert said(conversation, text, max_new_tokens=7, temperature=0) == wanted
    assert fed[0] == len(TURNS[1])


def test_stop_tokens_and_texts_end_a_reply() -> None:
    model = model_of()
    whole = generate(model, [TURNS[0]], max_new_tokens=9, temperature=0)[0].tokens.tolist()
    stop = next(token for at, token in enumerate(whole) if at > 2 and token not in whole[:at])
    pieces = list(
        Conversation(model, ByteTokenizer()).reply(TURNS[0], max_new_tokens=9, temperature=0, stop_tokens=[stop])
    )
    assert [piece.token for piece in pieces] == whole[: whole.index(stop) + 1]
    assert (pieces[-1].ended, pieces[-1].text) == ("stop", "")
    rows = generate(model, [TURNS[0]], max_new_tokens=9, temperature=0, tokenizer=ByteTokenizer())
    text = rows[0].text[2]
    pieces = Conversation(model, ByteTokenizer()).reply(TURNS[0], max_new_tokens=9, temperature=0, stop=(text,))
    assert "".join(piece.text for piece in pieces) == rows[0].text[: rows[0].text.index(text)]


def test_positions_that_end() -> None:
    model = model_of(position="learned", max_length=10)
    conversation = Conversation(model, ByteTokenizer())
    reply = said(conversation, TURNS[0], max_new_tokens=50, temperature=0)
    assert len(reply) == 3  # the last one is not read
    assert len(said(conversation, [*TURNS[0], *reply[:2]], max_new_tokens=5)) == 1
    assert list(conversation.reply([*TURNS[0], *reply, 1, 2], max_new_tokens=0)) == []
    with pytest.raises(LimitError, match="the conversation has 12 tokens, and this model max_length=10; begin a new"):
        conversation.reply([*TURNS[0], *reply, 1], max_new_tokens=1)


def test_misuse_is_refused_at_the_call() -> None:
    conversation = Conversation(model_of(), ByteTokenizer())
    assert list(conversation.reply([1], max_new_tokens=0)) == []
    for options in (
        {"max_new_tokens": -1},
        {"max_new_tokens": 1, "temperature": "warm"},
        {"max_new_tokens": 1, "stop": ("",)},
        {"max_new_tokens": 1, "top_k": 0},
    ):
        with pytest.raises(ConfigError):
            conversation.reply([1], **options)
    with pytest.raises(InputError, match="is empty"):
        conversation.reply("", max_new_tokens=1)
