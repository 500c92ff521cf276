"""What `regard cache` measures, and its page: on a decoder of random weights, whose losses can be computed again."""

import json

import pytest
import torch

from regard.core.errors import ConfigError, DataError, UnsupportedError
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark import cache
from regard_lab.report import cache as page

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
    model = model_of()
    model.reduce_cache("h2o(budget=5)")
    before = model.layers[0].cache
    results = cache.measure(model, config, TEXT, encode, tell=told.append)
    assert model.layers[0].cache is before
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


def test_texts_stand_side_by_side_and_keys_at_depths_of_their_own():
    config = cache.CacheConfig(budgets=(8,), context=120, scored=10, texts=2, keys=2)
    first, second, *keyed = cache.rows(config, TEXT, encode)
    assert bytes([*first.context, *first.tail, *second.context, *second.tail]).decode() == TEXT[:260]
    assert {len(row.tail) for row in (first, second)} == {10} == {row.answer for row in (first, second)}
    keys = [bytes(row.tail[-5:]).decode() for row in keyed]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    for row, share in zip(keyed, (1, 1, 2, 2), strict=True):
        room = 120 - len(cache.NEEDLE.format(key="12345")) - (len(cache.PROMPT) if row.kind == "known" else 0)
        behind = bytes(row.context).decode().removeprefix(cache.PROMPT)
        assert behind.index(" The pass key is") == room * share // 3


@torch.no_grad()
def test_a_key_is_found_where_all_of_it_is_the_likeliest():
    model, context = model_of(), encode(TEXT[:40])
    said = int(model(torch.tensor([context])).logits[0, -1].argmax())
    then = int(model(torch.tensor([[*context, said]])).logits[0, -1].argmax())
    rows = [cache.Row("text", context, [said, then], 2)]
    for tail, found in (([said, then], 1.0), ([said, then + 1], 0.0), ([said + 1, then], 0.0)):
        got = cache._losses(model, [*rows, *(cache.Row(kind, context, tail, 2) for kind in ("known", "unknown"))])
        assert got["known_right"] == got["unknown_right"] == found
    half = [cache.Row("known", context, tail, 2) for tail in ([said, then], [said, then + 1])]
    assert cache._losses(model, [*rows, *half])["known_right"] == 0.5


def test_the_page_holds_every_number_and_asks_the_network_for_nothing(results, monkeypatch):
    monkeypatch.setattr("regard_lab.report._page.plotly.offline.get_plotlyjs", lambda: "")
    text = page.render({**results, "model": "</script>"})
    assert "https://" not in text
    assert text.count("</script>") == text.count("<script")
    for row in page.rows(results):
        assert all(cell in text for cell in (row[0], row[1]))
    assert any("512 slots hold all that was read" in line for line in page.notes(results))
    full, *others = results["rows"]
    by_kind = {"text": 2, "known": 3, "unknown": 5}
    for shown, row in zip(page.rows(results), results["rows"], strict=True):
        for kind, at in by_kind.items():
            loss = row[f"{kind}_nats"]
            more = "" if row is full else f" ({loss - full[f'{kind}_nats']:+.3f})"
            assert shown[at] == f"{loss:.3f}{more}"
        assert (shown[4], shown[6]) == (f"{100 * row['known_right']:.0f}%", f"{100 * row['unknown_right']:.0f}%")
    drawn = [chart.figure for chart in page.charts(results) if chart.figure is not None]
    assert [len(one.data) for one in drawn] == [7] * 3
    assert [line.y0 for one in drawn for line in one.layout.shapes] == [full[f"{kind}_nats"] for kind in by_kind]
    evicted = [(row["state_bytes"], row["text_nats"]) for row in others if row["policy"] == "h2o"]
    (trace,) = (one for one in drawn[0].data if one.name == "h2o")
    assert list(zip(trace.x, trace.y, strict=True)) == sorted(evicted)
    json.dumps(results)


@pytest.mark.parametrize(("known", "unknown", "said"), [(1, 1, False), (0.5, 1, True), (1, 0, True)])
def test_keys_that_no_model_finds_and_budgets_that_hold_all_are_noted(results, known, unknown, said):
    full = {**results["rows"][0], "known_right": known, "unknown_right": unknown}
    config = {**results["config"], "budgets": (127, 128)}
    lines = page.notes({**results, "rows": [full], "config": config})
    assert any("not every key is found" in line for line in lines) is said
    assert "Budgets of 128 slots hold all that was read: they are no policy." in lines
    shown = page.rows({**results, "rows": [full]})[0]
    assert (shown[4], shown[6]) == (f"{100 * known:.0f}%", f"{100 * unknown:.0f}%")
    assert page.KINDS["known"].startswith("pass key asked for before the text")


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
