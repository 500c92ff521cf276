"""Parts of tensors in shards are put together; those that do not fit are named."""

import json

import pytest
import safetensors.torch
import torch

from regard_lab.training import shards


def shard(parts: dict[str, tuple[list[int], torch.Tensor]], places: object = None) -> bytes:
    """A file as torch.distributed.checkpoint writes it, or one that says `places` instead."""
    said = {key: {"saved_offsets": first} for key, (first, _) in parts.items()} if places is None else places
    tensors = {key: x for key, (_, x) in parts.items()}
    return safetensors.torch.save(tensors, {"DCP_SHARDING_INFO": json.dumps(said)})


def named(*files: bytes, part: str = "model") -> dict[str, bytes]:
    return {shards.file_name(part, number, len(files)): data for number, data in enumerate(files, 1)}


X = torch.arange(12.0).view(4, 3)


def test_parts_are_put_together_wherever_they_are():
    rows = named(
        shard({"x": ([0, 0], X[:2]), "count": ([], torch.tensor(3))}),
        shard({"x": ([2, 0], X[2:, :1].clone())}),
        shard({"x": ([2, 1], X[2:, 1:].clone()), "none": ([0], torch.zeros(0))}),
        shard({"x": ([4, 0], torch.zeros(0, 3))}),
    )
    found = shards.joined(rows, "model")
    assert found["x"].equal(X)
    assert found["count"].equal(torch.tensor(3))
    assert found["none"].shape == (0,)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (named(shard({"x": ([0, 0], X[:2])}), shard({"x": ([3, 0], X[3:])})), "leave a gap"),
        (named(shard({"x": ([0, 0], X[:3])}), shard({"x": ([2, 0], X[2:])})), "overlap or leave a gap"),
        ({"model.1-of-2.safetensors": shard({"x": ([0, 0], X)})}, "shard 2 of 2 of the model is missing"),
        ({"model.1-of-1.safetensors": b"", "model.1-of-2.safetensors": b""}, "several kinds of shards"),
        (named(shard({"x": ([0, 0], X)}), part="optimizer"), "no shards of the model"),
    ],
)
def test_what_does_not_fit_together_is_named(files, wanted):
    with pytest.raises(ValueError, match=wanted):
        shards.joined(files, "model")
