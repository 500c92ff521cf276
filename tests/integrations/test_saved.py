"""What became of a published network: written as it is, read as the same bits, and never as something else."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import regard
from regard.core.errors import CheckpointError, ConfigError, InputError, RegardError, UnsafeFileError, UnsupportedError
from regard.files import consent
from regard.files.checksums import write_manifest
from regard.integrations import pretrained
from regard.integrations.chat import ChatTemplate
from regard.integrations.pretrained import PublishedModel
from regard.models import (
    Classifier,
    Encoder,
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    Regressor,
    presets,
)
from regard.models.layout import by_columns
from tests.integrations.test_pretrained import network, vit, words

TINY = {"vocab_size": 29, "dim": 12, "layers": 2, "heads": 2, "max_length": 20, "mlp_dim": 20, "dropout": 0.0}
TEMPLATE = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {"eos_token": "[end]"}, "x")


def decoder(*attention: str, preset: str = "llama", **options: object) -> LanguageModel:
    return LanguageModel(replace(presets.build(preset, **TINY, **options), attention=attention))


def encoder(*attention: str, preset: str = "bert", **options: object) -> Encoder:
    return Encoder(replace(presets.build(preset, **TINY, **options), attention=attention))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: decoder("linear"),
    "one for each layer": lambda: decoder("linear", "local(window=3)", kv_heads=1),
    "a mix": lambda: decoder("linear:1 + softmax:1"),
    "random features": lambda: decoder("performer(num_features=8)"),
    "tied, with weights of its own": lambda: decoder("cosine", preset="gpt"),
    "a memory": lambda: decoder("softmax", memory="recent(length=4)", position="transformer_xl"),
    "parallel": lambda: decoder("linear", block="parallel", short_convolution=2),
    "bare": lambda: encoder("longformer(window=3)", projections="global"),
    "random blocks": lambda: encoder("bigbird(block_size=2, num_random=2)"),
    "masked tokens": lambda: MaskedLanguageModel(encoder("linear"), activation="relu"),
    "classes": lambda: Classifier(encoder("efficient", pooling="mean"), classes=3, activation="gelu_tanh"),
    "numbers": lambda: Regressor(encoder("sigmoid", position="t5_bias"), targets=2),
    "images": lambda: Classifier(vit(), classes=3),
    "both": lambda: EncoderDecoder(
        replace(presets.build("t5", **TINY), attention=("linear",), position="rotary", encoder_attention=("linear",))
    ),
}


def loaded(model: nn.Module, *, reads: bool = True) -> PublishedModel:
    """With random numbers everywhere, a tokenizer, stop tokens and a chat template."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=draw))
    config = getattr(model, "config", None) or model.encoder.config  # type: ignore[union-attr]
    tokenizer, stops = (words(), (1, 9)) if reads else (None, ())
    return PublishedModel(model.eval(), tokenizer, config, stops, "tiny", Path("tiny"), TEMPLATE if reads else None)  # type: ignore[arg-type]


@torch.no_grad()
def outputs(model: Any) -> Tensor:
    config = getattr(model, "encoder", model).config
    if getattr(config, "image", None):
        return model(torch.randn(2, *config.image, generator=torch.Generator().manual_seed(0))).logits
    tokens = torch.tensor([[3, 7, 28, 1, 8, 2], [4, 4, 0, 9, 5, 5]])
    if isinstance(model, EncoderDecoder):
        return model(tokens, tokens[:, :3]).logits
    got = model(tokens)
    return got.hidden if isinstance(model, Encoder) else got.logits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pretrained.save(loaded(decoder("linear", "cosine")), tmp_path / "it")
    return tmp_path / "it"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """As somebody would who knows of the checksums."""
    values = json.loads((folder / "network.json").read_text())
    change(values)
    (folder / "network.json").write_text(json.dumps(values))
    resealed(folder)


