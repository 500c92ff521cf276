"""The searched memory by FAISS's inverted lists: what it finds of what an exact search finds, and what it keeps."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard.core.info import Heads
from regard.features.norms import unit
from regard.layer import AttentionLayer
from regard.memory import MemoryState, _lists
from regard.memory.memorizing import Memorizing
from regard.models import LanguageModel, ModelConfig
from regard.testing.compare import assert_close, assert_identical

pytest.importorskip("faiss")

HEADS, KV_HEADS, DIM, WIDTH, SEGMENT = 4, 2, 8, 32, 64


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def memory_of(**options: object) -> Memorizing:
    heads = Heads(count=HEADS, kv_count=KV_HEADS, key_dim=DIM, causal=True)
    return Memorizing(heads, WIDTH, **{"pairs": 400, "top": 10, **options})


def filled(
    memory: Memorizing, segments: int = 9, key_mask: Tensor | None = None, *, first: int = 0, batch: int = 2
) -> MemoryState:
    """After segments of clustered keys, as those of a network are."""
    state, themes = memory.initial_state(batch), randn(batch, KV_HEADS, 12, DIM, seed=99)
    for at in range(first, first + segments):
        place = torch.randint(12, (SEGMENT,), generator=torch.Generator().manual_seed(at))
        k = themes[:, :, place] + 0.5 * randn(batch, KV_HEADS, SEGMENT, DIM, seed=at)
        v = randn(batch, KV_HEADS, SEGMENT, DIM, seed=1000 + at)
        mask = None if key_mask is None else key_mask[:, (at - first) * SEGMENT :][:, :SEGMENT]
        given = {"q": k, "k": k, "v": v, "project": lambda x: (x, x), "key_mask": mask}
        state = memory.write(state, randn(batch, SEGMENT, WIDTH, seed=at), **given)[0]
    return state


def asked(queries: int = 50, batch: int = 2) -> Tensor:
    themes = randn(batch, KV_HEADS, 12, DIM, seed=99).repeat_interleave(HEADS // KV_HEADS, 1)
    return unit(themes[:, :, torch.arange(queries) % 12] + 0.5 * randn(batch, HEADS, queries, DIM, seed=7), 1e-6)


def recall(memory: Memorizing, state: MemoryState) -> float:
    """Of what an exact search finds, how much is found."""
    q = asked()
    wanted = memory.search(q, state["keys"], state.content.get("key_mask"))
    places, keep = memory.found(q, state)
    same = (wanted[..., :, None] == places[..., None, :]) & (True if keep is None else keep[..., None, :])
    return same.any(-1).double().mean().item()


def test_recall_against_an_exact_search_grows_with_the_lists_that_are_read():
    """Of 20 lists: all of them find everything, and few far more than their share of the keys."""
    found = {}
    for probes in (1, 4, 20, 1000):
        memory = memory_of(index="ivf", probes=probes)
        found[probes] = recall(memory, filled(memory))
    assert found[1000] == found[20] == 1
    assert 0.3 < found[1] < found[4] < 1
    assert found[4] > 0.8


@pytest.mark.parametrize("masked", [False, True])
def test_all_lists_give_what_an_exact_search_gives(masked):
    """Values and gradients; of several rows, with padding, with a row that has just begun, with heads in groups."""
    exact, listed = memory_of(), memory_of(index="ivf", probes=20)
    keep = torch.ones(2, 9 * SEGMENT, dtype=torch.bool)
    keep[0, ::5] = keep[1, 100:170] = False
    states = []
    for memory in (exact, listed):
        state = memory.forget(filled(memory, 9, keep if masked else None), torch.tensor([False, True]))
        states.append(state)
    gradients = []
    for memory, state in zip((exact, listed), states, strict=True):
        q, local = asked().requires_grad_(), randn(2, HEADS, 50, DIM, seed=5).requires_grad_()
        values = memory.read(q, local, state)
        values.square().sum().backward()
        gradients.append([values, q.grad, local.grad, memory.gates.grad, memory.log_gain.grad])
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, tolerance=1e-5, what="all lists")
    assert not any(x.requires_grad for state in states for x in state.tensors().values())


def test_few_pairs_are_searched_exactly():
    """Before there are 8 keys for each centre no list is made, and the values are those of the exact search, bit for
    bit; nothing of FAISS is asked."""
    exact, listed = memory_of(), memory_of(index="ivf", probes=1)
    q, local = asked(), randn(2, HEADS, 50, DIM, seed=5)
    for segments, same in ((1, True), (2, True), (3, False)):
        states = filled(exact, segments), filled(listed, segments)
        assert states[1]["centres"].any() == (not same)
        values = [memory.read(q, local, state) for memory, state in zip((exact, listed), states, strict=True)]
        assert torch.equal(*values) == same


def test_when_centres_are_drawn():
    """Of 400 pairs and 20 centres: at 160, 320, and every 400; each time there are twice as many until it is full."""
    counts = [_lists.draws(age, 400) for age in range(1300)]
    drawn = [age for age in range(1, 1300) if counts[age] != counts[age - 1]]
    assert drawn == [160, 320, 400, 800, 1200]
    assert _lists.draws(0, 1) == 0
    assert _lists.draws(1, 1) > 0


def test_centres_are_about_the_root_and_as_few_keys_as_centres_make_some():
    assert [_lists.count(pairs) for pairs in (1, 2, 6, 8, 400)] == [1, 1, 2, 3, 20]
    keys = unit(randn(3, DIM), 1e-6)
    assert_close(_lists.centres_of(keys, 3, 0).sort(0).values, keys.sort(0).values, tolerance=1e-6, what="centres")
    assert not _lists.centres_of(keys, 4, 0).any()


def test_padding_is_not_written():
    keep = torch.ones(2, 3 * SEGMENT, dtype=torch.bool)
    keep[1, 5:100] = False
    state = filled(memory_of(index="ivf"), 3, keep)
    assert state["written"].tolist() == [[192], [97]]
    assert _lists.Lists(state["centres"], state["lists"]).drawn.tolist() == [True, False]


def test_the_lists_are_part_of_the_state():
    """What is found depends on the tensors alone: read from a file, picked, or in a row of its own, it is the same."""
    memory = memory_of(index="ivf", probes=2)
    state, q, local = filled(memory), asked(), randn(2, HEADS, 50, DIM, seed=5)
    wanted = memory.read(q, local, state)
    again = memory.initial_state(2).load({name: x.clone() for name, x in state.dump().items()})
    assert_identical(memory.read(q, local, again), wanted, what="from a file")
    turned = torch.tensor([1, 0])
    assert_identical(memory.read(q[turned], local[turned], state.select(turned)), wanted[turned], what="turned")
    one = memory.read(q, local, memory.forget(state, torch.tensor([True, False])))
    assert_identical(one[1], wanted[1], what="beside one that was forgotten")
    assert_identical(one[0], local[0], what="that was forgotten")
    own = state["keys"][0, 0] @ state["centres"][0, 0].mT
    held = state["lists"][0, 0, :, 0].long()
    assert (held[-SEGMENT:] == own[-SEGMENT:].argmax(-1)).all()


def test_queries_one_by_one_find_what_all_find(monkeypatch):
    """Lists that decoding keeps, and that no other state reads."""
    memory = memory_of(index="ivf", probes=2)
    state, q, local = filled(memory), asked(), randn(2, HEADS, 50, DIM, seed=5)
    wanted, made, index = memory.read(q, local, state), [], _lists._index
    monkeypatch.setattr(_lists, "_index", lambda *given: made.append(given) or index(*given))
    parts = [memory.read(q[:, :, at : at + 1], local[:, :, at : at + 1], state) for at in range(50)]
    assert_close(torch.cat(parts, 2), wanted, tolerance=1e-6, what="one by one")
    assert len(made) == 2 * KV_HEADS
    later = filled(memory, 1, first=40)
    more = replace(state, content={**state.content, **{n: later[n] for n in ("keys", "values", "lists")}})
    assert not torch.equal(memory.read(q[:, :, :1], local[:, :, :1], more), parts[0])
    mask = torch.zeros(2, 400, dtype=torch.bool)
    mask[:, 7] = True
    only = replace(state, content={**state.content, "key_mask": mask})
    places, keep = memory.found(q[:, :, :1], only)
    assert (places[keep] == 7).all()


def test_a_query_that_finds_nothing_keeps_the_mechanism_s():
    memory = memory_of(index="ivf", probes=1)
    state, q, local = filled(memory), asked(), randn(2, HEADS, 50, DIM, seed=5)
    elsewhere = state["centres"].clone()
    elsewhere[:, :, 0] = 100 * q[0, 0, 0]
    empty = replace(state, content={**state.content, "centres": elsewhere, "lists": state["lists"].clamp_min(1)})
    got = memory.read(q[:, :, :1], local[:, :, :1], empty)
    assert torch.equal(got[0, 0], local[0, 0, :1])


def test_a_decoder_reads_and_generates_alike():
    """In pieces as whole, in bfloat16 too."""
    memory = ("none", "memorizing(pairs=40, top=4, index=ivf, probes=2)")
    shape = {"dim": 16, "layers": 2, "heads": 2, "vocab_size": 20, "max_length": 12, "position": "rotary"}
    tokens = torch.randint(20, (2, 80), generator=torch.Generator().manual_seed(1))
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        model = LanguageModel(ModelConfig(memory=memory, **shape)).to(dtype).eval()
        with torch.no_grad():
            whole, state, pieces = model(tokens).logits, model.initial_state(2), []
            for piece in tokens.split([1, 8, 1, 50, 20], 1):
                got = model(piece, state=state)
                state, _ = got.state, pieces.append(got.logits)
        assert_close(torch.cat(pieces, 1), whole, tolerance=tolerance, what=f"pieces in {dtype}")
        drawn = [x for name, x in state.tensors().items() if name.endswith("centres")]
        assert all(x.any() for x in drawn)
        assert len(drawn) == 1


def test_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="index"):
        memory_of(index="hnsw")
    memory = memory_of(index="ivf")
    state, q, local = filled(memory), asked(), randn(2, HEADS, 50, DIM, seed=5)
    with pytest.raises(RuntimeError, match="data pointer"):
        torch.func.vjp(lambda x: memory.read(x, local, state), q)
    with pytest.raises(ShapeError, match="this memory has"):
        memory_of().initial_state(2).load(state.dump())
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UnsupportedError, match="regard\\[knn\\]"):
        AttentionLayer(16, "softmax", heads=2, memory="memorizing(index=ivf)", causal=True)
    assert memory_of().index == "exact"


def test_lists_are_not_rounded_by_autocast():
    """A key belongs to the list of its nearest centre, whatever the layer around it computes in."""
    memory = memory_of(index="ivf", probes=1)
    plain = filled(memory)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = filled(memory)
    assert_identical(rounded["centres"], plain["centres"], what="centres")
    assert_identical(rounded["lists"], plain["lists"], what="lists")


def test_kept_lists_are_those_of_the_state():
    """Two states with the same keys and other lists are told apart, however few the queries are."""
    memory = memory_of(index="ivf", probes=1)
    state, q, local = filled(memory), asked(1), randn(2, HEADS, 1, DIM, seed=5)
    before = memory.read(q, local, state)
    other = replace(state, content={**state.content, "lists": state["lists"].roll(7, 2)})
    new = replace(other, content={name: x.clone() for name, x in other.content.items()})
    wanted = memory.read(q, local, new)
    assert not torch.equal(wanted, before)
    assert_identical(memory.read(q, local, other), wanted, what="with lists of its own")
    centres = replace(state, content={**state.content, "centres": state["centres"].roll(1, 2)})
    new = replace(centres, content={name: x.clone() for name, x in centres.content.items()})
    assert_identical(memory.read(q, local, centres), memory.read(q, local, new), what="with centres of its own")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("centres", lambda x: x[:, :1]),
        ("lists", lambda x: x[:, :1]),
        ("keys", lambda x: x[:, :1]),
        ("values", lambda x: torch.cat([x, x], 1)),
    ],
)
def test_a_file_of_other_heads_is_refused(name, change):
    memory = memory_of(index="ivf", probes=2)
    saved = filled(memory, key_mask=torch.ones(2, 9 * SEGMENT, dtype=torch.bool)).dump()
    assert memory.initial_state(2).load(dict(saved)).length == 9 * SEGMENT
    with pytest.raises(ShapeError, match=name):
        memory.initial_state(2).load({**saved, name: change(saved[name])})


def test_a_row_without_lists_and_with_fewer_pairs_than_are_asked_for_finds_those():
    """Beside one that has lists; what is padding there weighs nothing."""
    exact, listed = memory_of(), memory_of(index="ivf", probes=20)
    keep = torch.ones(2, 9 * SEGMENT, dtype=torch.bool)
    keep[1, :-5] = False
    states = [filled(memory, 9, keep) for memory in (exact, listed)]
    assert states[1]["centres"].flatten(1).any(1).tolist() == [True, False]
    q, local = asked(), randn(2, HEADS, 50, DIM, seed=5)
    theirs, ours = (memory.read(q, local, state) for memory, state in zip((exact, listed), states, strict=True))
    assert_close(ours, theirs, tolerance=1e-5, what="few pairs")
