"""Text that a published tokenizer reads: bytes are those of the text, whatever the tokens are."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.core.errors import CheckpointError, ConfigError, DataError, UnsafeFileError
from regard.text import pretrained_tokenizer
from regard.text.pretrained_tokenizer import PretrainedTokenizer, model_of
from regard.text.tokenizer import load_tokenizer, tokenizer_from_json
from regard_lab.tasks import (
    IGNORE,
    ClassificationConfig,
    MaskedConfig,
    TextConfig,
    TextTask,
    TranslationConfig,
    build_task,
    ngram_bits_per_byte,
    xz_bits_per_byte,
)

LINES = [f"The moon is {at}: 明月 né, and {at * 7919} follows.\n" for at in range(60)]


def byte_level() -> Tokenizer:
    """As GPT-2's, with a token in front of every text."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    model.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>"], initial_alphabet=letters, show_progress=False)
    model.train_from_iterator(LINES, trainer)
    model.post_processor = processors.TemplateProcessing(single="<s>:0 $A:0", special_tokens=[("<s>", 0)])  # type: ignore[assignment]
    return model


def lowered() -> Tokenizer:
    """As BERT's: lower case without accents, words of letters, tokens at both ends, white space in none."""
    letters = sorted(set("".join(LINES).lower().replace("é", "e")) - {" ", "\n"})
    pieces = ["[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    model = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    model.normalizer = normalizers.BertNormalizer()  # type: ignore[assignment]
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    marks = [("[CLS]", 1), ("[SEP]", 2)]
    model.post_processor = processors.TemplateProcessing(single="[CLS]:0 $A:0 [SEP]:0", special_tokens=marks)  # type: ignore[assignment]
    model.decoder = decoders.WordPiece()  # type: ignore[assignment]
    return model


def spaced() -> Tokenizer:
    """As Llama's: a space in front of the text, and bytes where a character has no token."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *sorted(set("Themoniw:,adlf0123456789.\n"))]
    model = Tokenizer(
        models.BPE({piece: at for at, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # type: ignore[assignment]
    model.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])  # type: ignore[assignment]
    return model


def stripped() -> Tokenizer:
    """As Llama 2's: its decoder takes the first space away."""
    model = spaced()
    model.pre_tokenizer = None  # type: ignore[assignment]
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # type: ignore[assignment]
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(steps)  # type: ignore[assignment]
    model.add_special_tokens(["<s>", "</s>"])
    return model


KINDS = {"byte_level": byte_level, "lowered": lowered, "spaced": spaced}


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "lines.txt"
    path.write_text("".join(LINES), encoding="utf-8")
    return str(path)


def read(tmp_path: Path, corpus: str, tokenizer: PretrainedTokenizer, length: int = 16) -> TextTask:
    config = TextConfig(
        corpus=corpus, tokenizer="published", length=length, separator="\n", holdout=0.1, cache=str(tmp_path / "cache")
    )
    task = build_task(config, tokenizer=tokenizer)
    assert isinstance(task, TextTask)
    return task


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_of_the_text(tmp_path, corpus, kind):
    tokenizer = PretrainedTokenizer(KINDS[kind](), 400)
    task = read(tmp_path, corpus, tokenizer)
    assert task.vocab_size == 400
    texts = {line.removesuffix("\n") for line in LINES}
    for split in ("train", "valid", "test"):
        windows = task.examples(split)
        ids, starts = windows.tokens.ids, windows.tokens.starts
        edges = np.concatenate([[0], np.cumsum(windows.sizes(0, len(ids)))])
        whole = windows.tokens.text.tobytes()
        assert edges[-1] == len(whole)
        found = [whole[edges[a] : edges[b]].decode() for a, b in pairwise(starts)]
        assert set(found) <= texts
        texts -= set(found)
        for text, (a, b) in zip(found, pairwise(starts), strict=True):
            assert ids[a:b].tolist() == tokenizer.encode(text).tolist()
        counted = sum(example.nbytes for example in windows)
        first = sum(
            int(windows.sizes(int(start), int(start) + 1)[0]) for start in starts[:-1]
        )  # which is not predicted
        assert counted == len(whole) - first
    assert not texts


@pytest.mark.parametrize("kind", KINDS)
def test_baselines_code_the_same_bytes(tmp_path, corpus, kind):
    task = read(tmp_path, corpus, PretrainedTokenizer(KINDS[kind](), 400))
    nbytes = np.zeros(task.examples("valid").num_documents, np.int64)
    for example in task.examples("valid"):
        nbytes[example.document] += example.nbytes
    ngram, xz = ngram_bits_per_byte(task), xz_bits_per_byte(task)
    assert ngram.nbytes.tolist() == nbytes.tolist()
    assert xz.nbytes.tolist() == [nbytes.sum()]
    config = TextConfig(corpus=corpus, length=16, separator="\n", holdout=0.1, cache=str(tmp_path / "cache"))
    plain = build_task(config)  # its ends of documents are bytes too
    assert ngram.bits_per_byte == pytest.approx(ngram_bits_per_byte(plain).bits_per_byte, rel=0.1)
    assert xz.bits_per_byte == pytest.approx(xz_bits_per_byte(plain).bits_per_byte, rel=0.1)


@pytest.mark.parametrize("kind", [*KINDS.values(), stripped])
def test_a_continuation_is_what_follows_the_text_before_it(kind):
    """Whatever tokens it begins with, special ones and single bytes among them, and however they are given."""
    tokenizer, draw, same = PretrainedTokenizer(kind()), np.random.default_rng(0), 0
    for _ in range(150):
        before = tokenizer.encode(LINES[draw.integers(len(LINES))][: draw.integers(30)])
        new = draw.integers(0, tokenizer.vocab_size, draw.integers(30))
        prompt, whole = tokenizer.decode(before), tokenizer.decode([*before, *new])
        if not whole.startswith(prompt):  # the last character of the prompt is whole only with the next tokens
            continue
        same += 1
        stream = tokenizer.stream(before)
        pieces = [stream.feed(some) for some in np.split(new, len(new))] if len(new) else []
        assert prompt + "".join(pieces) + stream.finish() == whole
        assert prompt + tokenizer.continuation(new, before) == whole
    assert same > 90


@pytest.mark.parametrize("kind", [byte_level, spaced, stripped])
def test_a_continuation_completes_the_character_that_the_text_before_it_begins(kind):
    tokenizer, halves = PretrainedTokenizer(kind()), 0
    ids = tokenizer.encode("The né 明 moon")
    for at in range(len(ids)):
        prompt, stream = tokenizer.decode(ids[:at]), tokenizer.stream(ids[:at])
        found = "".join(stream.feed([each]) for each in ids[at:]) + stream.finish()
        assert prompt.rstrip("\ufffd") + found == tokenizer.decode(ids)
        halves += prompt.endswith("\ufffd")
    assert halves


def test_the_files_are_read_again(tmp_path, corpus):
    tokenizer = PretrainedTokenizer(byte_level())
    first = read(tmp_path, corpus, tokenizer)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(again, PretrainedTokenizer)
    assert again.vocab_size == tokenizer.vocab_size
    second = read(tmp_path, corpus, again)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == files
    assert second.fingerprint == first.fingerprint
    assert second.examples("valid")[0].inputs.tolist() == first.examples("valid")[0].inputs.tolist()
    damaged = next((tmp_path / "cache").rglob("valid.nbytes"))
    damaged.write_bytes(b"\1" * damaged.stat().st_size)
    with pytest.raises(DataError, match=r"valid\.nbytes is damaged"):
        read(tmp_path, corpus, tokenizer)


def test_more_tokens_than_sixteen_bits_count(tmp_path):
    words = [f"w{at}" for at in range(65_600)]
    model = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "w0"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    path = tmp_path / "words.txt"
    path.write_text("\n".join(f"w{at} w65599 w{at + 65_536} w3" for at in range(20)))
    task = read(tmp_path, str(path), PretrainedTokenizer(model), length=3)
    targets = np.concatenate([example.targets for example in task.examples("train")])
    assert (targets[targets != IGNORE].reshape(-1, 3)[:, 0] == 65_599).all()
    assert targets.max() == 65_599


def test_only_text_reads_with_it(tmp_path, corpus):
    tokenizer = PretrainedTokenizer(byte_level())
    for config in (MaskedConfig(corpus=corpus), TranslationConfig(), ClassificationConfig(data="song_ci")):
        with pytest.raises(ConfigError, match=f"task {config.name} needs a token that no text can hold"):
            build_task(config, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match="regard train --from"):
        build_task(TextConfig(corpus=corpus, tokenizer="published", cache=str(tmp_path)))
    with pytest.raises(ConfigError, match="bytes or bpe"):
        MaskedConfig(tokenizer="published")


def test_it_is_described_whole():
    tokenizer = PretrainedTokenizer(lowered(), 500)
    again = tokenizer_from_json(tokenizer.to_json())
    assert again.to_json() == tokenizer.to_json()
    assert (again.kind, again.vocab_size) == ("published", 500)
    text = "The moon is 7: né"
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_a_vocabulary_that_lacks_what_it_needs_is_named():
    """The library raises a bare Exception for a word that is unknown where the unknown token is, too."""
    model = Tokenizer(models.WordLevel({"known": 0}, unk_token="[UNK]"))
    tokenizer = PretrainedTokenizer(model)
    assert tokenizer.encode("known").tolist() == [0]
    for read in (tokenizer.encode, tokenizer.document):
        with pytest.raises(CheckpointError, match=r"its tokenizer\.json is damaged or incomplete: WordLevel error"):
            read("other")


def doubled(text: str) -> dict:
    return {"type": "Replace", "pattern": {"String": text}, "content": 2 * text}


MANY = 5000
BOMBS = {
    "template": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "to", "type_id": 0}}] * MANY + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"to": {"id": "to", "ids": [0] * 10, "tokens": ["to"] * 10}},
        }
    },
    "normalizer": {"normalizer": {"type": "Sequence", "normalizers": [doubled("明")] * 40}},
    "decoder": {"decoder": {"type": "Sequence", "decoders": [doubled("to")] * 40}},
    "long": {"decoder": {"type": "Sequence", "decoders": [{**doubled("to"), "content": "y" * 1000}]}},
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_tokenizer_without_end_is_refused(kind):
    described = json.loads(Tokenizer(models.WordLevel({"to": 0}, unk_token="to")).to_str()) | BOMBS[kind]
    with pytest.raises(UnsafeFileError, match=r"a\.json (was stopped: it takes too much|makes 50,\d\d\d tok|.* 1,000)"):
        model_of(json.dumps(described), "a.json")
    if kind == "long":  # as a run keeps it
        run = {"kind": "published", "vocab_size": 3, "model": described}
        with pytest.raises(DataError, match="no description of a published tokenizer: the published tokenizer"):
            tokenizer_from_json(json.dumps(run))


