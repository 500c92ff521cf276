"""Faults of exits: who is computed, what is noted, what is certified."""

from tests.mutants.edits import Edit

LEAVING = "regard.models.depth._leaving:Leaving"
OF_LIGHT, OF_EARLY = "tests.models.test_light_exit", "tests.models.test_early_exit"
AGAIN, READING = "regard_lab.benchmark.rereading:Rereading", "tests.benchmark.test_rereading"
P_VALUES, SEARCH = "regard_lab.calibration.p_values", "regard_lab.calibration.learn_then_test"
OF_P_VALUES, OF_SEARCH = "tests.calibration.test_p_values", "tests.calibration.test_learn_then_test"
FORMULAS, THRESHOLDS = "test_each_token_by_the_formulas", "test_every_threshold_is_a_call_of_its_own"
READ = "early_exit", 0.15, "disagreement", 16

WHO = (
    Edit(
        "no MLP of those that are there",
        "regard.models.blocks._base:Block.mixed",
        "whole[only] = found",
        "whole[only] = 0.0",
        OF_LIGHT,
        FORMULAS,
    ),
    Edit(
        "MLPs of everyone",
        f"{LEAVING}.until_left",
        "and some else None",
        "and some and not at else None",
        OF_LIGHT,
        "test_the_mlp_is_computed_of_tokens_that_are_there",
    ),
    Edit(
        "keys of nothing",
        f"{LEAVING}.until_left",
        "block.remember(x,",
        "block.remember(torch.zeros_like(x),",
        OF_EARLY,
        "test_blocks_that_no_token_needs_are_left_out_but_for_their_keys",
    ),
    Edit(
        "None is a threshold of 1",
        "regard.models.depth.early_exit:EarlyExit.asked",
        'float("inf") if own is None',
        "1.0 if own is None",
        OF_EARLY,
        "test_each_block_may_have_a_threshold_of_its_own",
    ),
    Edit(
        "padding ponders",
        "regard.models.depth.universal:Universal.after",
        "torch.where(stops, rest, halting.rest)",
        "rest",
        "tests.models.test_universal",
        "test_an_encoder_ponders_too",
    ),
    Edit(
        "guesses of what comes out, not of what is added",
        "regard_lab.training.exit_heads:_fit_guesses",
        "hidden[-1] - hidden[at]",
        "hidden[-1]",
        OF_LIGHT,
        "test_heads_learn_what_there_is_to_learn",
    ),
)

NOTED = (
    Edit(
        "confidences of other contexts are known",
        f"{AGAIN}._again",
        "behind > same[..., None]",
        "behind > self.last",
        READING,
        THRESHOLDS,
        READ,
    ),
    Edit(
        "confidences that are known are asked for again",
        f"{AGAIN}._again",
        "behind > same[..., None]",
        "behind >= same[..., None]",
        READING,
        "test_confidences_are_asked_again_above_what_leaves_anew",
    ),
    Edit(
        "all rows again",
        f"{AGAIN}.at_threshold",
        "changed.any(1)",
        "(changed.any(1) | True)",
        READING,
        "test_what_does_not_change_is_not_computed_again",
    ),
    Edit(
        "passages that were fitted to",
        "regard_lab.benchmark.exits:drawn",
        "order[end - count : end]",
        "order[:count]",
        "tests.benchmark.test_exits",
        "test_drawn_parts_have_nothing_in_common",
    ),
    Edit(
        "the calibration of other weights",
        "regard_lab.networks.exits:install",
        'found["model"] != fingerprint(model)',
        "False",
        "tests.benchmark.test_exits",
        "test_a_calibration_is_of_its_weights",
    ),
    Edit(
        "everyone leaves where nothing is certified",
        "regard_lab.networks.exits:install",
        "1.0 if threshold is None",
        "0.0 if threshold is None",
        "tests.benchmark.test_exits",
        "test_without_a_threshold_no_token_leaves",
    ),
)

CERTIFIED = (
    Edit(
        "a fixed sequence that does not stop",
        f"{SEARCH}:fixed_sequence",
        "tuple(range(stop))",
        "tuple(at for at, p in enumerate(p_values) if p <= level)",
        OF_SEARCH,
        "test_the_search_by_hand",
    ),
    Edit(
        "a naive choice",
        f"{SEARCH}:calibrate",
        "TESTS[test](total, items, risk)",
        "float(total / items > risk)",
        OF_SEARCH,
        "test_the_guarantee_holds_where_a_naive_choice_breaks_it",
        ("binomial", True),
    ),
    Edit(
        "the first that is certified",
        f"{SEARCH}:calibrate",
        "grid[rejected[-1]]",
        "grid[rejected[0]]",
        OF_SEARCH,
        "test_what_is_found_and_said",
    ),
    Edit(
        "a binomial p-value of one loss fewer",
        f"{P_VALUES}:binomial",
        "_at_most(int(total)",
        "_at_most(max(int(total) - 1, 0)",
        OF_P_VALUES,
        "test_no_level_is_exceeded_where_the_risk_is_the_limit",
        ("binomial", 20, 0.1),
    ),
)

EXITS = WHO + NOTED + CERTIFIED
