"""kNN-LM against its definition, written as loops over numbers."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.core.errors import CheckpointError, ConfigError, DataError, LimitError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import build_depth
from regard.models.generate import generate
from regard.text.reader import Encoded
from regard_lab.networks.evaluation import windows
from regard_lab.retrieval import Datastore, KnnLm, Neighbours, bootstrap, build, look, mixed, sweep
from regard_lab.retrieval.documents import Text, digest, fingerprint, texts
from regard_lab.retrieval.evaluation import Looked
from regard_lab.retrieval.keys import joined, kept_keys
from regard_lab.retrieval.own import Own
from regard_lab.tasks.base import IGNORE, Example
from regard_lab.tasks.corpus import Document
from regard_lab.training.batches import collate
from regard_lab.training.evaluation import score
from tests.retrieval.conftest import DIM, VOCAB, entries, filled


def by_hand(logits: Sequence[float], near: Sequence[tuple[float, int]], lam: float, temperature: float) -> list[float]:
    """p of every token: near are the squared distance and the token of each neighbour."""
    most = max(logits)
    total = sum(math.exp(x - most) for x in logits)
    weights = [math.exp(-d / temperature) for d, _ in near]
    found = [0.0] * len(logits)
    for weight, (_, token) in zip(weights, near, strict=True):
        found[token] += weight / sum(weights)
    return [lam * p + (1 - lam) * math.exp(x - most) / total for p, x in zip(found, logits, strict=True)]


def neighbours(rows: Sequence[Sequence[tuple[float, int]]]) -> Neighbours:
    distances = torch.tensor([[d for d, _ in row] for row in rows], dtype=torch.float64)
    return Neighbours(
        distances, torch.zeros(distances.shape).long(), torch.tensor([[w for _, w in row] for row in rows])
    )


NEAR = [[(0.5, 3), (0.7, 1), (0.7, 3), (2.0, 0)], [(0.1, 2), (0.2, 2), (0.3, 2), (9.0, 4)]]
LOGITS = [[0.3, -1.2, 2.0, 0.1, 0.0], [1.0, 0.0, -4.0, 0.5, 3.0]]


@pytest.mark.parametrize("lam", [0.25, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 7.0])
def test_the_mixture_is_that_of_the_loops(lam, temperature):
    log_p = mixed(torch.tensor(LOGITS), neighbours(NEAR), lam=lam, temperature=temperature)
    expected = [by_hand(x, near, lam, temperature) for x, near in zip(LOGITS, NEAR, strict=True)]
    torch.testing.assert_close(log_p.double().exp(), torch.tensor(expected).double(), rtol=2e-6, atol=1e-8)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(2), rtol=1e-6, atol=0)


def test_weight_0_is_the_model_and_weight_1_the_neighbours():
    logits = torch.tensor(LOGITS)
    assert mixed(logits, neighbours(NEAR), lam=0.0, temperature=1.0) is logits
    alone = mixed(logits, neighbours(NEAR), lam=1.0, temperature=1.0)
    assert alone[0, [2, 4]].tolist() == [-math.inf, -math.inf]
    assert torch.equal(alone, mixed(logits.flip(1), neighbours(NEAR), lam=1.0, temperature=1.0))


def test_far_neighbours_do_not_underflow():
    far = neighbours([[(1e6, 3), (1e6 + 1, 1)]])
    p = mixed(torch.zeros(1, 4), far, lam=1.0, temperature=1.0).exp()
    torch.testing.assert_close(p[0, 3], torch.tensor(1 / (1 + math.exp(-1))), rtol=1e-6, atol=0)


@pytest.mark.parametrize("temperature", [1e-320, 1e-300])
def test_the_coldest_temperature_is_the_nearest_alone(temperature, tmp_path, decoder):
    near = neighbours([[(0.5, 3), (0.7, 1)], [(0.0, 2), (0.0, 4)]])
    p = mixed(torch.zeros(2, 5), near, lam=1.0, temperature=temperature).exp()
    assert p.tolist() == [[0, 0, 0, 1, 0], [0, 0, 0.5, 0, 0.5]]
    model = decoder()
    looked = look(model, built(model, tmp_path / "store"), windows([TEXTS[0]], Letters(), 16), k=2, own=True)
    assert float(looked.nats(lam=0.5, k=2, temperature=temperature).mean()) == pytest.approx(
        float(looked.nats(lam=0.5, k=2, temperature=1e-6).mean())
    )


def test_a_query_without_any_neighbour_has_the_model_alone(tmp_path):
    store = filled(tmp_path / "one", {"a": entries(1)})
    found = store.search(torch.zeros(2, DIM), 1, own=torch.tensor([[0], [-1]]))
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(0))
    log_p = mixed(logits, found, lam=0.5, temperature=1.0)
    torch.testing.assert_close(log_p[0], logits[0].log_softmax(0))
    assert not torch.allclose(log_p[1], logits[1].log_softmax(0))


class Letters:
    """A reader for `windows`: every letter is a token."""

    def document(self, text: str) -> Encoded:
        ids = torch.tensor([ord(letter) - ord("a") for letter in text]).numpy()
        return Encoded(ids, ids * 0 + 1)


def text(seed: int, length: int = 70) -> str:
    drawn = torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed))
    return "".join(chr(ord("a") + at) for at in drawn.tolist())


TEXTS = [text(1), text(2, 33), text(3, 2), text(4, 1)]


def built(model: LanguageModel, folder, texts: Sequence[str] = TEXTS, **options) -> Datastore:
    documents = [Text(f"document {at}", Letters().document(one).ids) for at, one in enumerate(texts)]
    return build(model, documents, folder, origin={"model": "this"}, length=16, **options)


def last_mlp_input(model: LanguageModel, tokens: Tensor) -> Tensor:
    """By definition, block by block of a pre-norm decoder."""
    x = model.embeddings.content(tokens)
    for at, block in enumerate(model.blocks):
        middle = x + block.attention(block.attention_norm(x)).hidden
        if at == len(model.blocks) - 1:
            return block.mlp_norm(middle)
        x = middle + block.mlp(block.mlp_norm(middle))
    raise AssertionError


def test_empty_documents_are_left_out():
    """Of a text that is shorter than its splits, say: they would vote for an end behind a beginning."""
    parts = zip(("ab", "", "c"), ("train", "valid", "test"), strict=True)
    found = texts([Document(text, name, name) for text, name in parts], Letters())
    assert [(each.name, each.ids.tolist()) for each in found] == [("train", [0, 1]), ("test", [2])]


@pytest.mark.parametrize("options", [{}, {"mlp_chunks": 3}])
def test_keys_are_the_input_of_the_last_mlp_after_its_norm(decoder, options):
    model = decoder(**options)
    tokens = torch.tensor([[1, 5, 2, 9, 0, 3, 7]])
    with kept_keys(model) as pieces, torch.no_grad():
        model(tokens)
    torch.testing.assert_close(joined(pieces), last_mlp_input(model, tokens))
    count = len(pieces)
    model(tokens)
    assert len(pieces) == count  # the hook is gone


def test_what_is_stored_is_every_context_and_what_followed(decoder, tmp_path):
    model = decoder()
    store = built(model, tmp_path / "store")
    assert [document.entries for document in store.manifest.documents] == [69, 32, 1, 0]
    ids = torch.from_numpy(Letters().document(TEXTS[0]).ids)
    assert torch.equal(store.values(0, 69), ids[1:])
    keys = torch.cat([torch.from_numpy(piece.keys) for piece in store.pieces()])
    with torch.no_grad():
        expected = last_mlp_input(model, ids[None, 16:32])[0]
    torch.testing.assert_close(keys[16:32].float(), expected, rtol=2e-3, atol=2e-3)


def test_a_build_that_was_interrupted_ends_with_the_same_bytes(decoder, tmp_path, monkeypatch):
    monkeypatch.setattr("regard_lab.retrieval.writer.BLOCK_BYTES", 10 * 16 * 2)
    model = decoder()
    whole = built(model, tmp_path / "whole")

    def stop(entries: int) -> None:
        if entries > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(model, tmp_path / "stopped", progress=stop)
    with pytest.raises(CheckpointError, match="had other documents"):
        built(model, tmp_path / "stopped", [text(9), *TEXTS])
    with pytest.raises(ConfigError, match="a build that was interrupted; finish that first"):
        built(model, tmp_path / "stopped", add=True)
    built(model, tmp_path / "stopped")
    for path in whole.folder.iterdir():
        assert (tmp_path / "stopped" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(ConfigError, match="is a whole datastore"):
        built(model, tmp_path / "stopped")
    more = built(model, tmp_path / "stopped", [text(9)], add=True)
    assert len(more) == len(whole) + 69


def test_another_model_neither_adds_nor_ends_a_build(decoder, tmp_path):
    model, document = decoder(), Text("a", Letters().document(text(9)).ids)
    built(model, tmp_path / "whole")

    def stop(entries: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(model, tmp_path / "begun", progress=stop)
    for folder, add in (("whole", True), ("begun", False)):
        before = [path.read_bytes() for path in sorted((tmp_path / folder).iterdir())]
        for part in ("model", "tokenizer"):
            origin = {"model": "this", part: "that"}
            with pytest.raises(CheckpointError, match=f"{folder} was made with another {part}"):
                build(model, [document], tmp_path / folder, origin=origin, length=16, add=add)
        assert [path.read_bytes() for path in sorted((tmp_path / folder).iterdir())] == before


def test_a_model_in_training_makes_and_finds_the_keys_of_evaluation(decoder, tmp_path):
    """Dropout would draw others, which no query finds again."""
    model = decoder(dropout=0.5)
    quiet = built(model, tmp_path / "quiet")
    passages = windows([text(1)], Letters(), 16)
    wanted = look(model, quiet, passages, k=2, own=True)
    model.train()
    store = built(model, tmp_path / "trained")
    for ours, theirs in zip(store.pieces(), quiet.pieces(), strict=True):
        assert (ours.keys == theirs.keys).all()
    found = look(model, store, passages, k=2, own=True)
    assert model.training
    for name in ("distances", "ids"):
        assert torch.equal(getattr(found.neighbours, name), getattr(wanted.neighbours, name))
    assert torch.equal(found.nats(lam=0.0, k=2, temperature=1.0), wanted.nats(lam=0.0, k=2, temperature=1.0))


def test_other_models_widths_and_windows_are_refused(decoder, tmp_path):
    model = decoder()
    store = built(model, tmp_path / "store")
    with pytest.raises(CheckpointError, match="made with another model"):
        store.require_origin({"model": "that"}, 16)
    with pytest.raises(CheckpointError, match="keys of 16 numbers, and this model makes 32"):
        KnnLm(decoder(dim=32), store)
    with pytest.raises(LimitError, match="k=103"):
        KnnLm(model, store, k=103)
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        windows([text(8)], Letters(), 0)
    with pytest.raises(ConfigError, match="limit must be at least 0"):
        look(model, store, windows([text(8)], Letters(), 10), k=2, limit=-1)
    for wrong in ({"lam": 1.5}, {"lam": -0.1}, {"temperature": 0.0}, {"lam": math.nan}):
        with pytest.raises(ConfigError):
            KnnLm(model, store, **wrong)
    with pytest.raises(CheckpointError, match="the datastore is empty"):
        KnnLm(model, Datastore.create(tmp_path / "empty", 16, vocab_size=VOCAB))
    with pytest.raises(LimitError, match="windows must have at least 1 token"):
        build(model, [], tmp_path / "new", origin={}, length=0)
    placed = LanguageModel(ModelConfig(dim=16, vocab_size=VOCAB, position="learned", max_length=8))
    with pytest.raises(LimitError, match="at most the model's 8 positions; got 9"):
        build(placed, [], tmp_path / "new", origin={}, length=9)
    with pytest.raises(CheckpointError, match="has 11 tokens, the model 12"):
        built(decoder(vocab_size=12), tmp_path / "store", add=True)
    gated = LanguageModel(
        ModelConfig(dim=16, vocab_size=VOCAB, block="gated_unit", mlp="none", attention=("relu_squared",), heads=1)
    )
    with pytest.raises(UnsupportedError, match="have none; use one with an MLP"):
        KnnLm(gated, store)
    mixing = LanguageModel(ModelConfig(dim=16, vocab_size=VOCAB, neighbours=2))
    with pytest.raises(UnsupportedError, match="mixes in the neighbours of another"):
        build(mixing, [], tmp_path / "new", origin={})
    assert not (tmp_path / "new").exists()
    with pytest.raises(UnsupportedError, match="after training"):
        KnnLm(model, store).train()(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("depth", ["early_exit", "light_exit", "universal(steps=2)"])
def test_a_depth_that_is_put_into_a_model_is_refused(decoder, tmp_path, depth):
    """Before the mixture is made and behind it, whatever the configuration says."""
    model = decoder()
    store = built(model, tmp_path / "store")
    mixture = KnnLm(model, store, k=3).eval()
    model.depth = build_depth(depth, model.config).eval()
    with pytest.raises(UnsupportedError, match=f"which depth='{depth.partition('(')[0]}' runs more than once or not"):
        KnnLm(model, store)
    with pytest.raises(UnsupportedError, match="runs more than once or not at all"):
        mixture(torch.tensor([[1, 2]]))


@pytest.mark.parametrize("lam", [0.0, 0.4])
def test_decoding_one_token_at_a_time_is_the_whole(decoder, lam, tmp_path):
    model = decoder()
    wrapped = KnnLm(model, built(model, tmp_path / "store"), lam=lam, k=5, temperature=2.0).eval()
    tokens = torch.from_numpy(Letters().document(text(11, 12)).ids)[None]
    with torch.no_grad():
        whole, state, rows = wrapped(tokens).logits, wrapped.initial_state(1), []
        for at in range(12):
            output = wrapped(tokens[:, at : at + 1], state=state)
            state = output.state
            rows.append(output.logits)
        torch.testing.assert_close(torch.cat(rows, 1), whole, rtol=1e-4, atol=1e-4)
        if lam == 0:
            assert torch.equal(whole, model(tokens).logits)
        else:
            assert not torch.allclose(whole, model(tokens).logits.log_softmax(-1), atol=0.1)
            torch.testing.assert_close(whole.exp().sum(-1), torch.ones(1, 12))


def test_generating_repeats_what_is_stored(decoder, tmp_path):
    """With weight 1 and one neighbour a prompt that is stored is continued as it was."""
    model = decoder()
    store = built(model, tmp_path / "store")
    ids = Letters().document(TEXTS[0]).ids
    with_store = KnnLm(model, store, lam=1.0, k=1).eval()
    prompts = [ids[:6].tolist(), ids[:3].tolist()]
    new = generate(with_store, prompts, max_new_tokens=8, temperature=0)
    assert [row.tokens.tolist() for row in new] == [ids[6:14].tolist(), ids[3:11].tolist()]
    without = KnnLm(model, store, lam=0.0, k=1).eval()
    same = [generate(each, prompts, max_new_tokens=8, seed=3) for each in (without, model)]
    assert [row.tokens.tolist() for row in same[0]] == [row.tokens.tolist() for row in same[1]]
    guessed = generate(with_store, prompts, max_new_tokens=8, temperature=0, lookup=3)
    assert [row.tokens.tolist() for row in guessed] == [row.tokens.tolist() for row in new]


def test_own_entries_are_left_out_and_no_others(decoder, tmp_path):
    """Of a text that is stored, twice even, no target finds itself; the search without them is that of a store without
    that one entry."""
    model = decoder()
    store = built(model, tmp_path / "store", [*TEXTS, TEXTS[0]])
    examples = windows([text(8), TEXTS[0], TEXTS[1]], Letters(), 10)  # other windows than it was built with
    found = look(model, store, examples, k=20)
    own = look(model, store, examples, k=20, own=True)
    start, rows = store.own(digest(Letters().document(TEXTS[0]).ids)), found.documents == 1
    assert start == [0, 102]
    for at, row in enumerate(rows.nonzero()[:, 0].tolist()):
        assert not set(found.neighbours.ids[row].tolist()) & {at, 102 + at}
        wide = [number for number in own.neighbours.ids[row].tolist() if number not in (at, 102 + at)]
        assert found.neighbours.ids[row, : len(wide)].tolist() == wide
    assert torch.equal(found.neighbours.ids[found.documents == 0], own.neighbours.ids[found.documents == 0])
    gain = [float((each.model - each.nats(lam=0.5, k=1, temperature=1.0))[rows].mean()) for each in (own, found)]
    assert gain[0] > 1 > 0 > gain[1]


def test_of_many_examples_some_are_looked_up_evenly_spaced(decoder, tmp_path):
    """Five windows of 16 targets: of two, the first and the third."""
    model = decoder()
    store, examples = built(model, tmp_path / "store"), windows([text(21, 81)], Letters(), 16)
    every, two = (look(model, store, examples, k=2, limit=limit) for limit in (0, 2))
    assert len(every.targets) == 80
    assert torch.equal(two.targets, torch.cat([every.targets[:16], every.targets[32:48]]))
    assert torch.equal(two.neighbours.ids, torch.cat([every.neighbours.ids[:16], every.neighbours.ids[32:48]]))
    with pytest.raises(DataError, match="there is no target to look up"):
        look(model, store, [], k=2)


@pytest.mark.parametrize("own", [True, False])
def test_targets_that_do_not_count_are_not_looked_up_wherever_they_are(decoder, tmp_path, own):
    """The first ones too: what counts keeps its own context, neighbours and entries that are left out."""
    model = decoder()
    store, whole = built(model, tmp_path / "store"), windows([TEXTS[0], text(21, 50)], Letters(), 16)
    counts = [np.arange(len(example.targets)) % 5 > 1 for example in whole]

    class Some:
        def __len__(self) -> int:
            return len(whole)

        def __getitem__(self, index: int) -> Example:
            example = whole[index]
            return example._replace(targets=np.where(counts[index], example.targets, IGNORE))

        def __getattr__(self, name: str) -> object:
            return getattr(whole, name)

    every, some = (look(model, store, examples, k=3, own=own) for examples in (whole, Some()))
    kept = torch.from_numpy(np.concatenate(counts))
    assert not kept[0]
    assert torch.equal(some.targets, every.targets[kept])
    torch.testing.assert_close(some.model, every.model[kept])
    assert torch.equal(some.neighbours.ids, every.neighbours.ids[kept])
    assert torch.equal(some.documents, every.documents[kept])


def test_a_fingerprint_is_of_configuration_names_kinds_shapes_and_bytes(decoder):
    """What makes other keys of the same bytes is another model."""
    model, other = decoder(heads=2, kv_heads=2), decoder(heads=4, kv_heads=4)
    other.load_state_dict(model.state_dict())
    assert fingerprint(model) == fingerprint(decoder(heads=2, kv_heads=2)) != fingerprint(other)
    assert fingerprint(model) == fingerprint(decoder(heads=2, kv_heads=2, dropout=0.5, checkpoint="block"))
    for options in ({"position": "alibi"}, {"norm_eps": 1e-3}, {"attention": ("linear",)}):
        other = decoder(heads=2, kv_heads=2, **options)
        assert other.state_dict().keys() == model.state_dict().keys()
        assert fingerprint(other) != fingerprint(model)
    weight, found = torch.arange(16.0), set()
    for x in (weight.view(2, 8), weight.view(4, 4), weight.view(4, 4).view(torch.int32), -weight.view(4, 4)):
        for name in ("one", "two"):
            module = torch.nn.Module()
            module.register_buffer(name, x)
            found.add(fingerprint(module))
    assert len(found) == 8


def test_a_fingerprint_is_the_same_in_a_version_with_one_more_option(decoder):
    """At its default; at another value it is another model."""
    model = decoder()
    before, known = fingerprint(model), vars(model.config)
    more = [("later", bool, dataclasses.field(default=False, kw_only=True))]
    later = dataclasses.make_dataclass("ModelConfig", more, bases=(ModelConfig,), frozen=True)
    model.config = later(**known)
    assert fingerprint(model) == before
    model.config = later(**known, later=True)
    assert fingerprint(model) != before


def test_neighbours_are_1024_or_as_many_as_there_are(decoder, tmp_path):
    model = decoder()
    assert KnnLm(model, built(model, tmp_path / "few")).k == 102
    assert KnnLm(model, built(model, tmp_path / "many", [text(22, 1100)])).k == 1024


def test_looking_up_and_evaluating_agree(decoder, tmp_path):
    """Targets alone, and log p of the whole vocabulary through `score`, own entries left out in both."""
    model = decoder()
    store = built(model, tmp_path / "store")
    examples = windows([text(8), TEXTS[0]], Letters(), 16)
    looked = look(model, store, examples, k=9)
    setting = {"lam": 0.3, "k": 9, "temperature": 4.0}
    mixture = KnnLm(model, store, **setting)
    scores = score(model, examples, VOCAB, batch_size=3, forward=mixture.without_own)
    assert scores is not None
    assert scores.total.tokens == len(looked.targets) == 138
    assert scores.total.nats == pytest.approx(float(looked.nats(**setting).sum()), rel=1e-5)
    alone = score(model, examples, VOCAB)
    assert alone is not None
    assert alone.total.nats == pytest.approx(float(looked.nats(lam=0.0, k=1, temperature=1.0).sum()), rel=1e-6)


def test_a_sweep_tries_everything_and_says_the_best(decoder, tmp_path):
    model = decoder()
    looked = look(model, built(model, tmp_path / "store"), windows([TEXTS[0]], Letters(), 16), k=8, own=True)
    lams, ks, temperatures = (0.0, 0.5, 0.9), (1, 8), (1.0, 10.0)
    tried = sweep(looked, lams=lams, ks=ks, temperatures=temperatures)
    assert len(tried) == 12
    assert tried[0].nats == min(one.nats for one in tried)
    for one in tried:
        expected = looked.nats(lam=one.lam, k=one.k, temperature=one.temperature).mean()
        assert one.nats == pytest.approx(float(expected))
    with pytest.raises(LimitError, match="k=9, and 8 neighbours"):
        looked.nats(lam=0.1, k=9, temperature=1.0)
    with pytest.raises(ConfigError, match="lam is from 0 to 1"):
        looked.nats(lam=1.1, k=1, temperature=1.0)


def test_of_equal_settings_the_least_is_first():
    """Where no neighbour is there, all are the model alone: the least weight is said, then the fewest neighbours."""
    far = torch.full((4, 3), torch.inf, dtype=torch.float64)
    absent = Neighbours(far, torch.full((4, 3), -1), torch.zeros(4, 3, dtype=torch.long))
    looked = Looked(torch.tensor([0.5, 1.0, 2.0, 0.1]).double(), absent, torch.ones(4).long(), torch.arange(4))
    tried = sweep(looked, lams=(0.9, 0.0, 0.5), ks=(3, 1), temperatures=(1.0,))
    assert len({one.nats for one in tried}) == 1
    assert [(one.lam, one.k) for one in tried] == [(0.0, 1), (0.0, 3), (0.5, 1), (0.5, 3), (0.9, 1), (0.9, 3)]


def test_positions_without_a_target_have_no_own_entry(decoder, tmp_path):
    model = decoder()
    store, examples = built(model, tmp_path / "store"), windows(TEXTS, Letters(), 16)
    batch = collate(examples, list(range(len(examples))), VOCAB)
    own, counts = Own(store)(examples, batch), (batch.targets != IGNORE).flatten()
    assert own is not None
    assert (own[~counts] == -1).all()
    assert (own[counts] >= 0).any(1).all()
    assert not counts.all(), "every position has a target"


def test_the_bootstrap_is_of_95_percent():
    """Of many documents of one token each, the interval of a mean: 1.96 standard errors to each side."""
    draw = torch.Generator().manual_seed(3)
    one, other = 0.1 * torch.randn(900, generator=draw).double(), torch.zeros(900).double()
    interval = bootstrap(one, other, torch.arange(900), draws=8000)
    error = float(one.exp().mean() * one.std(correction=0)) / 30
    for side in (interval.value - interval.low, interval.high - interval.value):
        assert side == pytest.approx(1.96 * error, rel=0.08)


def test_the_bootstrap_draws_documents_with_all_of_their_targets():
    """Of two documents, of 1 target and of 9: a quarter of the draws has the one twice, a quarter the other."""
    nats = torch.tensor([1.0] + [3.0] * 9).double()
    found = bootstrap(nats, torch.zeros(10).double(), (nats > 1).long())
    assert found[:] == pytest.approx((math.exp(2.8) - 1, math.e - 1, math.exp(3) - 1))


def test_the_bootstrap_covers_and_can_exclude_zero():
    draw = torch.Generator().manual_seed(0)
    other, documents = torch.rand(400, generator=draw) + 1, torch.arange(400) // 20
    interval = bootstrap(other - 0.2, other, documents)
    assert interval.low < interval.value < interval.high < 0
    assert interval.value == pytest.approx(
        math.exp(float(other.double().mean()) - 0.2) - math.exp(float(other.double().mean()))
    )
    noise = bootstrap(other + 0.3 * torch.randn(400, generator=draw), other, documents)
    assert noise.low < 0 < noise.high
    assert bootstrap(other, other, documents)[:] == (0.0, 0.0, 0.0)
    with pytest.raises(DataError, match="needs two of them"):
        bootstrap(other - 0.2, other, torch.zeros(400).long())
