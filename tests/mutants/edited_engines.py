"""Faults of the engines: precision, heads that share keys, noise and codebooks."""

import math

from tests.mutants.edits import Edit

TILES, SUMS = "regard.engines.tiles", "regard.engines.sums"
DENSE, ROUTED = "regard.engines.dense", "regard.engines.routed"

ATTENTION = "regard.attention"

PRECISION = (
    Edit(
        "chunks in bfloat16",
        f"{DENSE}.chunks:_attend",
        'logits = rule.score(part["q"], part["k"], *further)',
        'logits = rule.score(part["q"].bfloat16().to(part["q"].dtype), part["k"], *further)',
        "additive",
        "reference_float32",
    ),
    Edit(
        "codes: sums in the dtype of the inputs",
        f"{ROUTED}.codes:_parts",
        "dtype = accumulation_dtype(q.dtype)",
        "dtype = v.dtype",
        "vector_quantized(num_codes=8, block_size=5)",
        "bfloat16",
    ),
    Edit(
        "tiles: no logit is less than -1e30",
        f"{TILES}.operands:lowest",
        "torch.finfo(like.dtype).min",
        "-1e30",
        "local(window=3)",
        "huge_vectors",
    ),
    Edit(
        "directions by norms that overflow",
        "regard.features.norms:balanced",
        "-power)",
        "0 * power)",
        "vector_quantized(num_codes=8, block_size=5)",
        "huge_vectors",
    ),
    Edit(
        "rfa: a look that no vector is too short for",
        f"{ATTENTION}.kernel.rfa:unit",
        "known_within(square, torch.finfo(square.dtype).tiny ** 0.5)",
        "known_within(square, 0.0)",
        "tests.attention.kernel.test_rfa",
        "test_only_directions_count_in_float32",
        (1e-20, "trigonometric"),
    ),
    Edit(
        "sums: a look that takes rows without weight for weighty",
        f"{SUMS}.passes:divisor",
        "_least(total.dtype), torch",
        "0.0, torch",
        "linear",
        "empty_rows",
    ),
    Edit(
        "sums: a look that no sum is too large for",
        f"{SUMS}.passes:divisor",
        "torch.finfo(total.dtype).max",
        'float("inf")',
        "tests.attention.kernel.test_linear",
        "test_a_sum_of_weights_beyond_the_type_is_no_average",
        ("auto",),
    ),
    Edit(
        "codes: a look that finds no lost key",
        f"{ATTENTION}.routed.vector_quantized:VectorQuantized.attend",
        "torch.finfo(key.dtype).max",
        'float("inf")',
        "tests.attention.routed.test_vector_quantized",
        "test_nan_of_a_key_reaches_every_query_that_sees_it",
        (True,),
    ),
    Edit(
        "buckets: a look that finds no lost row",
        f"{ROUTED}:lost",
        ".isnan()",
        ".isneginf()",
        "tests.attention.routed.test_lsh",
        "test_nan_reaches_the_queries_that_meet_it_alone",
        ("v", True, True),
    ),
    Edit(
        "buckets: a pair is hidden by 1e29",
        f"{ROUTED}.buckets:Walk.scores",
        "torch.finfo(logits.dtype).max",
        "1e29",
        "lsh(num_buckets=10, rounds=2, share=False, duplicates=True)",
        "huge_vectors",
    ),
    Edit(
        "scores of lists in half precision",
        f"{ROUTED}.lists:doubled_scores",
        "scores = scores.view(",
        "scores = scores.half().double().view(",
        "shortlist(num_keys=3)",
        "clear_choices",
    ),
    Edit(
        "hashes in bfloat16",
        f"{ROUTED}:nearest_points",
        "x[:, at : at + step].float()",
        "x[:, at : at + step].bfloat16().float()",
        "lsh(rounds=2, bucket_size=8)",
        "clear_choices",
    ),
    Edit(
        "close choices left to the product",
        f"{ROUTED}:_best",
        "if len(row):",
        "if len(row) == 0:",
        "tests.engines.routed.test_choices",
        "test_a_close_choice_ignores_the_rows_beside_it",
        (12, 2),
    ),
    Edit(
        "the commitment of keys counted for every query",
        f"{ATTENTION}.routed.routing:Routing.observe",
        "(key, chosen.keys, call.key_mask)",
        "(*(x.repeat_interleave(self.heads.group, 1) for x in (key, chosen.keys)), call.key_mask)",
        "tests.attention.routed.test_routing",
        "test_commitment_counts_each_head_of_keys_once",
    ),
    Edit(
        "the slope of a weight of 0 times NaN",
        "regard.core.call:merge",
        "(weight[..., None] * seen)",
        "torch.where(weight[..., None] == 0, 0.0, weight[..., None] * values)",
        "tests.attention.dense.test_softmax",
        "test_a_part_without_weight_may_hold_anything",
        (math.nan,),
    ),
    Edit(
        "unit keys in bfloat16",
        f"{ATTENTION}.routed.lsh:direction",
        "unit(k.to(",
        "unit(k.bfloat16().to(",
        "lsh(rounds=2, bucket_size=8)",
        "reference_float32",
    ),
    Edit(
        "the sums of a state in half precision",
        f"{SUMS}.backward:backward_causal",
        "of_state.copy_(slopes[0])",
        "of_state.copy_(slopes[0].bfloat16())",
        "linear",
        "float32_gradients",
    ),
    Edit(
        "codes: logits in half precision",
        f"{ROUTED}.codes:Block.tiles",
        "logits.add_(self.bias",
        "logits.copy_(logits.bfloat16()).add_(self.bias",
        "vector_quantized(num_codes=8, block_size=5)",
        "reference_float32",
    ),
    Edit(
        "tiles: weights in half precision",
        f"{TILES}.passes:forward",
        "part = torch.bmm(weights, ",
        "part = torch.bmm(weights.bfloat16().to(weights.dtype), ",
        "local(window=3)",
        "reference_float32",
    ),
)

