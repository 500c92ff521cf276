"""A mix over heads: the facts of its parts, their inputs, losses and seeds, and the conformance suite on mixes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard import AttentionLayer, HeadMix, Heads, build, catalog, describe
from regard.core.attention import Attention
from regard.core.errors import ConfigError, LimitError
from regard.core.info import Info, Input
from regard.head_mix import mixed_info
from regard.models import LanguageModel, ModelConfig
from regard.testing import CHECKS, assert_close, assert_identical, check_attention
from regard.testing.inputs import Subject, draw, run
from regard.testing.registry import conduct
from tests.mutants.toys import ToyDense, ToyGated

LENGTH = 9


def heads(count=2, **changes):
    return Heads(count=count, key_dim=8, **{"causal": True, "seed": 3, **changes})


def inputs(mechanism, dtype=torch.float64):
    return draw(mechanism.heads, mechanism.info, LENGTH, LENGTH, 2, "mix").to(dtype)


def below(tensors: Mapping[str, Tensor], part: int) -> dict[str, Tensor]:
    return {name.partition(".")[2]: x for name, x in tensors.items() if name.startswith(f"{part}.")}


class ToyMaybeGated(ToyDense):
    """Adds a gate to the logits of every key if asked to, and is never given raw gates that it has not asked for."""

    gate: bool = False
    """whether"""

    @classmethod
    def facts(cls, options):
        return replace(cls.default_info, inputs=ToyGated.default_info.inputs if options["gate"] else {})

    def activate(self, raw):
        return {"log_gate": F.logsigmoid(raw["log_gate"])}

    def biased(self, logits, call):
        logits = super().biased(logits, call)
        return logits + call.inputs["log_gate"].mT if self.gate else logits


class ToySized(ToyDense):
    """Has the sum of its output's sizes as a loss."""

    weight: float = 0.01
    """of the loss"""

    @classmethod
    def facts(cls, options):
        return replace(cls.default_info, losses={"size": options["weight"]})

    def attend(self, q, k, v, call):
        got = super().attend(q, k, v, call)
        return got._replace(losses={"size": got.values.abs().sum()}) if self.training else got


SIZED = f"{__name__}:ToySized"


class ToyTwiceGated(ToyGated):
    """One gate from two projections, of which the second is wider."""

    @property
    def raw_inputs(self) -> Mapping[str, Input]:
        return {"first": Input(slots="keys", heads="query"), "second": Input(slots="keys", heads="query", width="key")}

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return super().activate({"log_gate": raw["first"] + raw["second"].mean(-1, keepdim=True)})


class TestFacts:
    def test_what_all_share_is_kept_and_the_worst_is_told(self):
        found = describe("local(window=4):1 + quantized:1 + linear:1")
        parts = [describe(name) for name in ("local(window=4)", "quantized", "linear")]
        assert found.time == max(part.time for part in parts) == 2 > min(part.time for part in parts)
        assert found.memory == max(part.memory for part in parts)
        assert describe("linear:1 + local:1").time == describe("local:1 + linear:1").time
        assert describe("linear:1 + softmax:1").time == describe("softmax:1 + linear:1").time == 2
        assert describe("linear:1 + local:1").state == describe("local:1 + linear:1").state == "window"
        assert describe("linear:1 + softmax(impl=reference):1").memory == 2

    @pytest.mark.parametrize(
        "fact",
        ["anchored", "leaks", "mixes_queries", "replays_choices", "selects", "shares_query_key", "stochastic"],
    )
    def test_one_part_is_enough_for_what_restricts_a_caller(self, fact):
        base = describe("softmax")
        found = [mixed_info(infos) for infos in ((base, replace(base, **{fact: True})), (base, base))]
        assert [getattr(info, fact) for info in found] == [True, False]

    @pytest.mark.parametrize(
        "fact",
        [
            "affine_in_value",
            "compiles_whole",
            "linear_in_value",
            "nonnegative",
            "rows_sum_to_one",
            "sees_content_only",
        ],
    )
    def test_all_parts_are_needed_for_what_is_promised(self, fact):
        base = replace(describe("softmax"), **{fact: True})
        found = [mixed_info(infos) for infos in ((base, replace(base, **{fact: False})), (base, base))]
        assert [getattr(info, fact) for info in found] == [False, True]

    @pytest.mark.parametrize("fact", ["reads", "straight_through"])
    def test_letters_of_any_part(self, fact):
        base = describe("softmax")
        found = mixed_info([replace(base, **{fact: letters}) for letters in ("v", "q")])
        assert getattr(found, fact) == "qv"

    def test_an_approximation_comes_with_its_knob(self):
        same = describe("performer(num_features=8):1 + performer:1")
        assert (same.approximates, same.knob) == ("softmax", "num_features")
        for other in ("length_switch", "softmax", "linear"):
            found = describe(f"performer:1 + {other}:1")
            assert (found.approximates, found.knob) == (None, None)

    def test_no_gradient_reaches_what_gets_none_from_every_part_that_reads_it(self):
        box = "gaussian(kernel=box):1"
        assert describe(f"{box} + {box}").without_gradient == "qk"
        assert describe(f"{box} + softmax:1").without_gradient == ""
        assert describe(f"{box} + uniform:1").without_gradient == "qk"

    def test_a_part_without_a_state_leaves_the_mix_none(self):
        assert describe("softmax:1 + linformer:1").state == "none"
        assert not describe("softmax:1 + linformer:1").supports.state

    @pytest.mark.parametrize(
        "spec", ["forgetting:1 + local:1", "performer:1 + performer:1", f"{SIZED}(weight=0.5):1 + local:1"]
    )
    def test_an_instance_has_the_facts_of_its_specification(self, spec):
        built, told = build(spec, heads()).info, describe(spec)
        assert replace(built, inputs={}) == replace(told, inputs={})
        assert built.inputs.keys() == told.inputs.keys()


