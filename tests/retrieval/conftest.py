"""A small datastore of several blocks, and a small decoder."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.models import LanguageModel, presets
from regard_lab.retrieval import Datastore, writer

VOCAB = 11
DIM = 6


def entries(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys that float16 holds, and values."""
    draw = torch.Generator().manual_seed(seed)
    keys = torch.randn(count, DIM, generator=draw).half().float()
    return keys, torch.randint(VOCAB, (count,), generator=draw)


def filled(folder: Path, documents: dict[str, tuple[Tensor, Tensor]]) -> Datastore:
    """A datastore of these documents, each with its name as digest."""
    with Datastore.create(folder, DIM, vocab_size=VOCAB, origin={"model": "a", "tokenizer": "b"}).adding() as adding:
        for name, (keys, values) in documents.items():
            adding.begin(name, entries=len(keys), digest=name)
            adding.append(keys, values)
    return Datastore.open(folder)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 10 entries."""
    monkeypatch.setattr(writer, "BLOCK_BYTES", 10 * DIM * 2)


@pytest.fixture
def documents() -> dict[str, tuple[Tensor, Tensor]]:
    return {"one": entries(17, 1), "two": entries(25, 2), "none": entries(0, 3), "three": entries(8, 4)}


@pytest.fixture
def store(small_blocks: None, documents: dict[str, tuple[Tensor, Tensor]], tmp_path: Path) -> Datastore:
    return filled(tmp_path / "store", documents)


@pytest.fixture
def decoder() -> Callable[..., LanguageModel]:
    """A decoder with weights that are no longer small, so that contexts differ."""

    def made(**options: object) -> LanguageModel:
        shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": VOCAB, "max_length": 32, **options}
        model = LanguageModel(presets.build("llama", **shape)).eval()
        draw = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
        return model

    return made