GROUPS = (
    Edit(
        "heads of a group by turns",
        f"{DENSE}.fused:expand_heads",
        "x.repeat_interleave(count // x.shape[1], 1)",
        "x.repeat(1, count // x.shape[1], 1, 1)",
        "additive",
        "grouped_heads",
    ),
    Edit(
        "tiles: heads of a group by turns",
        f"{TILES}.operands:Share.keys",
        "x = x.repeat_interleave(self.count // x.shape[1], 1)",
        "x = x.repeat(1, self.count // x.shape[1], 1, 1)",
        "local(window=3)",
        "grouped_heads",
    ),
    Edit(
        "lists: heads of a group by turns",
        f"{ROUTED}.lists:_steps",
        "// (heads // k.shape[1]))[:, None, None]",
        "% k.shape[1])[:, None, None]",
        "shortlist(num_keys=3)",
        "grouped_heads",
    ),
    Edit(
        "hashes: heads of a group by turns",
        f"{ATTENTION}.routed._base:nearest",
        "x.detach().unflatten(1, (kv_heads, -1)).transpose(0, 1)",
        "x.detach().unflatten(1, (-1, kv_heads)).transpose(1, 2).transpose(0, 1)",
        "lsh(num_buckets=10, rounds=2, share=False)",
        "grouped_heads",
    ),
)

NOISE = (
    Edit(
        "one noise for all heads",
        f"{SUMS}.noise:position_noise",
        "draw, head, block)",
        "draw, 0, block)",
        "tests.attention.kernel.test_randomized",
        "test_noise_belongs_to_seed_head_position_and_sample",
    ),
    Edit(
        "the same noise in every training call",
        f"{ATTENTION}.kernel.randomized:Randomized._noise",
        "torch.stack([self.seed, number])",
        "torch.stack([self.seed, 0 * number])",
        "tests.attention.kernel.test_randomized",
        "test_training_draws_anew_and_evaluation_does_not",
    ),
)