class TestSeeds:
    def test_parts_of_one_mechanism_draw_apart(self):
        mix = cast(HeadMix, build("performer:1 + local:1 + performer(num_features=None):1 + performer:1", heads(4)))
        first, _, second, third = mix.mechanisms
        assert not torch.equal(first.projection, second.projection)
        assert not torch.equal(first.projection, third.projection)
        assert not torch.equal(second.projection, third.projection)
        weights = [part.state_dict() for part in build("additive:1 + additive:1", heads()).mechanisms]
        assert not any(torch.equal(x, weights[1][name]) for name, x in weights[0].items() if x.std() > 0)

    @pytest.mark.parametrize("spec", ["performer:1 + rfa:1", "rfa:1 + performer:1"])
    def test_mechanisms_that_name_their_projections_alike_draw_apart(self, spec):
        first, second = (part.projection[0] for part in build(spec, heads()).mechanisms)
        alike = torch.nn.functional.normalize(first, dim=-1) @ torch.nn.functional.normalize(second, dim=-1).mT
        assert alike.amax() < 0.99

    def test_mechanisms_with_noise_at_every_position_draw_apart(self):
        lara, randomized = build("lara:1 + randomized:1", heads(causal=False)).mechanisms
        assert lara.seed != randomized.seed

    def test_the_first_of_every_mechanism_has_the_seed_of_the_mix(self):
        mix = cast(HeadMix, build("performer:1 + additive:1 + performer:1", heads(3)))
        for part, spec in zip(mix.mechanisms, ("performer", "additive"), strict=False):
            assert part.heads.seed == 3
            alone = build(spec, heads(1)).state_dict()
            for name, x in part.state_dict().items():
                assert torch.equal(x, alone[name]), f"{name} of {spec}"

    def test_every_part_is_redrawn_each_with_numbers_of_its_own(self):
        mix = build("performer:1 + local:1 + rfa:1 + performer:1", heads(4))
        mix.redraw(torch.Generator().manual_seed(0))
        for at in (0, 2, 3):
            assert not torch.equal(mix.mechanisms[at].projection, build(mix.specs[at], heads(1)).projection)
        assert not torch.equal(mix.mechanisms[0].projection, mix.mechanisms[3].projection)


class TestLosses:
    def mixed(self, spec, count=4):
        mix = build(spec, heads(count)).double().train()
        x = inputs(mix)
        parts = []
        for _, part, asked, given in mix.shares():
            parts.append(part(x.q[:, asked], x.k[:, given], x.v[:, given]).losses)
        found = build(spec, heads(count)).double().train()(x.q, x.k, x.v).losses
        assert found.keys() == mix.info.losses.keys()
        return mix, found, parts

    def test_those_of_one_name_and_weight_add_up(self):
        quantised = "vector_quantized(num_codes=4, block_size=3)"
        mix, found, parts = self.mixed(f"{quantised}:1 + {quantised}:3")
        assert mix.info.losses == describe(f"{quantised}:1 + {quantised}:3").losses == {"commitment": 1e-4}
        wanted = parts[0]["commitment"] + parts[1]["commitment"]
        assert_close(found["commitment"], wanted, tolerance=1e-12, what="sum over parts")

    def test_those_of_different_weights_stay_apart(self):
        spec = f"{SIZED}:2 + local:1 + {SIZED}(weight=0.5):1"
        mix, found, parts = self.mixed(spec)
        assert mix.info.losses == describe(spec).losses == {"0.size": 0.01, "2.size": 0.5}
        for at in (0, 2):
            assert_identical(found[f"{at}.size"], parts[at]["size"], what=f"part {at}")

    def test_a_model_weighs_each(self):
        spec = f"{SIZED}:1 + {SIZED}(weight=0.5):1"
        model = LanguageModel(ModelConfig(vocab_size=8, dim=8, layers=2, heads=2, attention=(spec,))).train()
        assert model.loss_weights == {"0.size": 0.01, "1.size": 0.5}
        assert model(torch.zeros(1, 5, dtype=torch.long)).losses.keys() == model.loss_weights.keys()


