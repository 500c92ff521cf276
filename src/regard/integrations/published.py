"""A published network, loaded: what it does with text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.core.errors import ConfigError, InputError, UnsupportedError, kind_of
from regard.core.types_of import typed
from regard.integrations import _embedding, _sentence
from regard.integrations import folder as _folder
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.integrations.architectures import Config
from regard.integrations.chat import ChatTemplate
from regard.models import Encoder, EncoderDecoder, LanguageModel
from regard.models.beam import beam_search
from regard.models.generate import generate


@dataclass(frozen=True)
class PublishedModel:
    """A published network, or what became of it: in evaluation mode, and in float32 unless it was saved otherwise.

    tokenizer: None if the folder has none. config: its shape. stop_tokens: ids that end a text. architecture: as its
    publisher calls it. chat_template: how a conversation is written for it (`regard.integrations.chat`), if it has one.
    classes: names of those that its head tells apart, in the order of its logits; none if it has no such head or names.
    sentence: how it makes a vector of a text, in the files of sentence-transformers, by their names.
    tokenizer_settings, generation: of tokenizer_config.json and generation_config.json, which `export` writes again.
    """

    model: nn.Module
    tokenizer: PretrainedTokenizer | None
    config: Config
    stop_tokens: tuple[int, ...]
    architecture: str
    path: Path
    chat_template: ChatTemplate | None = None
    classes: tuple[str, ...] = ()
    sentence: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_settings: Mapping[str, object] = field(default_factory=dict)
    generation: Mapping[str, object] = field(default_factory=dict)

    @typed
    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: tuple[str, ...] = (),
    ) -> str:
        """Continue a text; the continuation alone. Options as `regard.models.generate`.

        Raises:
            ConfigError: there is no tokenizer. UnsupportedError: the network does not continue texts.
        """
        if not isinstance(prompt, str):
            raise InputError(f"generate continues one text, got {kind_of(prompt)}; call it once for each")
        rows = generate(
            self.decoder,
            [prompt],
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop,
            stop_tokens=self.stop_tokens,
            tokenizer=self.reader,
        )
        return rows[0].text

    @typed
    def answer(self, text: str, *, max_new_tokens: int = 200, beams: int = 4, alpha: float = 0.6) -> str:
        """The answer of an encoder-decoder to a text, such as its translation; options as `regard.models.beam`.

        Raises:
            ConfigError: there is no tokenizer. UnsupportedError: the network is no encoder-decoder.
        """
        if not isinstance(self.model, EncoderDecoder):
            raise UnsupportedError(f"{self.path} is a {self.architecture}, which reads no source")
        ids = self.reader.encode(text)
        (hypotheses,) = beam_search(self.model, [ids], max_new_tokens=max_new_tokens, beams=beams, alpha=alpha)
        return self.reader.decode(hypotheses[0].tokens.tolist())

    @typed
    def embed(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        unit: bool | None = None,
        pooling: str | Sequence[str] | None = None,
        prompt: str | None = None,
        truncate: bool = False,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Float[Tensor, "texts dim"]:
        """One vector for each text: the encoder's hidden states, pooled over its tokens.

        A folder of sentence-transformers says how. For any other, a vector is the mean of the hidden states divided by
        its length, so that inner products are cosines.

        Args:
            texts: in any number.
            batch_size: texts at a time; those of like length share a batch.
            unit: divide each vector by its length; None: as the folder says.
            pooling: cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken, or several, whose vectors are
                joined; None: as the folder says.
            prompt: name of one of the folder's, put in front of every text; empty: none; None: its default one.
            truncate: cut texts that are too long, as sentence-transformers does, instead of refusing them.
            progress: told how many vectors there are.

        Raises:
            ConfigError: there is no tokenizer, or no such pooling or prompt.
            UnsupportedError: the network has no encoder of its own, or the folder names other modules.
            CheckpointError: settings of the folder that are not understood.
            LimitError: a text of more tokens than the network has positions, or than the folder says.
        """
        encoder = getattr(self.model, "encoder", self.model)
        if not isinstance(encoder, Encoder):
            raise UnsupportedError(f"{self.path} is a {self.architecture}, which has no encoder")
        recipe = _sentence.recipe(
            self.sentence, encoder.config.dim, self.path, unit=unit, pooling=pooling, prompt=prompt
        )
        return _embedding.embed(
            encoder, self.reader, texts, recipe, batch_size=batch_size, truncate=truncate, progress=progress
        )

    @property
    def decoder(self) -> LanguageModel:
        """The model, if it is one that continues texts.

        Raises:
            UnsupportedError: it is not.
        """
        if not isinstance(self.model, LanguageModel):
            instead = "regard embed makes vectors of texts. " if self.tokenizer else ""
            if isinstance(self.model, EncoderDecoder):
                instead = "In Python, `answer` gives its answer to a text. "
            raise UnsupportedError(
                f"{self.path} is a {self.architecture}, which does not continue texts. {instead}regard explore shows "
                "its attention"
            )
        return self.model

    @property
    def reader(self) -> PretrainedTokenizer:
        """The tokenizer.

        Raises:
            ConfigError: the folder has none.
        """
        if self.tokenizer is None:
            raise ConfigError(f"{self.path} has no {_folder.TOKENIZER}, so it cannot read text; use `.model` with ids")
        return self.tokenizer
