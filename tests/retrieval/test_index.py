"""FAISS indices against exact search."""

import importlib

import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, LimitError, UnsupportedError
from regard_lab.retrieval import Datastore, Index
from tests.retrieval.conftest import DIM, VOCAB, entries, filled


@pytest.fixture
def faiss():
    return pytest.importorskip("faiss", reason="the knn extra is not installed")


@pytest.fixture
def many(tmp_path, small_blocks, monkeypatch) -> Datastore:
    monkeypatch.setattr("regard_lab.retrieval.writer.BLOCK_BYTES", 700 * DIM * 2)
    return filled(tmp_path / "many", {"a": entries(900, 1), "b": entries(1100, 2)})


def recall(found, exact) -> float:
    hits = [len(set(a) & set(b)) for a, b in zip(found.ids.tolist(), exact.ids.tolist(), strict=True)]
    return sum(hits) / exact.ids.numel()


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_an_index_finds_what_exact_search_finds(faiss, many, kind):
    queries = entries(40, 3)[0]
    exact, index = many.search(queries, 10), Index(many, kind)
    found = index.search(queries, 10)
    if kind == "flat":
        assert torch.equal(found.ids, exact.ids)
        assert torch.equal(found.distances, exact.distances)  # of the stored keys, in both
    assert recall(found, exact) > 0.9
    if kind == "ivf":
        few = Index(many, kind, probes=1).search(queries, 10)
        assert recall(few, exact) < recall(found, exact)
    own = exact.ids[:, :2]
    left = index.search(queries, 8, own=own)
    assert not (left.ids[:, :, None] == own[:, None]).any()
    assert recall(left, many.search(queries, 8, own=own)) > 0.9
    assert index.search(queries[:0], 3).ids.shape == (0, 3)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_an_index_is_kept_and_damage_is_found(faiss, many, kind):
    queries = entries(9, 3)[0]
    index = Index(many, kind)
    path = index.save()
    again = Index.load(many, kind)
    assert torch.equal(again.search(queries, 5).ids, index.search(queries, 5).ids)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{kind}.faiss is damaged"):
        Index.load(many, kind)
    index.save()
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(CheckpointError, match=f"{kind}.json is damaged"):
        Index.load(many, kind)
    index.save()
    with many.adding() as adding:
        adding.begin("more", entries=1)
        adding.append(*entries(1))
    with pytest.raises(CheckpointError, match="as it was before"):
        Index.load(Datastore.open(many.folder), kind)


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_an_index_goes_with_what_is_deleted(faiss, many, kind):
    """It holds the keys of every document."""
    (many.folder / "mine.json").write_text("{}")
    Index(many, kind).save()
    left = many.delete("a")
    assert {path.suffix for path in left.folder.iterdir()} == {".json", ".keys", ".values"}
    assert (left.folder / "mine.json").exists()
    with pytest.raises(ConfigError, match=f"has no index {kind}"):
        Index.load(left, kind)


def test_faiss_takes_the_threads_of_torch(faiss, many):
    """They may have one OpenMP or two, by which is loaded first."""
    before = torch.get_num_threads()
    index = Index(many, "flat")
    try:
        for count in (1, 2):
            faiss.omp_set_num_threads(5)
            torch.set_num_threads(count)
            index.search(torch.zeros(1, DIM), 1)
            assert faiss.omp_get_max_threads() == count
    finally:
        torch.set_num_threads(before)


def test_as_many_centres_as_entries_can_teach(faiss, many, tmp_path):
    """The root of the entries, and at most one for each 39 of them; one that is loaded looks into as many as asked."""
    few = filled(tmp_path / "few", {"a": entries(100, 1)})
    assert [Index(store, "ivf")._index.nlist for store in (many, few)] == [45, 2]
    Index(many, "ivf").save()
    queries = entries(40, 3)[0]
    one, all_of_them = (Index.load(many, "ivf", probes=probes).search(queries, 10) for probes in (1, 45))
    exact = many.search(queries, 10)
    assert recall(one, exact) < recall(all_of_them, exact) == 1
    assert torch.equal(one.ids, Index(many, "ivf", probes=1).search(queries, 10).ids)


def test_what_makes_no_sense_is_refused(faiss, many, tmp_path):
    queries = entries(2)[0]
    with pytest.raises(ConfigError, match="has no index ivf; make it"):
        Index.load(many, "ivf")
    with pytest.raises(ConfigError, match="did you mean 'ivf'"):
        Index(many, "ivff")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2001 centres"):
        Index(many, "ivf", centres=2001)
    with pytest.raises(ConfigError, match="probes are of ivf"):
        Index(many, "flat", probes=3)
    with pytest.raises(LimitError, match="k=2001"):
        Index(many, "flat").search(queries, 2001)
    with pytest.raises(CheckpointError, match="is empty"):
        Index(Datastore.create(tmp_path / "empty", DIM, vocab_size=VOCAB), "flat")


def test_without_faiss_search_is_exact_and_an_index_says_so(many, monkeypatch):
    def missing(name: str):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UnsupportedError, match=r"pip install 'regard\[knn\]'"):
        Index(many, "flat")
    assert many.search(entries(2)[0], 3).ids.shape == (2, 3)
