"""generate --chat: a reply to every line, until the input ends."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from regard.integrations import pretrained
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations.chat import Chat
from regard.models import LanguageModel, presets

WORDS = ["[unk]", "<user>", "<model>", "<end>", "<system>", *"abcdefghij"]
TEMPLATE = """{% for m in messages %}
<{{ 'model' if m.role == 'assistant' else m.role }}> {{ m.content }} <end>
{%- endfor %}<model>"""


@pytest.fixture
def instruct(tmp_path) -> Path:
    """A folder with a small decoder whose words are letters, and a chat template."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS[1:5]])
    shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": len(WORDS), "max_length": 64, "dropout": 0.0}
    model = LanguageModel(presets.build("gpt", **shape))
    folder = tmp_path / "instruct"
    pretrained.export(model, folder, tokenizer=PretrainedTokenizer(tokenizer), stop_tokens=(3,))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_every_line_has_a_reply(regard, instruct):
    words = ["--chat", "--max-new-tokens", "5", "--seed", "3", "--system", "j i"]
    answer = regard("generate", instruct, *words, stdin=b"a b\n\n  \nc\nd e f")
    assert answer.code == 0, answer.err
    chat = Chat(pretrained.load(instruct), system="j i")
    wanted = ["".join(chat.say(said, max_new_tokens=5, seed=3)) for said in ("a b", "c", "d e f")]
    assert answer.out == "".join(f"{reply}\n" for reply in wanted)
    assert answer.err == ""
    assert regard("generate", instruct, "--chat", stdin=b"") == type(answer)(0, "", "")


def test_on_a_terminal_it_says_how_it_ends(regard, instruct, monkeypatch):
    said = iter(["a b", "c"])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answer = regard("generate", instruct, "--chat", "--max-new-tokens", "3")
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == 2
    assert answer.err == "Write a line and press Enter; Ctrl-D ends.\n\n"


def test_control_characters_of_a_file_do_not_reach_a_terminal(regard, instruct, monkeypatch):
    """Of its tokens, which a pipe gets as they are; of its names, which a message has; in JSON they are escaped."""
    file = instruct / "tokenizer.json"
    file.write_text(file.read_text().replace('"a"', '"\\u001b[2Ja\\u009b"'))
    words = ("generate", instruct, "b c", "--max-new-tokens", "30")
    piped = regard(*words).out
    assert "\x1b[2Ja\x9b" in piped
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert regard(*words).out == piped.replace("\x1b", "\\u001b").replace("\x9b", "\\u009b")
    lines = regard(*words, "--json").out
    assert json.loads(lines)["text"] + "\n" == piped
    assert "\x9b" not in lines
    (instruct / "config.json").write_text(json.dumps({"model_type": "\x1b[2J\x9b"}))
    answer = regard(*words)
    assert answer.code == 2
    assert "\\u001b[2J" in answer.err or "\\x1b[2J" in answer.err
    assert "\x1b" not in answer.err


def test_a_conversation_that_became_too_long(regard, instruct):
    answer = regard("generate", instruct, "--chat", "--max-new-tokens", "40", "--seed", "1", stdin=b"a\n" * 40)
    assert answer.code == 6
    assert "this model max_length=64; begin a new one" in answer.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["a prompt"], 2, "--chat reads what you say line by line; leave 'a prompt' out"),
        (["--beam", "2"], 2, "converses: --beam has no use for it"),
        (["--temperature", "-1"], 2, "temperature must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(regard, instruct, words, code, message):
    answer = regard("generate", instruct, *words, "--chat", stdin=b"a\n")
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_models_that_do_not_converse(regard, instruct, run):
    (instruct / "chat_template.jinja").unlink()
    answer = regard("generate", instruct, "--chat", stdin=b"a\n")
    assert (answer.code, answer.out) == (2, "")
    assert "instruct has no chat template, so it is no model to converse with" in answer.err
    answer = regard("generate", "run", "--chat", stdin=b"a\n")
    assert (answer.code, answer.out) == (2, "")
    assert "no run is trained to converse: --chat is for published weights" in answer.err
    (instruct / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    answer = regard("generate", instruct, "--chat", stdin=b"a\n")
    assert (answer.code, answer.out) == (4, "")
    assert "the chat template is not safe" in answer.err
