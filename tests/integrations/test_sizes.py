"""Sizes in published files are compared with the tensors that are there."""

import json
import math
import re
import struct
from pathlib import Path

import pytest

from regard.core.errors import RegardError
from regard.integrations import pretrained
from tests.integrations.test_pretrained import llama_file, network

WRONG = (4099, -1, 1.5, math.inf)
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


@pytest.mark.parametrize("title", TITLES)
def test_sizes_of_a_configuration(title: str, tmp_path: Path):
    folder = tmp_path / title
    pretrained.export(network(title), folder)
    said = json.loads((folder / "config.json").read_text())
    said |= {"num_labels": 3} if "id2label" in said else {}
    assert len(SIZES & said.keys()) >= 5
    for name in SIZES & said.keys():
        for wrong in WRONG:
            changed = {**said, name: wrong}
            if name == "num_labels":
                del changed["id2label"]
            (folder / "config.json").write_text(json.dumps(changed))
            with pytest.raises(RegardError, match=re.escape(str(folder))):
                pretrained.load(folder)


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
        struct.pack("<If", 6, math.inf),
    ):
        path.write_bytes(whole[:at] + wrong + whole[at + 8 :])
        with pytest.raises(RegardError, match=re.escape(str(path))):
            pretrained.load(path)
