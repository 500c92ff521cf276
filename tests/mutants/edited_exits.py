"""Faults of exits: who is computed, what is noted, what is certified."""

from tests.mutants.edits import Edit

LEAVING, LIGHT = "regard.models.depth._leaving:Leaving", "regard.models.depth.light_exit"
ROWS, DENSE, BLOCKS = "regard.layer.some_rows:of_rows", "regard.attention.dense._base", "regard.models.blocks._base"
OF_LIGHT, OF_EARLY, OF_ROWS = (
    f"tests.{name}" for name in ("models.test_light_exit", "models.test_early_exit", "layer.test_some_rows")
)
AGAIN, READING = "regard.benchmark.rereading:Rereading", "tests.benchmark.test_rereading"
P_VALUES, SEARCH = "regard.calibration.p_values", "regard.calibration.learn_then_test"
OF_P_VALUES, OF_SEARCH = "tests.calibration.test_p_values", "tests.calibration.test_learn_then_test"
FORMULAS, THRESHOLDS = "test_each_token_by_the_formulas", "test_every_threshold_is_a_call_of_its_own"
STREAMED = "early_exit(threshold=0.04)", {"tied": False}
TURNED = "softmax", {"kv_heads": 2, "position": "rotary"}, 3
READ = "early_exit", 0.15, "disagreement", 16

