"""What every version of the dependencies must do: packages are imported, each mechanism is built and computes."""

import importlib
from pathlib import Path

import pytest
import torch

import regard
from regard import catalog

LENGTH = 32


@pytest.mark.parametrize("name", sorted(catalog.names()))
def test_every_mechanism_is_built_and_has_gradients(name):
    cls, _ = catalog.resolve(name)
    given = dict(cls.samples[0]) if cls.samples else {}
    causal = cls.describe(given).supports.causal
    mechanism = cls(regard.Heads(count=2, key_dim=16, causal=causal, max_length=LENGTH), **given)
    q, k, v = torch.randn(3, 1, 2, LENGTH, 16, generator=torch.Generator().manual_seed(0))
    inputs = {}
    for key, each in mechanism.info.inputs.items():
        count, width = each.shape(mechanism.heads)
        inputs[key] = torch.zeros(1, count, LENGTH, width).clamp(each.low, each.high)
    v.requires_grad_()
    k = q if mechanism.info.shares_query_key else k
    out = mechanism(q, k, v, inputs=inputs).values
    assert out.shape[-2] == LENGTH
    assert out.isfinite().all()
    out.square().sum().backward()
    assert v.grad is not None
    assert v.grad.isfinite().all()
    assert v.grad.any()


def test_every_package_is_imported():
    for path in sorted(Path(regard.__file__).parent.glob("*/__init__.py")):
        importlib.import_module(f"regard.{path.parent.name}")


def test_a_mechanism_passes_its_suite():
    assert not any(result.status == "failed" for result in regard.check("linear"))
