"""The conformance suite itself: what it reports, what excuses a check, and what it counts."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from regard import catalog
from regard.core import errors
from regard.core.attention import Attended, Attention, Heads
from regard.core.info import Input
from regard.models.depth.early_exit import EarlyExit
from regard.position.rotary import Rotary
from regard.position.sinusoidal import Sinusoidal
from regard.testing import CHECKS, check, check_attention
from regard.testing.counting import count
from regard.testing.inputs import LENGTH, Subject, changed, draw, has_margin, mask_with_holes, two_way_splits
from tests.laws import PART_CHECKS, check_part
from tests.mutants import toys


@pytest.mark.mutants
@pytest.mark.parametrize("toy", toys.TOYS, ids=lambda cls: cls.__name__)
def test_a_sound_mechanism_passes(toy):
    results = check_attention(toy)
    assert [f"{r.check}: {r.message}" for r in results if r.status == "failed"] == []
    assert [r.check for r in results] == list(CHECKS)


def test_the_toys_need_every_check_that_honest_facts_do_not_excuse():
    subjects = [Subject(toy, toy.samples[0]) for toy in toys.TOYS]
    unused = {name for name, each in CHECKS.items() if all(each.excuse(subject) for subject in subjects)}
    # No toy has a pattern of tiles, marks together with a state, or choices too many
    # to keep clear of: mutants of the catalog fail these checks.
    of_the_catalog = {"leak", "marks_state", "queries_mix", "partition", "close_calls"}
    assert unused == of_the_catalog


def test_substitutes_are_checks_and_excuses_are_facts():
    info = catalog.describe("softmax")
    for each in CHECKS.values():
        assert each.law.endswith(".")
        for excuse in each.excuses:
            assert excuse.substitute in CHECKS
            assert isinstance(excuse.holds(info), bool)
        assert (each.elsewhere in CHECKS) is (each.kind is not Attention)
    for each in PART_CHECKS.values():
        for excuse in each.excuses:
            assert excuse.substitute in PART_CHECKS
            assert PART_CHECKS[excuse.substitute].kind is each.kind


def test_an_excuse_names_the_fact_and_the_substitute():
    (result,) = check_attention(toys.ToyProjection, checks=["causality"])
    assert result.status == "excused"
    assert result.reason == "info: not supports.causal; checked instead: refusals"
    (result,) = check_attention(toys.ToyCodes, checks=["finite_differences_of_keys"])
    assert result.reason == "info: straight_through; checked instead: reference_gradients"
    (result,) = check_attention(toys.ToyDense, checks=["partition"])
    assert (result.status, result.reason) == ("excused", "no PatternSoftmax; checked instead: reference")
    (result,) = check_attention("local(window=3)", checks=["partition"])
    assert result.status == "passed"
    (result,) = check_part(Sinusoidal, checks=["published_logits"])
    assert (result.status, result.reason) == ("excused", "class: absolute; checked instead: positions_are_added")
    (result,) = check_part(Rotary, checks=["columns_are_distances"])
    assert result.reason == "class: not biased; checked instead: published_logits"


def test_a_failure_says_the_law_and_the_finding():
    class Constant(toys.ToyDense):
        """Returns zeros."""

        def attend(self, q, k, v, call):
            return super().attend(q, k, 0 * v, call)

    (result,) = check_attention(Constant, checks=["reference"])
    assert result.status == "failed"
    assert result.mechanism == "constant"
    assert result.message.startswith(
        "In float64 the algorithm is its definition to 1e-10. 13 positions, causal=True: err"
    )
    assert result.seconds > 0


def test_any_exception_is_a_finding():
    class Crashes(toys.ToyDense):
        """Crashes."""

        def attend(self, q, k, v, call):
            raise KeyError("no such thing")

    results = check_attention(Crashes, checks=["shapes", "prefix"])
    assert [r.status for r in results] == ["failed", "failed"]
    assert "KeyError" in results[0].message
    assert len(check_attention(Crashes, checks=["shapes", "prefix"], stop_at_failure=True)) == 1


def test_specifications_and_options():
    assert check is check_attention
    (result,) = check_attention("tests.mutants.toys:ToyWindow", checks=["reference"])
    assert (result.mechanism, result.options, result.status) == ("toy_window", {"window": 3}, "passed")
    results = check_attention(toys.ToyWindow, options=[{"window": 1}, {"window": 5}], checks=["reference"])
    assert [r.options for r in results] == [{"window": 1}, {"window": 5}]
    (result,) = check_attention("softmax(scale=0.5)", checks=["reference"])
    assert result.options == {"scale": 0.5}
    slow = check_attention(
        toys.ToyWindow, options=[{"window": 1}, {"window": 5}], checks=["compilation_behind_a_state"]
    )
    assert len(slow) == 1
    with pytest.raises(errors.ConfigError, match="did you mean 'causality'"):
        check_attention("softmax", checks=["causalty"])
    with pytest.raises(errors.ConfigError, match="unknown mechanism"):
        check_attention("softmx")


def test_every_option_set_has_to_reach_its_costs():
    class ReadsOneKey(toys.ToyWindow):
        """Compares all pairs, but with a window of 0, where it takes what stands beside the query."""

        def attend(self, q, k, v, call):
            return super().attend(q, k, v, call) if self.window else Attended(v[:, :, -q.shape[2] :])

    results = check_attention(ReadsOneKey, options=[{"window": 3}, {"window": 0}], checks=["cost_is_reached"])
    assert [result.status for result in results] == ["passed", "failed"]
    assert results[1].message.endswith("info.memory=2: no call of up to 16384 positions grows as fast")


def test_an_input_may_have_one_head_for_all():
    class SharedGate(toys.ToyGated):
        """One gate for all heads."""

        default_info = replace(toys.ToyGated.default_info, inputs={"log_gate": Input(slots="keys", heads=1, high=0.0)})

        def activate(self, raw):
            return {"log_gate": torch.nn.functional.logsigmoid(raw["log_gate"] + self.openness.mean())}

        def gates(self, call):
            return super().gates(call).expand(-1, self.heads.count, -1)

    names = ["facts", "activation", "input_bounds", "input_shapes", "state_splits", "causality"]
    results = check_attention(SharedGate, checks=names)
    assert [f"{r.check}: {r.message}" for r in results if r.status != "passed"] == []


def test_a_third_party_mechanism_is_checked_by_name():
    catalog.register(toys.ToyKernel)
    try:
        assert {r.status for r in check_attention("toy_kernel", checks=["causality", "cost"])} == {"passed"}
    finally:
        catalog.unregister("toy_kernel")


def test_inputs_share_one_projection_where_the_mechanism_does():
    subject = Subject(toys.ToyBuckets)
    mechanism = subject.build(True)
    x = subject.inputs(mechanism)
    assert torch.equal(x.q, x.k)
    other = changed(x, slice(3, 5), mechanism.heads, subject.info, "other")
    assert torch.equal(other.q, other.k)
    assert torch.equal(other.k[:, :, :3], x.k[:, :, :3])
    assert not torch.equal(other.v[:, :, 3:5], x.v[:, :, 3:5])
    tail = draw(mechanism.heads, subject.info, 4, LENGTH, 2, "tail")
    assert torch.equal(tail.q, tail.k[:, :, -4:])
    assert (x.v < 0).any()
    assert (x.v > 0).any()


def test_margin_is_noticed_where_a_choice_is_about_to_flip():
    subject = Subject(toys.ToyBuckets)
    mechanism = subject.build(True)
    x = draw(mechanism.heads, subject.info, LENGTH, LENGTH, 1, "edge")
    plane = mechanism.plane / mechanism.plane.norm()
    k = x.k.clone()
    k[:, :, 4] -= (k[:, :, 4] @ plane)[..., None] * plane
    assert has_margin(mechanism, subject.inputs(mechanism, batch=1))
    assert not has_margin(mechanism, x.replaced(q=k, k=k))


def test_splits_and_masks():
    cuts = list(two_way_splits(LENGTH))
    assert {cut for cut in cuts if len(cut) == 2} == {(n, LENGTH - n) for n in range(1, LENGTH)}
    assert (1,) * LENGTH in cuts
    assert all(sum(cut) == LENGTH and min(cut) > 0 for cut in cuts)
    keep = mask_with_holes(3, LENGTH)
    assert keep[:, 0].all()
    assert (~keep).any(1).all()
    assert not torch.equal(keep[0], keep[1])


def root_of_product(x):
    wide = x @ x.mT
    return (wide.square() @ x).sqrt()


@torch.library.custom_op("regard_tests::root_of_product", mutates_args=())
def _opaque(x: torch.Tensor) -> torch.Tensor:
    return root_of_product(x)


@_opaque.register_fake
def _(x):
    return torch.empty_like(x)


def test_counting_looks_inside_custom_operators():
    x = torch.rand(64, 4)
    inside = count(lambda: _opaque(x))
    outside = count(lambda: root_of_product(x))
    assert inside.flops == outside.flops == 2 * (2 * 64 * 64 * 4)
    assert inside.produced == outside.produced == 2 * 64 * 64 + 2 * 64 * 4
    assert inside.largest == outside.largest == 64 * 64
    assert inside.peak == outside.peak >= 2 * 64 * 64


def test_counting_sees_backward_and_what_it_keeps():
    x = torch.rand(100, requires_grad=True)

    def chain():
        y = x
        for _ in range(8):
            y = y.tanh()
        y.sum().backward()

    kept = count(chain)
    assert 800 <= kept.peak <= 1200  # eight results are saved for backward
    with torch.no_grad():
        assert count(lambda: x.tanh().tanh().tanh().tanh()).peak <= 300
    views = count(lambda: x.detach()[None].expand(50, -1).transpose(0, 1))
    assert views.produced == 0


def test_counting_knows_the_fused_kernel():
    q = torch.rand(1, 2, 32, 8, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert count(lambda: attend(q, q, q)).flops == 2 * 2 * 2 * 32 * 32 * 8
    both = count(lambda: attend(q, q, q).sum().backward()).flops
    assert both == 2 * 2 * 2 * 32 * 32 * 8 * 7 // 2


def test_functional_gradients_inside_an_operator_are_counted():
    @torch.library.custom_op("regard_tests::pulled", mutates_args=())
    def pulled(x: torch.Tensor) -> torch.Tensor:
        _, pull = torch.func.vjp(lambda y: (y @ y.mT).sum(), x)
        return pull(torch.ones(()))[0]

    assert count(lambda: pulled(torch.rand(8, 3))).flops >= 3 * 2 * 8 * 8 * 3


def test_subjects_move_parameters_off_their_initial_values():
    subject = Subject(toys.ToyTable)
    fresh, moved = subject.fresh(True), subject.build(True)
    assert not torch.equal(fresh.slots, moved.slots)
    assert torch.equal(subject.build(True).slots, moved.slots)
    assert subject.heads(True) == Heads(count=2, key_dim=8, value_dim=6, causal=True, max_length=32, seed=7)


@pytest.mark.parametrize(("what", "law"), [("uniform", "determinism"), (EarlyExit, "mixed_training")])
def test_checks_leave_the_global_generators_alone(what, law):
    before = torch.get_rng_state(), repr(random.getstate()), repr(np.random.get_state())  # noqa: NPY002
    results = (check if isinstance(what, str) else check_part)(what, checks=[law])
    assert {result.status for result in results} == {"passed"}
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (repr(random.getstate()), repr(np.random.get_state())) == before[1:]  # noqa: NPY002
