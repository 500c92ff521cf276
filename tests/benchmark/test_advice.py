"""Advice by need on samples whose answer is known: winners, ties, and no recommendation yet."""

from typing import Any

import numpy as np
import pytest

from regard_lab.benchmark.advice import Advice, advise
from regard_lab.benchmark.board import Baseline, Board, Finding, told
from regard_lab.benchmark.language import joined
from regard_lab.benchmark.measures import TASKS
from regard_lab.benchmark.verdict import Sample

TEXT = {"softmax": 2.0, "linear": 2.001, "local": 2.2}
RECALL = {"softmax": 0.99, "linear": 0.4, "local": 0.99}
SHIFTS = {"softmax": (-0.02, 0.0, 0.02), "linear": (0.02, -0.03, 0.01), "local": (0.01, 0.0, -0.01)}


def bits(value: float, shifts: tuple[float, ...], *, documents: int = 40) -> Sample:
    """Of the same documents, some much harder than others."""
    draw = np.random.default_rng(7)
    sizes, hard = draw.integers(200, 4000, documents).astype(float), draw.normal(0, 0.4, documents)
    hard -= (hard * sizes).sum() / sizes.sum()
    return Sample((value + hard + np.array(shifts)[:, None]) * sizes, np.tile(sizes, (len(shifts), 1)))


def hits(share: float, seeds: int) -> Sample:
    draw = np.random.default_rng(int(1000 * share))
    return Sample(draw.binomial(50, share, (seeds, 60)).astype(float), np.full((seeds, 60), 50.0))


def timing(middle: float, *, untrusted: str | None = None, spread: float = 0.05) -> dict[str, Any]:
    return {"low": middle * (1 - spread), "high": middle * (1 + spread), "untrusted": untrusted}


COSTS = {"softmax": (100.0, 1.0, 8192), "linear": (90.0, 0.1, 33), "local": (150.0, 0.3, 64)}
"""tokens per second, seconds at 4,096 tokens, KiB of the state there"""


def board(**changes: Any) -> Board:
    """Three specifications, three seeds and an n-gram that all of them beat, but for what is changed."""
    text, recall = changes.pop("text", TEXT), changes.pop("recall", RECALL)
    seeds, busy = changes.pop("seeds", 3), changes.pop("busy", None)
    costs, spread = changes.pop("costs", COSTS), changes.pop("spread", 0.05)
    floor, entries = changes.pop("floor", 2.6), []
    for spec in text:
        speed, seconds, kib = costs[spec]
        cost = [
            {"length": length, "kind": "both", "seconds": seconds * length / 4096}
            | timing(seconds * length / 4096, untrusted=busy, spread=spread)
            for length in (256, 4096)
        ]
        decode = [{"length": length, "state_bytes": kib * 1024} for length in (256, 4096)] if kib else []
        own = {"tokens_per_second": speed, "speed": timing(speed, untrusted=busy, spread=spread)}
        entries.append({"spec": spec, "text": own, "cost": cost, "decode": decode})
    samples = {
        "text": {spec: bits(value, SHIFTS[spec][:seeds]) for spec, value in text.items()},
        "recall": {spec: hits(recall[spec], seeds) for spec in text},
    }
    baselines = {"3-gram": Baseline(bits(floor, (0.0,)), counting=True)}
    given = {"measures": TASKS["lm"], "samples": samples, "entries": entries, "baselines": baselines, "chance": 0.03}
    return Board(**{**given, "unit": "document", **changes})


def found(**changes: Any) -> tuple[dict[str, Finding], Advice]:
    findings, advice = advise(board(**changes))
    return {one.need: one for one in findings}, advice


def why(one: Finding) -> str:
    return joined("en", one.sentences)


