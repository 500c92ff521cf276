"""Chat templates: rendered as transformers renders them, in a sandbox with limits; and conversations."""

import json
from functools import partial
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from regard.core.errors import CheckpointError, InputError, UnsafeFileError, UnsupportedError
from regard.integrations import chat, pretrained
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations.chat import Chat, ChatTemplate
from regard.models import LanguageModel, presets
from regard.text.confined import confined

CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
STRICT = """{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
        {%- continue %}
    {%- endif %}
    {{- '[INST] ' ~ message.content | trim ~ ' [/INST]' }}
    {{- {'ü': [1, none]} | tojson }}
{%- endfor %}"""
MESSAGES: list[chat.Message] = [
    {"role": "user", "content": "Hello, <b>wörld</b> 字"},
    {"role": "assistant", "content": "  Hi.\n"},
    {"role": "user", "content": "What\nnow?"},
]


def template(source: str, **tokens: str) -> ChatTemplate:
    return ChatTemplate(source, tokens, "here")


def test_a_template_is_rendered() -> None:
    assert template(CHATML).render(MESSAGES[:1]) == (
        "<|im_start|>user\nHello, <b>wörld</b> 字<|im_end|>\n<|im_start|>assistant\n"
    )
    found = template(STRICT, bos_token="<s>", eos_token="</s>").render(MESSAGES)
    assert found == (
        '<s>[INST] Hello, <b>wörld</b> 字 [/INST]{"ü": [1, null]}Hi.</s>[INST] What\nnow? [/INST]{"ü": [1, null]}'
    )


@pytest.mark.parametrize("source", [CHATML, STRICT])
def test_as_transformers_renders_it(source: str) -> None:
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    if not hasattr(utilities, "render_jinja_template"):
        pytest.skip("this transformers renders elsewhere")
    (wanted,), _ = utilities.render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert template(source, bos_token="<s>", eos_token="</s>").render(MESSAGES) == wanted


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("{% for x in", CheckpointError, "is none that Jinja reads: line 1"),
        ("{{ messages.nothing.at_all }}", InputError, "refuses this conversation: .*nothing"),
        ("{{ raise_exception('no system here') }}", InputError, "refuses this conversation: no system here"),
        ("{{ 1 / 0 }}", CheckpointError, "ZeroDivisionError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", CheckpointError, "RecursionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", UnsafeFileError, "is not safe: access to attribute"),
        ("{{ messages.append(1) }}", UnsafeFileError, "is not safe"),
        ("{% include '/etc/passwd' %}", CheckpointError, "no loader"),
        ("{{ range(10 ** 9) | list }}", CheckpointError, "OverflowError"),
        ("{{ 'a' * 2 ** 36 }}", UnsafeFileError, "is not safe: it takes too much memory"),
        ("{{ 'a' * 2 ** 23 }}", UnsafeFileError, "it makes 8,388,608 characters, and 4,194,304 are the most"),
        ("a" * (1 << 17) + "b", UnsafeFileError, "has 131,073 characters, and 131,072 are the most"),
    ],
)
def test_what_no_template_may_do(source: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        template(source).render(MESSAGES)


def test_a_template_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(UnsafeFileError, match="here: the chat template was stopped: it takes too much time or mem"):
        template(loop).render(MESSAGES)
    doubled = "{% set n = namespace(x='aa') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
    monkeypatch.setattr(chat, "confined", partial(confined, seconds=60))
    with pytest.raises(UnsafeFileError, match="too much memory"):
        template(doubled).render(MESSAGES)


WORDS = ["[unk]", "<|im_start|>", "<|im_end|>", "system", "user", "assistant", *"abcdefghij"]


def letters(folder: Path, *, stop_tokens: tuple[int, ...] = (2,)) -> Path:
    """A folder with a small decoder whose words are letters, and no template."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS[1:3]])
    model = LanguageModel(presets.build("llama", dim=16, heads=2, layers=2, vocab_size=len(WORDS), max_length=256))
    pretrained.export(model, folder, tokenizer=PretrainedTokenizer(tokenizer), stop_tokens=stop_tokens)
    return folder


def test_templates_of_folders(tmp_path: Path) -> None:
    folder = letters(tmp_path / "letters")
    with pytest.raises(UnsupportedError, match="has no chat template, so it is no model to converse with"):
        Chat(pretrained.load(folder))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    for stored in (CHATML, named):
        settings |= {"chat_template": stored, "eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        found = pretrained.load(folder).chat_template
        assert found is not None
        assert found.source == CHATML
        assert found.tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    (folder / "chat_template.jinja").write_text("of its own file")
    found = pretrained.load(folder).chat_template
    assert found is not None
    assert (found.source, found.where) == ("of its own file", str(folder / "chat_template.jinja"))
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(CheckpointError, match="chat_template must be text, got int"):
        pretrained.load(folder)


def test_templates_of_gguf_files() -> None:
    names = {"tokenizer.ggml.tokens": ["<s>", "a", "</s>"], "tokenizer.ggml.eos_token_id": 2}
    found = chat.from_gguf({**names, "tokenizer.chat_template": "x"}, Path("a.gguf"))
    assert found == ChatTemplate("x", {"eos_token": "</s>"}, "a.gguf")
    assert chat.from_gguf(names, Path("a.gguf")) is None
    with pytest.raises(CheckpointError, match=r"a\.gguf: tokenizer\.chat_template must be text, got int"):
        chat.from_gguf({"tokenizer.chat_template": 3}, Path("a.gguf"))


@pytest.fixture
def instruct(tmp_path: Path) -> pretrained.PublishedModel:
    folder = letters(tmp_path / "instruct")
    (folder / "chat_template.jinja").write_text(CHATML)
    return pretrained.load(folder)


def test_a_conversation_reads_only_what_is_new(instruct, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    hidden = LanguageModel.hidden

    def counted(self, tokens, **options):
        fed.append(tokens.shape[1])
        return hidden(self, tokens, **options)

    monkeypatch.setattr(LanguageModel, "hidden", counted)
    talk = Chat(instruct, system="a b")
    replies = []
    for said in ("c d e", "f", "g h"):
        fed.clear()
        replies.append("".join(talk.say(said, temperature=1, max_new_tokens=9, seed=4)))
        rendered = instruct.reader.encode(talk.template.render(talk.messages[:-1]), added=False)
        assert sum(fed) < len(rendered) + 9 or len(replies) == 1
    # <start> user f <end> <start> assistant, and of the reply before what was drawn last: a stop token or a word
    assert fed[0] < len(rendered) / 2
    assert talk.messages[0] == {"role": "system", "content": "a b"}
    assert [message["content"] for message in talk.messages[2::2]] == replies
    assert not any("im_end" in reply for reply in replies)
