"""Laws 6, 7 and 8: pure evaluation, every size, and refusal of whatever is not declared."""

import copy
import random

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from regard.core.attention import Attention, Heads
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError, LimitError, ShapeError, UnsupportedError
from regard.testing.compare import assert_close, assert_identical, refused, require
from regard.testing.inputs import LENGTH, Inputs, Subject, call, changed, definition, exact_copy, here, randn, run
from regard.testing.registry import check
from regard.testing.streams import start


@check()
def facts(subject: Subject) -> None:
    """The facts are complete and do not contradict each other."""
    info, cls = subject.info, subject.cls
    require(bool(info.title and info.source), "title or source is empty")
    require(bool(cls.__doc__), f"{cls.__name__} has no docstring")
    require(bool(subject.modes), "supports neither causal nor bidirectional")
    require(
        info.reads != "" and info.reads == "".join(c for c in "qkv" if c in info.reads),
        f"reads must be some of 'qkv' in this order, got {info.reads!r}",
    )
    require(info.selects or not info.replays_choices, "to replay choices needs choices")
    require(set(info.straight_through) <= set(info.reads), f"straight_through={info.straight_through!r} beyond reads")
    require(
        set(info.without_gradient) <= set(info.reads),
        f"without_gradient={info.without_gradient!r} beyond reads={info.reads!r}",
    )
    require(info.supports.state is (info.state != "none"), f"supports.state with state={info.state!r}")
    require((info.approximates is None) is (info.knob is None), "approximates and knob come together")
    require(info.knob is None or info.knob in cls.defaults, f"no option {info.knob!r}")
    require(info.affine_in_value or not info.linear_in_value, "linear_in_value implies affine_in_value")
    require(not (info.leaks and info.supports.state), "a form whose past depends on the future has no state")
    require(info.time > 0 and info.memory >= 0, "time and memory are exponents of the length")
    require(all(weight >= 0 for weight in info.losses.values()), f"negative loss weight in {dict(info.losses)}")
    named = all(name.isidentifier() and name not in ("q", "k", "v") for name in info.inputs)
    require(named, f"inputs are named as Python names other than q, k, v, got {sorted(info.inputs)}")
    require(subject.fresh(subject.modes[0]).info == info, "the instance's info differs from facts(options)")