def resealed(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    write_manifest(folder, names)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_saved_is_loaded_as_the_same_bits(name: str, tmp_path: Path) -> None:
    own = loaded(NETWORKS[name](), reads=name != "images")
    pretrained.save(own, tmp_path / "it")
    assert pretrained.recognised(tmp_path / "it")
    again = pretrained.load(tmp_path / "it")
    assert type(again.model) is type(own.model)
    assert not again.model.training
    assert (again.config, again.stop_tokens, again.architecture) == (own.config, own.stop_tokens, "tiny")
    assert [again.tokenizer is None, again.chat_template is None] == [name == "images"] * 2
    if again.chat_template is not None:
        words_of = [json.loads(each.reader.to_json())["model"] for each in (again, own)]
        assert words_of[0] == words_of[1]
        assert (again.chat_template.source, again.chat_template.tokens) == (TEMPLATE.source, TEMPLATE.tokens)
    assert again.model.state_dict().keys() == own.model.state_dict().keys()
    assert all(torch.equal(x, own.model.state_dict()[key]) for key, x in again.model.state_dict().items())
    if isinstance(own.model, LanguageModel):
        by_columns(own.model)  # as `load` and `convert` give it
    assert torch.equal(outputs(again.model), outputs(own.model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_of_the_weights_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    own = loaded(decoder("linear").to(dtype))
    pretrained.save(own, tmp_path / "it")
    again = pretrained.load(tmp_path / "it")
    assert {x.dtype for x in again.model.parameters()} == {dtype}
    assert all(torch.equal(x, own.model.state_dict()[key]) for key, x in again.model.state_dict().items())


@pytest.mark.parametrize("title", ["BertForSequenceClassification", "ViTForImageClassification"])
def test_names_of_classes_are_kept(title: str, tmp_path: Path) -> None:
    names = ("苹果", "pear", "pear tree")
    pretrained.export(network(title), tmp_path / "numbers")
    assert pretrained.load(tmp_path / "numbers").classes == ("LABEL_0", "LABEL_1", "LABEL_2")
    own = replace(pretrained.load(tmp_path / "numbers"), classes=names)
    pretrained.export(own, tmp_path / "named")
    again = pretrained.load(tmp_path / "named")
    assert again.classes == names
    assert json.loads((tmp_path / "named" / "config.json").read_text())["label2id"]["pear"] == 1
    pretrained.save(pretrained.convert(again, "linear"), tmp_path / "kept")
    assert pretrained.load(tmp_path / "kept").classes == names
    for wrong in ({"0": "a", "1": "b", "3": "c"}, {"0": "a", "1": "b", "2": 3}):
        config = tmp_path / "named" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "id2label": wrong}))
        with pytest.raises(CheckpointError, match="id2label must have a text for each number from 0 to 2"):
            pretrained.load(tmp_path / "named")


def test_what_was_saved_takes_other_attention_and_8_bits(folder: Path, tmp_path: Path) -> None:
    whole = pretrained.load(folder)
    with pytest.raises(UnsupportedError, match="would have no use"):
        pretrained.load(folder, attention="softmax")  # cosine's gain
    pretrained.save(loaded(decoder("linear")), tmp_path / "linear")
    dense = pretrained.load(tmp_path / "linear", attention="softmax", max_length=40)
    assert (dense.config.attention, dense.config.max_length) == (("softmax",), 40)
    packed = pretrained.load(folder, weights="int8")
    wanted = outputs(whole.model)
    assert 0 < (outputs(packed.model) - wanted).norm() < 0.05 * wanted.norm()
    with pytest.raises(UnsupportedError, match="is not written"):
        pretrained.save(packed, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


@torch.no_grad()
def test_blocks_that_were_placed_are_those_that_are_computed(tmp_path: Path) -> None:
    """Random blocks are a buffer, and a pattern is made of it: saved, converted and exported, both are the same."""
    shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 29, "max_length": 64}
    bare = replace(presets.build("bigbird", **shape), attention=("bigbird(block_size=2, num_random=2)",))
    own, other = (loaded(MaskedLanguageModel(Encoder(replace(bare, seed=seed)), activation="gelu")) for seed in (0, 1))
    for mine, theirs in zip(own.model.encoder.mechanisms, other.model.encoder.mechanisms, strict=True):  # type: ignore[union-attr]
        assert not torch.equal(mine.picks, theirs.picks)
        mine.place(theirs.picks)
    tokens = torch.randint(3, 29, (2, 64), generator=torch.Generator().manual_seed(0))
    wanted = own.model(tokens).logits
    pretrained.save(own, tmp_path / "saved")
    assert torch.equal(pretrained.load(tmp_path / "saved").model(tokens).logits, wanted)
    assert torch.equal(pretrained.convert(own, None).model(tokens).logits, wanted)


def test_a_mechanism_that_was_exchanged_is_not_written(tmp_path: Path) -> None:
    own = loaded(decoder("softmax"))
    layer = own.model.blocks[0].attention  # type: ignore[index, union-attr]
    layer.attention = regard.build("local(window=2)", layer.attention.heads)
    with pytest.raises(UnsupportedError, match=r"blocks\.0\.attention\.attention is another mechanism"):
        pretrained.save(own, tmp_path / "it")
    assert not (tmp_path / "it").exists()


def test_nothing_of_hugging_face_is_in_the_folder(folder: Path) -> None:
    """A config.json would be read by transformers as a network of softmax."""
    found = {path.name for path in folder.iterdir()}
    assert found == {"network.json", "model.safetensors", "tokenizer.json", "manifest.json"}
    with pytest.raises(ConfigError, match="exists; choose another name"):
        pretrained.save(pretrained.load(folder), folder)


@pytest.mark.parametrize("name", ["network.json", "model.safetensors", "tokenizer.json", "manifest.json"])
def test_damage_is_named(name: str, folder: Path) -> None:
    path = folder / name
    whole = path.read_bytes()
    for at in (0, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match=name if name != "manifest.json" else "it"):
            pretrained.load(folder)
    path.write_bytes(whole[:-9])
    with pytest.raises(CheckpointError, match=str(folder)):
        pretrained.load(folder)
    path.unlink()
    assert pretrained.recognised(folder)
    with pytest.raises(CheckpointError, match=name):
        pretrained.load(folder)


