"""Faults of what stands around the engines: which one is called, memories, mixes over heads."""

from regard.patterns import causal, window
from tests.mutants.edits import Edit

FUSED, FLEX = "regard.engines.dense.fused", "regard.engines.gpu.flex"

DISPATCH = (
    Edit(
        "fused: its own causal flag for any causal call",
        f"{FUSED}:fused",
        "if call.causal and call.query_start == 0 and queries == keys > 1 and call.bias is None:",
        "if call.causal and call.bias is None:",
        "softmax",
        "prefix",
    ),
    Edit(
        "fused: a bias is forgotten where the call is square",
        f"{FUSED}:fused",
        "queries == keys > 1 and call.bias is None",
        "queries == keys > 1",
        "softmax",
        "bias_curve",
    ),
    Edit(
        "fused: hidden keys have logit 0",
        f"{FUSED}:fused",
        ".masked_fill(~call.key_mask, lowest)",
        "",
        "softmax",
        "key_mask",
    ),
    Edit(
        "chosen: the fused kernel drops nothing",
        f"{FUSED}:dot_product",
        "fused(q, k, v, call, scale=scale, dropout=dropout)",
        "fused(q, k, v, call, scale=scale, dropout=0.0)",
        "softmax",
        "dropout",
    ),
    Edit(
        "chosen: materialised logits at any length",
        f"{FUSED}:choose",
        "queries * keys <= MATERIALISED_PAIRS",
        "True",
        "tests.attention.dense.test_softmax",
        "test_auto_leaves_the_fused_kernel_only_where_it_would_materialise",
    ),
    Edit(
        "flex: columns of a bias backwards",
        f"{FLEX}:_added",
        "high - (i[query] - j[key])",
        "high + (i[query] - j[key])",
        "tests.engines.gpu.test_flex",
        "test_equal_to_the_formula",
        (causal & window(20),),
    ),
    Edit(
        "flex: partial blocks count as full",
        f"{FLEX}:_blocks",
        "full = full & q.real",
        "full = full | True & q.real",
        "tests.engines.gpu.test_flex",
        "test_blocks_hold_what_they_say",
        (causal & window(20),),
    ),
)

MEMORY, MEMORIES = "tests.models.test_memory", "regard.memory"
WHOLE = ("rotary", 0)

MEMORIZED = (
    Edit(
        "the first of what was kept",
        f"{MEMORIES}.recent:Recent.write",
        "hidden[:, -self.length :]",
        "hidden[:, : self.length]",
        MEMORY,
        "test_the_first_layer_sees_a_window_of_its_own_for_every_token",
    ),
    Edit(
        "the mask of what is kept is that of the newest",
        f"{MEMORIES}.recent:Recent.write",
        "mask[:, -self.length :]",
        "torch.ones_like(mask[:, -self.length :])",
        MEMORY,
        "test_the_mask_of_every_segment_is_its_own",
    ),
    Edit(
        "hidden states backwards",
        f"{MEMORIES}._base:join",
        "torch.cat([old, new], 1), mask",
        "torch.cat([new, old], 1), mask",
        MEMORY,
        "test_a_memory_of_the_whole_past_is_full_context",
        WHOLE,
    ),
    Edit(
        "an emptied row goes on counting",
        "regard.layer.memories:unread",
        "None if remembered is None else (~remembered).cumprod(1).sum(1)",
        "None",
        MEMORY,
        "test_a_row_that_is_emptied_reads_as_a_new_text",
        ("linear", "recent(length=9)"),
    ),
    Edit(
        "a running segment forgets what waits",
        f"{MEMORIES}._base:MemoryState.wait",
        'join(content.pop("waiting", None), content.pop("waiting_mask", None), x.detach(), key_mask)',
        'join(content.pop("waiting", x)[:, :0], content.pop("waiting_mask", None), x.detach(), key_mask)',
        MEMORY,
        "test_any_split_with_a_state_is_one_call",
        ("recent(length=64)", (1, 8, 1, 10)),
    ),
)

MIX, HEAD_MIX = "tests.layer.test_head_mix", "regard.head_mix:HeadMix"
WINDOW_AND_SUMS = "local(window=3) + linear"

MIXED = (
    Edit(
        "all parts on the first heads",
        f"{HEAD_MIX}.shares",
        "first += part.heads.count",
        "pass",
        MIX,
        "TestInputs.test_a_layer_is_that_of_its_parts",
    ),
    Edit(
        "the state of the first part for all",
        f"{HEAD_MIX}.attend",
        "else state[name]",
        "else state[name].select(torch.arange(q.shape[0]).flip(0))",
        WINDOW_AND_SUMS,
        "state_splits",
    ),
    Edit(
        "the bias of the first heads for all",
        f"{HEAD_MIX}.attend",
        "call.bias.heads(query_heads)",
        "call.bias.heads(slice(0, part.heads.count))",
        "softmax + additive",
        "bias_curve",
    ),
    Edit(
        "a mask for the first part alone",
        f"{HEAD_MIX}.attend",
        "key_mask=call.key_mask",
        'key_mask=call.key_mask if name == "0" else None',
        WINDOW_AND_SUMS,
        "key_mask",
    ),
    Edit(
        "a loss of one name once",
        f"{HEAD_MIX}.attend",
        "losses[names[name]] + loss if names[name] in losses else loss",
        "loss",
        MIX,
        "TestLosses.test_those_of_one_name_and_weight_add_up",
    ),
    Edit(
        "queries start where keys do",
        f"{HEAD_MIX}.attend",
        "None if call.causal or call.paired else call.query_start",
        "None",
        "softmax + additive",
        "query_pieces",
    ),
    Edit(
        "one seed for all parts",
        f"{HEAD_MIX}.share",
        'heads.seed if part is None else generator(heads.seed, "part", part).initial_seed()',
        "heads.seed",
        MIX,
        "TestSeeds.test_parts_of_one_mechanism_draw_apart",
    ),
)

MODELS = DISPATCH + MEMORIZED + MIXED
