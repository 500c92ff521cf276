"""The memory that a memory takes does not grow with the text: counted, without a clock."""

from typing import Any

import pytest
import torch

from regard import Heads
from regard.core.errors import ShapeError
from regard.memory.recent import Recent
from regard.models import LanguageModel, ModelConfig
from regard.testing.counting import Count
from regard_lab.retrieval import Datastore, KnnLm, Lookup, Spalm

MEMORIES = {
    "recent": "recent(length=24)",
    "compressive": "compressive(length=12, compressed=8, rate=3, function=most_used)",
    "memorizing": ("recent(length=8)", "memorizing(pairs=40, top=4, recent=8)"),
}
LISTS = "memorizing(pairs=40, top=4, recent=8, index=ivf, probes=2)"
FILLED = 48
"""positions after which every memory above is full"""


def peak(model: Any, length: int, piece: int, *, segments: bool) -> tuple[int, int]:
    """Most numbers alive at a time while a text is read in pieces, and of one row's state at its end."""
    tokens = torch.randint(20, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        state = model.initial_state(1, **({"segments": True} if segments else {}))
        state = model(tokens[:, :FILLED], state=state).state
        parts = tokens[:, FILLED:].split(piece, 1)
        with Count() as counted:
            for part in parts:
                state = model(part.clone(), state=state).state  # a view would count the whole text
    assert state.length == length
    return counted.peak, state.nbytes


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize(("piece", "segments"), [(8, True), (1, False), (24, False)])
def test_peak_memory_does_not_depend_on_the_length_of_the_text(kind, piece, segments):
    shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 20, "max_length": 8}
    model = LanguageModel(ModelConfig(memory=MEMORIES[kind], **shape)).eval()
    short, long = (peak(model, FILLED + n, piece, segments=segments) for n in (96, 384))
    assert long == short


@pytest.mark.parametrize(("piece", "segments"), [(8, True), (24, False)])
def test_lists_and_their_centres_are_bounded_too(piece, segments):
    pytest.importorskip("faiss")
    shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 20, "max_length": 8}
    model = LanguageModel(ModelConfig(memory=("recent(length=8)", LISTS), **shape)).eval()
    short, long = (peak(model, FILLED + n, piece, segments=segments) for n in (96, 192))
    assert long == short


@pytest.mark.parametrize("kind", ["knn_lm", "spalm"])
def test_what_stands_beside_a_datastore_reads_in_bounded_memory(kind, tmp_path):
    """Decoders with a memory, what they find, and for SPALM the one that finds it: nothing is kept of the text."""
    shape = {"dim": 16, "heads": 2, "layers": 2, "vocab_size": 20, "max_length": 8, "memory": "recent(length=24)"}
    decoder, maker = (LanguageModel(ModelConfig(**shape, seed=seed)).eval() for seed in (0, 1))
    with Datastore.create(tmp_path / "store", 16, vocab_size=20).adding() as adding:
        adding.begin("random", entries=300)
        draw = torch.Generator().manual_seed(0)
        adding.append(torch.randn(300, 16, generator=draw), torch.randint(20, (300,), generator=draw))
    store = Datastore.open(tmp_path / "store")
    if kind == "knn_lm":
        beside = KnnLm(decoder, store, k=5).eval()
    else:
        mixing = LanguageModel(ModelConfig(**shape, neighbours=3)).eval()
        beside = Spalm(mixing, Lookup(maker, store, k=3)).eval()
    short, long = (peak(beside, FILLED + n, 24, segments=False) for n in (96, 192))
    assert long == short


@pytest.mark.parametrize("change", [
    {"hidden": torch.zeros(2, 3, 8, dtype=torch.int64)},
    {"key_mask": torch.ones(2, 3)},
    {"key_mask": torch.ones(2, 3, dtype=torch.int64)},
    {"length": torch.tensor(-7)},
    {"length": torch.tensor([3])},
    {"length": torch.tensor(3.0)},
], ids=str)  # fmt: skip
def test_a_dump_of_other_kinds_is_refused(change):
    state = Recent(Heads(count=2, key_dim=4), 8, length=4).initial_state(2)
    fits = {"hidden": torch.zeros(2, 3, 8), "key_mask": torch.ones(2, 3, dtype=torch.bool), "length": torch.tensor(3)}
    assert state.load(fits).length == 3
    with pytest.raises(ShapeError):
        state.load({**fits, **change})
