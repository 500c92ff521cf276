"""The page of errata: what goes wrong does so, and ours does not, by more than rounding."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


errata = load("errata")
load("errata_content")
load("errata_linear")
load("errata_models")
load("errata_randomized")
ROWS = {each.run.__name__: each.run() for each in errata.ERRATA}


def measured(name):
    """What the literal formula and ours give, row by row."""
    return [(row.literal, row.ours) for row in ROWS[name]]


def test_rows_that_do_not_sum_to_one():
    assert measured("root_outside")[0] == (pytest.approx(1 / 8, abs=1e-12), pytest.approx(1, abs=1e-12))
    (fusion, ours), (smallest, _) = measured("fusion_numerator")
    assert ours == pytest.approx(1, abs=1e-12)
    assert abs(fusion - 1) > 0.1
    assert smallest < 0


def test_logits_of_the_wrong_size():
    (literal, ours), (average, keys) = measured("by_the_dimension")
    # 128 x 128 products of vectors of 256: relative deviations of a few percent
    assert literal == pytest.approx(1 / 256, rel=0.1)
    assert ours == pytest.approx(1, rel=0.1)
    assert average > 127
    assert keys < 90
    ((literal, ours),) = measured("whole_width")
    assert literal == pytest.approx(8**-0.5, rel=0.1)
    assert ours == pytest.approx(1, rel=0.1)


def test_what_nobody_should_see():
    ((literal, ours),) = measured("finite_fill")
    assert literal > 0.1
    assert ours == 0


def test_a_kernel_that_is_a_softmax():
    (far, _), (near, _), (_, exact) = measured("rbf_kernel")
    assert far > 0.1
    assert near < 1e-13
    assert exact < 1e-13


def test_equivariance():
    (invariant, _), (_, equivariant), (_, masked) = measured("invariance")
    assert invariant > 0.1
    assert equivariant < 1e-13
    assert masked > 0.1


def test_widths():
    assert measured("different_widths") == [("shapes do not fit", "refused when built"), ("", "(1, 1, 3, 4)")]


def test_positions():
    (spread, ours), (longest, real) = measured("channels_from_one")
    assert spread > 0.5
    assert ours < 1e-12
    assert longest > 3 * real
    assert measured("tables_of_numbers") == [("1", "8")]
    ((literal, ours),) = measured("fourth_term")
    assert literal > 0.1
    assert ours == 0
    ((literal, ours),) = measured("rotated_values")
    assert literal > 0.1
    assert ours < 1e-13
    ((literal, ours),) = measured("missing_transpose")
    assert literal > 0.1
    assert ours < 1e-12


def test_biases_by_distance():
    (oldest, ours), (newest, own) = measured("alibi_order")
    assert min(oldest, own) > 0.3  # (1 - e^(-1/2)) / (1 - e^(-5)) = 0.396
    assert max(newest, ours) < 0.01
    assert measured("alibi_fixed")[0] == ("", "0")
    values, gradient, count = measured("bounded_distance")
    assert values[1] == "1.4621, 1.9999, 2.0000"
    assert gradient == ("NaN", "finite")
    assert count[1] == "16"


def test_random_features():
    """Chance is within 5 standard errors; what is biased is beyond 6."""
    (_, kernel), (_, ratio), *errors = measured("unbiased_kernel")
    assert kernel < 5
    assert ratio > 6
    assert [error for _, error in errors] == sorted(error for _, error in errors)
    assert 0.05 < errors[0][1] < 0.3
    assert errors[-1][1] > 0.9
    ((literal, ours),) = measured("queries_and_values")
    assert literal > 6
    assert ours < 5


def test_randomized_attention():
    masses, (alike, mixture) = measured("one_mixture_per_query")
    assert masses == ("24", "4")
    assert alike > 6
    assert mixture < 5
    (literal, ours), (_, found) = measured("two_names")
    assert literal > 0.1
    assert max(ours, found) < 1e-12
    (sums, ours), (size, correction), below, (literal, found) = measured("ratings")
    assert sums > 1
    assert max(ours, found) < 1e-12
    assert literal > 0.01
    assert size > 3 * correction
    assert min(below) > 0.01


def test_what_linear_randomized_attention_costs():
    """2 but for what projects the landmarks, which is less than a hundredth."""
    (wide, ours), *rest = measured("cost_of_proposals")
    assert wide == 4
    assert ours == pytest.approx(2, rel=0.01)
    assert all(row == (2, pytest.approx(2, rel=0.01)) for row in rest)


def test_a_switch_that_rewrites_the_past():
    ((literal, ours),) = measured("switch_by_length")
    assert literal > 0.1
    assert ours == 0


def test_a_softmax_over_positions_is_no_feature_map():
    (pointwise, efficient), sums = measured("over_positions")
    assert pointwise < 1e-13
    assert efficient > 0.1
    assert max(sums) < 1e-13


def test_what_normalisation_does_and_does_not():
    (literal, ours), (moved, still), (_, decoded) = measured("no_denominator")
    assert literal > 10
    assert ours == pytest.approx(1, abs=1e-12)
    assert moved > 1
    assert (still, decoded) == (0, "0")


def test_kernels_that_are_not_the_exponential():
    (relu, _), (elu, _), (_, taylor) = measured("not_the_exponential")
    assert min(relu, elu) > 0.9  # as far off as equal weights
    assert taylor < 0.1


def test_penalties():
    (literal, _), *acting, (of_output, _) = measured("penalty_of_nothing")
    assert literal < 1e-13
    assert min(gradient for _, gradient in acting) > 1e-4
    assert of_output == pytest.approx(0.5, abs=1e-12)


def test_what_a_constant_is():
    """linear: 64 x 64 sums and 64 normalisers; a maximum more for performer; 1 + 64 + 64^2 features of taylor."""
    counts = [64 * 65, 256 * 65 + 1, (1 + 64 + 64**2) * 65]
    (_, cache), *kept = measured("hidden_constant")
    assert cache == str(1000 * 2 * 64)
    assert [row[1] for row in kept] == [f"{count}; {-(-count // 128)}" for count in counts]


def test_sparse_patterns():
    seen = {(i, j) for i in range(16) for j in range(i + 1, 16) if j - i < 4 or (i - j) % 4 == 0}
    assert measured("later_positions") == [(str(len(seen)), "0")]
    assert measured("size_of_blocks") == [("3", "4"), ("27", "48")]
    ((multiplied, masked),) = measured("multiplied_mask")
    assert multiplied > 0.1
    assert masked == 0
    (alone, together), (_, rest) = measured("one_normaliser")
    assert alone == pytest.approx(1, abs=1e-12)
    assert together + rest == pytest.approx(1, abs=1e-12)
    assert rest > 0.1


def test_hashes():
    """A random direction parts two vectors with the chance of their angle / pi; 4,096 hashes, 4 standard errors."""
    assert measured("twice_near")[:2] == [("yes", "no"), ("yes", "yes")]
    shares = [float(share) for share in measured("twice_near")[2][1].split(", ")]
    assert shares == [pytest.approx(share, abs=0.04) for share in (0.9, 0.5, 0.1)]
    assert measured("all_pairs") == [("2", 4), ("2", 2)]
    (lonely, ours), (own, seen) = measured("hashed_apart")
    assert int(lonely) > 0
    assert int(own) > 0
    assert (ours, seen) == ("0", "0")


def test_shapes_and_maps():
    product, weights, (_, off) = measured("lying_on_their_side")
    assert product == ("shapes do not fit", "(4, 8)")
    assert weights == ("(4, 8)", "(12, 4)")
    assert off < 1e-13
    (affine, ours), limit = measured("affine_rows")
    assert int(affine) <= 9 < int(ours)
    assert limit == ("", "refused")
    width, (half, kept) = measured("turning_planes")
    assert width == ("4", "8")
    assert half > 0.1
    assert kept < 1e-13


def test_what_a_memory_holds():
    ((literal, ours),) = measured("same_layer")
    assert literal > 0.01
    assert ours < 1e-13


def test_notation_of_outputs_and_memories():
    shapes, (over_queries, over_keys) = measured("output_called_q")
    assert shapes == ("(8, 9)", "(5, 9)")
    assert over_queries > 0.1
    assert over_keys < 1e-13
    (moved, still), (flat, kept) = measured("normalised_values")
    assert moved > 0.1
    assert still < 1e-13
    assert (flat, kept) == (pytest.approx(1, abs=1e-12), pytest.approx(3, abs=1e-12))


def test_whole_models():
    (itself, ours), (far, near), (_, off) = measured("growing_kernel")
    assert max(itself, near) < 1e-40
    assert far > 0.99
    assert ours == pytest.approx(0.5703, abs=1e-4)  # 1 / sum of exp(-t^2 / 2)
    assert off < 1e-13
    ((lost, back),) = measured("exchanged")
    assert lost > 0.1
    assert back < 1e-13
    (deaf, heard), (alike, apart) = measured("skipped_attention")
    assert deaf == 0
    assert heard > 0.1
    assert alike < 0.1 < 0.5 < apart
    assert measured("names_and_years") == [("2019", "2020"), ("Parmer", "Parmar"), ("Informer", "Linformer")]


def test_every_entry_is_on_the_page_and_has_a_test():
    text = errata.page()
    for each in errata.ERRATA:
        assert f"## {each.title}\n" in text
        assert f"def {each.run.__name__}()" in text
        assert each.run.__doc__.split("\n")[0] in text
        assert f'measured("{each.run.__name__}")' in Path(__file__).read_text(encoding="utf-8")
    assert text.count("```") % 2 == 0
    assert len(errata.ERRATA) >= 25


def test_the_notebook_holds_no_output():
    """It runs when the documentation is built; what was pasted could be old."""
    cells = json.loads((DOCS / "quickstart.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        compile(cell["source"], cell["id"], "exec")
