"""Exact search against a sort of all distances, in any pieces, and what it holds in memory."""

from pathlib import Path

import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, LimitError, NumericsError, ShapeError
from regard.testing.counting import count
from regard_lab.retrieval import Datastore, search
from tests.retrieval.conftest import DIM, VOCAB, entries, filled


def sorted_by_hand(keys, queries, k, own=None):
    """Squared distances of everything, sorted; ties by number."""
    rows = []
    for at, query in enumerate(queries.tolist()):
        found = []
        for number, key in enumerate(keys.tolist()):
            if own is None or number not in own[at].tolist():
                found.append((sum((a - b) ** 2 for a, b in zip(query, key, strict=True)), number))
        rows.append(sorted(found)[:k])
    return rows


@pytest.mark.parametrize("pieces", ["one piece", "small pieces"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("k", [1, 7, 50])
def test_the_nearest_are_those_of_a_sort(store, documents, pieces, own, k, monkeypatch):
    if pieces == "small pieces":
        for name, value in (("_QUERIES", 3), ("_NUMBERS", 40), ("_GATHERED", 50), ("_SPARE", 2)):
            monkeypatch.setattr(search, name, value)
    keys = torch.cat([keys for keys, _ in documents.values()])
    values = torch.cat([values for _, values in documents.values()])
    queries = entries(8, 20)[0]
    queries[0] = keys[30]
    excluded = torch.randint(-1, 50, (8, 2), generator=torch.Generator().manual_seed(3)) if own else None
    found = store.search(queries, k, own=excluded)
    for at, expected in enumerate(sorted_by_hand(keys, queries, k, excluded)):
        numbers = [number for _, number in expected]
        assert found.ids[at, : len(numbers)].tolist() == numbers
        assert found.values[at, : len(numbers)].tolist() == values[numbers].tolist()
        torch.testing.assert_close(
            found.distances[at, : len(numbers)], torch.tensor([d for d, _ in expected]).double(), rtol=1e-6, atol=1e-9
        )
        assert found.distances[at, len(numbers) :].isinf().all()
        assert (found.ids[at, len(numbers) :] == -1).all()


def test_distances_are_told_apart_beyond_float32(tmp_path):
    store = filled(tmp_path / "two", {"a": (torch.tensor([[-120.0], [120.0]]).expand(2, DIM), torch.arange(2))})
    found = store.search(torch.full((1, DIM), 1e-6), 2)
    assert found.ids.tolist() == [[1, 0]]
    assert found.distances[0].tolist() == pytest.approx([DIM * (120 - 1e-6) ** 2, DIM * (120 + 1e-6) ** 2], rel=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_of_equal_distances_the_earlier_entry_is_found(tmp_path, monkeypatch, offset):
    """Also where more are equal than candidates are kept, in several blocks and reads, and own entries among them."""
    monkeypatch.setattr(search, "_NUMBERS", 900)
    keys, values = entries(600)
    keys = (keys + offset).half().float()
    keys[::3] = keys[0]
    store = filled(tmp_path / "store", {"a": (keys[:350], values[:350]), "b": (keys[350:], values[350:])})
    own = torch.tensor([[0, 6], [3, -1], [-1, -1]])
    queries = torch.stack([keys[0], keys[0] + 0.25, keys[1]])
    far = (queries.double()[:, None] - keys.double()).square().sum(2)
    for row, left_out in enumerate(own):
        far[row, left_out[left_out >= 0]] = torch.inf
    for k in (1, 5, 190, 250):
        found = store.search(queries, k, own=own)
        order = far.argsort(dim=1, stable=True)[:, :k]
        assert torch.equal(found.ids, order), k
        torch.testing.assert_close(found.distances, far.gather(1, order), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offset", [10.0, 1000.0])
def test_keys_far_from_the_origin_are_told_apart(tmp_path, offset):
    """Where |k|^2 - 2 q . k has no digits left."""
    keys, values = entries(3000)
    keys = (keys + offset).half().float()
    queries = entries(40, 2)[0] + offset
    found = filled(tmp_path / "store", {"a": (keys, values)}).search(queries, 8)
    far = (queries.double()[:, None] - keys.double()).square().sum(2)
    assert torch.equal(found.ids, far.argsort(dim=1, stable=True)[:, :8])


def test_no_key_is_nearer_than_its_product_says():
    """The least distance that a rounded product allows is one: a key that is left out by it is no neighbour."""
    draw = torch.Generator().manual_seed(0)
    for dim in (2, 6, 64, 300):
        keys = (100 * torch.randn(500, dim, generator=draw)).half()
        pieces = [search.Piece(0, keys.numpy(), torch.zeros(500, dtype=torch.int32).numpy())]
        queries = keys[:40].float() + 0.01 * torch.randn(40, dim, generator=draw)
        middle = search._middle(pieces)
        ((_, least),) = search._least(pieces, middle, queries, None)
        gap = queries.double()[:, None] - keys.double()
        true = gap.square().sum(2) - (queries.double() - middle.double()).square().sum(1, keepdim=True)
        assert (least.double() <= true).all()
        assert (true - least.double() < 1e-4 * dim * true.abs().max()).all()  # and it is not far below


def test_the_middle_is_among_the_keys(tmp_path):
    """Elsewhere the products lose digits, and far more keys are read twice."""
    keys, values = entries(50)
    store = filled(tmp_path / "store", {"a": ((keys + 100).half().float(), values)})
    assert (search._middle(store.pieces()) - 100).abs().max() < 1


def test_memory_does_not_grow_with_the_entries(tmp_path, monkeypatch):
    """Numbers that are alive at a time, counted, for four times the entries; and the maps are of files."""
    monkeypatch.setattr(search, "_NUMBERS", 4000)
    queries, peaks = entries(4, 1)[0], []
    for size in (2000, 8000):
        store = filled(tmp_path / str(size), {"a": entries(size)})
        pieces, maps = store.pieces(), Path("/proc/self/maps").read_text()
        assert len(pieces) == maps.count(f"{store.folder}/") // 2 > 0
        counter = count(lambda pieces=pieces: search.nearest(pieces, queries, 5, None))
        assert counter.largest < size * DIM
        peaks.append(counter.peak)
    assert peaks[1] == peaks[0] < 20_000


def test_no_queries_are_answered(store):
    assert store.search(torch.zeros(0, DIM), 3).ids.shape == (0, 3)


def test_searches_without_an_answer_are_refused(store, tmp_path):
    queries = entries(2)[0]
    with pytest.raises(LimitError, match="k=51 neighbours, and the datastore has 50"):
        store.search(queries, 51)
    with pytest.raises(ConfigError, match="k must be an integer of at least 1"):
        store.search(queries, 0)
    with pytest.raises(ConfigError, match=r"at least 1, got 2\.5"):
        store.search(queries, 2.5)  # type: ignore[arg-type]
    for number in (float("nan"), float("inf"), 1e30):
        with pytest.raises(NumericsError, match="queries must be finite"):
            store.search(queries * number, 1)
    with pytest.raises(ShapeError, match=rf"float \(queries, {DIM}\)"):
        store.search(queries[:, 1:], 1)
    with pytest.raises(ShapeError, match=r"integers \(2, copies\)"):
        store.search(queries, 1, own=torch.zeros(3, 1, dtype=torch.int64))
    empty = Datastore.create(tmp_path / "empty", DIM, vocab_size=VOCAB)
    with pytest.raises(CheckpointError, match="the datastore is empty"):
        empty.search(queries, 1)