def test_every_need_has_its_winner_or_tie():
    needs, advice = found()
    assert {need: (one.status, one.specs) for need, one in needs.items()} == {
        "text": ("tie", ("softmax", "linear")),
        "recall": ("tie", ("local", "softmax"))
        if needs["recall"].specs[0] == "local"
        else ("tie", ("softmax", "local")),
        "memory": ("winner", ("linear",)),
        "length": ("winner", ("linear",)),
        "speed": ("winner", ("local",)),
    }
    assert (advice.status, advice.spec) == ("winner", "softmax")
    assert "the recall of softmax is not below the best" in advice.reason


def test_a_tie_says_how_many_seeds_would_settle_it():
    needs, _ = found()
    assert "softmax and linear cannot be told apart (2.000 bits per byte of softmax)" in why(needs["text"])
    rows = told(board())["text"]["rows"]
    linear = next(row for row in rows if row["spec"] == "linear")
    assert linear["needed"] is None
    assert "for linear 1,000 seeds would not settle it" in why(needs["text"])
    needs, _ = found(text={**TEXT, "linear": 2.03})
    assert needs["text"].status == "tie"
    assert "for linear about 14 seeds would settle it" in why(needs["text"])
    needs, _ = found(text={"softmax": 2.0, "linear": 2.0}, recall={"softmax": 0.95, "linear": 0.95})
    assert "is equal" in why(needs["recall"])


def test_a_winner_says_which_tests_told_it_apart():
    needs, advice = found(text={"softmax": 2.0, "local": 2.2})
    assert (needs["text"].status, needs["text"].specs) == ("winner", ("softmax",))
    assert why(needs["text"]) == (
        "softmax reaches 2.000 bits per byte; local is next, 0.200 worse, told apart by the paired t-test over 3 seeds "
        "and the paired bootstrap over documents."
    )
    assert advice.spec == "softmax"


def test_a_difference_that_only_documents_could_settle():
    """Every seed is worse by the same, and the documents disagree: seeds settle nothing."""
    even, draw = bits(2.0, (0.0, 0.0, 0.0)), np.random.default_rng(1)
    swing = draw.normal(0, 0.5, even.top.shape[1]) * even.bottom[0]
    swing += 0.001 * even.bottom[0] - swing.sum() * even.bottom[0] / even.bottom[0].sum()
    samples = {"softmax": even, "linear": Sample(even.top + swing, even.bottom)}
    given = board(text={"softmax": 2.0, "linear": 2.0})
    needs, _ = found(text={"softmax": 2.0, "linear": 2.0}, samples={**given.samples, "text": samples})
    assert needs["text"].status == "tie"
    assert "for linear more validation documents would settle it, seeds would not" in why(needs["text"])


@pytest.mark.parametrize(("seeds", "word"), [(1, "one seed"), (2, "two seeds")])
def test_few_seeds_recommend_nothing_that_is_trained(seeds, word):
    needs, advice = found(seeds=seeds)
    for need in ("text", "recall"):
        assert needs[need].status == "open"
        assert f"but {word} cannot say how much trainings differ by chance: give --seeds 3" in why(needs[need])
    assert needs["memory"].specs == ("linear",)
    assert (advice.spec, advice.status, advice.specs) == (None, "open", ())


@pytest.mark.parametrize("floor", [1.9, 2.0, 2.0001])
def test_a_baseline_that_only_counts_has_to_be_beaten(floor):
    needs, advice = found(floor=floor)
    assert {one.status for need, one in needs.items() if need != "recall"} == {"open"}
    assert "does not beat the baseline 3-gram" in why(needs["text"])
    assert "all were trained too little" in why(needs["text"])
    assert "no specification has learned enough" in why(needs["memory"]).lower()
    assert advice.spec is None


@pytest.mark.parametrize(
    ("best", "word"), [(7.9, "trained too little"), (8.1, "all diverged; give a smaller learning")]
)
def test_worse_than_guessing_is_not_too_little_training(best, word):
    needs, advice = found(text={"softmax": best, "linear": 9.0}, floor=3.0)
    assert word in why(needs["text"])
    assert advice.spec is None


