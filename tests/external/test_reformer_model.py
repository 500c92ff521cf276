"""Reformers of transformers: agreement within a chunk of their hashes, and what they do beyond and with a cache."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.core.errors import CheckpointError, LimitError, UnsupportedError
from regard.integrations import pretrained

pytestmark = pytest.mark.external

transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make external`")

LENGTH, VOCABULARY, ROWS, COLUMNS = 32, 40, 4, 8
TINY = {"vocab_size": VOCABULARY, "hidden_size": 16, "attention_head_size": 6, "num_attention_heads": 2}
TINY |= {"feed_forward_size": 24, "is_decoder": True, "local_attn_chunk_length": 4, "num_buckets": 2, "num_hashes": 2}
TINY |= {"axial_pos_shape": [ROWS, COLUMNS], "axial_pos_embds_dim": [6, 10], "max_position_embeddings": LENGTH}
TINY |= {"hash_seed": 0, "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0}
LAYERS = {
    "local": ["local", "local", "local"],
    "hashes in one chunk": ["lsh", "lsh"],
    "both": ["local", "lsh", "local", "lsh"],
}


def network(layers: list[str], chunk: int = LENGTH, **further: object) -> Any:
    """Every number is random, biases and norms included."""
    torch.manual_seed(0)
    options = {"attn_layers": layers, "num_hidden_layers": len(layers), "lsh_attn_chunk_length": chunk}
    model = transformers.ReformerModelWithLMHead(transformers.ReformerConfig(**{**TINY, **options, **further})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference, of the largest number."""
    assert a.shape == b.shape
    return ((a - b).abs().max() / b.abs().max()).item()


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(seed))


def cached(theirs: Any, given: Tensor, prompt: int) -> Tensor:
    """Their logits with a cache: a prompt, then token by token."""
    answer = theirs(given[:, :prompt], use_cache=True)
    rows = [answer.logits]
    for at in range(prompt, given.shape[1]):
        answer = theirs(given[:, at : at + 1], use_cache=True, past_buckets_states=answer.past_buckets_states)
        rows.append(answer.logits)
    return torch.cat(rows, 1)


@torch.no_grad()
def logits(theirs: Any, given: Tensor) -> Tensor:
    """With the bias of the output layer, which transformers 5.23 stores and does not add; 5.24 has another."""
    found = theirs(given, use_cache=False).logits
    return found + theirs.lm_head.bias if theirs.lm_head.decoder.bias is None else found


@torch.no_grad()
def test_the_bias_of_their_output_layer_is_without_effect() -> None:
    theirs = network(LAYERS["local"])
    before = theirs(tokens()).logits
    theirs.lm_head.bias += 1.0
    assert torch.equal(theirs(tokens()).logits, before)


def test_the_bias_of_the_output_layer_is_read_under_either_name(tmp_path: Path) -> None:
    """transformers 5.24 adds `lm_head.decoder.bias`, and stores a `lm_head.bias` that nothing reads."""
    network(LAYERS["local"]).save_pretrained(tmp_path / "it")
    file = tmp_path / "it" / "model.safetensors"
    tensors = load_file(file)
    added, unread = torch.randn(VOCABULARY), tensors["lm_head.bias"]
    tensors = {name: x for name, x in tensors.items() if not name.endswith(".bias") or "lm_head" not in name}
    for names in ({"lm_head.decoder.bias": added, "lm_head.bias": unread}, {"lm_head.decoder.bias": added}):
        save_file({**tensors, **names}, file, {"format": "pt"})
        assert torch.equal(pretrained.load(tmp_path / "it").model.output.bias, added)


@torch.no_grad()
def agree(model: Any, theirs: Any) -> None:
    """The logits of a whole pass, and of pieces with a state."""
    given = tokens()
    wanted = logits(theirs, given)
    assert largest(model(given).logits, wanted) <= 1e-5
    state, parts = model.initial_state(3), []
    for piece in given.split([1, 6, 12, 1, 12], 1):
        answer = model(piece, state=state)
        parts.append(answer.logits)
        state = answer.state
    assert largest(torch.cat(parts, 1), wanted) <= 1e-5


