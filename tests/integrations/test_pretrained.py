"""Folders and GGUF files of published networks: there and back, and every problem of a bad one said at once.

Parity with transformers is in tests/external.
"""

import json
import struct
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from regard.attention.sparse.bigbird import Bigbird
from regard.core.errors import (
    CheckpointError,
    ConfigError,
    InputError,
    LimitError,
    NumericsError,
    UnsafeFileError,
    UnsupportedError,
)
from regard.integrations import pretrained
from regard.integrations.architectures.big_bird import published_blocks
from regard.integrations.chat import ChatTemplate
from regard.integrations.pretrained import PretrainedTokenizer
from regard.models import (
    Classifier,
    Encoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    LanguageModel,
    MaskedLanguageModel,
    presets,
)

TINY = {"vocab_size": 29, "dim": 12, "layers": 2, "heads": 2, "max_length": 20, "dropout": 0.0}
WIDE = {**TINY, "mlp_dim": 20}
WORDS = ["[unk]", "[end]", "to", "be", "or", "not", "that", "is", "the", "question"]


def encoder(name: str, **options: object) -> Encoder:
    return Encoder(presets.build(name, **WIDE, **options))


def decoder(name: str, **options: object) -> LanguageModel:
    return LanguageModel(presets.build(name, **WIDE, **options))


def sparse(*attention: str, **options: object) -> Encoder:
    """RoBERTa's encoder with other attention in each layer, and rows of global tokens."""
    config = replace(presets.build("roberta", **WIDE), attention=attention, projections="global")
    return Encoder(replace(config, **options))


def blocks(spec: str) -> Encoder:
    """BERT's encoder with BigBird's attention and the random blocks of its authors."""
    config = replace(presets.build("bert", **WIDE), attention=(spec,), mlp="gelu_tanh", projection_bias=False)
    encoder = Encoder(replace(config, embedding_scale=12**0.5))
    for layer, each in enumerate(encoder.mechanisms):
        assert isinstance(each, Bigbird)
        count, size = each.num_random, each.block_size
        each.place(published_blocks(2, each.picks.shape[1], count, layer=layer, size=size))
    return encoder


IMAGE = (3, 6, 8)


def vit() -> Encoder:
    """Images of 3 x 4 patches of 2 x 2 pixels of 3 channels."""
    shape = {"dim": 12, "layers": 2, "heads": 2, "mlp_dim": 20, "dropout": 0.0}
    return Encoder(presets.build("vit", **shape, image=IMAGE, input_dim=12, max_length=13))


WINDOWS = "longformer(window=3, num_global=0)", "longformer(window=1, num_global=0)"
BLOCKS = "bigbird(block_size=2, num_random=2)"
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GPT2LMHeadModel": lambda: LanguageModel(presets.build("gpt", **WIDE)),
    "LlamaForCausalLM": lambda: LanguageModel(presets.build("llama", **{**WIDE, "kv_heads": 1})),
    "MistralForCausalLM": lambda: LanguageModel(
        replace(presets.build("llama", **{**WIDE, "kv_heads": 1}), attention=("local(window=2)",))
    ),
    "Qwen2ForCausalLM": lambda: LanguageModel(replace(presets.build("llama", **WIDE), projection_bias=True)),
    "BertModel": lambda: encoder("bert"),
    "BertForMaskedLM": lambda: MaskedLanguageModel(encoder("bert")),
    "BertForSequenceClassification": lambda: Classifier(encoder("bert"), classes=3),
    "RobertaModel": lambda: encoder("roberta"),
    "RobertaForMaskedLM": lambda: MaskedLanguageModel(encoder("roberta")),
    "RobertaForSequenceClassification": lambda: Classifier(encoder("roberta"), classes=3),
    "LongformerModel": lambda: sparse(*WINDOWS),
    "LongformerForMaskedLM": lambda: MaskedLanguageModel(sparse(WINDOWS[0])),
    "LongformerForSequenceClassification": lambda: Classifier(sparse("longformer(window=3)"), classes=3),
    "BigBirdModel": lambda: blocks(BLOCKS),
    "BigBirdForMaskedLM": lambda: MaskedLanguageModel(blocks(BLOCKS), activation="gelu_tanh"),
    "BigBirdForSequenceClassification": lambda: Classifier(blocks(BLOCKS), classes=3, activation="gelu_tanh"),
    "ViTModel": vit,
    "ViTForImageClassification": lambda: Classifier(vit(), classes=3),
    "T5ForConditionalGeneration": lambda: EncoderDecoder(presets.build("t5", **{**WIDE, "head_dim": 8})),
    "BartForConditionalGeneration": lambda: EncoderDecoder(presets.build("bart", **WIDE)),
}


def network(title: str) -> nn.Module:
    """With random numbers everywhere, where biases and norms begin as 0 and 1."""
    model = NETWORKS[title]().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=draw))
    return model


