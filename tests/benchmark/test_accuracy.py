"""The approximation microscope: known answers, a biased estimator, matrices, knobs, and what is refused."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard import Heads, catalog
from regard.core.attention import Attended, Attention, generator
from regard.core.errors import ConfigError, ResourceError, UnsupportedError
from regard.core.info import Info, Supports
from regard.models import Encoder, EncoderConfig, LanguageModel, ModelConfig
from regard_lab.benchmark import accuracy
from regard_lab.benchmark.accuracy import AccuracyConfig, estimators, measure
from regard_lab.benchmark.vectors import Vectors, layer_vectors, random_vectors

SUPPORTS = Supports(causal=True, bidirectional=True)


class Noisy(Attention):
    """Softmax times 1 + shift, plus noise of the seed on every weight."""

    default_info = Info(
        title="Noisy", source="a test", supports=SUPPORTS, stochastic=True, approximates="softmax", knob="spread"
    )

    shift: float = 0.0
    """added to every weight's factor"""
    spread: int = 10
    """what the noise is divided by"""

    def attend(self, q, k, v, call):
        exact = regard.weights(regard.build("softmax", self.heads).double().eval(), q, k)
        noise = torch.randn(exact.shape, generator=generator(self.heads.seed, "noise"), dtype=torch.float64)
        return Attended(((1 + self.shift) * exact + noise / self.spread) @ v)

    def reference(self, q, k, v, call):
        raise NotImplementedError


@pytest.fixture
def noisy() -> Iterator[str]:
    regard.register(Noisy)
    yield "noisy"
    catalog.unregister("noisy")


def small(causal: bool = True, norm: float = 2.0, length: int = 9, heads: int = 3) -> Vectors:
    return random_vectors(norm, length=length, causal=causal, heads=heads, key_dim=8, seed=3)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_against_itself_is_nothing(causal):
    found = measure(AccuracyConfig(specs=("softmax",)), [small(causal)])
    (row,) = found["rows"]
    assert row["redraws"] == 1
    assert row["effective_keys"] == pytest.approx(small(causal).facts()["effective_keys"])
    for name in ("output", "matrix"):
        assert row[name]["error"] == 0
        assert not row[name]["biased"]
    (control,) = found["controls"]
    assert control["reached"]
    assert control["value"] < 1e-14


def test_the_control_misses_when_what_is_read_is_not_softmax(monkeypatch):
    monkeypatch.setattr(accuracy, "EXACT", "uniform")
    (control,) = measure(AccuracyConfig(specs=("softmax",)), [small()])["controls"]
    assert not control["reached"]
    assert control["value"] > 0.1


def test_an_unbiased_estimator_shows_its_variance_and_no_bias(noisy):
    case = small()
    found = measure(AccuracyConfig(specs=(noisy,), knobs={"spread": (5, 20)}, redraws=24), [case])
    exact = case.logits.softmax(-1)
    for row, spread in zip(found["rows"], (5, 20), strict=True):
        part = row["matrix"]
        wanted = exact.numel() / spread**2 / exact.square().sum().item()
        assert abs(part["variance"] - wanted) < 4 * part["variance_se"]
        assert part["variance_se"] < 0.1 * wanted
        assert not part["biased"]
        assert part["smallest_bias"] < 0.05 * wanted


def test_a_biased_estimator_is_reported_biased(noisy):
    (row,) = measure(AccuracyConfig(specs=(f"{noisy}(shift=0.3, spread=10)",), redraws=24), [small()])["rows"]
    for name in ("output", "matrix"):
        assert row[name]["biased"]
        assert abs(row[name]["bias"] - 0.09) < 4 * row[name]["bias_se"]
        assert row[name]["bias_se"] < 0.03
    assert row["value"] == 10


