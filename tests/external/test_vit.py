"""Published ViTs against transformers, on images: hidden states and logits, in both directions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.core.errors import CheckpointError, UnsupportedError
from regard.integrations import pretrained
from regard.models.encoder import patches

pytestmark = pytest.mark.external

transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make external`")

TINY = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
TINY |= {"image_size": 12, "patch_size": 4, "num_channels": 3}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "bare": ("ViTModel", {}),
    "without biases of queries, keys and values": ("ViTModel", {"qkv_bias": False, "layer_norm_eps": 1e-3}),
    "one channel": ("ViTModel", {"num_channels": 1, "patch_size": 6}),
    "wide images": ("ViTModel", {"image_size": [8, 20], "patch_size": [4, 4]}),
    "classes": ("ViTForImageClassification", {"id2label": {0: "apple", 1: "pear", 2: "quince", 3: "fig", 4: "plum"}}),
    "classes, tanh": ("ViTForImageClassification", {"num_labels": 2, "hidden_act": "gelu_new"}),
    "classes, relu": ("ViTForImageClassification", {"num_labels": 3, "hidden_act": "relu", "num_channels": 4}),
}


def network(title: str, **options: object) -> Any:
    """Every number is random, biases and norms included."""
    torch.manual_seed(0)
    model = getattr(transformers, title)(transformers.ViTConfig(**{**TINY, **options})).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.15)
    return model


def images(ours: Any) -> Tensor:
    shape = getattr(ours, "encoder", ours).config.image
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-12 * theirs.abs().max()


@torch.no_grad()
def agree(ours: Any, theirs: Any) -> None:
    """Every layer's hidden states, what leaves the last norm, and the logits, in float64."""
    ours, encoder, given = ours.double(), getattr(ours, "encoder", ours), images(ours)
    wanted = theirs.double()(given, output_hidden_states=True)
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda module, given: seen.append(given[0])) for block in encoder.blocks]
    hooks.append(encoder.norm.register_forward_pre_hook(lambda module, given: seen.append(given[0])))
    got = ours(given)
    for hook in hooks:
        hook.remove()
    for own, other in zip(seen, wanted.hidden_states, strict=True):
        close(own, other)
    if hasattr(wanted, "logits"):
        close(got.logits, wanted.logits)
    else:
        close(got.hidden, wanted.last_hidden_state)
    cut = ours(patches(given, encoder.config.patch))
    assert all(torch.equal(one, other) for one, other in zip(got[:1], cut[:1], strict=True))


@pytest.mark.parametrize("original", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_transformers_is_the_same_network_here_and_back(name: str, original: bool, tmp_path: Path) -> None:
    title, options = CASES[name]
    theirs = network(title, **options).float()
    theirs.save_pretrained(tmp_path / "theirs", save_original_format=original)
    loaded = pretrained.load(tmp_path / "theirs")
    assert (loaded.architecture, loaded.tokenizer, loaded.stop_tokens) == ("vit", None, ())
    ours: Any = loaded.model
    agree(ours, theirs)
    pretrained.export(replace(loaded, model=ours.float()), tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert all("pooler" in key for key in report["missing_keys"])
    written = {**TINY, **options, "patch_size": getattr(ours, "encoder", ours).config.patch}
    assert {name: getattr(again.config, name) for name in written} == written
    agree(ours, again.eval())
    own, reread = ours.float().state_dict(), pretrained.load(tmp_path / "ours").model.state_dict()
    assert all(torch.equal(reread[key], x) for key, x in own.items())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hidden_act": "quick_gelu"}, CheckpointError, "hidden_act='quick_gelu': regard's model has 'gelu_new', "),
        ({"image_size": 14}, CheckpointError, "image_size=14 x 14: its sides are no multiples of patch_size=4"),
        ({"patch_size": [4, 6]}, CheckpointError, "patch_size=4 x 6: regard's model has squares"),
    ],
)
def test_what_no_model_here_is(
    options: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    network("ViTModel", **options).float().save_pretrained(tmp_path / "it")
    with pytest.raises(error, match=message):
        pretrained.load(tmp_path / "it")


def test_a_head_for_hidden_patches_is_refused_with_the_reason(tmp_path: Path) -> None:
    network("ViTForMaskedImageModeling", encoder_stride=4).float().save_pretrained(tmp_path / "it")
    with pytest.raises(UnsupportedError, match="'ViTForMaskedImageModeling', which draws the pixels of hidden patches"):
        pretrained.load(tmp_path / "it")


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    network("ViTModel").float().save_pretrained(tmp_path / "it")
    file = tmp_path / "it" / "model.safetensors"
    tensors = load_file(file)
    (name,) = (name for name in tensors if name.endswith("encoder.layer.1.output.dense.bias"))
    save_file({**tensors, name.replace("encoder.layer.1.output.dense", "layers.1.mlp.fc2"): torch.zeros(24)}, file)
    with pytest.raises(CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.bias is there under two names"):
        pretrained.load(tmp_path / "it")