VQ = f"{ATTENTION}.routed.vector_quantized:VectorQuantized"
CODEBOOK = tuple(
    Edit(name, f"{VQ}.{method}", before, after, "tests.attention.routed.test_vector_quantized", test)
    for name, method, before, after, test in (
        (
            "a step of g, not 1 - g",
            "learn",
            "(1 - self.decay) * self.unlearnt",
            "self.decay * self.unlearnt",
            "test_learning_one_step_by_hand",
        ),
        ("learns before it has seen anything", "learn", "* self.unlearnt", "* 1.0", "test_learning_one_step_by_hand"),
        (
            "counts do not move",
            "learn",
            "self.code_count.lerp_(self.seen[..., -1], step)",
            "pass",
            "test_learning_one_step_by_hand",
        ),
        (
            "sums do not move",
            "learn",
            "self.code_sum.lerp_(self.seen[..., :-1], step)",
            "pass",
            "test_learning_one_step_by_hand",
        ),
        (
            "learns from hidden keys",
            "note",
            "self.seen.copy_(sums[:, :-1])",
            "sums[:, 0] += sums[:, -1]; self.seen.copy_(sums[:, :-1])",
            "test_learning_one_step_by_hand",
        ),
        (
            "learns twice from one call",
            "attend",
            "learns = self.training and not (self.recomputing or recomputing())",
            "learns = self.training",
            "test_only_training_learns_and_only_once",
        ),
        (
            "learns in evaluation",
            "attend",
            "learns = self.training and not",
            "learns = not",
            "test_only_training_learns_and_only_once",
        ),
    )
)

CLUSTERS = tuple(
    Edit(
        name, f"{ATTENTION}.routed.routing:Routing.{method}", before, after, "tests.attention.routed.test_routing", test
    )
    for name, method, before, after, test in (
        ("centroids: a step of g", "learn", "(1 - self.decay) / 2", "self.decay / 2", "test_learning_one_step_by_hand"),
        (
            "centroids without members move to 0",
            "learn",
            "* (counts > 0)",
            "* torch.ones_like(counts)",
            "test_a_cluster_that_gathered_nothing_keeps_its_place",
        ),
        (
            "centroids leave the sphere",
            "learn",
            "F.normalize(",
            "(lambda x, dim: x)(",
            "test_learning_one_step_by_hand",
        ),
        (
            "centroids learn from what is hidden",
            "note",
            "if mask is not None:",
            "if False:",
            "test_learning_one_step_by_hand",
        ),
        (
            "centroids learn in a pass that is run again",
            "observe",
            "self.training and not recomputing()",
            "self.training",
            "test_only_training_learns_and_not_in_a_recomputed_pass",
        ),
    )
)

MAPS, PROJECTIONS = "regard.features.maps", f"{ATTENTION}.lowrank._projections"
ELU = f"{MAPS}:_EluPlusOne.scaled", "(x * LOG2E)", "x", "reference"
WRITTEN_OUT = (
    *(
        Edit(f"the feature map of {subject}", ELU[0], ELU[1], ELU[2], subject, ELU[3])
        for subject in ("linear", "local_linear(window=3)", "length_switch(exact_keys=6)", "shortlist(num_keys=3)")
    ),
    Edit(
        "means of blocks that are one longer",
        f"{PROJECTIONS}:Means.matrices",
        "member.sum(1, keepdim=True).clamp(min=1)",
        "(1 + member.sum(1, keepdim=True))",
        "linformer(rank=4, projection=mean)",
        "reference",
    ),
    Edit(
        "the matrix of keys for values",
        f"{PROJECTIONS}:Mixtures.matrices",
        "e if self.value is None else _first(self.value, keys)",
        "e",
        "linformer(rank=4)",
        "reference",
    ),
    Edit(
        "chunks divided by d, not by its root",
        f"{ATTENTION}.kernel.mixed_chunk:MixedChunk.divisor",
        "self.heads.key_dim**0.5",
        "self.heads.key_dim",
        "mixed_chunk(chunk_size=3, normaliser=visible)",
        "reference",
    ),
)
"""what `reference` writes out for itself: a fault here is not shared by it"""

ENGINES = WRITTEN_OUT + PRECISION + GROUPS + NOISE + CODEBOOK + CLUSTERS
