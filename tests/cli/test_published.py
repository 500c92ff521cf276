"""Published weights on the command line, with their own attention and with another."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.integrations import pretrained
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.models import LanguageModel, presets

WORDS = ["[unk]", *"abcdefghij"]


@pytest.fixture
def network(tmp_path) -> str:
    """A folder with a small decoder of 24 learned positions whose words are letters, and a text of them."""
    shape = {"dim": 16, "heads": 4, "layers": 2, "vocab_size": len(WORDS), "max_length": 24, "dropout": 0.0}
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    model = LanguageModel(presets.build("gpt", **shape))
    pretrained.export(model, tmp_path / "letters", tokenizer=PretrainedTokenizer(tokenizer))
    (tmp_path / "text.txt").write_text("a b c d e f g h i j a c e g i b d f h j\n" * 5)
    return str(tmp_path / "letters")


def evaluated(regard, network: str, *words: str) -> dict[str, float]:
    answer = regard("evaluate", network, "--corpus", "text.txt", "--json", *words)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_evaluate_with_other_attention(regard, network):
    dense = evaluated(regard, network)
    wide = evaluated(regard, network, "--attention", "local(window=24)")
    narrow = evaluated(regard, network, "--attention", "local(window=1)")
    assert wide["tokens"] == dense["tokens"]
    assert wide["perplexity"] == pytest.approx(dense["perplexity"], rel=1e-5)
    assert narrow["perplexity"] != pytest.approx(dense["perplexity"], rel=1e-3)


def test_evaluate_with_more_positions(regard, network):
    words = ["--attention", "longformer(window=8)", "--length", "60"]
    answer = regard("evaluate", network, "--corpus", "text.txt", *words)
    assert answer.code == 6
    assert "windows of 60 tokens are longer than the network's 24 positions" in answer.err
    tokens = evaluated(regard, network)["tokens"]
    assert evaluated(regard, network, *words, "--max-length", "60")["tokens"] == tokens


def test_generate_with_other_attention_and_more_positions(regard, network):
    words = ["a b c", "--max-new-tokens", "8", "--temperature", "0"]
    dense, wide = regard("generate", network, *words), regard("generate", network, *words, "--attention", "local")
    assert dense.code == wide.code == 0
    assert wide.out == dense.out
    words[2] = "40"
    longer = regard("generate", network, *words, "--attention", "local(window=4)", "--max-length", "50")
    assert (longer.code, len(longer.out.split())) == (0, 40)
    refused = regard("generate", network, *words, "--attention", "locl")
    assert refused.code == 2
    assert "unknown mechanism 'locl'" in refused.err


@pytest.mark.parametrize("words", [["--attention", "local"], ["--max-length", "40"]])
@pytest.mark.parametrize("verb", ["evaluate", "generate"])
def test_a_run_keeps_its_attention(regard, run, verb, words):
    answer = regard(verb, run, *(["a"] if verb == "generate" else []), *words)
    assert answer.code == 2
    assert f"{words[0]} is for published weights" in answer.err
