"""Faults of the engines: precision, and heads that share keys."""

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
        "sums: a look that takes rows without weight for weighty",
        f"{SUMS}.passes:divisor",
        "_least(total.dtype), torch",
        "0.0, torch",
        "linear",
        "empty_rows",
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

ENGINES = WRITTEN_OUT + PRECISION + GROUPS
