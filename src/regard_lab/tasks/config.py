"""Options of tasks: one frozen dataclass a task. Imports nothing heavy: the command line reads these first."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from regard.core.errors import ConfigError
from regard.core.types_of import typed, typed_fields

TEXT_CLASSES = ("song_ci", "state_of_the_union")
"""the bundled corpora that classification knows classes of"""
TOYS = "shapes"
"""the generated images, for tasks on images without a file"""
TEXTS, TABLES = (".txt", ".md", ".py"), (".jsonl", ".csv", ".parquet")
"""endings of files that are text, and of files with a text in every row"""


@typed_fields
@dataclass(frozen=True)
class TextConfig:
    """Next-token prediction on text, measured in bits per byte."""

    name: ClassVar[str] = "text"

    corpus: str = "state_of_the_union"
    """A bundled corpus (state_of_the_union, song_ci), the source code of this Python's standard library
    (python_library), a file of text (.txt, .md, .py), one with a text in every row (.jsonl, .csv, .parquet), a folder
    of such files; or a token store, which regard tokens build makes of text of any size."""
    tokenizer: Literal["bytes", "bpe", "published"] = "bytes"
    """bytes: the UTF-8 bytes themselves; bpe: byte-level byte-pair encoding, trained on the training split only;
    published: that of the weights that training starts from, which is so without being said."""
    vocab_size: int | None = None
    """Tokens of the bpe tokenizer; None: 4096 for bpe. The bytes tokenizer always has 256."""
    length: int = 256
    """Tokens in a window."""
    field: str | None = None
    """Column of .csv and .parquet files, or key of .jsonl files, that holds the text; None: text."""
    separator: str | None = None
    """Text that separates the documents of a file of text; None: a file is one document."""
    suffixes: tuple[str, ...] = ()
    """Of a folder, read the files with these endings, such as .md; none given: all that regard reads."""
    holdout: float = 0.05
    """Share of the documents that validation gets, and again as much for the test."""
    cache: str | None = None
    """Folder for token files; None: regard/ in $XDG_CACHE_HOME, or in ~/.cache."""

    @typed
    def __post_init__(self) -> None:
        _require(self.length >= 2, self, "length", "at least 2")
        _require(0 < self.holdout < 0.5, self, "holdout", "more than 0 and less than 0.5")
        _require_tokenizer(self)
        _require(self.separator is None or self.separator != "", self, "separator", "a non-empty string")
        known = (*TEXTS, *TABLES)
        _require(set(self.suffixes) <= set(known), self, "suffixes", f"some of {', '.join(known)}")


@dataclass(frozen=True)
class RecallConfig:
    """Multi-query associative recall (MQAR): pairs of key and value first, later each key asks for its value."""

    name: ClassVar[str] = "recall"

    vocab_size: int = 256
    """Tokens: keys are drawn from 1 .. vocab_size/2 - 1, values from the upper half."""
    length: int = 128
    """Tokens in a sequence: even, and at least 4 * num_pairs."""
    num_pairs: int = 8
    """Pairs to remember, all different keys and all different values."""
    alpha: float = 0.01
    """Exponent of the gaps: slot g of the questions has probability proportional to g^(alpha - 1)."""
    filler: Literal["random", "zeros"] = "random"
    """Tokens between the questions: random ones of the whole vocabulary, or zeros as in the paper's configs."""
    num_examples: int = 100_000
    """Training sequences."""
    num_held_out: int = 3_000
    """Validation sequences, and again as many for the test."""

    @typed
    def __post_init__(self) -> None:
        _require(self.length >= 2 and self.length % 2 == 0, self, "length", "an even number")
        most = min(self.length // 4, self.vocab_size // 2 - 1)
        allowed = f"from 1 to {most}: length / 4, and the number of keys, vocab_size / 2 - 1"
        _require(1 <= self.num_pairs <= most, self, "num_pairs", allowed)
        _require(self.alpha > 0, self, "alpha", "a positive number")
        _require(self.filler in ("random", "zeros"), self, "filler", "random or zeros")
        _require_sizes(self)


@dataclass(frozen=True)
class CopyConfig:
    """Copying: random tokens, a separator, and the same tokens again; only the copy counts."""

    name: ClassVar[str] = "copy"

    vocab_size: int = 64
    """Tokens: 0 is the separator, the others are copied."""
    length: int = 128
    """Tokens in a sequence: even; half of them are copied, each from length / 2 positions back."""
    num_examples: int = 100_000
    """Training sequences."""
    num_held_out: int = 3_000
    """Validation sequences, and again as many for the test."""

    @typed
    def __post_init__(self) -> None:
        _require(self.length >= 2 and self.length % 2 == 0, self, "length", "an even number")
        _require(self.vocab_size >= 3, self, "vocab_size", "at least 3: the separator and two tokens to tell apart")
        _require_sizes(self)


@dataclass(frozen=True)
class MaskedConfig(TextConfig):
    """Masked language modelling: tokens of a text are hidden and predicted from both sides."""

    name: ClassVar[str] = "masked"

    rate: float = 0.15
    """Share of the tokens of a window that are predicted."""
    summaries: int | None = None
    """Most tokens in front of a window that summarise a sentence each, global ones where a mechanism has such; the last
    one is for the rest. None: 32 for a model with a cpc_weight, else 0."""
    hidden_sentences: float | None = None
    """Share of these sentences that are hidden as a whole, for the contrastive loss of a model with a cpc_weight; their
    tokens are not predicted. None: 0.15 for such a model, else 0."""

    @typed
    def __post_init__(self) -> None:
        super().__post_init__()
        _require(0 < self.rate < 1, self, "rate", "more than 0 and less than 1")
        _require(self.summaries is None or self.summaries >= 0, self, "summaries", "at least 0")
        hidden = self.hidden_sentences or 0.0
        _require(0 <= hidden < 1, self, "hidden_sentences", "at least 0 and less than 1")
        _require(not hidden or bool(self.summaries), self, "hidden_sentences", "0 without summaries; set these too")

    def contrasting(self) -> "MaskedConfig":
        """The task for a model with a contrastive loss: what is not said gets the defaults of it.

        Raises:
            ConfigError: no summaries, or no hidden sentences, are asked for.
        """
        for name in ("summaries", "hidden_sentences"):
            _require(
                getattr(self, name) != 0, self, name, "more than 0 for a model with a cpc_weight, or set that to 0"
            )
        return replace(
            self,
            summaries=32 if self.summaries is None else self.summaries,
            hidden_sentences=0.15 if self.hidden_sentences is None else self.hidden_sentences,
        )


@dataclass(frozen=True)
class TranslationConfig:
    """Translation of sentences, measured by how well the references are predicted, and by chrF and BLEU."""

    name: ClassVar[str] = "translation"

    corpus: str = "new_testament.en-es"
    """The bundled English-Spanish verses (new_testament.en-es), or a .tsv file with lines `source TAB target`, and
    optionally `TAB document`."""
    tokenizer: Literal["bytes", "bpe"] = "bpe"
    """bpe: byte-level byte-pair encoding, trained on both sides of the training split; bytes: the UTF-8 bytes."""
    vocab_size: int | None = None
    """Tokens of the bpe tokenizer, for both languages; None: 4096."""
    length: int = 128
    """Most tokens on each side, the end included; longer pairs are left out and counted."""
    holdout: float | None = None
    """Share of a file's documents (of its lines, where it names none) that validation gets, and again as much for the
    test; None: 0.05. The bundled verses always hold out the same books."""

    @typed
    def __post_init__(self) -> None:
        _require(self.length >= 2, self, "length", "at least 2")
        _require(self.holdout is None or 0 < self.holdout < 0.5, self, "holdout", "more than 0 and less than 0.5")
        _require_tokenizer(self)


@dataclass(frozen=True)
class ClassificationConfig:
    """The class of a text or an image."""

    name: ClassVar[str] = "classification"

    data: str = "state_of_the_union"
    """state_of_the_union: the era of an address; song_ci: the tune that a poem was written to; a local file of texts,
    one in every row with its label (.jsonl, .csv, .parquet); shapes: generated toy images; or a local file of images:
    an .npz with train_images, train_labels, test_images and test_labels, or one of the four -ubyte.gz files of MNIST's
    kind, beside which the others lie."""
    field: str | None = None
    """Column of a file of texts that holds the text; None: text."""
    label_field: str | None = None
    """Column of a file of texts that holds the label; None: label."""
    test: str | None = None
    """Another file of texts that is the test as it is; None: a share of the data is."""
    test_field: str | None = None
    """Column of that file that holds the text; None: that of the data."""
    test_label_field: str | None = None
    """Column of that file that holds the label; None: that of the data."""
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    """Of texts. bytes: the UTF-8 bytes themselves; bpe: byte-pair encoding, trained on the training split only."""
    vocab_size: int | None = None
    """Tokens of the bpe tokenizer; None: 4096 for bpe. The bytes tokenizer always has 256."""
    length: int = 256
    """Tokens in an example of a text; a longer document is several examples."""
    summaries: int = 0
    """Most tokens in front of a text that summarise a sentence each, global ones where a mechanism has such; the last
    one is for the rest. 0: none."""
    num_classes: int = 10
    """Tunes of song_ci to tell apart, the most frequent ones."""
    patch: int = 4
    """Side of the squares that images are cut into; it divides the sides of the image."""
    holdout: float = 0.1
    """Share of the authors (images: of the training images) that validation gets, and again as much for the test
    (images have a test set). 0, for images only: train on all of them; validation is then the test set, so nothing may
    be chosen by it."""

    @typed
    def __post_init__(self) -> None:
        _require(self.length >= 2, self, "length", "at least 2")
        _require(self.summaries >= 0, self, "summaries", "at least 0")
        _require(not self.summaries or self.has_text, self, "summaries", "0 for images")
        tables = ", ".join(TABLES)
        for option in ("field", "label_field", "test"):
            given = getattr(self, option) is not None
            _require(not given or self.from_table, self, option, f"left out: it is for data in {tables}")
        _require(self.test is None or _is_table(self.test), self, "test", f"a file in {tables}")
        for option in ("test_field", "test_label_field"):
            given = getattr(self, option) is not None
            _require(not given or self.test is not None, self, option, "left out: it is for test")
        _require(self.text_column != self.label_column, self, "label_field", "another column than that of the text")
        columns = self.test_columns
        _require(columns[0] != columns[1], self, "test_label_field", "another column than that of the text")
        _require(self.num_classes >= 2, self, "num_classes", "at least 2")
        _require(self.patch >= 1, self, "patch", "at least 1")
        _require(0 <= self.holdout < 0.5, self, "holdout", "from 0 to less than 0.5")
        _require_tokenizer(self)

    @property
    def has_text(self) -> bool:
        """Whether it is texts that have classes; otherwise it is images."""
        return self.data in TEXT_CLASSES or self.from_table

    @property
    def from_table(self) -> bool:
        """Whether these are texts of a file."""
        return _is_table(self.data)

    @property
    def text_column(self) -> str:
        """Of a file of texts."""
        return "text" if self.field is None else self.field

    @property
    def label_column(self) -> str:
        """Of a file of texts."""
        return "label" if self.label_field is None else self.label_field

    @property
    def test_columns(self) -> tuple[str, str]:
        """Of the test file, those of the text and of the label."""
        return self.test_field or self.text_column, self.test_label_field or self.label_column


@dataclass(frozen=True)
class ImagesConfig:
    """The pixels of images, one after the other, measured in bits per dimension."""

    name: ClassVar[str] = "images"

    data: str = TOYS
    """shapes: generated toy images of 16 x 16 pixels, to try things out; or a local file of images, bytes (count,
    height, width) or (count, height, width, channels): an .npz with train_images and test_images, or with images alone;
    or one of the four -ubyte.gz files of MNIST's kind."""
    levels: int = 256
    """Different values of a channel that are told apart; below 256, the image is quantised."""
    query_block: tuple[int, int] | None = None
    """Rows and columns of the blocks that are generated one after the other, as image_local_2d needs; None: raster
    order."""
    holdout: float = 0.05
    """Share of the images that validation gets; and as much again for the test, where the file has none."""

    @typed
    def __post_init__(self) -> None:
        _require(2 <= self.levels <= 256, self, "levels", "from 2 to 256")
        _require(self.query_block is None or min(self.query_block) >= 1, self, "query_block", "two numbers from 1 on")
        _require(0 < self.holdout < 0.5, self, "holdout", "more than 0 and less than 0.5")


@dataclass(frozen=True)
class SuperResolutionConfig(ImagesConfig):
    """The pixels of images, given each image at a lower resolution."""

    name: ClassVar[str] = "super_resolution"

    factor: int = 4
    """Sides of the given image are so many times smaller, as 7 x 7 to 28 x 28."""

    @typed
    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.factor >= 2, self, "factor", "at least 2")


