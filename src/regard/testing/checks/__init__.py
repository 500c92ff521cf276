"""The suite: every promise of a mechanism is tested, and everything that it does not promise must be refused."""

from collections.abc import Iterable, Mapping, Sequence

from regard import catalog
from regard.catalog import parts, resolve
from regard.core.attention import Attention
from regard.core.errors import ConfigError, RegardError, nearest
from regard.core.types_of import typed
from regard.engines.kernels import forced, forced_engine
from regard.files import consent
from regard.testing.checks import (  # noqa: F401 - each module enters its checks into the suite, in this order
    basic,
    bias,
    causal,
    compilation,
    configuration,
    cost,
    gradient,
    inputs,
    marks,
    mask,
    merge,
    misfits,
    nan,
    pattern,
    precision,
    rewind,
    state,
    transforms,
    weights,
)
from regard.testing.inputs import Subject, on
from regard.testing.registry import REGISTERED, Check, CheckResult, conduct

CHECKS: dict[str, Check] = {name: each for name, each in REGISTERED.items() if issubclass(each.kind, Attention)}
"""Every check of mechanisms by name, in the order in which they run."""
ENGINES = ("", "tiles", "chunks")
"""forced for one option set after the other: engines of long calls, in the short calls of the checks"""


@typed
def check_attention(
    mechanism: type[Attention] | str,
    *,
    options: Sequence[Mapping[str, object]] | None = None,
    checks: Iterable[str] | None = None,
    stop_at_failure: bool = False,
    device: str = "cpu",
) -> list[CheckResult]:
    """Run the conformance suite over a mechanism.

    Args:
        mechanism: a class, or a specification such as `local(window=3)` or `module:Class`.
        options: the option sets to check; None: those of the specification, else the mechanism's `samples`.
        checks: names of checks to run; None: all of `CHECKS`.
        stop_at_failure: stop after the first failed check.
        device: where it runs, such as "cuda"; what is drawn is the same everywhere.

    Returns:
        One result per check and option set. A check is excused only by a fact in the mechanism's own `info`, or by its
        template where it is about one, and the result names the check that ran in its place.

    Raises:
        ConfigError: an unknown mechanism, option or check; a mix over heads; a class of your module that cannot be
            built, with the lines that fail.

    Example:
        >>> {result.status for result in check_attention("softmax", checks=["causality", "key_mask"])}
        {'passed'}
    """
    if isinstance(mechanism, str):
        mixed = [inner for inner, _ in parts(mechanism)]
        if mixed:
            raise ConfigError(f"a mix over heads is checked by its parts: {', '.join(dict.fromkeys(mixed))}")
        cls, settings = resolve(mechanism)
        options = [settings] if options is None and settings else options
    else:
        cls = catalog.mechanism(mechanism, getattr(mechanism, "__name__", repr(mechanism)))
    wanted = named(CHECKS, checks)
    results: list[CheckResult] = []
    with on(device):
        for at, chosen in enumerate(cls.samples if options is None else options):
            subject = Subject(cls, chosen)
            _require_built(subject)
            for each in wanted:
                if each.once and at > 0:
                    continue
                with forced(forced_engine() or ENGINES[at % len(ENGINES)]):
                    results.append(conduct(each, subject))
                if stop_at_failure and results[-1].status == "failed":
                    return results
    return results


def _require_built(subject: Subject) -> None:
    """Refuse a class that its own code does not let be built: no check says more than its first line that fails."""
    try:
        for causal in subject.modes:
            subject.fresh(causal)
    except RegardError:
        return  # the checks say what that means
    except Exception as error:
        fault = consent.fault(error)
        if fault is not None:
            raise fault from error


def named(among: Mapping[str, Check], names: Iterable[str] | None) -> list[Check]:
    """The checks of these names; None: all."""
    if isinstance(names, str | bytes):
        raise ConfigError(f"checks is a list of names; write checks=[{names!r}]")
    wanted = list(among) if names is None else list(names)
    for name in wanted:
        if str(name) not in among:
            raise ConfigError(f"unknown check {name!r}: {nearest(str(name), among)}")
    return [among[name] for name in wanted]