class TestInputs:
    SPEC = "forgetting:1 + softmax:2 + rfa(gate=True):1"

    def test_every_part_gets_its_own(self):
        mix = build(self.SPEC, heads(4)).double().eval()
        x = inputs(mix)
        assert list(x.more) == ["0.log_gate", "2.log_gate"]
        found = mix(x.q, x.k, x.v, inputs=x.more).values
        defined = mix.definition(x.q, x.k, x.v, inputs=x.more)
        for name, part, asked, given in mix.shares():
            own = below(x.more, int(name))
            wanted = part(x.q[:, asked], x.k[:, given], x.v[:, given], inputs=own).values
            assert_identical(found[:, asked], wanted, what=f"part {name}")
            wanted = part.definition(x.q[:, asked], x.k[:, given], x.v[:, given], inputs=own)
            assert_identical(defined[:, asked], wanted, what=f"definition of part {name}")

    def test_a_part_without_inputs_activates_nothing(self):
        toys = [ToyMaybeGated(heads(1)), ToyMaybeGated(heads(1), gate=True)]
        mix = HeadMix(heads(), [("toy", toy) for toy in toys])
        layer = AttentionLayer(16, mix, heads=2, causal=True)
        assert list(layer.inputs) == ["1_log_gate"]
        assert layer(torch.randn(1, 5, 16)).hidden.isfinite().all()

    def test_raw_inputs_may_differ_from_declared_ones(self):
        checks = ["facts", "activation", "input_bounds", "input_shapes", "finite_differences"]
        checks += ["float32_gradients", "parameter_gradients", "reference_gradients"]
        results = check_attention(ToyTwiceGated, checks=checks)
        failed = [f"{r.check}: {r.message}" for r in results if r.status != "passed"]
        assert failed == []
        mix = HeadMix(heads(), [("softmax", build("softmax", heads(1))), ("toy", ToyTwiceGated(heads(1)))])
        assert list(mix.raw_inputs) == ["1.first", "1.second"]
        layer = AttentionLayer(16, mix, heads=2, causal=True)
        assert {name: tuple(x.weight.shape) for name, x in layer.inputs.items()} == {
            "1_first": (1, 16),
            "1_second": (8, 16),
        }
        x = torch.randn(2, 7, 16)
        state = layer.initial_state(batch=2)
        first = layer(x[:, :4], state=state)
        rest = layer(x[:, 4:], state=first.state)
        pieces = torch.cat([first.hidden, rest.hidden], 1)
        assert_close(pieces, layer(x).hidden, tolerance=1e-5, what="streamed")

    def test_a_layer_is_that_of_its_parts(self):
        layer = AttentionLayer(16, "forgetting:1 + rfa(gate=True):1", heads=2, causal=True).double().eval()
        x = torch.randn(2, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        p = layer.projections
        q, k, v = p.queries(x), p.keys(x), p.values(x)
        columns = []
        for at, part in enumerate(layer.attention.mechanisms):
            raw = {"log_gate": layer.inputs[f"{at}_log_gate"](x)[:, None]}
            own = slice(at, at + 1)
            columns.append(part(q[:, own], k[:, own], v[:, own], inputs=part.activate(raw)).values)
        assert_close(layer(x).hidden, p.joined(torch.cat(columns, 1), x), tolerance=1e-12, what="layer")


def largest(x):
    return x.abs().max().item()


def test_an_import_path_may_be_a_part():
    spec = "tests.mutants.toys:ToyDecay:2 + softmax:1"
    assert catalog.parts(spec) == [("tests.mutants.toys:ToyDecay", 2), ("softmax", 1)]
    assert sorted(describe(spec).inputs) == ["0.gate", "0.log_decay", "0.strength"]
    mix = build(spec, heads(3)).eval()
    x = inputs(mix, torch.float32)
    assert_close(run(mix, x).values, mix.definition(x.q, x.k, x.v, inputs=x.more), tolerance=1e-5, what="values")
    with pytest.raises(ConfigError, match="must name its heads"):
        catalog.parts("tests.mutants.toys:ToyDecay + softmax:1")


def test_the_limit_of_a_part_is_the_limit_of_the_mix():
    mix = build("dense_synthesizer:1 + softmax:1", heads(max_length=6))
    x = inputs(mix, torch.float32)
    for attempt in (mix, mix.definition):
        with pytest.raises(LimitError):
            attempt(x.q, x.k, x.v)


def test_choices_are_replayed_part_by_part():
    mix = build("quantized(bits=4):1 + softmax:1 + shortlist(num_keys=3):1", heads(3)).double().eval()
    x = inputs(mix)
    made = mix.decisions(x.q, x.k)
    assert list(made) == ["0", "2"]
    wanted = mix.definition(x.q, x.k, x.v)
    assert_close(mix.definition(x.q, x.k, x.v, decisions=made), wanted, tolerance=1e-10, what="replayed")
    other = mix.decisions(x.q, x.k.flip(2))
    assert largest(mix.definition(x.q, x.k, x.v, decisions=other) - wanted) > 1e-3


@dataclass(frozen=True)
class MixSubject(Subject):
    """A mix of two mechanisms with half of the heads each, as checks see it."""

    parts: tuple[str, str] = ("softmax", "softmax")

    @property
    def info(self) -> Info:
        return self.build(bool(describe(self.spec(2)).supports.causal)).info

    def spec(self, count: int) -> str:
        first, second = self.parts
        return f"{first}:{count - count // 2} + {second}:{count // 2}"

    def fresh(self, causal: bool, **changes: int | float | None) -> Attention:
        wanted = self.heads(causal, **changes)
        return build(self.spec(wanted.count), wanted).eval()


OF_A_CLASS = {"facts", "options", "approximation"}
"""laws of a class and its options; a mix has none"""
DEFINED = {"exact_definition", "jvp", "func_grad", "double_backward"}
"""these build `impl="reference"`, an option of a mechanism"""
OTHER_HEADS = {"head_shapes", "cost", "cost_is_reached", "grouped_heads"}
"""these build other numbers of heads, of which a mix makes others of its inputs"""


@pytest.mark.parametrize(
    "parts",
    [
        ("local(window=3)", "linear"),
        ("linear", "forgetting"),
        ("forgetting", "rfa(num_features=32, gate=True)"),
        ("performer(num_features=32)", "performer(num_features=32)"),
        ("vector_quantized(num_codes=8, block_size=5)", "linear"),
        ("lsh(rounds=2, bucket_size=8)", "softmax"),
        ("quantized", "additive"),
        ("longformer(window=3)", "softmax"),
        ("tests.mutants.toys:ToyDecay", "tests.mutants.toys:ToyGated"),
    ],
    ids=" + ".join,
)
def test_a_mix_passes_the_conformance_suite(parts):
    subject = MixSubject(HeadMix, parts=parts)
    skipped = OF_A_CLASS | DEFINED | OTHER_HEADS | {name for name in CHECKS if name.startswith("compilation")}
    results = [conduct(each, subject) for name, each in CHECKS.items() if name not in skipped]
    assert [f"{r.check}: {r.message}" for r in results if r.status == "failed"] == []
    passed = {r.check for r in results if r.status == "passed"}
    assert {"reference", "power", "parameter_gradients", "losses", "determinism", "odd_sizes"} <= passed
    assert ("activation" in passed) is bool(subject.info.inputs)


def test_a_mix_compiles_as_its_parts_do():
    """Among the parts a window and a sum, whose states differ; no check knows what a mix needs."""
    subject = MixSubject(HeadMix, parts=("local(window=3)", "linear"))
    for name in ("compilation", "compilation_behind_a_state"):
        assert conduct(CHECKS[name], subject).message == ""


def test_the_suite_names_the_parts_of_a_mix():
    with pytest.raises(ConfigError, match=r"a mix over heads is checked by its parts: local\(window=3\), linear"):
        regard.testing.check("local(window=3):1 + linear:1")


@pytest.mark.parametrize("spec", ["lara(num_landmarks=3)", "routing(num_clusters=3)", "nystrom(num_landmarks=3)"])
def test_padding_hides_queries_of_a_part_that_mixes_them(spec):
    """What stands where nothing is changes neither the real rows nor what a part learns."""
    q, k, v = (torch.randn(3, 2, 4, 10, 8, generator=torch.Generator().manual_seed(0))).unbind()
    q = k.clone() if "routing" in spec else q
    keep = torch.arange(10)[None].expand(2, -1) < 6
    mix = regard.build(f"{spec}:2 + softmax:2", Heads(count=4, key_dim=8)).eval()
    first, rest = (x.clone() for x in (q, q))
    first[:, :, 6:], rest[:, :, 6:] = float("nan"), 3.0
    answers = [mix(x, k, v, key_mask=keep).values[:, :, :6] for x in (first, rest)]
    assert_identical(*answers, what="real rows")
    short = mix(q[:, :, :6], k[:, :, :6], v[:, :, :6]).values
    assert_close(answers[0], short, tolerance=1e-5, what="without padding")
    learner = mix.train()
    losses = [learner(x, k, v, key_mask=keep).losses for x in (first, rest, rest)]
    assert all(loss.isfinite() for each in losses for loss in each.values())
