"""What every datastore, and what looks things up in one, must keep to: small enough to break on purpose."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from regard.core.errors import CheckpointError, ResourceError
from regard.models import LanguageModel, ModelConfig
from regard_lab.networks.evaluation import windows
from regard_lab.retrieval import Datastore, LookedUp, Lookup, Neighbours, Own, Text, build, mixed, search
from regard_lab.retrieval.documents import digest
from regard_lab.tasks import TextConfig
from regard_lab.tasks.text import TextTask
from regard_lab.training.batches import collate
from tests.retrieval.conftest import DIM, VOCAB, entries, filled
from tests.retrieval.test_knn_lm import Letters


def decoder() -> LanguageModel:
    """With weights that are no longer small, so that contexts differ."""
    model = LanguageModel(ModelConfig(dim=16, heads=2, vocab_size=VOCAB, seed=1)).eval()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
    return model


def test_what_is_found_is_the_token_that_came_next():
    """A text that is stored, read again: every context finds itself, and says what followed it."""
    model, ids = decoder(), torch.tensor([1, 5, 2, 9, 0, 3, 7, 4, 8, 6])
    with TemporaryDirectory() as folder:
        store = build(model, [Text("a", ids.numpy())], Path(folder) / "store", origin={}, length=16)
        near, _ = Lookup(model, store, k=1).read(ids[None, :-1])
    assert near.tokens[0, :, 0].tolist() == [5, 2, 9, 0, 3, 7, 4, 8, 6]


def test_distances_are_squared():
    with TemporaryDirectory() as folder:
        keys = torch.zeros(2, DIM)
        keys[0, 0], keys[1, :2] = 3.0, torch.tensor([2.0, -2.0])
        store = filled(Path(folder) / "store", {"a": (keys, torch.tensor([4, 7]))})
        found = store.search(torch.zeros(1, DIM), 2)
    assert found.distances.tolist() == [[8.0, 9.0]]  # |(2, -2)|^2 and 3^2: the sums of |x| are the other way round
    assert found.values.tolist() == [[7, 4]]


def test_of_many_equal_keys_the_earlier_are_found():
    """More than there are candidates, behind others that are as near but for what is rounded."""
    with TemporaryDirectory() as folder:
        keys = torch.zeros(400, DIM)
        keys[:200] += 2.0
        store = filled(Path(folder) / "store", {"a": (keys, torch.arange(400) % 10)})
        found = store.search(torch.ones(1, DIM) * torch.tensor([[0.0], [1.0], [2.0]]), 3)
    assert found.ids.tolist() == [[200, 201, 202], [0, 1, 2], [0, 1, 2]]


def test_the_middle_is_among_the_keys():
    with TemporaryDirectory() as folder:
        keys, values = entries(50)
        store = filled(Path(folder) / "store", {"a": ((keys + 100).half().float(), values)})
        middle = search._middle(store.pieces())
    assert (middle - 100).abs().max() < 1


def test_files_of_somebody_else_stay():
    with TemporaryDirectory() as folder:
        store = filled(Path(folder) / "store", {"a": entries(5), "b": entries(5)})
        other = store.folder / "company.values"
        other.write_text("x")
        store.delete("a")
        assert other.exists()


def test_what_another_process_wrote_is_not_added_to():
    with TemporaryDirectory() as folder:
        store = filled(Path(folder) / "store", {"a": entries(5)})
        with store.adding() as adding:
            adding.begin("b", entries=0)
        with pytest.raises(ResourceError, match="meanwhile"), store.adding(as_opened=True):
            pass


def test_the_temperature_divides():
    """Squared distances 0 and T ln 3 weigh 3 : 1."""
    for temperature in (0.5, 20.0):
        far = torch.tensor([[0.0, temperature * math.log(3)]], dtype=torch.float64)
        near = Neighbours(far, torch.tensor([[0, 1]]), torch.tensor([[2, 0]]))
        p = mixed(torch.zeros(1, 3), near, lam=1.0, temperature=temperature).exp()
        torch.testing.assert_close(p, torch.tensor([[0.25, 0.0, 0.75]]))


def test_weight_0_changes_no_bit():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    near = Neighbours(torch.ones(4, 2).double(), torch.zeros(4, 2).long(), torch.ones(4, 2).long())
    assert torch.equal(mixed(logits, near, lam=0.0, temperature=1.0), logits)


def test_no_target_finds_the_entry_that_was_made_of_it():
    """By the numbers of entries: document two begins behind the 5 entries of document one."""
    texts = ["abcdef", "bdfhjacegi"]
    with TemporaryDirectory() as folder:
        documents = {}
        for text in texts:
            ids = Letters().document(text).ids
            documents[digest(ids)] = (entries(len(ids) - 1)[0], torch.from_numpy(ids[1:].astype("int64")))
        store = filled(Path(folder) / "store", documents)
        examples = windows([texts[1]], Letters(), 4)
        own = [Own(store)(examples, collate(examples, [at], VOCAB)) for at in range(len(examples))]
    assert [[int(x) for x in rows] for rows in own if rows is not None] == [[5, 6, 7, 8], [9, 10, 11, 12], [13]]


def test_a_text_that_is_cut_elsewhere_does_not_find_itself():
    """A stored text and two parts of it: its entries are 0 to 59; and a part that is stored, read in the whole text."""
    draw = torch.Generator().manual_seed(3)
    text = "".join(chr(ord("a") + at) for at in torch.randint(VOCAB, (61,), generator=draw).tolist())
    with TemporaryDirectory() as folder:
        for stored, read, wanted in (
            (text, text[20:45], list(range(20, 44))),
            (text, text[30:], list(range(30, 60))),
            (text[25:], text, [-1] * 25 + list(range(35))),
        ):
            ids = Letters().document(stored).ids
            values = torch.from_numpy(ids[1:].astype("int64"))
            store = filled(Path(folder) / str(len(wanted)), {digest(ids): (entries(len(values))[0], values)})
            examples = windows([read], Letters(), 100)
            own = Own(store)(examples, collate(examples, [0], VOCAB))
            assert own is not None
            assert own[: len(wanted), 0].tolist() == wanted


def test_a_passage_of_another_text_is_found():
    """80 of 160 letters are the same, at the same place, and behind them none."""
    draw = torch.Generator().manual_seed(4)
    one, two = (torch.randint(VOCAB, (160,), generator=draw) for _ in range(2))
    two[:80], two[80:] = one[:80], (one[80:] + 1) % VOCAB
    with TemporaryDirectory() as folder:
        store = filled(Path(folder) / "store", {"one": (entries(159)[0], one[1:])})
        found = Own(store).of(two.numpy())
    assert not found.own.any()
    assert found.shared[:64].all()
    assert not found.shared[80:].any()


def test_training_text_does_not_find_itself():
    """Every entry of the text is its own document's: without its own entry, a target that occurs nowhere else is not
    found at distance 0."""
    with TemporaryDirectory() as folder:
        texts = Path(folder) / "texts"
        texts.mkdir()
        for at in range(3):
            (texts / f"{at}.txt").write_text("".join(chr(33 + 30 * at + n) for n in range(30)))
        task = TextTask(TextConfig(corpus=str(texts), length=16, cache=str(Path(folder) / "cache")))
        keys = LanguageModel(ModelConfig(dim=16, heads=2, vocab_size=task.vocab_size, seed=1)).eval()
        windows = task.examples("train")
        ids = windows.place(0)[0]
        store = build(keys, [Text("a", ids)], Path(folder) / "store", origin={}, length=16)
        example = LookedUp(task, Lookup(keys, store, k=1), leaving_out=Own(store)).examples("train")[0]
    assert example.neighbours is not None
    assert not (example.neighbours[1:, 0] == example.targets[1:]).any()


def test_a_deleted_document_is_not_found():
    one, two = (entries(4, 1)[0], torch.full((4,), 1)), (entries(4, 2)[0], torch.full((4,), 2))
    with TemporaryDirectory() as folder:
        store = filled(Path(folder) / "store", {"one": one, "two": two})
        left = store.delete("one")
        found = left.search(one[0], 4)
    assert (found.values == 2).all()


def test_a_merge_has_every_entry():
    one, two, three = entries(5, 1), entries(3, 2), entries(4, 3)
    with TemporaryDirectory() as folder:
        given = ({"one": one, "two": two}, {"three": three})
        stores = [filled(Path(folder) / str(at), documents) for at, documents in enumerate(given)]
        merged = Datastore.merge(Path(folder) / "both", stores)
        found = merged.search(torch.cat([one[0], two[0], three[0]]), 1)
    assert len(merged) == 12
    assert found.ids[:, 0].tolist() == list(range(12))
    assert torch.equal(found.values[:, 0], torch.cat([one[1], two[1], three[1]]))


def test_a_file_of_the_same_size_that_is_another_is_noticed():
    with TemporaryDirectory() as folder:
        store = filled(Path(folder) / "store", {"one": entries(5)})
        path = next(store.folder.glob("*.keys"))
        path.write_bytes(path.read_bytes()[::-1])
        with pytest.raises(CheckpointError, match=f"{path.name} is damaged"):
            Datastore.open(store.folder)