def test_a_bias_without_noise_is_the_whole_error():
    (row,) = measure(AccuracyConfig(specs=("uniform",)), [small()])["rows"]
    case = small()
    facts = case.facts()
    assert row["redraws"] == 1
    assert row["effective_keys"] == pytest.approx(facts["visible_keys"])
    assert row["output"]["error"] == row["output"]["bias"]
    assert row["output"]["bias"] ** 0.5 == pytest.approx(facts["equal_output_error"])
    assert row["matrix"]["bias"] ** 0.5 == pytest.approx(facts["equal_matrix_error"])


def grouped() -> Vectors:
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, h, 7, 6, generator=draw, dtype=torch.float64) for h in (4, 2, 2))
    return Vectors("here", "grouped", True, q, k, v)


@pytest.mark.parametrize("spec", ["performer(num_features=12)", "linear", "shaw(max_distance=2)"])
def test_outputs_and_matrices_are_those_of_the_mechanism(spec):
    case = small() if spec.startswith("shaw") else grouped()
    (row,) = measure(AccuracyConfig(specs=(spec,), redraws=3, seed=11), [case])["rows"]
    outputs, matrices = [], []
    for at in range(row["redraws"]):
        seed = generator(11, "redraw", at).initial_seed()
        width, length, group = case.v.shape[3], case.q.shape[2], case.q.shape[1] // case.k.shape[1]
        heads = Heads(
            count=case.q.shape[1],
            key_dim=case.q.shape[3],
            value_dim=width + (length if spec.startswith("shaw") else 0),
            kv_count=case.k.shape[1],
            causal=True,
            max_length=length,
            seed=seed,
        )
        mechanism = regard.build(spec, heads).double().eval()
        matrix = regard.weights(mechanism, case.q, case.k)
        exact = case.logits.softmax(-1)
        matrices.append((matrix - exact).square().sum() / exact.square().sum())
        if not spec.startswith("shaw"):
            target = exact @ case.v.repeat_interleave(group, 1)
            got = mechanism(case.q, case.k, case.v).values
            outputs.append((got - target).square().sum() / target.square().sum())
    assert row["matrix"]["error"] == pytest.approx(torch.stack(matrices).mean().item(), rel=1e-9)
    if outputs:
        assert row["output"]["error"] == pytest.approx(torch.stack(outputs).mean().item(), rel=1e-9)


def test_performer_gets_better_with_features_and_worse_with_norms():
    cases = [small(norm=norm, length=24) for norm in (1.0, 3.0)]
    rows = measure(AccuracyConfig(specs=("performer",), knobs={"num_features": (8, 512)}), cases)["rows"]
    error = {(row["case"], row["value"]): row["output"]["error"] for row in rows}
    assert error[0, 512] < 0.1 * error[0, 8]
    assert error[1, 512] > 10 * error[0, 512]
    assert {row["approximates"] for row in rows} == {"softmax"}


def test_what_has_no_matrix_has_an_output():
    (row,) = measure(AccuracyConfig(specs=("linear(post='softmax')",)), [small()])["rows"]
    assert row["matrix"] is None
    assert row["output"]["error"] > 0


def test_declared_inputs_are_those_of_a_layer_without_a_signal():
    case = small()
    rows = measure(AccuracyConfig(specs=("forgetting",), redraws=3), [case])["rows"]
    mechanism = regard.build("forgetting", Heads(count=3, key_dim=8, causal=True)).double()
    gates = torch.full((case.q.shape[0], 3, 9, 1), math.log(0.5), dtype=torch.float64)
    exact = regard.attend(case.q, case.k, case.v, "softmax", causal=True)
    error = (mechanism(case.q, case.k, case.v, inputs={"log_gate": gates}).values - exact).norm() / exact.norm()
    assert rows[0]["output"]["error"] == pytest.approx(error.item() ** 2, rel=1e-9)
    assert error > 0.1


