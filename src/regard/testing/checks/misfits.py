"""Law 8, continued: tensors that do not fit one another are refused by an error of the protocol, before any sum."""

from collections.abc import Iterator

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.errors import ShapeError
from regard.testing.compare import refused
from regard.testing.inputs import LENGTH, Subject, here, randn
from regard.testing.registry import check


@check()
def misfits(subject: Subject) -> None:
    """Tensors of a call whose batch, heads, lengths, widths or dtypes do not fit one another raise ShapeError."""
    for causal, mechanism, x in subject.cases(torch.float32):
        given = {"q": x.q, "k": x.k, "v": x.v}
        for what, other in _wrong(subject, mechanism, given):
            refused(f"{what}, {causal=}", ShapeError, mechanism, **{**given, **other}, inputs=x.more)


def _wrong(subject: Subject, mechanism: Attention, x: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, object]]]:
    """What is wrong, and the arguments that make it so."""
    supports, causal = subject.info.supports, mechanism.heads.causal
    for name, y in x.items():
        yield f"{name} without heads", {name: y[:, 0]}
        yield f"{name} of one row for all", {name: y[:1]}
        yield f"{name} of one head for all", {name: y[:, :1]}
        yield f"{name} one number wider", {name: torch.cat([y, y[..., :1]], -1)}
        yield f"{name} of integers", {name: y.long()}
        yield f"{name} in float64", {name: y.double()}
    yield "one value less than keys", {"v": x["v"][:, :, 1:]}
    yield "a negative query_start", {"query_start": -1}
    if causal:
        yield "more queries than keys", {"k": x["k"][:, :, 1:], "v": x["v"][:, :, 1:]}
    if supports.key_mask:
        keep = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
        yield "a mask of one row for all", {"key_mask": keep[:1]}
        yield "a mask of one key less", {"key_mask": keep[:, 1:]}
        yield "a mask of numbers", {"key_mask": keep.float()}
    if supports.marks:
        labels = torch.zeros(2, LENGTH, dtype=torch.long, device=here())
        yield "marks of one row for all", {"marks": labels[:1]}
        yield "marks of one key less", {"marks": labels[:, 1:]}
        yield "marks of floating numbers", {"marks": labels.float()}
    if supports.bias:
        yield from _wrong_biases()


def _wrong_biases() -> Iterator[tuple[str, dict[str, object]]]:
    columns = 2 * LENGTH - 1
    curve, rows = randn(3, columns, seed="curve"), randn(3, columns, 5, seed="rows")
    query = randn(2, 3, LENGTH, 5, seed="query")
    yield "a curve of 3 heads", {"bias": ScoreBias(high=LENGTH - 1, curve=curve)}
    yield "rows of 3 heads", {"bias": ScoreBias(high=LENGTH - 1, query=query[:, :1], relative=rows)}
    yield "a query of 3 heads", {"bias": ScoreBias(high=LENGTH - 1, query=query, relative=rows[:1])}
    for batch, heads, queries, keys in ((3, 2, 0, 0), (2, 3, 0, 0), (2, 2, 1, 0), (2, 2, 0, 1), (2, 2, 0, -1)):
        table = torch.zeros(batch, heads, LENGTH + queries, LENGTH + keys, device=here())
        yield f"a table of {tuple(table.shape)}", {"bias": ScoreBias(table=table)}
    yield "a table without a batch", {"bias": ScoreBias(table=torch.zeros(2, LENGTH, LENGTH, device=here()))}
