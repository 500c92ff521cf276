"""Options that make no sense are refused with the way out, and configurations import nothing heavy."""

import subprocess
import sys

import pytest

from regard.core.errors import ConfigError
from regard.text.tokenizer import ByteTokenizer
from regard_lab.tasks import CopyConfig, RecallConfig, TextConfig, build_task


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (TextConfig, {"length": 1}, "at least 2"),
        (TextConfig, {"holdout": 0.5}, "less than 0.5"),
        (TextConfig, {"tokenizer": "words"}, "bytes or bpe"),
        (TextConfig, {"vocab_size": 1000}, "tokenizer=bpe"),
        (TextConfig, {"tokenizer": "bpe", "vocab_size": 255}, "at least 256"),
        (TextConfig, {"separator": ""}, "non-empty"),
        (RecallConfig, {"length": 63}, "even"),
        (RecallConfig, {"length": 16, "num_pairs": 5}, "from 1 to 4"),
        (RecallConfig, {"vocab_size": 8, "num_pairs": 4}, "from 1 to 3"),
        (RecallConfig, {"num_pairs": 0}, "from 1 to"),
        (RecallConfig, {"alpha": 0.0}, "positive"),
        (RecallConfig, {"filler": "ones"}, "random or zeros"),
        (RecallConfig, {"num_examples": 0}, "at least 1"),
        (CopyConfig, {"length": 7}, "even"),
        (CopyConfig, {"vocab_size": 2}, "at least 3"),
        (CopyConfig, {"num_held_out": 0}, "at least 1"),
    ],
)
def test_refused(config: type, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        config(**options)
    assert f"task {config.name}" in str(error.value)


def test_a_tokenizer_is_for_text() -> None:
    with pytest.raises(ConfigError, match="no text"):
        build_task(CopyConfig(), tokenizer=ByteTokenizer())


def test_unknown_split() -> None:
    with pytest.raises(ConfigError, match="train, valid, test"):
        build_task(CopyConfig()).examples("validation")  # type: ignore[arg-type]


def test_configurations_import_neither_numpy_nor_tokenizers() -> None:
    code = "import sys, regard_lab.tasks; assert not {'numpy', 'tokenizers', 'torch', 'jaxtyping'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
