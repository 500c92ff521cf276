"""Nystromformer of transformers: agreement where it is right, which is a text alone, and what it does to a batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.core.errors import CheckpointError, UnsupportedError
from regard.integrations import architectures, pretrained
from regard.models import Encoder, presets

pytestmark = pytest.mark.external

transformers = pytest.importorskip("transformers", reason="transformers is not installed; `make external`")

LENGTH, VOCABULARY = 24, 83
TINY = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
TINY |= {"intermediate_size": 40, "max_position_embeddings": LENGTH, "conv_kernel_size": 5}
LANDMARKS = {"num_landmarks": 6, "segment_means_seq_len": LENGTH}
EVERY = {"num_landmarks": 8, "segment_means_seq_len": 8}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "bare": ("NystromformerModel", {**LANDMARKS, "type_vocab_size": 3}),
    "one landmark, one head": ("NystromformerModel", {**LANDMARKS, "num_landmarks": 1, "num_attention_heads": 1}),
    "masked tokens": ("NystromformerForMaskedLM", {**LANDMARKS, "hidden_act": "gelu"}),
    "classes": ("NystromformerForSequenceClassification", {**LANDMARKS, "num_labels": 5, "layer_norm_eps": 1e-3}),
    "every token a landmark": ("NystromformerForMaskedLM", EVERY),
    "every token a landmark, classes": ("NystromformerForSequenceClassification", {**EVERY, "num_labels": 2}),
}


def network(title: str, **options: object) -> Any:
    """Every number is random, biases and norms included."""
    torch.manual_seed(0)
    model = getattr(transformers, title)(transformers.NystromformerConfig(**{**TINY, **options})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.15)
    return model


def ids(batch: int, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference, of the largest number."""
    assert a.shape == b.shape
    return ((a - b).abs().max() / b.abs().max()).item()


def read(theirs: Any, folder: Path) -> Any:
    theirs.save_pretrained(folder)
    return pretrained.load(folder).model


def given(output: Any) -> Tensor:
    """Logits, or what leaves a bare network."""
    for name in ("logits", "last_hidden_state", "hidden"):
        if hasattr(output, name):
            return getattr(output, name)
    raise AssertionError(output)


@torch.no_grad()
def agree(ours: Any, theirs: Any) -> None:
    """Each text alone: what enters every block, and what comes out."""
    kinds = ids(1, seed=2) % theirs.config.type_vocab_size
    for seed in range(3):
        tokens, seen = ids(1, seed=seed), list[Tensor]()
        encoder = getattr(ours, "encoder", ours)
        hooks = [block.register_forward_pre_hook(lambda _, x, seen=seen: seen.append(x[0])) for block in encoder.blocks]
        got = ours(tokens, token_types=kinds)
        for hook in hooks:
            hook.remove()
        wanted = theirs(tokens, token_type_ids=kinds, output_hidden_states=True)
        for own, other in zip(seen, wanted.hidden_states[:-1], strict=True):
            assert largest(own, other) <= 1e-5
        assert largest(given(got), given(wanted)) <= 1e-5


