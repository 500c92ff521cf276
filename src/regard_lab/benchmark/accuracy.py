"""How far mechanisms are from exact softmax: error, bias and variance of outputs and matrices over redraws."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard import specs
from regard.catalog import build, describe, names, outline, parts, resolve
from regard.core.attention import generator
from regard.core.errors import ConfigError, ResourceError, UnsupportedError
from regard.core.info import Heads, Info
from regard_lab.benchmark.decompose import LEAST_REDRAWS, decompose
from regard_lab.benchmark.recorded import recorded
from regard_lab.benchmark.resting import resting_inputs
from regard_lab.benchmark.vectors import Vectors, effective_keys

FORMAT = "regard accuracy 1"
EXACT = "softmax"
CONTROL_TOLERANCE = 1e-10
"""relative error of float64 that the control may show"""
MOST_ERROR_BYTES = 4 * 2**30
"""of the errors that are kept for one row of results"""
KNOB_VALUES: Mapping[str, tuple[int, ...]] = {
    "num_features": (16, 64, 256),
    "num_landmarks": (8, 16, 32, 64),
    "num_samples": (1, 4, 16, 64),
    "rank": (16, 64, 256),
    "num_codes": (16, 64, 256),
    "rounds": (1, 2, 4, 8),
}
"""knob -> the values that are tried where none are asked for; of any other, these shares of its default"""
DEFAULT_SHARES = (1 / 16, 1 / 4, 1)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class AccuracyConfig:
    """The mechanisms, knobs and redraws to measure.

    Args:
        specs: mechanisms; none: all that approximate softmax by their facts. One that names its knob, as
            `performer(num_features=64)` does, is measured at that value.
        knobs: option -> values; of others, `KNOB_VALUES`, or `DEFAULT_SHARES` of the default.
        redraws: seeds of everything random in a mechanism.
        seed: of the redraws.

    Raises:
        ConfigError: fewer than three redraws, or a knob without values.
    """

    specs: tuple[str, ...] = ()
    knobs: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    redraws: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if self.redraws < LEAST_REDRAWS:
            problems.append(f"redraws must be at least {LEAST_REDRAWS}, got {self.redraws}")
        problems += [f"the knob {knob} has no values" for knob, values in self.knobs.items() if not values]
        if problems:
            raise ConfigError("\n".join(problems))

    @property
    def chosen(self) -> tuple[str, ...]:
        """The mechanisms that are measured."""
        return self.specs or estimators()


@dataclass(frozen=True)
class _Setting:
    """A mechanism at one value of its knob; knob None: it has none, or the specification sets it."""

    spec: str
    info: Info
    knob: str | None
    value: int | None
    asked: bool

    def build(self, heads: Heads) -> Any:
        options = {} if self.knob is None or not self.asked else {self.knob: self.value}
        return build(self.spec, heads, **options).double().eval()


def estimators() -> tuple[str, ...]:
    """The mechanisms that approximate softmax, by their facts.

    Example:
        >>> "performer" in estimators(), "linear" in estimators()
        (True, False)
    """
    return tuple(name for name in names() if outline(name).approximates == EXACT)


def measure(config: AccuracyConfig, cases: Sequence[Vectors], *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Error, bias and variance of every mechanism on every case, over its knob, against exact softmax.

    Everything is computed in float64, so that what is seen is the approximation and not rounding. The attention matrix
    is read from the outputs for the identity as values, in the same call as the outputs for the real values. A control
    compares what is read from softmax with softmax written out; it must be 0 up to rounding.

    Args:
        config: the mechanisms, knobs and redraws.
        cases: the vectors to measure on.
        tell: called with lines about the progress.

    Returns:
        Plain data: `cases` (facts about the vectors), `rows` (case, mechanism, knob, the parts of the error of outputs
        and matrix, effective keys of a redraw), `skipped` (what was not measured, and why), `controls`.

    Raises:
        ConfigError: an unknown mechanism or option, or nothing that can be measured.
        ResourceError: more errors to keep than fit into 4 GiB.
    """
    begun = time.perf_counter()
    results: dict[str, list[Any]] = {"cases": [], "controls": [], "rows": [], "skipped": []}
    settings = {spec: list(_settings(spec, config)) for spec in config.chosen}
    used = {setting.knob for group in settings.values() for setting in group if setting.asked}
    if config.knobs.keys() - used:
        raise ConfigError(f"nothing here is measured over {', '.join(config.knobs.keys() - used)}; leave the knob out")
    for at, case in enumerate(cases):
        tell(f"{case.source}, {case.label}, {'causal' if case.causal else 'bidirectional'}, {case.q.shape[2]} tokens")
        results["cases"].append(case.facts())
        results["controls"].append(_control(case))
        for spec, group in settings.items():
            for setting in group:
                try:
                    row = _row(setting, case, config)
                except (UnsupportedError, ConfigError) as error:
                    if isinstance(error, ConfigError) and (not setting.asked or setting.knob in config.knobs):
                        raise
                    results["skipped"].append({"case": at, "spec": spec, "value": setting.value, "reason": str(error)})
                    continue
                results["rows"].append({"case": at, **row})
    if not results["rows"]:
        reasons = dict.fromkeys(one["reason"] for one in results["skipped"])
        raise ConfigError("\n".join(["nothing could be measured:", *reasons]))
    return recorded(FORMAT, config, begun, **results)


