"""Faults of what reports of runs count and draw: numbers in the place of others."""

from tests.mutants.edits import Edit

DECISIONS, COSTS, CHARTS = (
    "regard_lab.benchmark.decisions",
    "regard_lab.benchmark.depth_costs",
    "regard_lab.report.run_charts",
)
OF_DECISIONS, OF_COSTS = "tests.benchmark.test_decisions", "tests.benchmark.test_depth_costs"
OF_CHARTS = "tests.report.test_run_charts"

REPORTS = (
    Edit(
        "spans: heads of a mix counted from its part",
        f"{DECISIONS}:_spans",
        "head=looker.first + head",
        "head=head",
        OF_DECISIONS,
        "test_heads_of_a_mix_keep_their_numbers",
    ),
    Edit(
        "spans: the heads of a layer in another order",
        f"{DECISIONS}:_spans",
        "span=z[:, head]",
        "span=z[:, -1 - head]",
        OF_DECISIONS,
        "test_every_head_of_every_layer_has_its_own_span",
    ),
    Edit(
        "decisions: tokens without a target count too",
        f"{DECISIONS}:_counted",
        "batch.targets != IGNORE",
        "torch.ones_like(decided, dtype=torch.bool)",
        OF_DECISIONS,
        "test_blocks_are_counted_where_there_is_a_target",
        ("early_exit(threshold=0.03)", 3),
    ),
    Edit(
        "costs: what decides is free",
        f"{COSTS}:token_operations",
        "leaving_after(model, blocks, asks=asks)",
        "leaving_after(model, blocks)",
        OF_COSTS,
        "test_the_operations_of_softmax_gaps_by_arithmetic",
    ),
    Edit(
        "costs: from all blocks down",
        f"{COSTS}:token_operations",
        "range(1, most + 1)",
        "range(most, 0, -1)",
        OF_COSTS,
        "test_the_operations_of_softmax_gaps_by_arithmetic",
    ),
    Edit(
        "Pareto: what costs more for the same loss is kept",
        f"{COSTS}:pareto",
        "points[at][1] < points[kept[-1]][1]",
        "points[at][1] <= points[kept[-1]][1]",
        OF_COSTS,
        "test_what_nothing_beats",
    ),
    Edit(
        "charts: depth in the place of operations",
        f"{CHARTS}:_trace",
        "x=[point[field] * scale for point in some]",
        'x=[point["depth"] * scale for point in some]',
        OF_CHARTS,
        "test_quality_is_up_and_cost_is_across",
        ("operations", "bits_per_byte"),
    ),
    Edit(
        "charts: layers across and heads down",
        f"{CHARTS}:spans",
        "z=cells",
        "z=[list(row) for row in zip(*cells)]",
        OF_CHARTS,
        "test_layers_are_down_and_heads_are_across",
    ),
    Edit(
        "charts: exits drawn one block early",
        f"{CHARTS}:taken",
        'list(range(1, len(used["taken"]) + 1))',
        'list(range(len(used["taken"])))',
        OF_CHARTS,
        "test_exits_are_shares_of_the_tokens_that_took_so_many",
    ),
    Edit(
        "charts: what was certified is what was not",
        f"{CHARTS}:calibrated",
        '"yes" if one["threshold"] in certified else ""',
        '"" if one["threshold"] in certified else "yes"',
        OF_CHARTS,
        "test_what_was_certified_is_said_of_every_threshold",
    ),
    Edit(
        "charts: every run is the first",
        f"{CHARTS}:charts",
        "drawn += [taken(run, at) for at",
        "drawn += [taken(run, 0) for at",
        OF_CHARTS,
        "test_runs_are_told_apart_by_colours_and_deciding_ones_by_marks",
    ),
    Edit(
        "notes: what nobody calibrated was not certified",
        "regard_lab.report.run:notes",
        'if run["calibration"] else',
        'if not run["calibration"] else',
        "tests.report.test_run",
        "test_the_summary_and_its_notes",
    ),
    Edit(
        "info: the state of a layer keeps what its shortest head does",
        "regard_lab.run_info:span_rows",
        "max(one['kept']",
        "min(one['kept']",
        "tests.cli.test_run_report",
        "test_spans_of_layers_as_info_shows_them",
    ),
)
