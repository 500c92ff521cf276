"""SPALM beside a datastore: which neighbours a position gets, what learns from them, and what trains on them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.core.errors import CheckpointError, ConfigError, LimitError, ShapeError, UnsupportedError
from regard.models import LanguageModel, ModelConfig, presets
from regard.models.neighbours import NeighbourTokens
from regard_lab.retrieval import Datastore, LookedUp, Lookup, Own, Spalm, Text, build, origin
from regard_lab.retrieval.keys import joined, kept_keys
from regard_lab.tasks import TextConfig
from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.text import TextTask
from tests.retrieval.conftest import VOCAB

LINES = [f"{at} times {at} makes {at * at}, and {at} and {at} make {at + at}.\n" * 4 for at in range(40)]


def words(seed: int, length: int = 30) -> Tensor:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed))


def made(decoder, folder: Path) -> tuple[LanguageModel, Datastore]:
    model = decoder()
    texts = [Text(str(seed), words(seed).numpy()) for seed in range(3)]
    return model, build(model, texts, folder, origin={}, length=16)


def spalm_of(**options: object) -> LanguageModel:
    shape = {"dim": 24, "heads": 2, "layers": 2, "mlp_dim": 32, "vocab_size": VOCAB, "max_length": 5, "dropout": 0.0}
    return LanguageModel(presets.build("spalm", **{**shape, "memory_length": 4, **options}))


def test_neighbours_are_the_nearest_of_what_the_frozen_decoder_makes(decoder, tmp_path):
    """Sorted by hand: the keys on disk, the input of the frozen decoder's last MLP, and the tokens that came."""
    keys, store = made(decoder, tmp_path / "store")
    tokens = torch.stack([words(7, 9), words(1, 9)])
    near, after = Lookup(keys, store, k=4).read(tokens)
    assert after is None
    with kept_keys(keys) as pieces, torch.no_grad():
        keys(tokens)
    stored = torch.cat([torch.from_numpy(piece.keys) for piece in store.pieces()]).double()
    far = ((joined(pieces).double()[:, :, None] - stored) ** 2).sum(-1)
    distances, ids = far.sort(stable=True)
    torch.testing.assert_close(near.distances.double(), distances[..., :4], rtol=1e-5, atol=1e-5)
    assert torch.equal(near.tokens, store.values(0, len(store))[ids[..., :4]])
    assert torch.equal(near.tokens[1, :, 0], words(1)[1:10])  # a text that is stored finds itself, and what came next


def test_of_neighbours_that_are_not_there_no_token_is_mixed_in(decoder, tmp_path):
    """Each position has an entry of its own, so that one of all is missing."""
    keys, store = made(decoder, tmp_path / "store")
    own = torch.arange(9)[:, None]
    near, _ = Lookup(keys, store, k=len(store)).read(words(0, 9)[None], own=own)
    assert near.tokens.eq(-1).sum(-1).tolist() == [[1] * 9]
    assert near.distances.isinf().eq(near.tokens == -1).all()
    for at, row in enumerate(near.tokens[0]):
        left = torch.cat([store.values(0, at), store.values(at + 1, len(store))])
        assert row[row >= 0].sort().values.equal(left.sort().values)


def test_keys_get_no_gradient_and_embeddings_do(decoder, tmp_path):
    keys, store = made(decoder, tmp_path / "store")
    model = Spalm(spalm_of(), Lookup(keys, store, k=3)).train()
    tokens = words(9, 8)[None]
    near, _ = model.lookup.read(tokens)
    model(tokens).logits[0, -1].logsumexp(0).backward()
    assert all(weight.grad is None for weight in keys.parameters())
    assert not keys.training
    assert all(weight.grad is not None for weight in model.parameters())
    assert not any("keys" in name or "lookup" in name for name in model.state_dict())
    untied = NeighbourTokens(near.tokens, near.distances)
    assert model.model.mixture is not None
    table = model.table.weight.detach().clone().requires_grad_()
    model.model.mixture(torch.randn(1, 8, 24), table, untied).sum().backward()
    assert table.grad is not None
    assert set(table.grad.abs().sum(1).nonzero()[:, 0].tolist()) == set(near.tokens.flatten().tolist())


def test_together_they_stream_and_keep_to_their_own_states(decoder, tmp_path):
    keys, store = made(decoder, tmp_path / "store")
    model = Spalm(spalm_of(), Lookup(keys, store, k=3)).eval()
    tokens = torch.stack([words(8, 14), words(9, 14)])
    state, parts = model.initial_state(2), []
    for piece in tokens.split([6, 1, 7], 1):
        got = model(piece, state=state)
        assert got.state is not None
        state, _ = got.state, parts.append(got.logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens).logits, rtol=1e-5, atol=1e-5)
    assert state.length == 14
    one = state.select(torch.tensor([1]))
    more = torch.tensor([[3]])
    wanted = model(torch.cat([tokens[1:], more], 1)).logits[:, -1]
    torch.testing.assert_close(model(more, state=one).logits[:, -1], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeError, match="initial_state of this model"):
        model(tokens, state=model.model.initial_state(2))
    with pytest.raises(UnsupportedError, match="leave positions out"):
        model(tokens, positions=torch.arange(14))