@dataclass(frozen=True)
class GraphConfig:
    """The class of every node of a random graph, from a word at each node and from its neighbours."""

    name: ClassVar[str] = "graph"

    nodes: int = 300
    """Nodes, all of them one sequence."""
    num_classes: int = 4
    """Classes of equal size: the blocks of a stochastic block model."""
    inside: int = 8
    """Neighbours of a node in its own class, on the average."""
    outside: int = 2
    """Neighbours of a node in other classes, on the average."""
    words: int = 4
    """Words that each class has."""
    signal: float = 0.4
    """Share of the nodes whose word is one of their class; the others have any word."""
    labelled: float = 0.2
    """Share of the nodes whose classes are trained on; half of the others are validation, half are the test."""
    seed: int = 0
    """Of the graph, the words and the split; the seed of a run is of its weights alone."""

    @typed
    def __post_init__(self) -> None:
        _require(self.num_classes >= 2, self, "num_classes", "at least 2")
        _require(self.words >= 1, self, "words", "at least 1")
        _require(0 <= self.signal <= 1, self, "signal", "from 0 to 1")
        _require(0 <= self.seed < 1 << 40, self, "seed", "from 0 to 2^40 - 1")
        _require(0 < self.labelled < 1, self, "labelled", "more than 0 and less than 1")
        least = max(10, 2 * self.num_classes)
        _require(self.nodes >= least, self, "nodes", f"at least {least}, with {self.num_classes} classes")
        own = -(-self.nodes // self.num_classes)
        for name, most in (("inside", (own - 1) // 2), ("outside", (self.nodes - own) // 2)):
            allowed = f"from 0 to {most}: half of the nodes that there are"
            _require(0 <= getattr(self, name) <= most, self, name, allowed)

    @property
    def length(self) -> int:
        """Tokens in the sequence: one for each node."""
        return self.nodes


TaskConfig = (
    TextConfig
    | RecallConfig
    | CopyConfig
    | MaskedConfig
    | TranslationConfig
    | ClassificationConfig
    | ImagesConfig
    | SuperResolutionConfig
    | GraphConfig
)


def _is_table(data: str) -> bool:
    return data.lower().endswith(TABLES)


def _require_tokenizer(config: TextConfig | TranslationConfig | ClassificationConfig) -> None:
    published = config.tokenizer == "published" and type(config) is TextConfig  # the others have tokens of their own
    _require(config.tokenizer in ("bytes", "bpe") or published, config, "tokenizer", "bytes or bpe")
    if published:
        _require(
            config.vocab_size is None, config, "vocab_size", "left out with tokenizer=published, which has its own"
        )
    elif config.tokenizer == "bytes":
        _require(
            config.vocab_size in (None, 256), config, "vocab_size", "256 with tokenizer=bytes; choose tokenizer=bpe"
        )
    else:
        _require(
            config.vocab_size is None or config.vocab_size >= 256, config, "vocab_size", "at least 256: every byte"
        )


def _require(valid: bool, config: TaskConfig, field: str, allowed: str) -> None:
    if not valid:
        value = getattr(config, field)
        raise ConfigError(f"task {config.name}: {field}={value!r} is not possible; it must be {allowed}")


def _require_sizes(config: RecallConfig | CopyConfig) -> None:
    _require(config.num_examples >= 1, config, "num_examples", "at least 1")
    _require(config.num_held_out >= 1, config, "num_held_out", "at least 1")
