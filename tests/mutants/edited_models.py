"""Faults of what stands around the engines: which one is called, and mixes over heads."""

from tests.mutants.edits import Edit

FUSED, HEAD_MIX = "regard.engines.dense.fused", "regard.head_mix:HeadMix"
WINDOW_AND_SUMS = "local(window=3) + linear"

MODELS = (
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
        "queries start where keys do",
        f"{HEAD_MIX}.attend",
        "None if call.causal or call.paired else call.query_start",
        "None",
        "softmax + additive",
        "query_pieces",
    ),
)