@pytest.mark.parametrize(("own", "of_keys", "limit"), [(None, 30, 30), (20, None, 20), (20, 30, 20), (30, 20, 20)])
def test_a_text_is_as_long_as_both_read(tmp_path, own, of_keys, limit):
    """Learned positions end somewhere."""

    def made(length: int | None, **more: int) -> LanguageModel:
        place = {"position": "rotary"} if length is None else {"position": "learned", "max_length": length}
        return LanguageModel(ModelConfig(dim=16, heads=2, layers=1, vocab_size=VOCAB, **place, **more)).eval()

    keys = made(of_keys)
    store = build(keys, [Text("one", words(1).numpy())], tmp_path / "store", origin={}, length=16)
    assert Spalm(made(own, neighbours=2), Lookup(keys, store, k=2)).limit == limit


def test_masked_tokens_find_nothing_for_others(decoder, tmp_path):
    """What stands in them is read by neither decoder."""
    keys, store = made(decoder, tmp_path / "store")
    model = Spalm(spalm_of(), Lookup(keys, store, k=3)).eval()
    keep = torch.ones(1, 9, dtype=torch.bool)
    keep[0, :3] = False
    tokens = words(7, 9)[None]
    one, other = (model(torch.where(keep, tokens, fill), key_mask=keep).logits[keep] for fill in (0, 7))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    unmasked = model(torch.where(keep, tokens, 7)).logits[keep]
    assert not torch.allclose(one, unmasked, rtol=1e-3, atol=1e-3), "they change nothing anyway"


def test_what_does_not_fit_is_refused(decoder, task, tmp_path):
    keys, store = made(decoder, tmp_path / "store")
    with pytest.raises(LimitError, match="k=88 neighbours"):
        Lookup(keys, store, k=88)
    with pytest.raises(ConfigError, match="k must be an integer of at least 1"):
        Lookup(keys, store, k=0)
    with pytest.raises(CheckpointError, match="keys of 16 numbers, and this model makes 32"):
        Lookup(decoder(dim=32), store, k=1)
    with pytest.raises(CheckpointError, match="is empty"):
        Lookup(keys, Datastore.create(tmp_path / "empty", 16, vocab_size=VOCAB), k=1)
    with pytest.raises(ConfigError, match="mixes in no neighbours"):
        Spalm(decoder(), Lookup(keys, store, k=1))
    with pytest.raises(CheckpointError, match="has 11 tokens, the model 12"):
        Spalm(spalm_of(vocab_size=12), Lookup(keys, store, k=1))
    with pytest.raises(CheckpointError, match="has 11 tokens, the text 256"):
        LookedUp(task, Lookup(keys, store, k=1), leaving_out=None)


def test_they_stream_where_both_decoders_do(decoder, tmp_path):
    class Still(LanguageModel):
        streams = False  # type: ignore[assignment]

    keys, store = made(decoder, tmp_path / "store")
    still = Still(keys.config)
    assert Spalm(spalm_of(), Lookup(keys, store, k=1)).streams
    assert not Spalm(spalm_of(), Lookup(still, store, k=1)).streams
    assert not Spalm(Still(spalm_of().config), Lookup(keys, store, k=1)).streams


def test_all_targets_of_a_split_are_told(task, tmp_path):
    """Every token but the first of each document; of the training text all are in the datastore."""
    found = looked_up(task, tmp_path / "store")
    windows = task.examples("train")
    targets = sum(len(windows.place(first)[0]) - 1 for first in windows.begins.tolist())
    assert len(windows.begins) > 20
    assert found.own("train")[:2] == (targets, targets)
    assert found.own("valid").own < found.own("valid").targets
    assert looked_up(task, tmp_path / "store", own=True).own("train").targets == 0


@pytest.fixture
def task(tmp_path) -> TextTask:
    folder = tmp_path / "texts"
    folder.mkdir()
    for at, line in enumerate(LINES):
        (folder / f"{at}.txt").write_text(line)
    return TextTask(TextConfig(corpus=str(folder), length=24, cache=str(tmp_path / "cache")))