def test_shared_queries_and_keys_are_compared_with_softmax_of_the_same():
    case = grouped()
    (row,) = measure(AccuracyConfig(specs=("lsh(num_buckets=1, rounds=1)",)), [case])["rows"]
    keys = nn.functional.normalize(case.q, dim=-1)
    logits = (case.q @ keys.mT / 6**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    alone = torch.eye(7, dtype=torch.bool)
    alone[0, 0] = False
    got = logits.masked_fill(alone, -math.inf).softmax(-1)
    exact = Vectors("", "", True, case.q, case.q, case.v).logits.softmax(-1)
    assert row["matrix"]["error"] == pytest.approx(((got - exact).square().sum() / exact.square().sum()).item())
    assert row["approximates"] is None


def test_without_names_every_estimator_of_softmax_is_measured():
    assert "performer" in estimators()
    assert all(regard.describe(name).approximates == "softmax" for name in estimators())
    assert AccuracyConfig().chosen == estimators()


def test_knobs_come_from_the_facts_the_vocabulary_or_the_config():
    found = measure(
        AccuracyConfig(
            specs=("performer", "performer(num_features=6)", "linformer", "linear", "mixture_synthesizer"), redraws=3
        ),
        [small(causal=False)],
    )
    values: dict[str, list] = {}
    for row in found["rows"]:
        values.setdefault(row["spec"], []).append((row["knob"], row["value"]))
    assert values["performer"] == [("num_features", x) for x in accuracy.KNOB_VALUES["num_features"]]
    assert values["performer(num_features=6)"] == [("num_features", 6)]
    assert values["linformer"] == [("rank", x) for x in accuracy.KNOB_VALUES["rank"]]
    assert values["linear"] == values["mixture_synthesizer"] == [(None, None)]  # rank belongs to other options of it


def test_a_knob_of_the_plan_is_for_mechanisms_whose_facts_have_none(noisy):
    specs, knobs = ("lsh(share=False, rounds=1)", noisy), {"num_buckets": (2, 4), "spread": (3,)}
    with pytest.raises(ConfigError, match="nothing here is measured over shift"):
        measure(AccuracyConfig(specs=specs, knobs={**knobs, "shift": (1,)}), [small()])
    rows = measure(AccuracyConfig(specs=specs, knobs=knobs, redraws=3), [small()])["rows"]
    assert [(row["knob"], row["value"]) for row in rows] == [("num_buckets", 2), ("num_buckets", 4), ("spread", 3)]


def test_a_knob_without_usual_values_takes_shares_of_its_default(noisy):
    rows = measure(AccuracyConfig(specs=(noisy,), redraws=3), [small()])["rows"]
    assert [(row["knob"], row["value"]) for row in rows] == [("spread", 1), ("spread", 2), ("spread", 10)]


def test_what_cannot_be_measured_says_why():
    found = measure(AccuracyConfig(specs=("linformer(rank=4)", "linear")), [small(causal=True), small(causal=False)])
    assert [(row["case"], row["spec"]) for row in found["rows"]] == [
        (0, "linear"), (1, "linformer(rank=4)"), (1, "linear"),
    ]  # fmt: skip
    (skipped,) = found["skipped"]
    assert skipped["case"] == 0
    assert "linformer does not support causal=True" in skipped["reason"]
    with pytest.raises(ConfigError, match=r"nothing could be measured(.|\n)*linformer does not support causal"):
        measure(AccuracyConfig(specs=("linformer(rank=4)",)), [small(causal=True)])


def test_bad_plans_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="redraws must be at least 3, got 2"):
        AccuracyConfig(redraws=2)
    with pytest.raises(ConfigError, match="num_features has no values"):
        AccuracyConfig(knobs={"num_features": ()})
    with pytest.raises(ConfigError, match="num_features=0 is not valid: Input should be greater than or equal to 1"):
        measure(AccuracyConfig(specs=("performer",), knobs={"num_features": (0,)}), [small()])
    with pytest.raises(ConfigError, match="nothing here is measured over rank; leave the knob out"):
        measure(AccuracyConfig(specs=("performer",), knobs={"num_features": (4,), "rank": (2,)}), [small()])
    with pytest.raises(ConfigError, match="unknown mechanism"):
        measure(AccuracyConfig(specs=("perfomer",)), [small()])
    monkeypatch.setattr(accuracy, "MOST_ERROR_BYTES", 1000)
    with pytest.raises(ResourceError, match="fewer redraws or shorter lengths"):
        measure(AccuracyConfig(specs=("performer",)), [small()])


