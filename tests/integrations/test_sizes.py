"""Sizes in published files are compared with the tensors that are there, before anything of them is built."""

import json
import math
import resource
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from regard.checksums import MANIFEST, write_manifest
from regard.errors import CheckpointError, RegardError
from regard.integrations import pretrained
from regard.models import ModelConfig
from tests.integrations.test_pretrained import llama_file, network

SPARE = 1 << 29
"""bytes that a load may take; 10^7 layers or 10^12 tokens would take thousands of times as many"""
WRONG = (10**12, 10**20, 10**400, 10**7, (1 << 31) - 1, -1, math.inf, math.nan)
TITLES = (
    *("GPT2LMHeadModel", "LlamaForCausalLM", "BertForSequenceClassification", "RobertaModel", "LongformerModel"),
    *("BigBirdModel", "T5ForConditionalGeneration", "BartForConditionalGeneration"),
    "ViTForImageClassification",
)
SIZES = frozenset(
    {
        *("vocab_size", "type_vocab_size", "num_labels"),
        *("hidden_size", "n_embd", "d_model", "d_kv", "head_dim"),
        *("intermediate_size", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
        *("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"),
        *("num_attention_heads", "num_key_value_heads", "n_head", "num_heads"),
        *("patch_size", "num_channels", "image_size"),
        *("encoder_attention_heads", "decoder_attention_heads", "relative_attention_num_buckets"),
    }
)
"""that no wrong value is accepted for"""


@contextmanager
def little_memory() -> Iterator[None]:
    """What takes more than `SPARE` beyond what this process has fails inside, instead of the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(path: Path) -> bool:
    """Whether a file is refused by name; it must not take time or memory, whatever it says."""
    began = time.process_time()
    said = None
    with little_memory():
        try:
            pretrained.load(path)
        except RegardError as error:
            said = str(error)
    assert time.process_time() - began < 3
    assert said is None or str(path) in said
    return said is not None


def test_the_limit_of_memory_holds():
    with little_memory(), pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(SPARE)


@pytest.mark.parametrize("title", TITLES)
def test_sizes_of_a_configuration(title: str, tmp_path: Path):
    folder = tmp_path / title
    pretrained.export(network(title), folder)
    said = json.loads((folder / "config.json").read_text())
    said |= {"num_labels": 3} if "id2label" in said else {}
    numbers = [name for name, value in said.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    assert len(SIZES & set(numbers)) >= 5
    for name in numbers:
        for wrong in WRONG:
            changed = {**said, name: wrong}
            if name == "num_labels":
                del changed["id2label"]
            (folder / "config.json").write_text(json.dumps(changed))
            assert refused(folder) or name not in SIZES, (name, wrong)


@pytest.mark.parametrize("key", ["embedding_length", "feed_forward_length", "block_count", "attention.head_count"])
def test_sizes_of_a_gguf_file(key: str, tmp_path: Path):
    path = tmp_path / "it.gguf"
    llama_file(path)
    whole, name = path.read_bytes(), f"llama.{key}".encode()
    at = whole.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    for wrong in (
        struct.pack("<II", 4, (1 << 32) - 1),
        struct.pack("<II", 4, 10**7),
        struct.pack("<Ii", 5, -1),
        struct.pack("<If", 6, 1e12),
        struct.pack("<If", 6, 1e20),
        struct.pack("<If", 6, math.inf),
    ):
        path.write_bytes(whole[:at] + wrong + whole[at + 8 :])
        assert refused(path), wrong


def test_sizes_of_a_saved_network(tmp_path: Path):
    """Every number of its configuration, those that it does not say too."""
    folder = tmp_path / "it"
    pretrained.save(pretrained.load(exported(tmp_path / "published")), folder)
    whole = json.loads((folder / "network.json").read_text())
    numbers = [each.name for each in fields(ModelConfig) if "int" in str(each.type)]
    assert {"vocab_size", "short_convolution", "mlp_dim", "layers", "max_length"} <= {*numbers}
    for name in numbers:
        for wrong in WRONG:
            document = {**whole, "config": {**whole["config"], name: wrong}}
            (folder / "network.json").write_text(json.dumps(document))
            files = [path.name for path in folder.iterdir() if path.name != MANIFEST]
            write_manifest(folder, files)
            assert refused(folder) or name in ("max_length", "seed", "mlp_chunks"), (name, wrong)


def exported(folder: Path) -> Path:
    """A published decoder."""
    pretrained.export(network("LlamaForCausalLM"), folder)
    return folder


def test_sizes_that_are_small_each_and_large_together(tmp_path: Path):
    """Every axis is one that some tensor has, and the network is 10^6 times what is stored."""
    pretrained.export(network("BertModel"), tmp_path / "it")
    config, weights = tmp_path / "it" / "config.json", tmp_path / "it" / "model.safetensors"
    length = int.from_bytes(weights.read_bytes()[:8], "little")
    head = json.loads(weights.read_bytes()[8 : 8 + length])
    begin = max(entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__")
    head["long"] = {"dtype": "F32", "shape": [1 << 16], "data_offsets": [begin, begin + (1 << 18)]}
    text = json.dumps(head).encode()
    data = weights.read_bytes()[8 + length :] + bytes(1 << 18)
    weights.write_bytes(len(text).to_bytes(8, "little") + text + data)
    said = json.loads(config.read_text())
    config.write_text(json.dumps({**said, "hidden_size": 1 << 16, "intermediate_size": 1 << 16}))
    with little_memory(), pytest.raises(CheckpointError, match=r"config\.json describes a larger model than its"):
        pretrained.load(tmp_path / "it")


def test_an_axis_of_no_numbers_is_no_axis(tmp_path: Path):
    pretrained.export(network("BertModel"), tmp_path / "it")
    config, weights = tmp_path / "it" / "config.json", tmp_path / "it" / "model.safetensors"
    length = int.from_bytes(weights.read_bytes()[:8], "little")
    head = json.loads(weights.read_bytes()[8 : 8 + length])
    begin = max(entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__")
    head["none"] = {"dtype": "F32", "shape": [0, 10**12], "data_offsets": [begin, begin]}
    text = json.dumps(head).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + weights.read_bytes()[8 + length :])
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": 10**9}))
    with suppress(RegardError):
        pretrained.load(tmp_path / "it")
        pytest.fail("10^9 tokens were believed")
