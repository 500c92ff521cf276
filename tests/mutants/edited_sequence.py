"""Faults of what processes exchange that share the positions of sequences, for tests/distributed/test_sequence.py.

The subject is the beginning of a case of `sequence_parts.subjects`, which each process compares with the whole.
"""

from tests.mutants.edits import Edit

PACKAGE, CAUGHT_BY = "regard.distributed.sequence", "test_a_fault_shows"

SEQUENCE = (
    Edit(
        "a hop is skipped",
        f"{PACKAGE}.ring:Hops.pairs",
        "if i and j and self._visible(i, j)",
        "if i and j and self._visible(i, j) and reader != source + 1",
        "softmax() causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "the log-sum-exp of a hop is not that of its part",
        f"{PACKAGE}.ring:_Ring.forward",
        "(values.to(wide), lse)",
        "(values.to(wide), lse - hop)",
        "softmax() causal=False",
        CAUGHT_BY,
    ),
    Edit(
        "halves that moved are out of their order",
        f"{PACKAGE}.balance:moved",
        ".argsort()",
        ".argsort(descending=True)",
        "softmax() causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "a hop's weight has no gradient",
        f"{PACKAGE}.ring:_pair_gradients",
        "of_z = (of_values * seen).sum(-1)",
        "of_z = torch.zeros_like(z)",
        "bilinear() causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "gates behind a part do not count",
        f"{PACKAGE}.ring:Hops.attended",
        "inputs = {name: rest.pop(0)[:, :, first:last] for name in self.of_keys}",
        "inputs = {name: rest.pop(0)[:, :, first:last] * 1.01 for name in self.of_keys}",
        "forgetting() causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "a state is passed on without gradient",
        f"{PACKAGE}.passing:_Sent.backward",
        "return None, grad, *grads",
        "return None, grad, *[None for _ in grads]",
        "performer() causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "states that are added up have no gradient",
        f"{PACKAGE}.passing:_Others.backward",
        "sum((each[n] for each in coming), torch.zeros_like(x))",
        "torch.zeros_like(x)",
        "linear() causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "sums of another scale are added up",
        "regard.attention.kernel.efficient:_at_one_scale",
        "(tops - top.clamp_min(LOWEST)).exp()[..., None]",
        "torch.ones_like(tops)[..., None]",
        "efficient() causal=False",
        CAUGHT_BY,
    ),
    Edit(
        "a window is one key short",
        f"{PACKAGE}.tiles:earlier",
        "return torch.arange(start - attention.kept_slots(start), start)",
        "return torch.arange(start - max(attention.kept_slots(start) - 1, 0), start)",
        "local(window=9, scale=0.7) causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "the last query of a part decides what is sent",
        f"{PACKAGE}.tiles:earlier",
        "Span(start, stop - 1)",
        "Span(stop - 1, stop - 1)",
        "image_local_1d(block_size=2, memory=3) causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "a window ends with the part",
        f"{PACKAGE}.tiles:around",
        "min(stop - low, total)",
        "stop",
        "local(window=3) causal=False",
        CAUGHT_BY,
    ),
    Edit(
        "gradients of keys stay where these were sent",
        f"{PACKAGE}.parts:_Carried.backward",
        "total.index_add_(ctx.axes[at], slots.to(total.device), grad)",
        "total.index_add_(ctx.axes[at], slots.to(total.device), grad * 0)",
        "fixed(stride=4, columns=2) causal=True",
        CAUGHT_BY,
    ),
    Edit(
        "a state of a part has what hidden keys hold",
        f"{PACKAGE}.tiles:behind_window",
        "x.masked_fill(~key_mask[:, None, :, None], 0)",
        "x",
        "local(window=9, scale=0.7) causal=True",
        CAUGHT_BY,
    ),
)