@pytest.mark.parametrize(("documents", "beaten"), [(1, {"2.1"}), (40, set())])
def test_what_one_seed_beats_without_a_test(documents, beaten):
    """By its value alone where the text was coded as a whole; beside documents that differ a little nothing is told."""
    own = {"a": bits(2.0, (0.0,), documents=documents)}
    draw = np.random.default_rng(3).normal(0, 2000, (1, documents)) if documents > 1 else 0.0
    counted = {str(value): bits(value, (0.0,), documents=documents) for value in (2.0, 1.9, 2.1)}
    counted = {name: Sample(one.top + draw, one.bottom) for name, one in counted.items()}
    baselines = {name: Baseline(one, counting=True) for name, one in counted.items()}
    given = board(samples={"text": own, "recall": {}}, baselines=baselines)
    assert set(counted) - set(given.unbeaten("a")) == beaten
    assert given.unbeaten("a") == sorted(set(counted) - beaten, key=lambda name: counted[name].value)


def test_who_does_not_beat_the_baseline_is_advised_for_nothing():
    """The window would train fastest, and the n-gram is better than it."""
    needs, _ = found(floor=2.1)
    assert needs["text"].specs == ("softmax", "linear")
    assert needs["speed"].specs == ("softmax",)
    assert "local" not in {spec for one in needs.values() if one.need != "recall" for spec in one.specs}


def test_recall_that_nobody_learned():
    needs, advice = found(recall=dict.fromkeys(TEXT, 0.5))
    assert needs["recall"].status == "open"
    assert "guessing gives 3%, and a task that was learned shows at least 90% somewhere" in why(needs["recall"])
    assert "recall was not learned" in advice.reason
    assert advice.status == "winner"  # linear keeps less than softmax, at the same quality


def test_recall_that_was_learned_in_some_trainings_alone_is_no_tie():
    """Two of three trainings learned it: inside the spread, and still no recall to rely on."""
    given = board()
    some = hits(0.99, 3)
    some.top[0] = some.bottom[0] * 0.2
    samples = {**given.samples, "recall": {**given.samples["recall"], "linear": some}}
    needs, _ = found(samples=samples)
    assert set(needs["recall"].specs) == {"softmax", "local"}
    assert "linear did not learn it in every training (72" in why(needs["recall"])
    assert "for linear about" in why(needs["recall"])
    needs, _ = found(samples={**samples, "recall": {"softmax": hits(0.99, 3), "linear": some, "local": hits(0.2, 3)}})
    assert needs["recall"].specs == ("softmax", "linear")


def test_what_the_best_quality_recalls_less_is_said():
    needs, advice = found(text={"linear": 2.0, "local": 2.2})
    assert advice.spec == "linear"
    assert "linear recalls 40%, less than the 99% of local" in advice.reason
    assert needs["recall"].specs == ("local",)


@pytest.mark.parametrize("busy", ["the machine was busy", None])
def test_timings_of_a_busy_machine_decide_nothing(busy):
    needs, _ = found(busy=busy)
    for need in ("length", "speed"):
        assert (needs[need].status == "open") == (busy is not None)
        assert ("cannot be trusted" in why(needs[need])) == (busy is not None)
    assert needs["memory"].status == "winner"


def test_a_timing_that_says_not_whether_it_can_be_trusted_is_not():
    given = board()
    for entry in given.entries:
        del entry["text"]["speed"]["untrusted"]
    findings, _ = advise(given)
    assert next(one for one in findings if one.need == "speed").status == "open"


def test_timings_inside_their_intervals_tie():
    needs, _ = found(spread=0.4)
    assert needs["speed"].status == "tie"
    assert set(needs["speed"].specs) == set(TEXT)
    assert "overlap" in why(needs["speed"])
    assert needs["length"].status == "winner"  # ten times apart