WHO = (
    Edit("values of other rows", f"{DENSE}:Dense.of_rows", "v[theirs]", "v[ours]", "softmax", "state_rows"),
    Edit("masks of other rows", f"{DENSE}:Dense.of_rows", "real[theirs]", "real[ours]", "softmax", "state_rows"),
    Edit(
        "one bias for all rows",
        "regard.bias:ScoreBias.rows",
        "self.table[picked]",
        "self.table[:1]",
        "softmax",
        "state_rows",
    ),
    Edit(
        "rows with gaps as one run",
        f"{DENSE}:side_by_side",
        "row != rows[at - 1] + 1",
        "row < rows[at - 1]",
        "softmax",
        "state_rows",
    ),
    Edit(
        "queries turned by the places of other rows",
        ROWS,
        "else at[picked]",
        "else at[: len(picked)]",
        OF_ROWS,
        "test_some_rows_are_those_of_all",
        TURNED,
    ),
    Edit(
        "outputs of all rows where none are apart",
        ROWS,
        "got.values[picked], x[picked]",
        "got.values[:3], x[:3]",
        OF_ROWS,
        "test_some_rows_are_those_of_all",
        ("linear", {}, 3),
    ),
    Edit(
        "what rows became is put into the first rows",
        f"{BLOCKS}:OneStream.run",
        "x.to(some.dtype).index_copy(0, picked, some)",
        "x.index_copy(0, torch.arange(len(picked)), some)",
        OF_EARLY,
        "test_rows_that_leave_at_different_depths_stream",
        STREAMED,
    ),
    Edit(
        "no MLP of those that are there",
        f"{BLOCKS}:Block.mixed",
        "whole[only] = found",
        "whole[only] = 0.0",
        OF_LIGHT,
        FORMULAS,
    ),
    Edit(
        "everything of everyone",
        f"{LEAVING}.until_left",
        "and some else None",
        "and some and not at else None",
        OF_LIGHT,
        "test_averages_are_computed_of_rows_that_are_there",
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
        "leaves at what is left to one",
        f"{LEAVING}.goes_on",
        "~(sureness(active) >= limit)",
        "~(sureness(active) >= 1 - limit)",
        OF_LIGHT,
        FORMULAS,
    ),
    Edit(
        "one judge for all blocks", f"{LIGHT}:LightExit.sureness", "self.judge[at]", "self.judge[0]", OF_LIGHT, FORMULAS
    ),
    Edit(
        "no guess",
        f"{LIGHT}:LightExit.guesses",
        "self.guessed(hidden[here], count - 1)",
        "hidden[here]",
        OF_LIGHT,
        FORMULAS,
    ),
    Edit(
        "the guess of the block above",
        f"{LIGHT}:LightExit.guesses",
        "self.guessed(hidden[here], count - 1)",
        "self.guessed(hidden[here], count % 3)",
        OF_LIGHT,
        FORMULAS,
    ),
    Edit(
        "the first token may leave", f"{LIGHT}:LightExit.limit", "slots < self.whole", "slots < 0", OF_LIGHT, FORMULAS
    ),
    Edit(
        "another unit size",
        f"{LIGHT}:of_unit_size",
        "factor = square.masked_fill(square == 0, 1).rsqrt()",
        "factor = (2 * square).masked_fill(square == 0, 1).rsqrt()",
        OF_LIGHT,
        FORMULAS,
    ),
    Edit(
        "guesses of what comes out, not of what is added",
        "regard.training.exit_heads:_fit_guesses",
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
        "begins again where any token left before",
        f"{AGAIN}.at_threshold",
        "torch.where(changed, first, self.last)",
        "first",
        READING,
        "test_confidences_are_asked_again_above_what_leaves_anew",
    ),
    Edit(
        "rows change by their first token alone",
        f"{AGAIN}.at_threshold",
        "changed.any(1)",
        "changed[:, 0]",
        READING,
        THRESHOLDS,
        READ,
    ),
    Edit(
        "begins with states of a lower block",
        f"{AGAIN}._again",
        "self.hidden[begin - 1]",
        "self.hidden[max(begin - 2, 0)]",
        READING,
        THRESHOLDS,
        READ,
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
        "losses of the threshold before",
        "regard.benchmark.exits:measure",
        "losses[part, at] = ",
        "losses[part, max(at - 1, 0)] = ",
        READING,
        THRESHOLDS,
        READ,
    ),
    Edit(
        "the full model is the one that was read last",
        "regard.benchmark.exits:measure",
        "likeliest=reading.answers.likeliest.clone()",
        "likeliest=reading.answers.likeliest",
        READING,
        THRESHOLDS,
        READ,
    ),
    Edit(
        "passages that were fitted to",
        "regard.benchmark.exits:drawn",
        "order[end - count : end]",
        "order[:count]",
        "tests.benchmark.test_exits",
        "test_drawn_parts_have_nothing_in_common",
    ),
    Edit(
        "the calibration of other weights",
        "regard.integrations.exits:install",
        'found["model"] != fingerprint(model)',
        "False",
        "tests.benchmark.test_exits",
        "test_a_calibration_is_of_its_weights",
    ),
    Edit(
        "everyone leaves where nothing is certified",
        "regard.integrations.exits:install",
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
        "every hypothesis at the whole level",
        f"{SEARCH}:bonferroni",
        "level / len(p_values)",
        "level",
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
        ("binomial", "fixed_sequence", True),
    ),
    Edit(
        "the first that is certified",
        f"{SEARCH}:calibrate",
        "grid[rejected[-1]]",
        "grid[rejected[0]]",
        OF_SEARCH,
        "test_what_is_found_and_said",
    ),
    Edit("Hoeffding without the square", f"{P_VALUES}:hoeffding", "** 2", "** 1", OF_P_VALUES, "test_formulas_by_hand"),
    Edit(
        "Bentkus without e",
        f"{P_VALUES}:hoeffding_bentkus",
        "math.e * _at_most",
        "_at_most",
        OF_P_VALUES,
        "test_formulas_by_hand",
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
    Edit(
        "tests that share no error need as few items",
        f"{P_VALUES}:items_needed",
        "level /= hypotheses",
        "level /= 1",
        OF_P_VALUES,
        "test_items_needed",
    ),
    Edit(
        "blocks share a threshold",
        "regard.calibration.grid_search:grid_search",
        "reversed(range(exits))",
        "range(0)",
        "tests.calibration.test_grid_search",
        "test_blocks_differ_where_their_confidences_do",
    ),
    Edit(
        "the search begins where no token leaves",
        "regard.calibration.grid_search:grid_search",
        "min(([level] * exits for level in levels), key=spent)",
        "[math.inf] * exits",
        "tests.calibration.test_grid_search",
        "test_it_begins_with_what_is_best_for_all_and_goes_from_the_deepest_up",
        ([[1.0, 3.0, 1.0], [5.0, 0.0, 1.0]], [[0.9, 0.9], [0.1, 0.9]], (0.5, 0.5)),
    ),
    Edit(
        "the search goes from the first block up",
        "regard.calibration.grid_search:grid_search",
        "reversed(range(exits))",
        "range(exits)",
        "tests.calibration.test_grid_search",
        "test_it_begins_with_what_is_best_for_all_and_goes_from_the_deepest_up",
        ([[2.0, 0.5, 3.0], [9.0, 3.2, 2.0]], [[0.9, 0.9], [0.1, 0.9]], (None, 0.5)),
    ),
    Edit(
        "blocks are free",
        "regard.calibration.grid_search:grid_search",
        "price * np.arange",
        "0 * np.arange",
        "tests.calibration.test_grid_search",
        "test_the_search_against_all_combinations",
        (0, 0.1),
    ),
)

EXITS = WHO + NOTED + CERTIFIED