def test_a_tokenizer_that_is_none_is_named(folder: Path) -> None:
    """Though the manifest says that it is what was written."""
    (folder / "tokenizer.json").write_text("{}")
    write_manifest(folder, ["network.json", "model.safetensors", "tokenizer.json"])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is none that the tokenizers library reads"):
        pretrained.load(folder)


def test_a_file_that_leads_outside_is_refused(folder: Path) -> None:
    for name in ("network.json", "model.safetensors", "tokenizer.json"):
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(f"../{name}")
        with pytest.raises(UnsafeFileError, match=f"{name} is a link to"):
            pretrained.load(folder)
        (folder / name).unlink()
        (folder.parent / name).rename(folder / name)
    pretrained.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: said.update(format=2), "has format 2; this version of regard reads 1"),
        (lambda said: said.update(kind="Mamba"), "has no kind of LanguageModel, Encoder, .*, got 'Mamba'"),
        (lambda said: said.update(kind="Classifier"), r"config\.\w+: unknown key"),
        (lambda said: said["config"].update(layers="2", norm="none"), r"(?s)config\.layers: .*config\.norm: "),
        (lambda said: said["config"].update(attention=["softmax"]), r"(?s)log_gain \(\d+,\) has no use here"),
        (lambda said: said["config"].update(attention=["linear"] * 3), "attention must be a tuple of one"),
        (lambda said: said["config"].update(attention=["locl"]), "unknown mechanism 'locl'"),
        (lambda said: said["config"].update(layers=99, attention=["linear"]), "describes a larger network"),
        (lambda said: said["config"].update(dim=24), r"(?s)has shape \(.*and the configuration says"),
        (lambda said: said.pop("config"), "has no kind of"),
    ],
)
def test_a_description_that_is_none_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, folder: Path
) -> None:
    rewrite(folder, change)
    with pytest.raises(RegardError, match=message) as caught:
        pretrained.load(folder)
    assert isinstance(caught.value, CheckpointError)
    assert str(folder) in str(caught.value)


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "blocks.0.mlp.up.weight"
    tensors["another"] = tensors.pop(name)
    save_file(tensors, folder / "model.safetensors")
    resealed(folder)
    with pytest.raises(CheckpointError) as caught:
        pretrained.load(folder)
    assert f"{name} (20, 12) is missing" in str(caught.value)
    assert "another (20, 12) has no use here" in str(caught.value)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')  # of Hugging Face, and not read here


def test_a_network_that_its_configuration_does_not_build_is_not_written(tmp_path: Path) -> None:
    own = loaded(decoder("linear"))
    own.model.blocks[0].added = nn.Linear(2, 3)  # type: ignore[index, union-attr]
    own.model.blocks[1].mlp.up = nn.Linear(12, 7, bias=False)  # type: ignore[index, union-attr]
    with pytest.raises(UnsupportedError) as caught:
        pretrained.save(own, tmp_path / "it")
    assert "blocks.0.added.bias is not of its configuration" in str(caught.value)
    assert "blocks.1.mlp.up.weight is (7, 12) torch.float32, and its configuration builds (20, 12)" in str(caught.value)
    with pytest.raises(UnsupportedError, match="Linear is no network of regard: LanguageModel, "):
        pretrained.save(replace(own, model=nn.Linear(2, 2)), tmp_path / "it")
    assert not (tmp_path / "it").exists()


def test_a_mechanism_of_somebody_else_is_imported_with_trust_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_a_saved_network.py").write_text(
        "from regard.attention.dense.uniform import Uniform\n\n\n"
        "class Mine(Uniform):\n    width: int = 4\n    '''of nothing'''\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    pretrained.save(loaded(decoder("mine_of_a_saved_network:Mine(width=2)", preset="gpt")), tmp_path / "it")
    pretrained.load(tmp_path / "it")  # this process has agreed to it
    monkeypatch.setattr(consent, "_agreed", set())
    with pytest.raises(ConfigError, match=r"network\.json names mine_of_a_saved_network:Mine.*trust=True"):
        pretrained.load(tmp_path / "it")
    again = pretrained.load(tmp_path / "it", trust=True)
    assert again.config.attention == ("mine_of_a_saved_network:Mine(width=2)",)


def test_no_mechanism_is_lost(tmp_path: Path) -> None:
    """Whatever an encoder's mechanism draws, keeps and shares is in the file."""
    kept = []
    for name in regard.names():
        if not regard.describe(name).supports.bidirectional:
            continue
        with suppress(UnsupportedError, ConfigError, InputError):  # it needs more than its name, or than tokens
            config = presets.build("bert", **{**TINY, "layers": 1})
            own = loaded(Encoder(replace(config, attention=(name,))), reads=False)
            wanted = outputs(own.model)
            pretrained.save(own, tmp_path / name)
            assert torch.equal(outputs(pretrained.load(tmp_path / name).model), wanted), name
            kept.append(name)
    assert len(kept) > 30
