"""Shape annotations are checked while the tests run; production code pays nothing.

`regard.core.attention`, `regard.core.bias`, `regard.functional` and most of `regard.models` are left out: they check
shapes themselves, at run time and with errors that say the way out, and the tests look at those errors.
"""

import os
import signal
import stat
from collections.abc import Callable

import jaxtyping
import pytest
import torch

import tests.shapes

CHECKED = ["regard.layer", "regard.position", "regard.memory", "regard.features"]
CHECKED += ["regard.patterns.pattern", "regard.patterns.picks"]  # not intervals, whose Self the hook cannot follow
CHECKED += [
    "regard.models.blocks",
    "regard.models.sampling",
    "regard_lab.training.evaluation",
    "regard_lab.training.batches",
]
jaxtyping.jaxtyped = tests.shapes.some_calls  # what the hook decorates with
hook = jaxtyping.install_import_hook(CHECKED, "tests.shapes.checked")
torch.set_num_threads(1)
# A shell that runs the tests in the background lets them ignore it, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def at_file(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` with the size of every file just before it is forced to disk."""
    force = os.fsync

    def forced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            act(found.st_size)
        force(descriptor)

    monkeypatch.setattr(os, "fsync", forced)
