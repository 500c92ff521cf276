"""results.json of a real comparison holds everything that a reader needs, and the numbers agree with one another."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from regard.files.checksums import opened
from regard_lab.benchmark.config import CompareConfig
from regard_lab.benchmark.results import Expected, assemble
from regard_lab.benchmark.sweep import Row
from regard_lab.report import axes
from regard_lab.report.summary import MARK, notes, table
from regard_lab.tasks import build_task, ngram_bits_per_byte, xz_bits_per_byte
from regard_lab.tasks.config import TextConfig
from regard_lab.training.data_order import DataOrder
from regard_lab.training.evaluation import measured


def test_what_belongs_to_the_whole(compared):
    found = compared.results
    assert set(found) == {
        "format", "version", "created", "config", "expected", "environment", "entries", "baselines", "ties", "unit",
        "recall_chance", "recommendation", "reproduce", "task", "notes", "advice", "differences",
    }  # fmt: skip
    assert [entry["spec"] for entry in found["entries"]] == ["softmax", "linear / softmax"]
    assert found["unit"] == "document"
    assert found["recall_chance"] == 2 / 64
    advice = found["recommendation"]
    assert (advice["spec"], advice["status"]) == (None, "open")  # one seed, and twelve steps
    assert "does not beat the baseline" in advice["reason"]
    assert advice["reason"].endswith(".")
    assert [one["need"] for one in found["advice"]] == ["text", "recall", "memory", "length", "speed"]
    assert set(found["differences"]) == {"text", "recall"}
    assert [(row["spec"], row["baseline"]) for row in found["differences"]["text"]["rows"]][1:] == [
        ("3-gram", True),
        ("xz", True),
    ]
    assert {"python", "torch", "platform", "processor", "cores", "threads"} <= set(found["environment"])
    text = json.dumps(found)
    assert "NaN" not in text
    assert "Infinity" not in text


def test_quality(compared):
    for entry in compared.results["entries"]:
        for value, at_least in ((entry["text"]["bits_per_byte"], 0.5), (entry["recall"]["accuracy"], 0.0)):
            assert at_least <= value["low"] <= value["middle"] <= value["high"]
        assert entry["text"]["bits_per_byte"]["low"] < entry["text"]["bits_per_byte"]["high"]
        assert entry["text"]["seeds"] == [pytest.approx(entry["text"]["bits_per_byte"]["middle"])]
        assert entry["recall"]["seeds"] == [pytest.approx(entry["recall"]["accuracy"]["middle"])]
        (curve,) = entry["text"]["curves"]
        assert 0.8 * 12 * 4 * 32 < curve[-1][0] <= 12 * 4 * 32  # a document's last window may be shorter
        assert [point[0] for point in curve] == sorted(point[0] for point in curve)
        assert entry["parameters"] > 1000


def test_bits_are_those_of_the_documents(compared):
    for entry in compared.results["entries"]:
        slug = entry["spec"].translate({ord(c): "-" for c in " /"})
        (path,) = (compared.folder / "jobs").glob(f"{slug}-??????-text-0.json")
        documents = opened(path.read_bytes())["result"]["documents"]
        bits = sum(documents["nats"]) / math.log(2) / sum(documents["bytes"])
        assert entry["text"]["bits_per_byte"]["middle"] == pytest.approx(bits, rel=1e-12)


def test_speed_and_memory(compared):
    for entry in compared.results["entries"]:
        assert 10 < entry["text"]["tokens_per_second"] < 1e8
        assert 50 * 2**20 < entry["text"]["peak_bytes"] < 8 * 2**30


def test_cost_over_length(compared):
    for entry in compared.results["entries"]:
        kinds = Counter((row["kind"], row["length"]) for row in entry["cost"])
        assert kinds == Counter((kind, length) for kind in ("forward", "both") for length in (64, 128, 192))
        for row in entry["cost"]:
            assert 0 < row["low"] <= row["seconds"] <= row["high"]
        assert set(entry["crossover"]) == {"forward", "both"}


def test_decoding_at_several_lengths(compared):
    softmax, mixed = compared.results["entries"]
    for entry in (softmax, mixed):
        assert [row["length"] for row in entry["decode"]] == [64, 128, 192]
        assert all(row["microseconds"] > 0 for row in entry["decode"])
    # Two layers, keys and values, 2 heads of 16, 4 bytes: the definition.
    assert [row["state_bytes"] for row in softmax["decode"]] == [2 * 2 * n * 2 * 16 * 4 for n in (64, 128, 192)]
    constant = {row["state_bytes"] - row["length"] * 2 * 2 * 16 * 4 for row in mixed["decode"]}
    assert len(constant) == 1


UNITS = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "B": 1, "KiB": 1024, "MiB": 1024 * 1024}


@pytest.mark.parametrize("axis", [axes.seconds, axes.nbytes])
@pytest.mark.parametrize("values", [[3e-8, 2e-3], [4e-5, 0.7], [0.02, 30.0], [700.0, 3e4], [5e4, 9e7]])
def test_labels_of_axes_are_what_they_stand_for(axis, values):
    drawn = axis(values)
    for place, label in zip(drawn["tickvals"], drawn["ticktext"], strict=True):
        number, unit = label.split()
        assert float(number.replace(",", "")) * UNITS[unit] == pytest.approx(place, rel=1e-3)


def test_units_of_the_table_are_those_of_what_was_counted(compared):
    heads, rows = table(compared.results)
    entry = compared.results["entries"][0]
    (seconds,) = (
        row["seconds"]
        for row in opened((compared.folder / "jobs" / "cost.json").read_bytes())["result"]
        if (row["spec"], row["length"], row["kind"]) == (entry["spec"], 192, "decode")
    )
    for head, counted in {
        "state KiB at 192": 2 * 2 * 192 * 2 * 16 * 4 / 1024,  # as test_decoding_at_several_lengths
        "us/token at 192": 2 * seconds * 1e6,  # of two layers
        "peak MiB": entry["text"]["peak_bytes"] / (1024 * 1024),
        "train tok/s": entry["text"]["tokens_per_second"],
    }.items():
        shown = rows[0][heads.index(head)].removesuffix(f" {MARK}").replace(",", "")
        assert float(shown) == pytest.approx(counted, abs=0.501), head


def test_a_hybrid_costs_what_its_layers_cost(compared):
    """Timed once each, in one run: (linear + softmax) and (softmax + softmax)."""
    found = opened((compared.folder / "jobs" / "cost.json").read_bytes())["result"]
    seconds = {(row["spec"], row["length"], row["kind"]): row["seconds"] for row in found}
    softmax, mixed = compared.results["entries"]
    for entry, layers in ((softmax, ("softmax", "softmax")), (mixed, ("linear", "softmax"))):
        for row in entry["cost"]:
            wanted = sum(seconds[layer, row["length"], row["kind"]] for layer in layers)
            assert row["seconds"] == pytest.approx(wanted, rel=1e-12)


def test_baselines_code_the_same_windows(compared):
    """Recomputed here: what seed 0 trained on, and the windows that the models were measured on."""
    config = compared.results["config"]
    task = build_task(TextConfig(**{name: value for name, value in config["text"].items() if value not in (None, [])}))
    order = DataOrder(len(task.examples("train")), config["batch_size"], 0)
    seen = sorted({index for step in range(config["text_steps"]) for index in order.batch(step)})
    coded = measured(len(task.examples("valid")), config["evaluate_examples"])
    ngram, xz = compared.results["baselines"]
    assert (ngram["name"], xz["name"]) == ("3-gram", "xz")
    wanted = ngram_bits_per_byte(task, order=3, windows=coded, train_windows=seen).bits_per_byte
    assert ngram["bits_per_byte"]["middle"] == pytest.approx(wanted, rel=1e-12)
    assert ngram["bits_per_byte"]["low"] < wanted < ngram["bits_per_byte"]["high"]
    wanted = xz_bits_per_byte(task, windows=coded, train_windows=seen).bits_per_byte
    assert xz["bits_per_byte"] == {"middle": pytest.approx(wanted, rel=1e-12), "low": None, "high": None}


def made(
    bits: dict[str, float],
    hits: dict[str, float],
    *,
    unit: str = "document",
    seeds: int = 3,
    busy: dict[str, dict] | None = None,
    stopped: dict[str, int] | None = None,
    doubted: tuple[tuple[str, int], ...] = (),
):
    """Results of a comparison that was never run, from what its jobs would have said.

    busy: what the timing of a step says else. stopped: after so many steps. doubted: specification and length.
    """
    config = CompareConfig(specs=tuple(bits), seeds=seeds, lengths=(64, 128))
    quality = {}
    for spec in config.specs:
        for seed in range(seeds):
            documents = {"nats": [bits[spec] * math.log(2) * 100 + at for at in range(20)], "bytes": [100] * 20}
            text = {"documents": documents, "unit": unit, "parameters": 7, "curve": [[1, 5.0]]}
            quality[spec, seed, "text"] = {
                **{**text, "peak_bytes": 100 + seed},
                **{"steps": 5, "length": 128, "untrusted": None},
            }
            answers = {"correct": [round(hits[spec] * 50)] * 20, "tokens": [50] * 20}
            quality[spec, seed, "recall"] = {"documents": answers, "curve": [], "steps": 6}
    rows = [
        Row(spec, length, kind, seconds * length, seconds * length, seconds * length, 8 if kind == "decode" else None)
        for spec, seconds in (("softmax", 1.0), ("linear", 0.5), ("uniform", 2.0))
        for length in (64, 128)
        for kind in ("forward", "both", "decode")
        if (spec, kind) != ("uniform", "decode")
    ]
    costs = [vars(row) | ({"untrusted": "noise"} if (row.spec, row.length) in doubted else {}) for row in rows]
    baselines = [{"name": "3-gram", "tables": [{"nats": [300 * math.log(2)] * 20, "bytes": [100] * 20}]}]
    step = {"seconds": 0.5, "low": 0.4, "high": 0.8, "turns": 5, "untrusted": None, "positions": 6}
    speeds = {spec: step | (busy or {}).get(spec, {}) for spec in config.specs}
    for spec, at in (stopped or {}).items():
        quality[spec, 0, "text"]["steps"] = at
    return assemble(config, "lm", Expected({"text": 5, "recall": 6}, 1.0, 2), quality, speeds, costs, baselines)


def test_crossovers_and_hybrids():
    found = made({"softmax": 2.0, "linear": 2.0, "linear / softmax": 2.0, "uniform": 2.0}, dict.fromkeys(
        ("softmax", "linear", "linear / softmax", "uniform"), 1.0))  # fmt: skip
    crossovers = {entry["spec"]: entry["crossover"]["both"] for entry in found["entries"]}
    assert crossovers == {"softmax": None, "linear": 64, "linear / softmax": 64, "uniform": None}
    costs = {entry["spec"]: entry["cost"][0]["seconds"] for entry in found["entries"]}
    assert costs == {"softmax": 128.0, "linear": 64.0, "linear / softmax": 96.0, "uniform": 256.0}
    decode = {entry["spec"]: len(entry["decode"]) for entry in found["entries"]}
    assert decode == {"softmax": 2, "linear": 2, "linear / softmax": 2, "uniform": 0}


def test_ties_and_the_recommendation_come_from_the_samples():
    found = made({"softmax": 2.0, "linear": 2.5}, {"softmax": 1.0, "linear": 0.5})
    assert found["ties"] == {
        "text": {"best": "softmax", "specs": ["softmax"]},
        "recall": {"best": "softmax", "specs": ["softmax"]},
    }
    assert found["recommendation"]["spec"] == "softmax"
    assert "3-gram" not in found["recommendation"]["reason"]
    found = made({"softmax": 3.5, "linear": 3.5}, {"softmax": 0.1, "linear": 0.1})
    assert found["ties"]["text"]["specs"] == ["softmax", "linear"]
    assert found["recommendation"]["spec"] is None
    assert "does not beat the baseline 3-gram (3.000 bits per byte)" in found["recommendation"]["reason"]
    recall = found["advice"][1]
    assert (recall["need"], recall["status"]) == ("recall", "open")
    assert recall["sentences"][0]["values"]["chance"] == 2 / 64


def test_seeds_are_kept_apart():
    found = made({"softmax": 2.0}, {"softmax": 1.0}, seeds=3)["entries"][0]
    assert len(found["text"]["seeds"]) == len(found["recall"]["seeds"]) == len(found["text"]["curves"]) == 3
    assert found["text"]["peak_bytes"] == 102


def test_speeds_come_from_the_steps_that_were_timed_in_turns():
    entry = made({"softmax": 2.0}, {"softmax": 1.0})["entries"][0]["text"]
    assert entry["tokens_per_second"] == 12.0
    assert entry["speed"] == {"low": 7.5, "high": 15.0, "turns": 5, "untrusted": None}


def by_need(found: dict) -> dict[str, tuple[str, list[str]]]:
    return {one["need"]: (one["status"], one["specs"]) for one in found["advice"]}


def test_nothing_is_concluded_from_a_speed_that_cannot_be_trusted():
    same = {"softmax": 2.0, "linear": 2.0}
    quiet = {"seconds": 0.1, "low": 0.09, "high": 0.11}
    found = made(same, dict.fromkeys(same, 1.0), busy={"linear": quiet})
    assert by_need(found)["speed"] == ("winner", ["linear"])
    assert found["recommendation"]["spec"] == "linear"
    assert "linear is ahead in training speed" in found["recommendation"]["reason"]
    assert found["notes"] == []
    found = made(same, dict.fromkeys(same, 1.0), busy={"linear": quiet | {"untrusted": "the machine was busy: so"}})
    assert by_need(found)["speed"] == ("open", [])
    assert (found["recommendation"]["spec"], found["recommendation"]["status"]) == (None, "tie")
    (note,) = notes(found)
    assert note.startswith("1 of 14 timings, marked ?, cannot be trusted and nothing is concluded from them: the machi")


def test_a_cost_that_cannot_be_trusted_gives_no_crossover_and_no_advice():
    bits, hits = {"softmax": 2.0, "linear": 2.5}, {"softmax": 1.0, "linear": 1.0}
    assert by_need(made(bits, hits))["length"] == ("winner", ["linear"])
    found = made(bits, hits, doubted=(("linear", 128),))
    assert by_need(found)["length"] == ("open", [])
    assert found["entries"][1]["crossover"]["both"] == 64
    found = made(bits, hits, doubted=(("linear", 64), ("linear", 128)))
    assert found["entries"][1]["crossover"]["both"] is None
    assert {row["untrusted"] for row in found["entries"][1]["decode"]} == {"noise"}
    columns, rows = table(found)
    assert rows[1][columns.index("faster from")] == "?"
    assert rows[1][columns.index("us/token at 128")].endswith(" ?")
    assert not any(cell.endswith("?") for cell in rows[0])


def test_a_training_that_was_stopped_is_not_recommended():
    found = made({"softmax": 2.0, "linear": 1.5}, {"softmax": 1.0, "linear": 1.0}, stopped={"linear": 3})
    assert found["recommendation"]["spec"] == "softmax"
    assert found["ties"]["text"] == {"best": "softmax", "specs": ["softmax"]}
    assert "linear" not in {spec for _, specs in by_need(found).values() for spec in specs}
    assert notes(found)[0].startswith("linear was stopped after 3 of 5 steps on text, when its share of the budget")
    both = {"linear": 3, "softmax": 4}
    found = made({"softmax": 2.0, "linear": 1.5}, {"softmax": 1.0, "linear": 1.0}, stopped=both)
    assert found["recommendation"]["spec"] == "linear"
    assert len(found["notes"]) == 2


def test_few_documents_are_resampled_by_window(compared):
    """With one document, a bootstrap over documents would find every difference real."""
    from regard_lab.benchmark.quality import MIN_UNITS, units

    config = compared.results["config"]
    given = TextConfig(**{name: value for name, value in config["text"].items() if value not in (None, [])})
    many = build_task(given).examples("valid")
    few = build_task(replace(given, holdout=0.05)).examples("valid")
    documents = [len({windows[at].document for at in range(len(windows))}) for windows in (many, few)]
    assert documents[0] >= MIN_UNITS > documents[1]
    examples, unit = units(many, 0)
    assert (unit, examples) == ("document", many)
    examples, unit = units(few, 0)
    assert (unit, len(examples)) == ("window", len(few))
    assert [examples[at].document for at in range(len(few))] == list(range(len(few)))
    assert (examples[3].inputs == few[3].inputs).all()
    assert units(many, 2)[1] == "window"