@pytest.mark.parametrize("axial", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_folder_of_transformers_is_the_same_network_here_and_back(name: str, axial: bool, tmp_path: Path) -> None:
    theirs = network(LAYERS[name], axial_pos_embds=axial, local_num_chunks_before=2 if axial else 1)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = pretrained.load(tmp_path / "theirs")
    assert (loaded.architecture, loaded.config.max_length) == ("reformer", LENGTH)
    agree(loaded.model, theirs)
    with torch.no_grad():
        loaded.model.output.bias.zero_()  # theirs adds none
    pretrained.export(loaded, tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not [key for key in report["missing_keys"] if "mask_value" not in key and key != "lm_head.decoder.bias"]
    assert not again.lm_head.bias.any()
    agree(loaded.model, again.eval())
    own, reread = loaded.model.state_dict(), pretrained.load(tmp_path / "ours").model.state_dict()
    assert all(torch.allclose(reread[key], x, rtol=1e-6, atol=0) for key, x in own.items())


@torch.no_grad()
def test_layers_of_hashes_read_texts_of_one_chunk_and_may_be_given_other_hashes(tmp_path: Path) -> None:
    theirs = network(LAYERS["both"], chunk=8)
    theirs.save_pretrained(tmp_path / "it")
    loaded, given = pretrained.load(tmp_path / "it"), tokens()
    assert largest(loaded.model(given[:, :8]).logits, logits(theirs, given[:, :8])) <= 1e-5
    with pytest.raises(LimitError, match="8"):
        loaded.model(given)
    local = "pattern(rule='block(4, 1)')"
    longer = pretrained.convert(loaded, [local, "lsh(num_buckets=4, rounds=2)"] * 2, max_length=LENGTH)
    whole, state, rows = longer.model(given).logits, longer.model.initial_state(3), []
    for token in given.split(1, 1):
        answer = longer.model(token, state=state)
        rows.append(answer.logits)
        state = answer.state
    assert largest(torch.cat(rows, 1), whole) <= 1e-5
    with pytest.raises(UnsupportedError, match="cannot be written as reformer: attention=lsh"):
        pretrained.export(longer, tmp_path / "no")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_decoder": False}, "is_decoder=False"),
        ({"local_num_chunks_after": 1}, "local_num_chunks_after=1"),
        ({"local_num_chunks_before": -1}, "local_num_chunks_before must be an integer of at least 0"),
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"attn_layers": ["local", "lsh", "local"]}, "attn_layers must name local or lsh for each of 4 layers"),
        ({"attn_layers": ["local", "lsh", "local", "full"]}, "attn_layers must name local or lsh"),
    ],
)
def test_what_no_model_here_is(options: dict[str, object], message: str, tmp_path: Path) -> None:
    network(LAYERS["both"]).save_pretrained(tmp_path / "it")
    file = tmp_path / "it" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    with pytest.raises(CheckpointError, match=message):
        pretrained.load(tmp_path / "it")


def test_an_encoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = transformers.ReformerConfig(**{**TINY, "is_decoder": False, "attn_layers": ["local"]})
    transformers.ReformerForMaskedLM(config).save_pretrained(tmp_path / "it")
    with pytest.raises(UnsupportedError, match="looks ahead, and wraps around the end of the text"):
        pretrained.load(tmp_path / "it")


def test_a_trained_output_bias_is_not_written(tmp_path: Path) -> None:
    network(LAYERS["local"]).save_pretrained(tmp_path / "it")
    loaded = pretrained.load(tmp_path / "it")
    loaded.model.layers[1].projections.output.bias.data[3] = 0.5
    with pytest.raises(UnsupportedError, match="its attention has output biases"):
        pretrained.export(loaded, tmp_path / "no")


def test_a_trained_bias_of_the_output_layer_is_not_written_and_is_saved(tmp_path: Path) -> None:
    """In the folder transformers would compute other logits than the model that was written."""
    network(LAYERS["local"]).save_pretrained(tmp_path / "it")
    loaded = pretrained.load(tmp_path / "it")
    assert loaded.model.output.bias.any()
    with pytest.raises(UnsupportedError, match=r"written as reformer: output\.bias, which learned; some releases"):
        pretrained.export(loaded, tmp_path / "no")
    pretrained.save(loaded, tmp_path / "kept")
    again, given = pretrained.load(tmp_path / "kept").model, tokens()
    assert torch.equal(again(given).logits, loaded.model(given).logits)


@torch.no_grad()
def test_their_cache_agrees_with_their_whole_pass_within_one_chunk_alone() -> None:
    """Beyond a chunk the cached pass of a layer of hashes is another function of the same tokens."""
    given = tokens()[:1]
    for chunk, least, most in ((LENGTH, 0.0, 1e-5), (8, 0.05, 10.0)):
        theirs = network(LAYERS["both"], chunk)
        wanted = theirs(given, use_cache=False).logits
        for prompt in (8, 16):
            assert least <= largest(cached(theirs, given, prompt)[:, prompt:], wanted[:, prompt:]) <= most


@torch.no_grad()
def test_their_hashes_let_later_tokens_reach_earlier_ones_beyond_one_chunk() -> None:
    given, other = tokens()[:1], tokens()[:1]
    other[:, 20:] = (other[:, 20:] + 1) % VOCABULARY
    for chunk, leaks in ((LENGTH, False), (8, True)):
        theirs = network(LAYERS["both"], chunk)
        a, b = (theirs(x, use_cache=False).logits[:, :20] for x in (given, other))
        assert (largest(a, b) > 1e-3) is leaks