def logits(model: nn.Module) -> Tensor:
    tokens = torch.tensor([[3, 7, 28, 1], [4, 4, 0, 9]])
    images = torch.randn(2, *IMAGE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if isinstance(model, Encoder):
            tables = model.embeddings.types is not None
            return model(tokens, token_types=tokens * 0).hidden if tables else model(images).hidden
        if isinstance(model, Classifier) and model.encoder.config.image:
            return model(images).logits
        return model(tokens, tokens[:, :3]).logits if isinstance(model, EncoderDecoder) else model(tokens).logits


def words() -> PretrainedTokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    return PretrainedTokenizer(tokenizer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT without a head."""
    pretrained.export(network("BertModel"), tmp_path / "bert", tokenizer=words())
    return tmp_path / "bert"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


@pytest.mark.parametrize("title", NETWORKS)
def test_what_is_written_is_read_as_the_same_network(title: str, tmp_path: Path) -> None:
    model = network(title)
    reads = not title.startswith("ViT")
    pretrained.export(model, tmp_path / "it", tokenizer=words() if reads else None)
    assert json.loads((tmp_path / "it" / "config.json").read_text())["architectures"] == [title]
    loaded = pretrained.load(tmp_path / "it")
    assert type(loaded.model) is type(model)
    assert not loaded.model.training
    assert torch.equal(logits(loaded.model), logits(model))
    if not reads:
        assert loaded.tokenizer is None
        return
    assert loaded.reader.decode(loaded.reader.encode("to be or not to be")) == "to be or not to be"


def test_names_are_those_that_are_published(tmp_path: Path) -> None:
    pretrained.export(network("BertForMaskedLM"), tmp_path / "bert")
    names = set(load_file(tmp_path / "bert" / "model.safetensors"))
    layer = "bert.encoder.layer.1."
    inside = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    inside += ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"]
    assert {name for name in names if name.startswith(layer)} == {
        f"{layer}{part}.{kind}" for part in inside for kind in ("weight", "bias")
    }
    head = {"transform.dense.weight", "transform.dense.bias", "transform.LayerNorm.weight", "transform.LayerNorm.bias"}
    assert {name for name in names if not name.startswith("bert.")} == {f"cls.predictions.{x}" for x in head | {"bias"}}


def test_names_of_sparse_networks_are_those_that_are_published(tmp_path: Path) -> None:
    pretrained.export(network("LongformerModel"), tmp_path / "long")
    tensors, own = load_file(tmp_path / "long" / "model.safetensors"), network("LongformerModel").state_dict()
    assert not any(name.startswith("longformer.") for name in tensors)
    for name in ("query", "key", "value"):
        theirs = tensors[f"encoder.layer.1.attention.self.{name}_global.weight"]
        assert torch.equal(theirs, own[f"blocks.1.attention.projections.global_rows.{name}.weight"])
    assert json.loads((tmp_path / "long" / "config.json").read_text())["attention_window"] == [6, 2]
    pretrained.export(network("BigBirdForSequenceClassification"), tmp_path / "big")
    names = set(load_file(tmp_path / "big" / "model.safetensors"))
    assert {f"classifier.{part}.{kind}" for part in ("dense", "out_proj") for kind in ("weight", "bias")} < names
    assert "bert.encoder.layer.0.attention.self.key.weight" in names
    assert not any(name.endswith(("self.key.bias", "picks")) for name in names)
    settings = json.loads((tmp_path / "big" / "config.json").read_text())
    wanted = {"attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 2}
    assert {**settings, **wanted, "rescale_embeddings": True, "use_bias": False, "hidden_act": "gelu_new"} == settings


def test_t5_with_an_output_layer_of_its_own(tmp_path: Path) -> None:
    config = presets.build("t5", **{**WIDE, "head_dim": None, "mlp": "geglu_tanh", "tied": False})
    model = EncoderDecoder(config).eval()
    pretrained.export(model, tmp_path / "it")
    loaded = pretrained.load(tmp_path / "it")
    assert loaded.config.logit_scale == 1  # type: ignore[union-attr]
    assert torch.equal(logits(loaded.model), logits(model))


def test_old_names_copies_and_what_follows_from_the_configuration(tmp_path: Path) -> None:
    """As the first BERT was published: gamma and beta, a repeated output layer, the head for pairs of sentences."""
    model = network("BertForMaskedLM")
    pretrained.export(model, tmp_path / "it")

    def age(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(("LayerNorm.weight", "LayerNorm.bias"))]:
            kind = "gamma" if name.endswith("weight") else "beta"
            tensors[name.rpartition(".")[0] + "." + kind] = tensors.pop(name)
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        tensors["cls.seq_relationship.weight"], tensors["cls.seq_relationship.bias"] = torch.ones(2, 12), torch.ones(2)
        tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"] = torch.ones(12, 12), torch.ones(12)
        tensors["bert.embeddings.position_ids"] = torch.arange(20)[None]

    rewrite(tmp_path / "it", age)
    assert torch.equal(logits(pretrained.load(tmp_path / "it").model), logits(model))

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["cls.predictions.decoder.weight"][0, 0] += 1

    rewrite(tmp_path / "it", spoil)
    with pytest.raises(CheckpointError, match=r"cls\.predictions\.decoder\.weight differs from bert\.embeddings"):
        pretrained.load(tmp_path / "it")


@pytest.mark.parametrize("title", [title for title in NETWORKS if title.endswith("ForMaskedLM")])
def test_a_tensor_of_two_names_is_read_under_either(title: str, tmp_path: Path) -> None:
    """The table of tokens and the bias of the output layer, of which safetensors stores one name."""
    model = network(title)
    pretrained.export(model, tmp_path / "it")

    def rename(tensors: dict[str, Tensor]) -> None:
        (bias,) = (name for name in tensors if name in ("cls.predictions.bias", "lm_head.bias"))
        (table,) = (name for name in tensors if name.endswith("word_embeddings.weight"))
        decoder = bias.removesuffix("bias") + "decoder"
        tensors[f"{decoder}.bias"], tensors[f"{decoder}.weight"] = tensors.pop(bias), tensors.pop(table)

    rewrite(tmp_path / "it", rename)
    assert torch.equal(logits(pretrained.load(tmp_path / "it").model), logits(model))

    def differ(tensors: dict[str, Tensor]) -> None:
        (copy,) = (name for name in tensors if name.endswith("decoder.bias"))
        tensors[copy.replace("decoder.", "")] = tensors[copy] + 1

    rewrite(tmp_path / "it", differ)
    with pytest.raises(CheckpointError, match=r"decoder\.bias differs from (cls\.predictions|lm_head)\.bias"):
        pretrained.load(tmp_path / "it")


def test_every_problem_with_tensors_is_told_at_once(folder: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors["embeddings.LayerNorm.weight"]
        tensors["encoder.layer.0.output.dense.bias"] = torch.zeros(13)
        tensors["encoder.layer.7.output.dense.bias"] = torch.zeros(12)

    rewrite(folder, spoil)
    configure(folder, eos_token_id="end")
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(folder)
    text = str(caught.value)
    assert "bert.embeddings.LayerNorm.weight (12,) is missing" in text
    assert "bert.encoder.layer.0.output.dense.bias has shape (13,), and the configuration says (12,)" in text
    assert "bert.encoder.layer.7.output.dense.bias (12,) has no use here" in text
    assert "'end' is no token id" in text


def test_every_problem_with_a_configuration_is_told_at_once(folder: Path) -> None:
    configure(folder, hidden_act="mish", num_attention_heads=5, is_decoder=True, layer_norm_eps="small")
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(folder)
    for problem in ("num_attention_heads=5", "hidden_act='mish'", "is_decoder=True", "layer_norm_eps must be a number"):
        assert problem in str(caught.value)


@pytest.mark.parametrize("title", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel"])
@pytest.mark.parametrize("changes", [{"is_causal": False}, {"query_scale": 0.5}, {"use_gates": False}])
def test_a_key_that_may_change_the_result_is_refused_unless_it_is_ignored(
    title: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = network(title)
    pretrained.export(model, tmp_path / "it")
    configure(tmp_path / "it", **changes, pruned_heads={}, quantization_config=None, prefix=" ", summary_type="last")
    (key,) = changes
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(tmp_path / "it")
    (problem,) = str(caught.value).splitlines()[1:]
    assert problem.startswith(f"  {key}={changes[key]!r}: regard")
    assert torch.equal(logits(pretrained.load(tmp_path / "it", ignore=(key,)).model), logits(model))


@pytest.mark.parametrize(
    ("rotary", "problem"),
    [
        ({"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"type": "default", "factor": 2.0}}, "factor=2.0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear'"),
        ({"rope_scaling": {"type": "yarn"}, "rope_parameters": {"rope_theta": 10000.0}}, "rope_scaling="),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
    ],
)
def test_rotary_positions_of_another_kind_are_refused(rotary: dict[str, object], problem: str, tmp_path: Path) -> None:
    pretrained.export(network("LlamaForCausalLM"), tmp_path / "it")
    configure(tmp_path / "it", **rotary)
    with pytest.raises(CheckpointError, match=problem):
        pretrained.load(tmp_path / "it")


@pytest.mark.parametrize(
    ("title", "changes", "message"),
    [
        ("LongformerModel", {"attention_window": [6]}, "attention_window names 1 layers, not num_hidden_layers=2"),
        ("LongformerModel", {"attention_window": 5}, "attention_window counts both sides and is even and positive"),
        ("LongformerModel", {"attention_window": ["6", 2]}, "even and positive, got '6'"),
        ("BigBirdModel", {"num_random_blocks": -1}, "num_random_blocks must be an integer of at least 0, got -1"),
        ("BigBirdModel", {"attention_type": "dense"}, "regard's model has 'block_sparse', 'original_full'"),
    ],
)
def test_sparse_configurations_that_cannot_be_run(
    title: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    pretrained.export(network(title), tmp_path / "it")
    configure(tmp_path / "it", **changes, hidden_act="silu")
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(tmp_path / "it")
    assert str(caught.value).count(message) == 1
    assert "hidden_act='silu'" in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: sparse("longformer(window=3)"),
            r"not every layer is longformer\(dilation=1, num_global=0, scale=None",
        ),
        (lambda: Classifier(sparse(WINDOWS[0]), classes=2), r"not every layer is longformer\(dilation=1, num_global=1"),
        (lambda: sparse("longformer(window=0, num_global=0)"), "as longformer: window=0"),
        (lambda: sparse(WINDOWS[0], projections="all"), "as longformer:\n  projections='all', not 'global'"),
        (lambda: MaskedLanguageModel(sparse(WINDOWS[0]), activation="relu"), "has 'gelu' in this head"),
        (lambda: replaced(BLOCKS), "its random blocks are its own"),
        (lambda: replaced(BLOCKS, "softmax"), "nor one bigbird for all layers"),
        (lambda: replaced("bigbird(form=etc)"), "nor one bigbird for all layers"),
    ],
)
def test_a_sparse_model_that_transformers_would_run_differently_is_not_written(
    build: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        pretrained.export(build(), tmp_path / "it")
    assert not (tmp_path / "it").exists()


def test_names_of_images_are_those_that_are_published(tmp_path: Path) -> None:
    pretrained.export(network("ViTForImageClassification"), tmp_path / "it")
    tensors, own = load_file(tmp_path / "it" / "model.safetensors"), network("ViTForImageClassification").state_dict()
    kernel = tensors["vit.embeddings.patch_embeddings.projection.weight"]
    assert kernel.shape == (12, 3, 2, 2)
    assert torch.equal(kernel[:, 1, 0, 1], own["encoder.embeddings.project.weight"][:, 5])
    assert torch.equal(tensors["vit.embeddings.cls_token"][0, 0], own["encoder.embeddings.cls"])
    assert torch.equal(tensors["vit.embeddings.position_embeddings"][0], own["encoder.embeddings.position.table"])
    assert "vit.encoder.layer.1.attention.attention.query.weight" in tensors
    assert "vit.encoder.layer.1.attention.attention.query.bias" not in tensors
    said = json.loads((tmp_path / "it" / "config.json").read_text())
    assert (said["image_size"], said["patch_size"], said["num_channels"], said["qkv_bias"]) == ([6, 8], 2, 3, False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: encoder("bert", block="parallel"), "as bert:\n  block='parallel', not 'residual'"),
        (lambda: encoder("bert", position="learned(per_layer=True)"), r"blocks\.1\.position\.table has no place there"),
        (lambda: Classifier(encoder("bert", pooling="mean"), classes=3), "as Bert: pooling='mean', not 'first'"),
        (lambda: Classifier(encoder("bert", pooler=False), classes=3), r"as bert:\n  pooler\.bias is missing"),
        (lambda: decoder("gpt", embedding_scale=2.0), "as gpt2:\n  embedding_scale=2.0, not None or 1.0"),
        (lambda: decoder("gpt", position_offset=2), "as gpt2:\n  position_offset=2, not 0"),
        (lambda: decoder("gpt", embedding_norm=True), r"as gpt2:\n  embeddings\.norm\.bias has no place there"),
        (lambda: encoder("bert", value_dim=5), r"as bert:\n  value_dim=5, not None or \d"),
        (lambda: decoder("gpt", value_dim=5), r"as gpt2:\n  value_dim=5, not None or \d"),
        (
            lambda: local("local(window=3, dilation=2)"),
            r"attention=local\(window=3, dilation=2\), not local\(window=w\)",
        ),
        (lambda: local("local(window=3)", bias=True), "cannot be written as mistral:\n  bias=True, not False"),
        (lambda: EncoderDecoder(replace(t5(), value_dim=5)), r"as t5:\n  value_dim=5, not None or \d"),
        (lambda: decoder("gpt", targets=7, tied=False), "as gpt2:\n  targets=7, not None or 29"),
        (
            lambda: EncoderDecoder(replace(t5(), encoder_position="t5_bias(num_buckets=8)")),
            r"as t5:\n  encoder_position='t5_bias\(num_buckets=8\)', not None or ",
        ),
        (lambda: vit_as(image=None), "as vit: image=None, and its configuration names a shape"),
        (lambda: vit_as(max_length=20), "as vit: max_length=20, not the 12 patches of an image and one"),
        (lambda: vit_as(norm="post"), "as vit:\n  norm='post', not 'pre'"),
        (lambda: Classifier(vit_as(pooling="mean"), classes=3), "as vit: pooling='mean', not 'first'"),
    ],
)
def test_what_transformers_would_compute_otherwise_is_not_written(
    build: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        pretrained.export(build(), tmp_path / "it")
    assert not (tmp_path / "it").exists()


def local(spec: str, **options: object) -> LanguageModel:
    return LanguageModel(replace(presets.build("llama", **WIDE), attention=(spec,), **options))


def t5() -> EncoderDecoderConfig:
    return presets.build("t5", **{**WIDE, "head_dim": 8})


def vit_as(**changes: object) -> Encoder:
    return Encoder(replace(vit().config, **changes))


def replaced(*attention: str) -> Encoder:
    return Encoder(replace(presets.build("bert", **WIDE), attention=attention))


def test_random_blocks_are_those_of_the_authors() -> None:
    """A literal transcription of `bigbird_block_rand_mask`, last_idx=1024, and what it draws that is visible anyway."""
    for layer, size, blocks in ((0, 64, 64), (3, 64, 16), (5, 128, 32), (2, 2, 10), (1, 600, 9)):
        draw = numpy.random.RandomState(layer)
        ours = published_blocks(2, blocks, 2, layer=layer, size=size).tolist()
        middle, last = list(range(1, blocks - 1)), blocks - 1
        if 2 * size < 1024:
            last = 1024 // size - 1
        for head in range(2):
            for i in range(1, blocks - 1):
                start, end = i - 2, i
                if i == 1:
                    among = middle[2:last]
                elif i == 2:
                    among = middle[3:last]
                elif i in (blocks - 3, blocks - 2) or start > last:
                    among = middle[:last]
                elif end + 1 == last:
                    among = middle[:start]
                else:
                    among = middle[:start] + middle[end + 1 : last]
                drawn = draw.permutation(among)[:2]
                seen = {0, i - 1, i, i + 1, blocks - 1}
                assert ours[head][i] == [-1 if at in seen else at for at in drawn] + [-1] * (2 - len(drawn))
            assert ours[head][0] == ours[head][-1] == [-1, -1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "holds the architecture 'mamba'; regard loads bart, bert, big_bird, gpt2"),
        ({"architectures": ["BertForQuestionAnswering"]}, "holds the network 'BertForQuestionAnswering'; of bert"),
    ],
)
def test_another_architecture_is_refused(folder: Path, changes: dict[str, object], message: str) -> None:
    configure(folder, **changes)
    with pytest.raises(UnsupportedError, match=message):
        pretrained.load(folder)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or damaged"):
        pretrained.load(folder)


@pytest.mark.parametrize("outside", ["../other.safetensors", "/etc/passwd", "a/b.safetensors", "..", "a\\b"])
def test_a_weight_map_that_leads_out_of_the_folder_is_refused(folder: Path, outside: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    index = {"weight_map": {"embeddings.LayerNorm.weight": outside, "embeddings.LayerNorm.bias": "../second"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsafeFileError) as caught:
        pretrained.load(folder)
    assert repr(outside) in str(caught.value)
    assert "'../second'" in str(caught.value)


def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    (folder / "model.safetensors").symlink_to("../other.safetensors")
    with pytest.raises(UnsafeFileError, match="is a link to"):
        pretrained.load(folder)


@pytest.mark.parametrize("at", ["blobs", "other/blobs"])
def test_links_of_a_hugging_face_cache_lead_to_its_own_blobs(at: str, folder: Path, tmp_path: Path) -> None:
    expected = logits(pretrained.load(folder).model)
    snapshot, blobs = tmp_path / "models--it" / "snapshots" / "0123abcd", tmp_path / "models--it" / at
    snapshot.mkdir(parents=True)
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../..") / at / str(number))
    if at == "blobs":
        assert torch.equal(logits(pretrained.load(snapshot).model), expected)
    else:
        with pytest.raises(UnsafeFileError, match="is a link to"):
            pretrained.load(snapshot)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_weights_that_are_no_floating_point_numbers_are_refused(dtype: torch.dtype, folder: Path) -> None:
    name = "embeddings.LayerNorm.weight"
    rewrite(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(CheckpointError, match=rf"bert\.{name} is stored as \w+, and the network has torch\.float32"):
        pretrained.load(folder)


def test_weights_of_4_bits_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    packed = torch.zeros(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file(load_file(path) | {"embeddings.LayerNorm.weight": packed}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="is stored as F4, and"):
        pretrained.load(folder)


def test_tokens_without_a_row_are_warned_of_and_never_used(tmp_path: Path) -> None:
    """A network of 7 letters of the 10 words, and GPT-2's end of text."""
    model = LanguageModel(presets.build("gpt", **{**WIDE, "vocab_size": 7}))
    pretrained.export(model, tmp_path / "it", tokenizer=words())
    configure(tmp_path / "it", eos_token_id=[50256, 1, -1])
    with pytest.warns(UserWarning, match="tokens of its tokenizer|eos_token_id") as caught:
        loaded = pretrained.load(tmp_path / "it")
    first, second = (str(each.message) for each in caught)
    assert "3 tokens of its tokenizer, 7 ('is') the first" in first
    assert "[50256, -1] is outside 0 to 6" in second
    assert loaded.stop_tokens == (1,)
    assert loaded.reader.encode("to be or not").tolist() == [2, 3, 4, 5]
    assert len(loaded.generate("to be", max_new_tokens=9, temperature=5.0).split()) <= 9
    for read in (loaded.reader.encode, loaded.reader.document, loaded.generate):
        with pytest.raises(InputError, match="7 at position 1"):
            read("that is")


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match="as pickle"):
        pretrained.load(folder)


def test_weights_in_several_files(folder: Path) -> None:
    expected = logits(pretrained.load(folder).model)
    tensors = load_file(folder / "model.safetensors")
    half = len(tensors) // 2
    names = sorted(tensors)
    files = {"a.safetensors": names[:half], "b.safetensors": names[half:]}
    for file, own in files.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, own in files.items() for name in own}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits(pretrained.load(folder).model), expected)
    index.write_text(json.dumps({"weight_map": {**weight_map, names[0]: "b.safetensors", names[-1]: "a.safetensors"}}))
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(folder)
    assert f"{names[0]} is not in b.safetensors" in str(caught.value)
    assert f"{names[-1]} is in b.safetensors, which the weight map does not say" in str(caught.value)