def test_a_larger_tokenizer_is_given_more_time_and_memory_to_be_tried_in(monkeypatch):
    given = []

    def noted(request, *_, seconds, size):
        given.append((seconds, size))
        return 1, 1

    monkeypatch.setattr(pretrained_tokenizer, "confined", noted)
    described = Tokenizer(models.WordLevel({"to": 0, "be": 1}, unk_token="to")).to_str()
    for blanks in (0, 3 << 20):
        model_of(described + " " * blanks, "a.json")
    (seconds, size), (more_seconds, more_size) = given
    assert more_seconds > seconds
    assert more_size >= size + (3 << 27)


def test_a_panic_of_the_library_is_an_error_of_the_file():
    """It is no `Exception`: this expression takes more steps than its engine allows."""
    model = Tokenizer(models.WordLevel({"to": 0}, unk_token="to"))
    model.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")  # type: ignore[assignment]
    tokenizer = PretrainedTokenizer(model_of(model.to_str(), "a.json"))
    assert tokenizer.encode("to").tolist() == [0]
    with pytest.raises(CheckpointError, match=r"its tokenizer\.json is damaged or incomplete: Onig"):
        tokenizer.encode("a" * 40 + "b")
    with pytest.raises(CheckpointError, match=r"a\.json is none that the tokenizers library reads: expected value"):
        model_of("\x1b[2J", "a.json")