@check()
def shapes(subject: Subject) -> None:
    """Values are finite, (batch, heads, queries, value), in the dtype of the inputs; a state and lse only if asked."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    for causal in subject.modes:
        for weights, dtype in {*zip(dtypes, dtypes, strict=True), *((torch.float32, dtype) for dtype in dtypes)}:
            mechanism = subject.build(causal, dtype=weights)
            out = run(mechanism, subject.inputs(mechanism, dtype=dtype))
            require(out.values.shape == (2, 2, LENGTH, 6), f"{dtype}: shape {tuple(out.values.shape)}")
            require(out.values.dtype == dtype, f"{dtype} in, {out.values.dtype} out")
            require(bool(out.values.isfinite().all()), f"{dtype}: values are not finite")
            require(out.state is None, "a state came back although none was passed")
            require(out.lse is None, "a log-sum-exp came back although nobody asked for it")


@check()
def inputs_untouched(subject: Subject) -> None:
    """Inputs keep their values and their version counters."""
    for _, mechanism, x in subject.cases(torch.float32):
        mask = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
        mask[1, LENGTH - 2 :] = False
        masked = subject.info.supports.key_mask
        tensors = {**x.named(), **({"key_mask": mask} if masked else {})}
        before = {name: (y.clone(), y._version) for name, y in tensors.items()}
        run(mechanism, x, key_mask=mask if masked else None)
        for name, y in tensors.items():
            value, version = before[name]
            require(torch.equal(y, value), f"forward changed {name}")
            require(y._version == version, f"forward wrote to {name} in place")


@check()
def determinism(subject: Subject) -> None:
    """Same seed, same mechanism; same input, same bits; no random generator but its own is read or moved."""
    for causal in subject.modes:
        torch.manual_seed(1)
        before = _generators()
        mechanism = subject.fresh(causal)
        require(_generators() == before, "building moved a global random generator")
        x = subject.inputs(mechanism)
        first = run(mechanism, x).values
        require(_generators() == before, "evaluation moved a global random generator")
        assert_identical(run(mechanism, x).values, first, what="second call")
        torch.manual_seed(2)
        assert_identical(run(mechanism, x).values, first, what="after seeding the global generator")
        assert_identical(run(subject.fresh(causal), x).values, first, what="built again with the same seed")
        other = run(subject.fresh(causal, seed=8), x).values
        if subject.info.stochastic:
            require(not torch.equal(other, first), "info.stochastic, but the seed makes no difference")


def _generators() -> tuple[bytes, bytes, str, str]:
    ours = torch.cuda.get_rng_state(here()).numpy().tobytes() if here().type == "cuda" else b""
    cpu = torch.get_rng_state().numpy().tobytes()
    return cpu, ours, repr(random.getstate()), repr(np.random.get_state())  # noqa: NPY002


@check()
def evaluation(subject: Subject) -> None:
    """Evaluation changes neither weights nor buffers; training changes registered buffers at most."""
    for _, mechanism, x in subject.cases(torch.float32):
        before = _weights(mechanism)
        first = run(mechanism, x).values
        for name, kept in _weights(mechanism).items():
            assert_identical(kept, before[name], what=f"{name} after a call in evaluation mode")
        mechanism.train()
        trained = call(mechanism, x).values.detach()
        if not any(True for _ in mechanism.buffers()):
            assert_close(trained, first, tolerance=1e-5, what="without dropout or buffers, training")
        names = set(dict(mechanism.named_parameters()))
        for name, kept in _weights(mechanism).items():
            require(name not in names or torch.equal(kept, before[name]), f"forward in training changed {name}")
        mechanism.eval()
        mechanism.load_state_dict(before, strict=False)
        after = run(mechanism, x).values
        assert_identical(after, first, what="training changed something besides registered buffers, so evaluation")


def _weights(mechanism: Attention) -> dict[str, Tensor]:
    every = [*mechanism.named_parameters(), *mechanism.named_buffers()]
    return {name: x.detach().clone() for name, x in every if x.numel()}


@check()
def batch_independence(subject: Subject) -> None:
    """A row of the batch does not depend on its neighbours."""
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        info, x = subject.info, subject.inputs(mechanism, batch=3, dtype=torch.float64)
        whole = run(mechanism, x).values
        other = changed(x, slice(None), mechanism.heads, info, "neighbours", scale=3.0)
        mixed = Inputs.joined([x.rows(slice(0, 1)), other.rows(slice(1, None))], 0)
        assert_identical(run(mechanism, mixed).values[0], whole[0], what="row 0 beside other neighbours")
        for row in range(3):
            single = run(mechanism, x.rows(slice(row, row + 1))).values
            assert_close(single[0], whole[row], tolerance=1e-10, what=f"row {row} alone")


@check()
def refusals(subject: Subject) -> None:
    """Whatever `info.supports` does not list raises UnsupportedError."""
    supports = subject.info.supports
    if not supports.causal:
        refused("causal=True", UnsupportedError, subject.fresh, True)
    if not supports.bidirectional:
        refused("causal=False", UnsupportedError, subject.fresh, False)
    if not subject.cls.compares_widths:
        refused("query_dim != key_dim", UnsupportedError, subject.fresh, subject.modes[0], query_dim=7)
    keep = torch.ones(2, LENGTH, dtype=torch.bool, device=here())
    for causal, mechanism, x in subject.cases(torch.float32):
        if not supports.key_mask:
            refused("key_mask", UnsupportedError, run, mechanism, x, key_mask=keep)
        if not supports.bias:
            curve = ScoreBias(high=LENGTH - 1, curve=torch.zeros(2, 2 * LENGTH - 1, device=here()))
            table = ScoreBias(table=torch.zeros(1, 1, LENGTH, LENGTH, device=here()))
            refused("bias", UnsupportedError, run, mechanism, x, bias=curve)
            refused("bias.table", UnsupportedError, run, mechanism, x, bias=table)
        if not supports.marks:
            refused("marks", UnsupportedError, run, mechanism, x, marks=keep.long())
        if not supports.state:
            refused("initial_state", UnsupportedError, start, mechanism, 2, torch.float32)
            refused("state_nbytes", UnsupportedError, mechanism.state_nbytes, 2, LENGTH, torch.float32)
        if not supports.dropout:
            refused("dropout", UnsupportedError, subject.fresh, causal, dropout=0.5)
        if causal and not supports.prefix:
            refused("leading keys", UnsupportedError, run, mechanism, x.queries(5))
        if not causal and not supports.cross:
            refused("keys of another sequence", UnsupportedError, run, mechanism, x.queries(5))
            if supports.state:
                state = start(subject.fresh(True) if supports.causal else mechanism, 2, torch.float32)
                refused("state with causal=False", UnsupportedError, run, mechanism, x, state=state)
        if not subject.info.mergeable:
            refused("lse", UnsupportedError, run, mechanism, x, lse=True)
            if causal:
                refused("keys that end before the queries", UnsupportedError, run, mechanism, x, query_start=2 * LENGTH)
        if not subject.info.inputs:
            unknown = {"no_such_input": torch.zeros(2, 2, LENGTH, 1, device=here())}
            refused("an unknown input", ShapeError, mechanism, x.q, x.k, x.v, inputs=unknown)


@check()
def length_limit(subject: Subject) -> None:
    """Where max_length is required, a longer sequence raises LimitError: in one call, its definition, with a state."""
    for causal in subject.modes:
        try:
            free = subject.fresh(causal, max_length=None)
        except ConfigError:
            free = None
        if free is not None:
            run(free, subject.inputs(free, queries=40))
            continue
        mechanism = subject.fresh(causal, max_length=LENGTH)
        x = subject.inputs(mechanism)
        run(mechanism, x)
        longer = subject.fresh(causal, max_length=LENGTH + 1)
        refused("one call", LimitError, run, mechanism, subject.inputs(longer, queries=LENGTH + 1))
        refused("the definition", LimitError, definition, mechanism, subject.inputs(longer, queries=LENGTH + 1))
        if causal and subject.info.supports.state:
            state = run(mechanism, x, state=start(mechanism, 2, torch.float32)).state
            refused("through a state", LimitError, run, mechanism, x.slots(0, 1), state=state)


@check()
def reads(subject: Subject) -> None:
    """Tensors that `info.reads` and `info.inputs` name matter; the others change nothing, not even a bit."""
    info = subject.info
    for causal in subject.modes:
        named, read = f"{info.reads=}, inputs {sorted(info.inputs)}", {*info.reads, *info.inputs}
        matter: set[str] = set()
        for mechanism, x in subject.growing(causal):
            first = run(mechanism, x).values
            renewed = changed(x, slice(None), mechanism.heads, info, "other")
            for name, y in x.named().items():
                if name in info.inputs:
                    other = x.replaced(**{name: renewed.more[name]})
                elif info.shares_query_key and name in "qk" and name in info.reads:
                    other = renewed.replaced(v=x.v, **x.more)
                else:
                    other = x.replaced(**{name: randn(*y.shape, seed=f"other {name}", dtype=y.dtype)})
                if not torch.equal(run(mechanism, other).values, first):
                    matter.add(name)
            if matter >= read:
                break
        require(matter <= read, f"{sorted(matter - read)} matter: {named}")
        require(read <= matter, f"{sorted(read - matter)} are ignored: {named}")


@check()
def odd_sizes(subject: Subject) -> None:
    """Any number of positions works and agrees with the definition: 1, 2, primes, more keys than queries or fewer."""
    supports = subject.info.supports
    for causal in subject.modes:
        mechanism = subject.build(causal, dtype=torch.float64)
        sizes = [(n, n) for n in (1, 2, 3, 5, 8, 17, 31)]
        if causal and supports.prefix:
            sizes += [(1, 2), (1, 17), (4, 5), (5, 31)]
        if not causal and supports.cross:
            sizes += [(1, 17), (17, 1), (5, 31), (31, 5)]
        for queries, keys in sizes:
            x = subject.inputs(mechanism, queries=queries, keys=keys, dtype=torch.float64)
            expected = definition(mechanism, x)
            what = f"{queries} queries, {keys} keys, {causal=}"
            assert_close(run(mechanism, x).values, expected, tolerance=1e-10, what=what)


@check()
def head_shapes(subject: Subject) -> None:
    """Any number of heads, and values wider or narrower than keys, agree with the definition."""
    for causal in subject.modes:
        for count, key_dim, value_dim in ((3, 4, 9), (1, 16, 1), (5, 2, None)):
            mechanism = subject.build(causal, dtype=torch.float64, count=count, key_dim=key_dim, value_dim=value_dim)
            x = subject.inputs(mechanism, dtype=torch.float64)
            # Many codes in few dimensions are nearer to each other than the precision in which one is chosen.
            replays = subject.info.selects and mechanism.impl != "reference"
            made = mechanism.decisions(x.q, x.k) if replays else None  # pyright: ignore[reportCallIssue]
            expected = definition(mechanism, x, decisions=made)
            what = f"{count} heads, keys of width {key_dim}, values of width {value_dim}, {causal=}"
            assert_close(run(mechanism, x).values, expected, tolerance=1e-10, what=what)


@check(("not stochastic", "determinism"))
def redraw(subject: Subject) -> None:
    """Drawing again changes what is random, from the given generator only, and the definition follows."""
    for causal in subject.modes:
        outputs = []
        drawn = subject.fresh(causal).double()
        first = run(drawn, subject.inputs(drawn, dtype=torch.float64)).values
        for global_seed in (1, 2):
            mechanism = subject.fresh(causal).double()
            x = subject.inputs(mechanism, dtype=torch.float64)
            torch.manual_seed(global_seed)
            before = _generators()
            mechanism.redraw(torch.Generator().manual_seed(5))
            require(_generators() == before, "redraw moved a global random generator")
            expected = definition(mechanism, x)
            outputs.append(run(mechanism, x).values)
            assert_close(outputs[-1], expected, tolerance=1e-10, what=f"after redraw, {causal=}")
        assert_identical(outputs[1], outputs[0], what="drawn again from the same generator")
        same = all(torch.equal(x, y) for x, y in zip(drawn.buffers(), mechanism.buffers(), strict=True))
        require(not (same and torch.equal(first, outputs[0])), f"redraw changed nothing, {causal=}")


@check()
def drawn_apart(subject: Subject) -> None:
    """What is drawn at build is drawn for each head, round and row apart: no two of them are the same."""
    for causal in subject.modes:
        built = subject.fresh(causal), subject.fresh(causal, seed=8)
        one, other = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in built)
        for name, x in one.items():
            if not x.is_floating_point() or torch.equal(x, other[name]):
                continue
            for axis, size in enumerate(x.shape):
                different = len(x.movedim(axis, 0).flatten(1).unique(dim=0)) if x.ndim > 1 else size
                require(different == size, f"{name} {tuple(x.shape)} has {different} different parts along axis {axis}")


@check()
def memory_layout(subject: Subject) -> None:
    """Inputs in any memory layout give the same values: transposed, strided, expanded."""
    for _, mechanism, x in subject.cases():
        expected = run(mechanism, x).values
        layouts = {
            "(batch, length, heads, dim)": x.map(lambda y: y.transpose(1, 2).contiguous().transpose(1, 2)),
            "dim outside length": x.map(lambda y: y.mT.contiguous().mT),
            "every other number": x.map(lambda y: y.repeat_interleave(2, -1)[..., ::2]),
        }
        for name, y in layouts.items():
            assert_close(run(mechanism, y).values, expected, tolerance=1e-12, what=name)
        first = x.rows(slice(0, 1))
        spread = first.map(lambda y: y.expand(3, -1, -1, -1))
        single = run(mechanism, first).values.expand(3, -1, -1, -1)
        assert_close(run(mechanism, spread).values, single, tolerance=1e-12, what="one row expanded to three")


@check()
def round_trip(subject: Subject) -> None:
    """state_dict through safetensors, deepcopy and a change of dtype keep the mechanism."""
    for causal, mechanism, x in subject.cases(torch.float32):
        expected = run(mechanism, x).values
        weights = {name: y.contiguous() for name, y in mechanism.state_dict().items()}
        twin = subject.fresh(causal, seed=99)
        twin.load_state_dict(load(save(weights)) if weights else {})
        assert_identical(run(twin, x).values, expected, what="state_dict loaded into a mechanism of another seed")
        assert_identical(run(copy.deepcopy(mechanism), x).values, expected, what="deepcopy")
        assert_identical(run(exact_copy(mechanism).float(), x).values, expected, what="to float64 and back")
        require(mechanism.heads == Heads(**vars(mechanism.heads)), "heads changed")