def test_a_model_that_is_none_of_them_is_not_written(tmp_path: Path) -> None:
    model = Encoder(presets.build("rope", **WIDE))
    with pytest.raises(UnsupportedError) as caught:
        pretrained.export(model, tmp_path / "it")
    assert "cannot be written as bert" in str(caught.value)
    assert "position='rotary(layout=interleaved)', not learned" in str(caught.value)
    linear = EncoderDecoder(presets.build("bart", **WIDE, encoder_attention=("linear",)))
    with pytest.raises(UnsupportedError, match="encoder_attention=linear, not softmax"):
        pretrained.export(linear, tmp_path / "it")
    with pytest.raises(UnsupportedError, match="Linear is no model of regard"):
        pretrained.export(nn.Linear(2, 2), tmp_path / "it")
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("where", ["setting", "file", "several"])
def test_stop_tokens_and_chat_template_are_kept(where: str, tmp_path: Path) -> None:
    text = "{% for message in messages %}{{ message.content }}{% endfor %}"
    first = tmp_path / "first"
    pretrained.export(
        network("LlamaForCausalLM"),
        first,
        tokenizer=words(),
        stop_tokens=(1, 9),
        chat_template=ChatTemplate(text, {"eos_token": "[end]"}, "here"),
    )
    configure(first, bos_token_id=7, pad_token_id=2)
    settings = first / "tokenizer_config.json"
    if where == "file":
        settings.write_text(json.dumps({"eos_token": "[end]"}))
        (first / "chat_template.jinja").write_text(text)
    elif where == "several":
        named = [{"name": "tools", "template": "other"}, {"name": "default", "template": text}]
        settings.write_text(json.dumps({"chat_template": named, "eos_token": "[end]"}))
    loaded = pretrained.load(first)

    def kept(found: pretrained.PublishedModel) -> tuple[object, ...]:
        assert found.chat_template is not None
        return found.stop_tokens, found.chat_template.source, found.chat_template.tokens

    assert kept(loaded) == ((1, 9), text, {"eos_token": "[end]"})
    pretrained.export(loaded, tmp_path / "second")
    again = pretrained.load(tmp_path / "second")
    assert kept(again) == kept(loaded)
    ids = json.loads((tmp_path / "second" / "config.json").read_text())
    assert (ids["bos_token_id"], ids["pad_token_id"]) == (7, 2)
    assert again.reader.to_json() == loaded.reader.to_json()
    assert logits(again.model).equal(logits(loaded.model))
    windowed = pretrained.convert(loaded, "local(window=3)")
    pretrained.export(windowed, tmp_path / "third")
    third = pretrained.load(tmp_path / "third")
    assert (third.architecture, kept(third)) == ("mistral", kept(loaded))
    assert logits(third.model).equal(logits(windowed.model))


