"""Triton kernels that are broken on purpose, in Triton's interpreter: each must give a wrong number, not a crash."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: make external")

from regard.engines import gpu
from regard.engines.gpu import _linear_triton_passes
from regard.engines.gpu._interpreter import INTERPRETED

if not INTERPRETED:
    pytest.skip("TRITON_INTERPRET is not 1", allow_module_level=True)

from tests.external.test_triton import errors

pytestmark = pytest.mark.external
SOURCE = Path(_linear_triton_passes.__file__)
SHAPE = (4, 2, 70, 20, 17)
"""grouped heads, two chunks, odd sizes"""
VALUES, TOTAL, END, OF_QUERY, OF_KEY, OF_VALUE, OF_START = range(7)
MUTANTS = {
    "the future leaks by one": ("at[:, None] >= at[None]", "at[:, None] + 1 >= at[None]", VALUES),
    "no query sees its own key": ("at[:, None] >= at[None]", "at[:, None] > at[None]", VALUES),
    "the past of a chunk is left out": ("y += _product(query, s.to(query.dtype), wide)", "y += 0.0 * y", VALUES),
    "the normaliser has no past": ("total += tl.sum(query.to(wide) * z[None], 1)", "total += 0.0 * total", TOTAL),
    "the sums of keys are halved": ("z += tl.sum(key.to(wide), 0)", "z += 0.5 * tl.sum(key.to(wide), 0)", END),
    "gradient: no slope of the normaliser in queries": (
        "of_query = slopes[:, None] * z[None]",
        "of_query = 0.0 * slopes[:, None] * z[None]",
        OF_QUERY,
    ),
    "gradient: keys get nothing from later chunks": (
        "of_key = tl.zeros((size, wide_f), wide) + dz[None]",
        "of_key = tl.zeros((size, wide_f), wide)",
        OF_KEY,
    ),
    "gradient: values get nothing from later chunks": (
        "gradient += _product(key, _sum",
        "gradient += 0.0 * _product(key, _sum",
        OF_VALUE,
    ),
    "gradient: the start gets one head of a group": (
        "z += tl.sum(query.to(wide) * slopes[:, None], 0)",
        "z += tl.sum(query.to(wide) * slopes[:, None], 0) / group",
        OF_START,
    ),
}


def with_kernels(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The errors of kernels of another source, which Triton reads from a file."""
    path = tmp_path / "kernels.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernels", path)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    monkeypatch.setattr(gpu, "_linear_triton_passes", kernels)
    return errors(SHAPE, torch.float64, normalise=True)


def test_the_kernels_themselves_pass(tmp_path, monkeypatch):
    assert max(with_kernels(SOURCE.read_text(encoding="utf-8"), tmp_path, monkeypatch)) < 1e-13


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_kernel_gives_a_wrong_number(name, tmp_path, monkeypatch):
    old, new, where = MUTANTS[name]
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(old) == 1
    wrong = with_kernels(source.replace(old, new), tmp_path, monkeypatch)
    assert all(map(math.isfinite, wrong))
    assert wrong[where] > 1e-6