def _settings(spec: str, config: AccuracyConfig) -> Iterator[_Setting]:
    """A specification at every value of its knob: that of its facts, else one that is asked for, else a usual one."""
    info = describe(spec)
    if parts(spec) or specs.is_path(spec):
        yield _Setting(spec, info, None, None, asked=False)
        return
    cls, options = resolve(spec)
    known = cls.defaults
    usual = (name for name in KNOB_VALUES if known.get(name) is not None)  # None: it belongs to other options
    candidates = (info.knob,) if info.knob else (*config.knobs, *usual)
    knob = next((name for name in candidates if name in known), None)
    if knob is None or knob in options:
        fixed = options.get(knob or "")
        yield _Setting(spec, info, knob, fixed if isinstance(fixed, int) else None, asked=False)
        return
    values = config.knobs.get(knob) or KNOB_VALUES.get(knob)
    if values is None:
        if not isinstance(known[knob], int):
            raise ConfigError(f"{spec} has the knob {knob}, and there are no usual values of it; name some")
        values = tuple({max(int(share * known[knob]), 1) for share in DEFAULT_SHARES})
    for value in sorted(values):
        yield _Setting(spec, info, knob, value, asked=True)


def _row(setting: _Setting, case: Vectors, config: AccuracyConfig) -> dict[str, Any]:
    """One mechanism at one value on one case."""
    info = setting.info
    if info.shares_query_key:
        group = case.q.shape[1] // case.v.shape[1]
        case = replace(case, k=case.q, v=case.v.repeat_interleave(group, 1))
    affine = info.linear_in_value or info.affine_in_value
    target = info.approximates or EXACT
    length = case.q.shape[2]
    # each, and all in one tensor
    wanted = 2 * 8 * config.redraws * case.q.shape[1] * length * (length if affine else 0)
    if wanted > MOST_ERROR_BYTES:
        raise ResourceError(
            f"{config.redraws} redraws of {case.q.shape[1]} attention matrices of {length} tokens take "
            f"{wanted / 2**30:.1f} GiB, and {MOST_ERROR_BYTES / 2**30:.0f} are allowed; fewer redraws or "
            "shorter lengths"
        )
    exact = _read(build(target, _heads(case, 0, affine)).double().eval(), case, affine=affine)
    errors: list[tuple[Tensor, ...]] = []
    for at in range(config.redraws):
        seed = generator(config.seed, "redraw", at).initial_seed()
        estimate = _read(setting.build(_heads(case, seed, affine)), case, affine=affine)
        errors.append(tuple(got - expected for got, expected in zip(estimate, exact, strict=True)))
        if at == 1 and all(map(torch.equal, *errors)):
            errors.pop()  # nothing in it is random: one is all there is
            break
    row: dict[str, Any] = {
        "spec": setting.spec,
        "approximates": info.approximates,
        "against": target,
        "knob": setting.knob,
        "value": setting.value,
        "redraws": len(errors),
        "effective_keys": effective_keys(exact[1] + errors[0][1]) if affine else None,
        "matrix": None,
    }
    for name, expected, *drawn in zip(("output", "matrix"), exact, *errors, strict=False):
        stacked = torch.stack([error.flatten() for error in drawn])
        row[name] = asdict(decompose(stacked, expected.square().sum().item()))
    return row


def _heads(case: Vectors, seed: int, affine: bool) -> Heads:
    """The heads that serve a case; `affine`: with room for the identity beside the values."""
    length = case.q.shape[2]
    return Heads(
        count=case.q.shape[1],
        key_dim=case.q.shape[3],
        value_dim=case.v.shape[3] + (length if affine else 0),
        kv_count=case.k.shape[1],
        causal=case.causal,
        max_length=length,
        seed=seed,
    )


@torch.no_grad()
def _read(mechanism: Any, case: Vectors, *, affine: bool) -> tuple[Tensor, ...]:
    """The output, and the attention matrix where the output is affine in the values: that for the identity beside them.

    As `regard.weights`, in one call, so that features and samples are computed once.
    """
    inputs = resting_inputs(mechanism, case.q, case.k)
    if not affine:
        return (mechanism(case.q, case.k, case.v, inputs=inputs).values,)
    width, length = case.v.shape[3], case.q.shape[2]
    identity = torch.eye(length, dtype=case.v.dtype).expand(*case.v.shape[:2], length, length)
    v = torch.cat([case.v, identity], -1)
    both = mechanism(case.q, case.k, v, inputs=inputs).values
    output, matrix = both[..., :width], both[..., width:]
    if not mechanism.info.linear_in_value:
        matrix = matrix - mechanism(case.q, case.k, torch.zeros_like(v), inputs=inputs).values[..., width:]
    return output, matrix


def _control(case: Vectors) -> dict[str, Any]:
    """The relative errors of exact attention, as it is read, against softmax written out."""
    output, matrix = _read(build(EXACT, _heads(case, 0, affine=True)).double().eval(), case, affine=True)
    weights = case.logits.softmax(-1)
    written = weights @ case.v.repeat_interleave(case.q.shape[1] // case.v.shape[1], 1)
    worst = max(
        ((got - expected).norm() / expected.norm()).item() for got, expected in ((output, written), (matrix, weights))
    )
    return {
        "title": f"{EXACT} against itself: {case.source}, {case.label}",
        "expected": 0.0,
        "tolerance": CONTROL_TOLERANCE,
        "value": worst,
        "reached": worst <= CONTROL_TOLERANCE,
    }
