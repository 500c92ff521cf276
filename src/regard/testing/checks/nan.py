"""Law 14: NaN in a visible input stays NaN where it belongs."""

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.testing.compare import require
from regard.testing.inputs import LENGTH, Inputs, Subject, definition, run
from regard.testing.registry import check

AT = 5
"""the slot with NaN"""
LENGTHS = (LENGTH, 40)
"""fewer positions than a vector of a CPU has lanes, where torch's kernel takes a maximum without NaN, and more"""


@check()
def nan(subject: Subject) -> None:
    """A query with NaN gives NaN, and so do the queries that read a key or value with NaN; no other row of the batch.

    Which queries choose a key with NaN is not said, so that of a mechanism that selects only queries and values count.
    """
    reads, shared = subject.info.reads, subject.info.shares_query_key
    for causal in subject.modes:
        mechanism = subject.build(causal, max_length=max(LENGTHS))
        for length in LENGTHS:
            x = subject.inputs(mechanism, queries=length)
            if "q" in reads:
                _query(subject, mechanism, x, f"{length} positions, {causal=}")
            for name in [n for n in ("k", "v") if n in reads and not (n == "k" and (subject.info.selects or shared))]:
                _read(mechanism, x, name, f"{length} positions, {causal=}")


def _query(subject: Subject, mechanism: Attention, x: Inputs, what: str) -> None:
    """NaN in one number of a query of every head; of its key too where they are one."""
    spoilt = _spoilt(x, "q")
    if subject.info.shares_query_key:
        spoilt = _spoilt(spoilt, "k")
    seen = (definition(mechanism, x)[1, :, AT] != 0).any(-1)  # a row without keys is 0, whatever its query is
    for form, values in (("values", run(mechanism, spoilt).values), ("definition", definition(mechanism, spoilt))):
        _only_its_row(values, f"{form}, {what}")
        lost = seen & ~values[1, :, AT].isnan().all(-1)
        require(not lost.any(), f"the {form} of a query with NaN are finite, {what}")
        if not (subject.info.mixes_queries or subject.info.shares_query_key):
            rest = torch.cat([values[1, :, :AT], values[1, :, AT + 1 :]], 1)
            require(not rest.isnan().any(), f"{form}: NaN of a query reaches other queries, {what}")


def _read(mechanism: Attention, x: Inputs, name: str, what: str) -> None:
    """NaN in one number of a key or value of every head, against another number there."""
    other = x.named()[name].clone()
    other[1, :, AT, 0] += 1
    reached = (run(mechanism, x.replaced(**{name: other})).values != run(mechanism, x).values).any(-1)
    values = run(mechanism, _spoilt(x, name)).values
    _only_its_row(values, f"{name}, {what}")
    lost = (reached & ~values.isnan().any(-1)).nonzero()
    require(not len(lost), f"NaN in {name} is lost by the queries {sorted(set(lost[:, 2].tolist()))}, {what}")


def _spoilt(x: Inputs, name: str) -> Inputs:
    y = x.named()[name].clone()
    y[1, :, AT, 0] = float("nan")
    return x.replaced(**{name: y})


def _only_its_row(values: Tensor, what: str) -> None:
    require(not values[0].isnan().any(), f"NaN reaches another row of the batch: {what}")
