"""Faults of cache policies: the wrong slot goes, padding counts, what comes later has a part in it."""

import torch

from tests.mutants.edits import Edit

BASE, ROWS, CODES = "regard.memory.caches._base", "regard.memory.caches._rows", "regard.memory.caches._codes"
SLOTS = "regard.memory.caches._slots"
EVICTIONS, QUANTIZED = "tests.memory.caches.test_evictions", "tests.memory.caches.test_quantized"
LOOKUP = "tests.models.test_lookup"
SNAPKV, MODELS = "tests.memory.caches.test_snapkv", "tests.memory.caches.test_models"

CACHES = (
    Edit(
        "evict: the slot beside the one that should go",
        f"{BASE}:survivors",
        "rest >= gone",
        "rest > gone",
        EVICTIONS,
        "test_equal_to_the_loops",
        ("h2o", False),
    ),
    Edit(
        "evict: of equal slots the later",
        f"{BASE}:survivors",
        "worth.argmin(-1, keepdim=True)",
        "worth.shape[-1] - 1 - worth.flip(-1).argmin(-1, keepdim=True)",
        EVICTIONS,
        "test_of_equal_slots_the_earlier_goes",
    ),
    Edit(
        "evict: padding is among the newest",
        f"{BASE}:newest",
        "(slot >= 0).cumsum(-1)",
        "torch.ones_like(slot).cumsum(-1)",
        SNAPKV,
        "test_equal_to_the_loops",
        (True,),
    ),
    Edit(
        "evict: norms to 6 bits",
        "regard.memory.caches.key_norm:KeyNorm.worth",
        "digits * 4096",
        "digits * 64",
        EVICTIONS,
        "test_norms_are_compared_to_12_bits",
        ((1.0, 1.001, 9.0), [0, 2]),
    ),
    Edit(
        "weights: a padded query may be NaN",
        f"{ROWS}:weights_of",
        "q = q.masked_fill(~asked[..., None], 0)",
        "q = q + 0",
        MODELS,
        "test_a_nan_under_padding_reaches_no_weight",
    ),
    Edit(
        "weights: tokens that left before the layer count",
        f"{ROWS}:weights_of",
        "asked & counted[:, None, lead:]",
        "asked",
        EVICTIONS,
        "test_queries_that_do_not_count_weigh_nothing",
        (True,),
    ),
    Edit(
        "evict: what was dropped stays behind a view",
        f"{SLOTS}:pick",
        "x.flatten(0, 2).index_select(0, rows).unflatten(0, roomy.shape)",
        "torch.cat([x.flatten(0, 2), x.flatten(0, 2)[rows]])[-len(rows) :].unflatten(0, roomy.shape)",
        "tests.memory.caches.test_live_bytes",
        "test_a_state_holds_its_budget_and_room_for_one_slot",
        ("streaming", 40),
    ),
    Edit(
        "slots: a window of distances by the number of what is left",
        f"{ROWS}:together",
        "if attention.info.sees_content_only:",
        "if True:",
        EVICTIONS,
        "test_slots_stay_where_they_were",
        ("shaw",),
    ),
    Edit(
        "slots: a bias by the number of what is left",
        f"{ROWS}:at_slots",
        "torch.cat([slot.long(), new.expand(*slot.shape[:2], keys)], 2)",
        "torch.arange(past - slot.shape[2], past + keys).expand(*slot.shape[:2], -1)",
        MODELS,
        "test_biases_are_read_at_the_distances_that_slots_have",
        ("alibi",),
    ),
    Edit(
        "quantized: values are codes as soon as they come",
        "regard.memory.caches.quantized:Quantized.rounded",
        "excess = values.kept - self.recent",
        "excess = values.kept - 1",
        QUANTIZED,
        "test_equal_to_the_loops",
        (4,),
    ),
    Edit(
        "lookup: guesses that were wrong stay in the state",
        "regard.models.lookup:checked",
        "after = after.rewind(wrong)",
        "after = after.rewind(0)",
        LOOKUP,
        "test_wrong_guesses_leave_the_state",
        ("softmax",),
    ),
    Edit(
        "codes: a step too many",
        f"{CODES}:coded",
        "(high - low) / (2**bits - 1)",
        "(high - low) / 2**bits",
        QUANTIZED,
        "test_no_error_is_above_half_a_step",
        (2,),
    ),
    Edit(
        "codes: a step of half precision",
        f"{CODES}:coded",
        "(high - low) / (2**bits - 1)",
        "((high - low) / (2**bits - 1)).to(x.dtype).to(wide.dtype)",
        QUANTIZED,
        "test_half_precision_adds_the_rounding_of_the_number_alone",
        (8, torch.float16),
    ),
    Edit(
        "regard cache: a key of which one token is right is found",
        "regard_lab.benchmark.cache:_losses",
        "hits[each, -answer:].all()",
        "hits[each, -answer:].any()",
        "tests.benchmark.test_cache",
        "test_a_key_is_found_where_all_of_it_is_the_likeliest",
    ),
    Edit(
        "regard cache: texts overlap",
        "regard_lab.benchmark.cache:rows",
        "range(0, length * config.texts, length)",
        "range(0, config.context * config.texts, config.context)",
        "tests.benchmark.test_cache",
        "test_texts_stand_side_by_side_and_keys_at_depths_of_their_own",
    ),
    Edit(
        "snapkv: tokens that left elsewhere in the call choose",
        "regard.memory.caches.snapkv:Snapkv.rows",
        "counted[:, split:]",
        "counted[:, : keys - split]",
        SNAPKV,
        "test_without_a_query_that_chooses_the_newest_stay",
        ("softmax",),
    ),
)