@pytest.mark.parametrize("described", [False, True])
def test_settings_of_tokenizer_and_generation_are_kept(described: bool, tmp_path: Path) -> None:
    """As transformers reads them: special_tokens_map.json counts unless tokenizer_config.json describes all tokens."""
    first = tmp_path / "first"
    pretrained.export(network("LlamaForCausalLM"), first, tokenizer=words())
    generation = {"eos_token_id": 3, "pad_token_id": 2, "temperature": 0.6, "do_sample": True}
    settings = {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": ["a.B", None]}, "padding_side": "left"}
    settings |= {"bos_token": "to", "pad_token": {"content": "be"}} | (
        {"added_tokens_decoder": {}} if described else {}
    )
    tokens = {"bos_token": "or", "additional_special_tokens": ["?"]}
    limits = {
        "padding": {"strategy": {"Fixed": 9}, "direction": "Left", "pad_id": 2, "pad_type_id": 0, "pad_token": "be"},
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    }
    limits["padding"]["pad_to_multiple_of"] = None
    tokenizer = json.loads((first / "tokenizer.json").read_text())
    for name, values in {
        "generation_config": generation,
        "tokenizer_config": settings,
        "special_tokens_map": tokens,
        "tokenizer": tokenizer | limits,
    }.items():
        (first / f"{name}.json").write_text(json.dumps(values))
    loaded = pretrained.load(first)
    assert loaded.reader.encode("to be or not to be").tolist() == [2, 3, 4, 5, 2, 3]
    pretrained.save(loaded, tmp_path / "saved")
    for at, one in enumerate((loaded, pretrained.load(tmp_path / "saved"))):
        pretrained.export(one, tmp_path / str(at))
        found = {path.name: json.loads(path.read_text()) for path in (tmp_path / str(at)).glob("*.json")}
        assert found["generation_config.json"] == generation
        named = settings | {"bos_token": "to"} if described else settings | tokens
        named = {**named, "pad_token": "be", "tokenizer_class": "PreTrainedTokenizerFast"}
        assert found["tokenizer_config.json"] == {name: named[name] for name in named if name != "auto_map"}
        assert {name: found["tokenizer.json"][name] for name in limits} == limits
        assert (found["config.json"]["eos_token_id"], found["config.json"]["pad_token_id"]) == (3, 2)
    pretrained.export(loaded, tmp_path / "other", stop_tokens=(1,))
    assert json.loads((tmp_path / "other" / "generation_config.json").read_text()) == generation | {"eos_token_id": [1]}


def test_tokens_that_settings_name_are_special_and_rules_that_they_contradict_are_refused(tmp_path: Path) -> None:
    """As transformers reads them, though no token of tokenizer.json is said to be added."""
    folder = tmp_path / "it"
    pretrained.export(network("LlamaForCausalLM"), folder, tokenizer=words())
    settings = {
        "eos_token": "be",
        "additional_special_tokens": ["is", {"content": "or"}, "beyond"],
        "do_lower_case": True,
        "add_prefix_space": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    reader = pretrained.load(folder).reader
    assert reader.decode(reader.encode("to be or not is")) == "to not"
    described = json.loads((folder / "tokenizer.json").read_text())
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    bytewise = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    for part, rule, name, key in (
        ("normalizer", bert, "lowercase", "do_lower_case"),
        ("pre_tokenizer", bytewise, "add_prefix_space", "add_prefix_space"),
    ):
        for value in (True, False):
            changed = {**described, part: {**rule, name: value}}
            (folder / "tokenizer.json").write_text(json.dumps(changed))
            refused = pytest.raises(CheckpointError, match=f"{part} has {name}=False.*{key}=True")
            with nullcontext() if value else refused:
                pretrained.load(folder)


def test_weights_of_8_bits_are_for_decoders(folder: Path, tmp_path: Path) -> None:
    pretrained.export(network("LlamaForCausalLM"), tmp_path / "llama", tokenizer=words())
    packed = pretrained.load(tmp_path / "llama", weights="int8")
    wanted = logits(pretrained.load(tmp_path / "llama").model)
    assert 0 < (logits(packed.model) - wanted).norm() < 0.05 * wanted.norm()
    assert isinstance(packed.generate("to be", max_new_tokens=3, temperature=0), str)
    with pytest.raises(UnsupportedError, match="is not written"):
        pretrained.export(packed, tmp_path / "new")
    with pytest.raises(UnsupportedError, match="does not continue texts"):
        pretrained.load(folder, weights="int8")
    with pytest.raises(ConfigError, match="weights: no choice 'int4'"):
        pretrained.load(folder, weights="int4")  # type: ignore[arg-type]


def test_a_chat_template_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kept beside a tokenizer"):
        pretrained.export(network("LlamaForCausalLM"), tmp_path / "new", chat_template=ChatTemplate("", {}, "here"))
    assert not (tmp_path / "new").exists()


def test_keys_that_a_configuration_of_mistral_lacks_have_their_defaults(tmp_path: Path) -> None:
    """A window of 4096 tokens, itself included, which no test of 9 tokens sees."""
    pretrained.export(network("MistralForCausalLM"), tmp_path / "it")
    values = json.loads((tmp_path / "it" / "config.json").read_text())
    del values["sliding_window"], values["max_position_embeddings"]
    (tmp_path / "it" / "config.json").write_text(json.dumps(values))
    config = pretrained.load(tmp_path / "it").decoder.config
    assert (config.attention, config.max_length) == (("local(window=4095)",), 131072)
    del values["num_key_value_heads"]
    (tmp_path / "it" / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="num_key_value_heads=8"):
        pretrained.load(tmp_path / "it")


def test_a_window_of_qwen2_is_refused(tmp_path: Path) -> None:
    pretrained.export(network("Qwen2ForCausalLM"), tmp_path / "qwen2")
    configure(tmp_path / "qwen2", use_sliding_window=True)
    with pytest.raises(CheckpointError, match="use_sliding_window=True: regard's model has False"):
        pretrained.load(tmp_path / "qwen2")


def test_embeddings_are_means_over_tokens_whatever_the_padding(folder: Path) -> None:
    loaded = pretrained.load(folder)
    texts = ["to be or not to be that is the question", "question", "be not the question"]
    alone = [loaded.embed([text], unit=False) for text in texts]
    together = loaded.embed(texts, unit=False)
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=2e-6 * together.abs().max().item())
    hidden = loaded.model(torch.tensor([[9, 2]])).hidden[0]
    torch.testing.assert_close(loaded.embed(["question to"], unit=False)[0], (hidden[0] + hidden[1]) / 2)
    torch.testing.assert_close(loaded.embed(texts, batch_size=2).norm(dim=1), torch.ones(3))
    assert loaded.embed([]).shape == (0, 12)
    with pytest.raises(LimitError) as caught:
        loaded.embed(["be", "be " * 21, "be " * 30])
    assert str(caught.value).splitlines()[1:] == ["  text 1 has 21", "  text 2 has 30"]
    with pytest.raises(InputError, match="text 1: ''"):
        loaded.embed(["be", ""])
    with pytest.raises(ConfigError, match="texts is a list"):
        loaded.embed("be")
    next(loaded.model.parameters()).data.fill_(torch.nan)
    with pytest.raises(NumericsError, match="the vectors are not finite"):
        loaded.embed(texts)


def sentence_folder(folder: Path, pooling: dict[str, object], *modules: str, **files: object) -> None:
    """The files of sentence-transformers beside a network of width 12."""
    names = modules or ("Transformer", "Pooling")
    listed = [
        {"path": f"{at}_{name}" if at else "", "type": f"sentence_transformers.models.{name}"}
        for at, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 12, **pooling}))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))