def looked_up(task: TextTask, folder: Path, *, k: int = 3, own: bool = False) -> LookedUp:
    """The task beside a datastore of its training documents, each as the task has it."""
    shape = ModelConfig(dim=16, heads=2, layers=1, vocab_size=task.vocab_size, seed=3)
    keys = LanguageModel(shape).eval()

    def beside(store: Datastore) -> LookedUp:
        return LookedUp(task, Lookup(keys, store, k=k), leaving_out=None if own else Own(store))

    if folder.exists():
        return beside(Datastore.open(folder))
    windows = task.examples("train")
    texts = [Text(str(first), windows.place(first)[0]) for first in windows.begins.tolist()]
    store = build(keys, texts, folder, origin=origin(keys, task.tokenizer), length=24)
    return beside(store)


def test_training_examples_do_not_find_themselves(task, tmp_path):
    """Windows are those of the datastore, so an own entry is at distance 0 and has the very target. Without it, the
    others are found, in their order."""
    without, with_own = (looked_up(task, tmp_path / "store", own=own, k=4) for own in (False, True))
    examples, count = without.examples("train"), 0
    for index in range(0, len(examples), 5):
        example, found = examples[index], with_own.examples("train")[index]
        assert example.neighbours is not None
        assert found.neighbours is not None
        assert found.distances is not None
        counted = example.targets != IGNORE
        assert (example.neighbours[~counted] == -1).all()
        alone = counted & (found.distances[:, 1] > 1e-3)  # no other context is the same
        assert (found.distances[alone, 0] < 1e-3).all()
        assert (found.neighbours[alone, 0] == found.targets[alone]).all()
        assert (example.neighbours[alone, :3] == found.neighbours[alone, 1:]).all()
        count += alone.sum()
    assert count > 100
    kept = examples._found[5]
    assert (examples[5].neighbours == kept[0]).all()
    assert examples._found[5] is kept  # looked up once


def test_what_was_looked_up_is_part_of_the_data(task, tmp_path):
    """A resumed run compares it; the text alone is before the +."""
    found = looked_up(task, tmp_path / "store")
    again, other = looked_up(task, tmp_path / "store"), looked_up(task, tmp_path / "store", k=2)
    assert found.fingerprint == again.fingerprint != other.fingerprint
    assert looked_up(task, tmp_path / "store", own=True).fingerprint != found.fingerprint
    assert found.fingerprint.partition("+")[0] == task.fingerprint
    assert (found.length, found.vocab_size, found.tokenizer) == (task.length, task.vocab_size, task.tokenizer)
    store = found.lookup.store
    with store.adding() as adding:
        adding.begin("more", entries=1)
        adding.append(torch.zeros(1, 16), torch.zeros(1, dtype=torch.int64))
    assert looked_up(task, tmp_path / "store").fingerprint != found.fingerprint


def test_a_text_that_is_cut_otherwise_is_said(task, tmp_path):
    """Windows of another length, or that begin elsewhere, have other keys for the same tokens."""
    found = looked_up(task, tmp_path / "store")
    assert found.cut_otherwise("train") == ""
    config = TextConfig(corpus=str(tmp_path / "texts"), length=12, cache=str(tmp_path / "cache"))
    shorter = looked_up(TextTask(config), tmp_path / "store").cut_otherwise("train")
    assert "built in windows of 24 tokens, and this text is read in windows of 12" in shorter
    windows = task.examples("train")
    texts = [Text(str(first), windows.place(first)[0]) for first in windows.begins.tolist()]
    moved = [Text(text.name, text.ids[at % 2 :]) for at, text in enumerate(texts)]
    keys = found.lookup.keys
    build(keys, moved, tmp_path / "moved", origin=origin(keys, task.tokenizer), length=24)
    said = looked_up(task, tmp_path / "moved").cut_otherwise("train")
    elsewhere = sum(-(-(len(text.ids) - 2) // 24) for text in texts[1::2])
    both = [Text(f"{text.name} {kind}", text.ids) for kind, each in (("", texts), ("moved", moved)) for text in each]
    build(keys, both, tmp_path / "both", origin=origin(keys, task.tokenizer), length=24)
    assert looked_up(task, tmp_path / "both").cut_otherwise("train") == "", "a copy that begins as this text does"
    numbers = [int(word) for word in said.replace(",", "").split() if word.isdecimal()]
    assert "begin elsewhere than there" in said
    assert numbers[0] == 24
    assert 0 < numbers[1] <= elsewhere
    assert numbers[1] < numbers[2] <= len(windows)


def test_another_tokenizer_is_refused(task, tmp_path):
    looked_up(task, tmp_path / "store")
    config = TextConfig(corpus=str(tmp_path / "texts"), tokenizer="bpe", vocab_size=300, length=24)
    other = TextTask(config)
    keys = LanguageModel(ModelConfig(dim=16, heads=2, layers=1, vocab_size=task.vocab_size, seed=3))
    found = Lookup(keys, Datastore.open(tmp_path / "store"), k=1)
    with pytest.raises(CheckpointError, match="made with another tokenizer"):
        LookedUp(other, found, leaving_out=None)
