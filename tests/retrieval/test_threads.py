"""Several threads look things up in one datastore through one model."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from regard.models import LanguageModel
from regard_lab.retrieval import Datastore, Index, KnnLm, Text, build
from tests.retrieval.conftest import VOCAB

LENGTHS = (3, 5, 8, 13)


def words(seed: int, length: int) -> Tensor:
    return torch.randint(VOCAB, (1, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def made(decoder, tmp_path) -> tuple[LanguageModel, Datastore]:
    model = decoder()
    return model, build(model, [Text("a", words(0, 200)[0].numpy())], tmp_path / "store", origin={}, length=16)


def same(model: Callable, texts: list[Tensor]) -> None:
    """What one thread says, then eight."""

    def read(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return model(tokens).logits

    alone = [read(tokens) for tokens in texts]
    with ThreadPoolExecutor(8) as pool:
        for expected, found in zip(alone, pool.map(read, texts), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


TEXTS = [words(seed, LENGTHS[seed % len(LENGTHS)]) for seed in range(160)]


def test_threads_share_a_knn_lm(made):
    model, store = made
    same(KnnLm(model, store, k=5).eval(), TEXTS)


def test_threads_share_an_index(made):
    """Of hnsw, whose list is as long as each search asks for."""
    pytest.importorskip("faiss", reason="the knn extra is not installed")
    model, store = made
    index = Index(store, "hnsw", probes=2)
    same(lambda tokens: KnnLm(model, index, k=tokens.shape[1]).eval()(tokens), TEXTS)