NONE_AT_THE_TOP = [
    {"path": f"{at}_{name}", "type": f"sentence_transformers.models.{name}"}
    for at, name in enumerate(("Transformer", "Pooling"))
]


def with_ends(folder: Path) -> None:
    """The tokenizer adds [unk] in front of a text and [end] behind it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = processors.TemplateProcessing(single="[unk] $A [end]", special_tokens=[("[unk]", 0), ("[end]", 1)])
    tokenizer.post_processor = added  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))


TEXTS = ["to be or not to be that is the question", "question", "be not the question"]
# of the hidden states of a text, and where each stands, from 1
BY_HAND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden, places: hidden[0],
    "max": lambda hidden, places: hidden.max(0).values,
    "mean": lambda hidden, places: hidden.sum(0) / len(hidden),
    "mean_sqrt_len_tokens": lambda hidden, places: hidden.sum(0) / len(hidden) ** 0.5,
    "weightedmean": lambda hidden, places: places @ hidden / places.sum(),
    "lasttoken": lambda hidden, places: hidden[-1],
}


def by_hand(loaded: pretrained.PublishedModel, text: str, names: list[str], skipped: int = 0) -> Tensor:
    """The vector of a text alone, without its first tokens."""
    hidden = loaded.model(torch.from_numpy(loaded.reader.encode(text))[None]).hidden[0].detach()
    places = torch.arange(1.0, len(hidden) + 1)
    return torch.cat([BY_HAND[name](hidden[skipped:], places[skipped:]) for name in names])


@pytest.mark.parametrize(
    ("pooling", "names"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ["cls"]),
        ({"pooling_mode_weightedmean_tokens": True, "pooling_mode_cls_token": False}, ["weightedmean"]),
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True}, ["max", "lasttoken"]),
        (
            {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_mean_tokens": True},
            ["mean", "mean_sqrt_len_tokens"],
        ),
        ({}, ["mean"]),
        ({"pooling_mode": "cls", "include_prompt": True}, ["cls"]),
        ({"pooling_mode": ["lasttoken", "mean", "max"]}, ["lasttoken", "mean", "max"]),
    ],
)
@pytest.mark.parametrize("unit", [True, False])
def test_the_pooling_of_a_folder_of_sentence_transformers(
    folder: Path, tmp_path: Path, pooling: dict[str, object], names: list[str], unit: bool
) -> None:
    sentence_folder(folder, pooling, *["Transformer", "Pooling", "Normalize"][: 2 + unit])
    loaded = pretrained.load(folder)
    wanted = torch.stack([by_hand(loaded, text, names) for text in TEXTS])
    torch.testing.assert_close(loaded.embed(TEXTS, unit=False), wanted)
    if unit:
        wanted = nn.functional.normalize(wanted)
    found = loaded.embed(TEXTS)
    torch.testing.assert_close(found, wanted)
    pretrained.save(loaded, tmp_path / "saved")
    pretrained.export(loaded, tmp_path / "exported")
    for again in ("saved", "exported"):
        assert torch.equal(pretrained.load(tmp_path / again).embed(TEXTS), found)
    torch.testing.assert_close(loaded.embed(TEXTS, unit=False, pooling="max")[0], by_hand(loaded, TEXTS[0], ["max"]))


@pytest.mark.parametrize("include", [{}, {"include_prompt": True}, {"include_prompt": False}])
@pytest.mark.parametrize("pooling", BY_HAND)
def test_prompts_of_a_folder_of_sentence_transformers(folder: Path, pooling: str, include: dict[str, bool]) -> None:
    prompts = {"prompts": {"query": "that is ", "text": "to be or "}, "default_prompt_name": "text"}
    prompts |= {"similarity_fn_name": "cosine", "truncate_dim": None}
    sentence_folder(folder, {"pooling_mode": pooling, **include}, config_sentence_transformers=prompts)
    left_out = include == {"include_prompt": False}
    if left_out:
        with pytest.raises(InputError, match="text 0: ''"):
            pretrained.load(folder).embed([""], prompt="query")
    with_ends(folder)
    loaded = pretrained.load(folder)
    for name, prompt, tokens in ((None, "to be or ", 4), ("query", "that is ", 3), ("", "", 0)):
        wanted = by_hand(loaded, prompt + "not the question", [pooling], tokens if left_out else 0)
        torch.testing.assert_close(loaded.embed(["not the question"], prompt=name)[0], wanted)
    with pytest.raises(ConfigError, match="has no prompt 'qery': did you mean 'query'"):
        loaded.embed(["not"], prompt="qery")


def test_what_a_folder_of_sentence_transformers_reads(folder: Path) -> None:
    sentence_folder(folder, {"pooling_mode": "mean"}, sentence_bert_config={"max_seq_length": 4, "do_lower_case": True})
    loaded = pretrained.load(folder)
    cut = loaded.embed(["be not the question"])
    assert torch.equal(loaded.embed(["Be not THE question"]), cut)
    with pytest.raises(LimitError, match=r"at most 4 tokens .*max_seq_length: 4") as caught:
        loaded.embed(["be", "be not the question to"])
    assert str(caught.value).splitlines()[1:] == ["  text 1 has 5"]
    torch.testing.assert_close(loaded.embed(["be not the question to"], truncate=True), cut)
    assert pretrained.convert(loaded, None, max_length=30).embed(["be " * 25]).shape == (1, 12)
    # Newer files keep it with the tokenizer, where a huge number stands for none.
    for said, longest, limit in ({}, 3, 3), ({"max_seq_length": 4}, 3, 4), ({}, 10**30, 20):
        settings = {"sentence_bert_config": said, "tokenizer_config": {"model_max_length": longest}}
        sentence_folder(folder, {"pooling_mode": "mean"}, **settings)
        with pytest.raises(LimitError, match=f"at most {limit} tokens"):
            pretrained.load(folder).embed(["be " * (limit + 1)])
    with_ends(folder)  # which are kept when a text is cut
    loaded = pretrained.load(folder)
    assert loaded.reader.encode("be " * 30, longest=4).tolist() == [0, 3, 3, 1]
    torch.testing.assert_close(loaded.embed(["be " * 30], truncate=True), loaded.embed(["be " * 18]))


@pytest.mark.parametrize(
    ("pooling", "modules", "files", "error", "message"),
    [
        (
            {},
            ("Transformer", "Pooling", "Dense"),
            {},
            UnsupportedError,
            r"modules\.json names the modules .*models\.Dense;",
        ),
        ({}, ("Transformer",), {}, UnsupportedError, "names the modules"),
        ({}, (), {"modules": NONE_AT_THE_TOP}, UnsupportedError, "a Transformer in the folder itself"),
        ({"pooling_mode": "first"}, (), {}, ConfigError, "there is no pooling 'first'"),
        ({"pooling_mode_cls_token": 1}, (), {}, CheckpointError, "pooling_mode_cls_token must be true or false, got 1"),
        ({"pooling_mode_new": True}, (), {}, CheckpointError, "1_Pooling/config.json: pooling_mode_new=True"),
        (
            {"word_embedding_dimension": 13},
            (),
            {},
            CheckpointError,
            "embedding_dimension=13, and hidden states have 12",
        ),
        ({}, (), {"sentence_bert_config": {"max_seq_length": "4"}}, CheckpointError, "max_seq_length must be a number"),
        (
            {},
            (),
            {"config_sentence_transformers": {"model_type": "SparseEncoder", "truncate_dim": 4}},
            CheckpointError,
            "(?s)model_type='SparseEncoder'.*config_sentence_transformers.json: truncate_dim=4",
        ),
        ({}, (), {"config_sentence_transformers": {"prompts": {"query": 3}}}, CheckpointError, "prompts must be texts"),
    ],
)
def test_settings_of_sentence_transformers_that_are_not_understood(
    folder: Path,
    pooling: dict[str, object],
    modules: tuple[str, ...],
    files: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    sentence_folder(folder, pooling, *modules, **files)
    loaded = pretrained.load(folder)
    with pytest.raises(error, match=message):
        loaded.embed(["be"])


def test_a_module_outside_of_the_folder_is_not_read(folder: Path, tmp_path: Path) -> None:
    sentence_folder(folder, {"pooling_mode": "cls"})
    (folder / "1_Pooling").rename(tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeFileError, match="path '1_Pooling' leads out of the folder"):
        pretrained.load(folder)


def test_texts_in_and_texts_out(folder: Path, tmp_path: Path) -> None:
    config = presets.build("t5", **{**TINY, "vocab_size": len(WORDS), "mlp_dim": 20, "head_dim": None})
    pretrained.export(EncoderDecoder(config), tmp_path / "t5", tokenizer=words())
    loaded = pretrained.load(tmp_path / "t5")
    assert set(loaded.answer("to be or not", max_new_tokens=4).split()) <= set(WORDS)
    with pytest.raises(UnsupportedError, match="does not continue texts"):
        loaded.generate("to be")
    with pytest.raises(UnsupportedError, match="reads no source"):
        pretrained.load(folder).answer("to be")
    with pytest.raises(InputError, match="token ids outside the vocabulary"):
        loaded.reader.decode([3, 99, -1])
    pretrained.export(network("BartForConditionalGeneration"), tmp_path / "bart")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        pretrained.load(tmp_path / "bart").answer("to be")


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("nothing-there", ConfigError, "there is no nothing-there"),
        ("package:requests", ConfigError, "no package 'requests' is known to carry weights"),
    ],
)
def test_what_is_not_there(path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pretrained.load(path)


def gguf(tensors: dict[str, Tensor], metadata: dict[str, object]) -> bytes:
    """A GGUF file of version 3 with float32 tensors, written from the specification."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(x: object) -> bytes:
        if isinstance(x, str):
            return struct.pack("<I", 8) + text(x)
        if isinstance(x, bool):
            return struct.pack("<I?", 7, x)
        if isinstance(x, int):
            return struct.pack("<II", 4, x)
        if isinstance(x, float):
            return struct.pack("<If", 6, x)
        assert isinstance(x, list)
        if x and isinstance(x[0], int):
            return struct.pack("<IIQ", 9, 5, len(x)) + b"".join(struct.pack("<i", one) for one in x)
        return struct.pack("<IIQ", 9, 8, len(x)) + b"".join(text(one) for one in x)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value(x) for key, x in metadata.items())
    body, offset = b"", 0
    for name, x in tensors.items():
        head += text(name) + struct.pack(f"<I{x.ndim}QIQ", x.ndim, *reversed(x.shape), 0, offset)
        raw = x.contiguous().numpy().tobytes()
        raw += bytes(-len(raw) % 32)
        body, offset = body + raw, offset + len(raw)
    return head + bytes(-len(head) % 32) + body