def test_facts_are_those_of_a_double_loop():
    case = grouped()
    facts = case.facts()
    entropies, logits, squares, scale = [], [], [], 6**-0.25
    for h in range(4):
        for i in range(7):
            q = case.q[0, h, i] * scale
            keys = [case.k[0, h // 2, j] * scale for j in range(i + 1)]
            row = [float(q @ k) for k in keys]
            total = sum(map(math.exp, row))
            entropies.append(math.exp(-sum(math.exp(x) / total * (x - math.log(total)) for x in row)))
            logits += row
            squares += [float((q + k).square().sum()) for k in keys]
    assert facts["effective_keys"] == pytest.approx(sum(entropies) / 28)
    assert facts["visible_keys"] == 4
    assert facts["logit_mean"] == pytest.approx(sum(logits) / len(logits))
    assert facts["logit_largest"] == pytest.approx(max(map(abs, logits)))
    assert facts["sum_square"] == pytest.approx(sum(squares) / len(squares))


def decoder(**options) -> LanguageModel:
    return LanguageModel(ModelConfig(dim=16, heads=4, layers=3, vocab_size=20, max_length=32, **options)).eval()


def test_vectors_of_a_layer_give_what_the_layer_computes():
    model: Any = decoder(kv_heads=2, position="rotary")
    ids = torch.arange(10)
    seen: list = []
    layer = model.blocks[1].attention
    hook = layer.register_forward_hook(lambda module, given, got: seen.append(got.hidden))
    (case,) = layer_vectors(model, ids, source="tiny", layers=(1,))
    hook.remove()
    attended = case.logits.softmax(-1) @ case.v.repeat_interleave(2, 1)
    again = layer.projections.output(attended.transpose(1, 2).flatten(2).float())
    assert (again - seen[0]).abs().max() < 2e-6 * seen[0].abs().max()
    assert (case.label, case.causal, case.q.dtype) == ("layer 1", True, torch.float64)


def test_vectors_keep_the_scale_of_the_network():
    model = decoder(attention=("softmax(scale=0.9)",))
    (case,) = layer_vectors(model, torch.arange(6), source="tiny", layers=(0,))
    plain = decoder(attention=("softmax(scale=0.5)",))
    (other,) = layer_vectors(plain, torch.arange(6), source="tiny", layers=(0,))
    seen = case.logits > -math.inf
    assert torch.allclose(case.logits[seen] * 5, other.logits[seen] * 9, rtol=1e-6)


def test_layers_are_the_first_the_middle_and_the_last():
    model = decoder()
    assert [one.label for one in layer_vectors(model, torch.arange(6), source="tiny")] == [
        "layer 0", "layer 1", "layer 2",
    ]  # fmt: skip
    encoder = Encoder(EncoderConfig(dim=16, heads=2, layers=2, vocab_size=20, max_length=32))
    assert [one.causal for one in layer_vectors(encoder, torch.arange(6), source="tiny")] == [False, False]
    assert not layer_vectors(model, torch.arange(6), source="tiny", layers=(2,), bidirectional=True)[0].causal
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_networks_that_cannot_serve_are_refused():
    with pytest.raises(ConfigError, match="tiny has 3 layers, counted from 0; there is no layer 3, 7"):
        layer_vectors(decoder(), torch.arange(6), source="tiny", layers=(0, 3, 7))
    with pytest.raises(UnsupportedError, match="tiny adds a bias to the logits"):
        layer_vectors(decoder(position="alibi"), torch.arange(6), source="tiny")
    with pytest.raises(ConfigError, match="positive norm, got 0"):
        random_vectors(0.0, length=4, causal=True)