@pytest.mark.parametrize("name", CASES)
def test_a_folder_of_transformers_is_the_same_network_here_and_back(name: str, tmp_path: Path) -> None:
    title, options = CASES[name]
    theirs = network(title, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = pretrained.load(tmp_path / "theirs")
    assert loaded.architecture == "nystromformer"
    agree(loaded.model, theirs)
    pretrained.export(loaded, tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["missing_keys"]
    agree(loaded.model, again.eval())
    reread = pretrained.load(tmp_path / "ours").model.state_dict()
    assert all(torch.equal(reread[key], x) for key, x in loaded.model.state_dict().items())


@torch.no_grad()
def test_the_longest_length_is_written_and_another_may_be_put_in_its_place(tmp_path: Path) -> None:
    theirs, tokens = network("NystromformerModel", **{**LANDMARKS, "segment_means_seq_len": LENGTH // 2}), ids(1, 12)
    ours = read(theirs, tmp_path / "it")
    pretrained.export(ours, tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    assert again.config.segment_means_seq_len == LENGTH
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        again(tokens)
    shorter = type(theirs).from_pretrained(tmp_path / "ours", segment_means_seq_len=LENGTH // 2).eval()
    assert largest(given(shorter(tokens)), given(theirs(tokens))) <= 1e-5


@torch.no_grad()
def test_a_text_beside_another_is_what_it_is_alone_here_and_not_there(tmp_path: Path) -> None:
    """Theirs begins the inverse of every matrix with the largest norm of the batch."""
    theirs = network("NystromformerModel", **LANDMARKS)
    ours, tokens = read(theirs, tmp_path / "it"), ids(3)
    alone = torch.cat([given(theirs(row[None])) for row in tokens])
    assert largest(given(theirs(tokens)), alone) > 1e-3
    assert largest(given(ours(tokens)), alone) <= 1e-5


@torch.no_grad()
def test_short_texts_share_landmarks_there(tmp_path: Path) -> None:
    """Two of half the length are cut as if they were one: what the other says reaches each of them."""
    theirs = network("NystromformerModel", **LANDMARKS)
    ours, tokens = read(theirs, tmp_path / "it"), ids(2, LENGTH // 2)
    other = torch.cat([tokens[:1], ids(1, LENGTH // 2, seed=9)])
    assert largest(given(theirs(tokens))[0], given(theirs(other))[0]) > 1e-2
    assert torch.equal(given(ours(tokens))[0], given(ours(other))[0])
    # Told that texts are half as long, theirs computes for each what ours does.
    half = network("NystromformerModel", **{**LANDMARKS, "segment_means_seq_len": LENGTH // 2})
    half.load_state_dict(theirs.state_dict())
    for row in tokens:
        assert largest(given(ours(row[None])), given(half(row[None]))) <= 1e-5


@torch.no_grad()
def test_padding_is_refused_there_or_seen_and_neither_here(tmp_path: Path) -> None:
    tokens, keep = ids(2, 16), torch.arange(16)[None] < torch.tensor([[16], [12]])
    other = tokens.where(keep, ids(2, 16, seed=5))
    landmarks = network("NystromformerModel", **{**LANDMARKS, "segment_means_seq_len": 12})
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        landmarks(tokens[:, :12], attention_mask=keep.long()[:, 4:])
    ours = read(landmarks, tmp_path / "landmarks")
    row = given(ours(tokens, key_mask=keep))[1:, :12]
    assert largest(row, given(landmarks(tokens[1:, :12]))) <= 1e-5
    assert torch.equal(row, given(ours(other, key_mask=keep))[1:, :12])
    # As many landmarks as tokens: the softmax is masked, and the convolution reads what is behind the text.
    every = network("NystromformerModel", **EVERY)
    ours, mask = read(every, tmp_path / "every"), keep.long()
    theirs = [given(every(x, attention_mask=mask))[1:, :12] for x in (tokens, other)]
    assert largest(*theirs) > 1e-2
    row = given(ours(tokens, key_mask=keep))[1:, :12]
    assert torch.equal(row, given(ours(other, key_mask=keep))[1:, :12])
    assert largest(row, given(every(tokens[1:, :12]))) <= 1e-5


def test_the_exact_first_step_cannot_be_built_there_and_is_here(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not subscriptable"):
        network("NystromformerModel", **LANDMARKS, inv_coeff_init_option=True)
    network("NystromformerModel", **LANDMARKS).save_pretrained(tmp_path / "it")
    file = tmp_path / "it" / "config.json"
    file.write_text(file.read_text().replace('"inv_coeff_init_option": false', '"inv_coeff_init_option": true'))
    loaded = pretrained.load(tmp_path / "it")
    assert loaded.config.attention == ("nystrom(num_landmarks=6, norm='matrix', convolution=5)",)
    with pytest.raises(UnsupportedError, match="norm='matrix', and transformers begins with the largest"):
        pretrained.export(loaded, tmp_path / "no")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_landmarks": 5}, "num_landmarks=5 does not divide segment_means_seq_len=24"),
        ({"conv_kernel_size": 4}, "conv_kernel_size=4 is even"),
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
    ],
)
def test_what_no_model_here_is(options: dict[str, object], message: str, tmp_path: Path) -> None:
    network("NystromformerModel", **{**LANDMARKS, **options}).save_pretrained(tmp_path / "it")
    with pytest.raises(CheckpointError, match=message):
        pretrained.load(tmp_path / "it")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_landmarks": 13}, "max_length=24, not at least twice num_landmarks=13"),
        ({"tolerance": 0.1}, "six iterations without a tolerance"),
        ({"iterations": 7}, "six iterations without a tolerance"),
        ({"norm": "matrix"}, "norm='matrix', and transformers begins with the largest"),
    ],
)
def test_what_transformers_does_not_compute_is_not_written(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    network("NystromformerModel", **LANDMARKS).save_pretrained(tmp_path / "it")
    options = {"num_landmarks": 6, "norm": "heads", "convolution": 5, **change}
    spec = f"nystrom({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    kept = pretrained.convert(pretrained.load(tmp_path / "it"), spec)
    with pytest.raises(UnsupportedError, match=message):
        pretrained.export(kept, tmp_path / "no")
    pretrained.save(kept, tmp_path / "kept")
    again = pretrained.load(tmp_path / "kept")
    tokens = ids(1)
    assert torch.equal(given(again.model(tokens)), given(kept.model(tokens)))


def test_other_attention_is_not_written(tmp_path: Path) -> None:
    config = presets.build("nystromformer", dim=8, heads=2, layers=2, vocab_size=9, max_length=12, convolution=None)
    with pytest.raises(UnsupportedError, match="it has no convolution"):
        architectures.by_name("nystromformer", "").forms[0].settings(Encoder(config))
    bert = Encoder(presets.build("bert", dim=8, heads=2, layers=1, vocab_size=9, max_length=12))
    with pytest.raises(UnsupportedError, match="not every layer is nystrom"):
        architectures.by_name("nystromformer", "").forms[0].settings(bert)
