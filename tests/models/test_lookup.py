"""Guesses from the text itself change how many calls a model is asked in, and no token."""

import pytest
import torch

from regard.core.errors import ConfigError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.models.generate import generate
from regard.models.lookup import checked, guess
from regard_lab.retrieval import Datastore, KnnLm, Lookup, Spalm

MECHANISMS = ["softmax", "local(window=5)", "linear", "strided(stride=3)", "performer", "shaw", "forgetting"]


def model_of(attention, position="none", **options):
    shape = {"dim": 32, "layers": 2, "heads": 2, "vocab_size": 6, "max_length": 64, "seed": 5, **options}
    return LanguageModel(ModelConfig(attention=(attention,), position=position, **shape)).double().eval()


class Counted:
    """How many calls a model was asked in, and for how many tokens."""

    def __init__(self, model, monkeypatch):
        self.tokens = []
        hidden = model.hidden

        def counting(tokens, **given):
            self.tokens.append(tokens.shape[1])
            return hidden(tokens, **given)

        monkeypatch.setattr(model, "hidden", counting)


def repeating(length=18):
    return ([0, 1, 2, 3, 1, 4] * length)[:length]


CASES = [(mechanism, None) for mechanism in MECHANISMS]
CASES += [
    ("softmax", cache) for cache in ("streaming(budget=7, sinks=2)", "h2o(budget=7)", "quantized(recent=4, group=2)")
]


@pytest.mark.parametrize(("mechanism", "cache"), CASES)
def test_the_same_tokens_whatever_the_state(mechanism, cache, monkeypatch):
    model = model_of(mechanism)
    model.reduce_cache(cache)
    prompts = [repeating(), [3, 1, 4, 1, 5], [2]]
    plain = generate(model, prompts, max_new_tokens=10, temperature=0)
    counted = Counted(model, monkeypatch)
    looked = generate(model, prompts, max_new_tokens=10, temperature=0, lookup=3)
    assert [row.tokens.tolist() for row in looked] == [row.tokens.tolist() for row in plain]
    assert sum(1 < n < 5 for n in counted.tokens) > 2  # there was something to check


@pytest.mark.parametrize(
    ("kind", "mechanism"), [("knn_lm", "linear"), ("knn_lm", "a memory"), ("spalm", "softmax"), ("spalm", "a memory")]
)
def test_the_same_tokens_beside_a_datastore(kind, mechanism, tmp_path, monkeypatch):
    """Neighbours of guesses are found in the same call; those that were wrong leave the states of both decoders."""
    memory = {"memory": "recent(length=8)", "max_length": 9} if mechanism == "a memory" else {}
    model = model_of("linear" if mechanism == "linear" else "softmax", **memory)
    with Datastore.create(tmp_path / "store", 32, vocab_size=6).adding() as adding:
        draw = torch.Generator().manual_seed(0)
        adding.begin("random", entries=200)
        adding.append(torch.randn(200, 32, generator=draw), torch.randint(6, (200,), generator=draw))
    store = Datastore.open(tmp_path / "store")
    if kind == "knn_lm":
        beside = KnnLm(model, store, k=3, lam=0.3, temperature=10.0)
    else:
        mixing = model_of("softmax", neighbours=3, **memory)
        beside = Spalm(mixing, Lookup(model.float(), store, k=3))
    prompts = [repeating(), [3, 1, 4, 1, 5], [2]]
    plain = generate(beside, prompts, max_new_tokens=10, temperature=0)
    alone = generate(model, prompts, max_new_tokens=10, temperature=0)
    counted = Counted(beside, monkeypatch)
    looked = generate(beside, prompts, max_new_tokens=10, temperature=0, lookup=3)
    assert [row.tokens.tolist() for row in looked] == [row.tokens.tolist() for row in plain]
    assert [row.tokens.tolist() for row in plain] != [row.tokens.tolist() for row in alone]
    assert sum(1 < n < 5 for n in counted.tokens) > 2


@torch.no_grad()
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_guesses_leave_the_state(mechanism):
    """After a check the state is that of the text with the right guesses alone; the one before it stays usable."""
    model, tokens = model_of(mechanism), repeating(12)
    state, follow = model(torch.tensor([tokens]), state=model.initial_state(1)).state, [3]
    for _ in range(3):
        follow.append(int(model(torch.tensor([[*tokens, *follow]])).logits[0, -1].argmax()))
    new, *true = follow
    wrong = [(token + 1) % 6 for token in true]
    for draft, right in ((true, 3), ([true[0], wrong[1], 0], 1), (wrong, 0), ([], 0)):
        picked, after, _ = checked(model, [new], draft, state)
        assert picked[:3] == true[: right + 1]
        read = [*tokens, new, *draft[:right]]
        assert after.length == len(read)
        wanted = model(torch.tensor([[*read, 2]])).logits[:, -1]
        torch.testing.assert_close(model(torch.tensor([[2]]), state=after).logits[:, -1], wanted)


def test_a_text_that_repeats_is_read_in_fewer_calls(monkeypatch):
    """A model that copies: every guess is right, so that each call takes all that was guessed."""
    model = model_of("softmax")
    found = generate(model, [repeating()], max_new_tokens=30, temperature=0)[0].tokens.tolist()
    prompt = repeating() + found
    counted = Counted(model, monkeypatch)
    more = generate(model, [prompt], max_new_tokens=12, temperature=0, lookup=4)[0].tokens.tolist()
    calls = len(counted.tokens)
    assert more == generate(model, [prompt], max_new_tokens=12, temperature=0)[0].tokens.tolist()
    assert calls < 12


def test_what_followed_is_guessed():
    assert guess([1, 2, 3, 1, 2], 5) == [3, 1, 2]
    assert guess([7, 2, 9, 1, 2, 8, 3, 2], 1) == [8]  # the latest
    assert guess([1, 2, 3, 9, 2, 3, 1, 2, 3], 1) == [9]  # the longest
    assert guess([1, 2, 3], 4) == []
    assert guess([5], 4) == []
    assert guess([1, 1], 0) == []


def test_texts_end_where_they_would():
    model = model_of("softmax")
    whole = generate(model, [repeating()], max_new_tokens=20, temperature=0)[0].tokens.tolist()
    stop = whole[7]
    plain = generate(model, [repeating()], max_new_tokens=20, temperature=0, stop_tokens=[stop])[0]
    looked = generate(model, [repeating()], max_new_tokens=20, temperature=0, stop_tokens=[stop], lookup=5)[0]
    assert looked.tokens.tolist() == plain.tokens.tolist()
    assert looked.ended == plain.ended == "stop"
    sized = model_of("softmax", "learned", max_length=40)
    a, b = (generate(sized, [repeating()], max_new_tokens=23, temperature=0, lookup=n)[0] for n in (0, 6))
    assert a.tokens.tolist() == b.tokens.tolist()


def test_what_lookup_does_not_serve():
    model = model_of("softmax")
    for temperature in (0, 1.0):
        with pytest.raises(ConfigError, match="lookup=-1: the number of tokens to guess must be at least 0"):
            generate(model, [[1, 2]], max_new_tokens=4, lookup=-1, temperature=temperature)
    with pytest.raises(ConfigError, match="needs temperature=0, got"):
        generate(model, [[1]], max_new_tokens=2, lookup=3)
    with pytest.raises(ConfigError, match="lookup=-1"):
        generate(model, [[1]], max_new_tokens=2, temperature=0, lookup=-1)
    with pytest.raises(UnsupportedError, match="goes on from states"):
        generate(model, [[1]], max_new_tokens=2, temperature=0, lookup=3, use_state=False)