def test_equal_states_tie_and_none_is_no_answer():
    same = {spec: (*cost[:2], 64) for spec, cost in COSTS.items()}
    needs, _ = found(costs=same)
    assert needs["memory"].status == "tie"
    assert "keep 64.0 KiB after 4,096 tokens each" in why(needs["memory"])
    none = {spec: (*cost[:2], 0) for spec, cost in COSTS.items()}
    assert found(costs=none)[0]["memory"].status == "open"


def classes(baselines: dict[str, Baseline], share: float = 0.9) -> tuple[Finding, Advice]:
    samples = {"classification": {"linear": hits(share, 3), "uniform": hits(0.5, 3)}}
    entries = [
        {"spec": spec, "classification": {"tokens_per_second": 1.0, "speed": timing(1.0)}, "cost": [], "decode": []}
        for spec in samples["classification"]
    ]
    majority = {"majority": Baseline(hits(0.3, 1), counting=True)}
    given = {"measures": TASKS["classify"], "samples": samples, "entries": entries, "unit": "image"}
    findings, advice = advise(Board(**given, baselines={**majority, **baselines}))
    return findings[0], advice


def test_a_trained_baseline_that_wins_leaves_no_recommendation():
    finding, advice = classes({"linear": Baseline(hits(0.97, 3), counting=False)})
    assert (finding.status, advice.spec) == ("open", None)
    assert "the baseline linear, which has no attention, reached 97" in why(finding).lower()
    finding, advice = classes({"linear": Baseline(hits(0.9, 3), counting=False)})
    assert (finding.status, advice.spec) == ("winner", "linear")
    assert "and cannot be told from the best" in why(finding)
    finding, _ = classes({"linear": Baseline(hits(0.6, 3), counting=False)})
    assert "baseline" not in why(finding)
    finding, _ = classes({}, share=0.3)
    assert finding.status == "winner"  # uniform, which beats the majority
    assert finding.specs == ("uniform",)


def test_recall_alone():
    samples = {"recall": {"a": hits(0.97, 3), "b": hits(0.5, 3)}}
    entries = [
        {"spec": spec, "recall": {"tokens_per_second": 1.0, "speed": timing(1.0)}, "cost": [], "decode": []}
        for spec in "ab"
    ]
    given = {"measures": TASKS["recall"], "entries": entries, "unit": "document", "baselines": {}}
    findings, advice = advise(Board(**given, samples=samples))
    assert (findings[0].need, findings[0].specs, advice.spec) == ("recall", ("a",), "a")
    findings, advice = advise(Board(**given, samples={"recall": {"a": hits(0.5, 3), "b": hits(0.4, 3)}}))
    assert (findings[0].status, advice.spec) == ("open", None)


def test_every_difference_is_told_with_its_tests():
    rows = {row["spec"]: row for row in told(board())["text"]["rows"]}
    assert list(rows) == ["linear", "local", "3-gram"]
    assert [row["baseline"] for row in rows.values()] == [False, False, True]
    assert rows["local"]["told"]
    assert rows["local"]["tests"] == ("seeds", "units")
    assert not rows["linear"]["told"]
    low, high = rows["local"]["over_seeds"]
    assert 0 < low < rows["local"]["middle"] < high


def test_lengths_that_are_not_nested():
    """The longest one that all were measured at; none is said."""
    given = board()
    for at, entry in enumerate(given.entries):
        own = 8192 * (at + 1)
        entry["cost"].append({**entry["cost"][-1], "length": own})
        entry["decode"].append({"length": own, "state_bytes": 1})
    needs = {one.need: one for one in advise(given)[0]}
    assert (needs["length"].status, needs["length"].specs) == ("winner", ("linear",))
    assert "at 4,096 tokens" in why(needs["length"])
    assert "after 4,096 tokens" in why(needs["memory"])
    for entry in given.entries:
        entry["cost"], entry["decode"] = entry["cost"][-1:], entry["decode"][-1:]
    needs = {one.need: one for one in advise(given)[0]}
    for need in ("length", "memory"):
        assert needs[need].status == "open"
        assert "were measured at no length in common" in why(needs[need])
        assert "长度" in joined("zh", needs[need].sentences)