def llama_file(path: Path, more: dict[str, object] | None = None) -> LanguageModel:
    """A tiny Llama as llama.cpp stores it: rows of q and k in the order of neighbouring planes; with more metadata."""
    config = presets.build("llama", **{**WIDE, "vocab_size": 6, "kv_heads": 1, "max_length": 20})
    model = LanguageModel(config).eval()

    def planes(weight: Tensor, heads: int) -> Tensor:
        return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)

    tensors = {"token_embd.weight": model.table.weight, "output_norm.weight": model.norm.weight}  # type: ignore[union-attr]
    tensors["output.weight"] = model.output.weight  # type: ignore[union-attr]
    for at, block in enumerate(model.blocks):
        attention, mlp = block.attention, block.mlp
        own = {"attn_norm": block.attention_norm.weight, "ffn_norm": block.mlp_norm.weight}
        own |= {
            "attn_q": planes(attention.projections.query.weight, 2),
            "attn_k": planes(attention.projections.key.weight, 1),
        }
        own |= {"attn_v": attention.projections.value.weight, "attn_output": attention.projections.output.weight}
        own |= {"ffn_gate": mlp.gate.weight, "ffn_up": mlp.up.weight, "ffn_down": mlp.down.weight}
        tensors |= {f"blk.{at}.{name}.weight": x for name, x in own.items()}
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.embedding_length": 12,
        "llama.feed_forward_length": 20,
        "llama.block_count": 2,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.context_length": 20,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "c", "Ġ", "<end>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 5,
    }
    path.write_bytes(gguf({name: x.detach() for name, x in tensors.items()}, {**metadata, **(more or {})}))
    return model


