"""What `regard cache` measures, and its page: on a decoder of random weights, whose losses can be computed again."""

import json

import pytest
import torch

from regard.benchmark import cache
from regard.benchmark.rounding import rounded
from regard.errors import ConfigError, DataError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard.report import cache as page

CONFIG = cache.CacheConfig(budgets=(33, 64, 512), context=128, scored=8, texts=1, keys=1)
TEXT = "All that glitters is not gold; often have you heard that told. " * 20


def encode(text):
    return list(text.encode())


def model_of(**options):
    shape = {"dim": 16, "layers": 1, "heads": 2, "position": "rotary", **options}
    return LanguageModel(ModelConfig(**shape)).eval()


@pytest.fixture(scope="module")
def results():
    return cache.measure(model_of(), CONFIG, TEXT, encode)


def test_every_policy_at_every_budget_that_is_one(results):
    names = {"streaming", "h2o", "snapkv", "key_norm", "random"}
    wanted = ["", *(f"{name}(budget={n})" for name in names for n in (33, 64))]
    wanted += [f"quantized(bits={bits})" for bits in (8, 4, 2)]
    assert sorted(row["spec"] for row in results["rows"]) == sorted(wanted)
    assert results["rows"][0]["spec"] == ""


def test_a_budget_that_holds_the_context_is_none():
    assert not [spec for spec in cache.policies(cache.CacheConfig(budgets=(128, 129), context=128)) if "budget" in spec]
    found = cache.policies(cache.CacheConfig(budgets=(127,), context=128))
    assert "h2o(budget=127)" in found
    assert found[0] == ""


def test_a_policy_that_refuses_a_budget_is_left_out_before_anything_is_measured():
    config, told = cache.CacheConfig(budgets=(3,), context=128, scored=2, texts=1, keys=1), list[str]()
    results = cache.measure(model_of(), config, TEXT, encode, tell=told.append)
    names = {"h2o", "snapkv", "key_norm", "random"}
    wanted = {f"{name}(budget=3)" for name in names}
    assert {row["spec"] for row in results["rows"] if "budget" in row["spec"]} == wanted
    assert results["left_out"] == {"streaming(budget=3)": "cache streaming: budget must be above sinks=4, got 3"}
    assert told[0] == "streaming(budget=3) is left out: cache streaming: budget must be above sinks=4, got 3"
    assert told[0] in page.notes(results)
    kept = {row["spec"]: row["state_bytes"] for row in results["rows"]}
    assert kept["snapkv(budget=3)"] == 3 * 2 * (16 * 4 + 4)


def test_a_policy_that_refuses_the_model_is_left_out():
    """Values of width 40 are no groups of 32."""
    config, model = cache.CacheConfig(budgets=(9,), context=128), model_of(dim=80)
    found, refused = cache.buildable(model, config)
    assert {spec.partition("(")[0] for spec in refused} == {"quantized"}
    assert "h2o(budget=9)" in found
    assert model.layers[0].cache is None


def test_losses_and_bytes_are_those_of_the_model(results):
    model, asked = model_of(), cache.rows(CONFIG, TEXT, encode)
    tokens = torch.tensor([asked[0].context + asked[0].tail])
    with torch.no_grad():
        scores = model(tokens).logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])
    full = results["rows"][0]
    assert full["text_nats"] == pytest.approx(-float(scores[0, -8:].mean()), abs=1e-5)
    assert full["state_bytes"] == 128 * 2 * 16 * 4
    of = {row["spec"]: row for row in results["rows"]}
    assert of["h2o(budget=64)"]["state_bytes"] == 64 * 2 * (16 * 4 + 8)
    assert of["snapkv(budget=64)"]["state_bytes"] == 64 * 2 * (16 * 4 + 4)
    assert abs(of["quantized(bits=8)"]["text_nats"] - full["text_nats"]) < 1e-2
    assert of["streaming(budget=33)"]["text_nats"] != full["text_nats"]
    for name in ("text", "known", "unknown"):
        model.reduce_cache("streaming(budget=64)")
        kind = next(row for row in asked if row.kind == name)
        tokens = torch.tensor([kind.context + kind.tail])
        with torch.no_grad():
            scores = model(tokens).logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])
        assert of["streaming(budget=64)"][f"{name}_nats"] == pytest.approx(
            -float(scores[0, -kind.answer :].mean()), abs=1e-5
        )


def test_the_key_stands_in_the_text_and_the_question_before_or_behind_it():
    found = {row.kind: row for row in cache.rows(CONFIG, TEXT, encode)}
    assert all(len(row.context) == 128 for row in found.values())
    unknown, known = (bytes(found[kind].context).decode() for kind in ("unknown", "known"))
    key = bytes(found["known"].tail[-5:]).decode()
    assert f"The pass key is {key}. " in unknown
    assert f"The pass key is {key}. " in known
    assert known.startswith(cache.PROMPT)
    assert cache.PROMPT not in unknown
    assert bytes(found["unknown"].tail).decode() == f"{cache.QUESTION} {key}"
    assert found["unknown"].answer == 6


def test_rounding_loses_more_in_fewer_digits(results):
    of = {one["rounding"]: one["nats"] for one in results["rounded"]}
    full = torch.tensor(of["none"])
    error = {how: float((torch.tensor(nats) - full).abs().max()) for how, nats in of.items()}
    assert 0 < error["float16"] < error["bfloat16"] < 0.05
    assert 0 < error["int8"] < 0.1
    assert torch.equal(rounded(torch.tensor([3]), "int8"), torch.tensor([3]))
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    assert ((rounded(x, "int8") - x).abs() <= x.abs().amax(-1, keepdim=True) / 254 * 1.001).all()


def test_the_page_holds_every_number_and_asks_the_network_for_nothing(results, monkeypatch):
    monkeypatch.setattr("regard.report._page.plotly.offline.get_plotlyjs", lambda: "")
    text = page.render({**results, "model": "</script>"})
    assert "https://" not in text
    assert text.count("</script>") == text.count("<script")
    for row in page.rows(results):
        assert all(cell in text for cell in (row[0], row[1]))
    assert any("512 slots hold all that was read" in line for line in page.notes(results))
    assert len(page.figure(results).data) == 3 * 7
    json.dumps(results)


def test_the_model_is_left_as_it_was_and_what_makes_no_sense_is_refused():
    model = model_of()
    model.reduce_cache("h2o(budget=5)")
    before = model.layers[0].cache
    for config, text, error in (
        (cache.CacheConfig(budgets=(0,)), TEXT, ConfigError),
        (CONFIG, "short", DataError),
        (cache.CacheConfig(budgets=(8,), context=20, scored=2, texts=1, keys=1), TEXT, DataError),
    ):
        with pytest.raises(error):
            cache.measure(model, config, text, encode)
        assert model.layers[0].cache is before
    with pytest.raises(UnsupportedError, match="keeps sums"):
        cache.measure(model_of(attention=("linear",)), CONFIG, TEXT, encode)


def test_what_is_not_said_follows_from_the_budgets():
    """A context that no budget holds, as far as the model goes; one text and key where it is long."""
    assert vars(cache.sized((64, 128))) == vars(cache.CacheConfig(budgets=(64, 128)))
    long = cache.sized((64, 1024))
    assert (long.context, long.texts, long.keys) == (1088, 1, 1)
    assert len(cache.policies(long)) == 1 + 5 * 2 + 3
    assert cache.sized((64, 1024), limit=512).context == 448
    asked = cache.sized((1024,), context=300, texts=5, keys=3)
    assert (asked.context, asked.texts, asked.keys) == (300, 5, 3)