def test_a_gguf_file_is_the_network_that_was_stored(tmp_path: Path) -> None:
    model = llama_file(tmp_path / "it.gguf", {"llama.rope.scaling.factor": 0.0, "tokenizer.ggml.bos_token_id": 3})
    loaded = pretrained.load(tmp_path / "it.gguf")
    tokens = torch.tensor([[3, 2, 4, 1, 1]])
    assert torch.equal(loaded.decoder(tokens).logits, model(tokens).logits)
    pretrained.export(loaded, tmp_path / "out")
    named = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (named["bos_token"], named["eos_token"]) == ("c", "<end>")
    assert loaded.reader.encode("ab c").tolist() == [2, 4, 3]
    assert loaded.stop_tokens == (5,)
    with pytest.raises(InputError, match="0x64 of U\\+0064"):
        loaded.reader.encode("abd")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False),
        ("attention.scale", 0.5),
        ("attention.sliding_window", 4),
        ("attention.value_length", 4),
        ("final_logit_softcapping", 30.0),
        ("rope.dimension_count", 4),
        ("rope.scaling.attn_factor", 2.0),
        ("rope.scaling.factor", 2.0),  # without a type llama.cpp takes it as linear
        ("rope.scaling.type", "yarn"),
    ],
)
def test_a_key_of_gguf_that_changes_the_result_is_refused(key: str, value: object, tmp_path: Path) -> None:
    same = {"rope.dimension_count": 6, "attention.value_length": 6, "attention.causal": True}
    same |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    model = llama_file(tmp_path / "it.gguf", {f"llama.{name}": only for name, only in {**same, key: value}.items()})
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(tmp_path / "it.gguf")
    (problem,) = str(caught.value).splitlines()[1:]
    assert problem.startswith(f"  {key}={value!r}: regard")
    tokens = torch.tensor([[3, 2, 4, 1, 1]])
    loaded = pretrained.load(tmp_path / "it.gguf", ignore=(key,))
    assert torch.equal(loaded.decoder(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize(
    ("split", "more", "ids"),
    [
        ("gpt-2", {}, [3, 0, 1]),
        ("llama-bpe", {}, [4, 2]),
        ("llama3", {"add_bos_token": True}, [4, 2]),
        ("llama-bpe", {"add_bos_token": False, "add_eos_token": True}, [2, 5]),
    ],
)
def test_whole_words_and_first_tokens_are_those_of_llama_cpp(
    split: str, more: dict[str, object], ids: list[int], tmp_path: Path
) -> None:
    own: dict[str, object] = {"pre": split, "bos_token_id": 4, "tokens": ["a", "b", "cab", "c", "<first>", "<end>"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in {**own, "merges": [], **more}.items()}
    llama_file(tmp_path / "it.gguf", metadata)
    assert pretrained.load(tmp_path / "it.gguf").reader.encode("cab").tolist() == ids


def test_a_first_token_that_is_added_must_be_one(tmp_path: Path) -> None:
    llama_file(tmp_path / "it.gguf", {"tokenizer.ggml.pre": "llama-bpe"})
    with pytest.raises(CheckpointError, match="bos_token_id is None, which is none of the 6 tokens"):
        pretrained.load(tmp_path / "it.gguf")


@pytest.mark.parametrize("kind", [1, 3])
def test_the_end_of_a_turn_or_of_a_message_ends_a_text(kind: int, tmp_path: Path) -> None:
    """Those of keys, and those of a name that llama.cpp knows, whose kind is wrong in some files."""
    own = {"tokens": ["a", "b", "<|im_end|>", "<turn>", "<message>", "<end>"], "token_type": [1, 1, kind, 3, 3, 3]}
    own |= {"eot_token_id": 3, "eom_token_id": 4, "merges": []}
    llama_file(tmp_path / "it.gguf", {f"tokenizer.ggml.{key}": value for key, value in own.items()})
    loaded = pretrained.load(tmp_path / "it.gguf")
    assert set(loaded.stop_tokens) == {2, 3, 4, 5}
    assert loaded.reader.decode([0, 2, 1]) == "ab"


def test_a_gguf_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it.gguf").write_bytes(gguf({}, {"general.architecture": "bert"}))
    with pytest.raises(UnsupportedError, match="holds the architecture 'bert'; from GGUF regard loads llama"):
        pretrained.load(tmp_path / "it.gguf")


@pytest.mark.parametrize(("right", "said"), [(b"gpt2", "kind 'gpt3'"), (b"gpt-2", "splits words as 'gpt-3'")])
def test_a_gguf_file_with_another_tokenizer_is_named(tmp_path: Path, right: bytes, said: str) -> None:
    path = tmp_path / "it.gguf"
    llama_file(path)
    path.write_bytes(path.read_bytes().replace(right, right[:-1] + b"3"))
    with pytest.raises(UnsupportedError, match=f"{path}.*{said}"):
        pretrained.load(path)


@pytest.mark.parametrize("left", [0, 3, 40, 300, 900, 1500])
def test_a_truncated_gguf_file_is_refused(tmp_path: Path, left: int) -> None:
    path = tmp_path / "it.gguf"
    llama_file(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    with pytest.raises(CheckpointError, match=r"truncated or damaged|cannot read"):
        pretrained.load(path)
    path.write_bytes(whole[:-40])
    with pytest.raises(CheckpointError, match="are outside the file"):
        pretrained.load(path)
