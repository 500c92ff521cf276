"""NaN in a later value: the docs say which mechanisms keep it from earlier queries, and that torch does not."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import catalog
from regard.testing.inputs import Subject, draw, run

CONCEPTS = Path(__file__).parents[1] / "docs" / "concepts.md"
LATER = 37
"""of 40 slots"""


def reaches_earlier_queries(subject):
    mechanism = subject.build(True, max_length=64)
    x = draw(mechanism.heads, subject.info, 40, 40, 1, "later")
    v = x.v.clone()
    v[:, :, LATER] = float("nan")
    return bool(run(mechanism, x.replaced(v=v)).values[:, :, :LATER].isnan().any())


def test_the_docs_name_those_that_keep_it_out():
    text = " ".join(CONCEPTS.read_text(encoding="utf-8").split())
    said = re.search(r"Every causal mechanism does, except (.*?);", text)
    firsts = [Subject(cls, cls.samples[0]) for cls, _ in map(catalog.resolve, catalog.names())]
    causal = [subject for subject in firsts if True in subject.modes]
    kept = {subject.info.title for subject in causal if not reaches_earlier_queries(subject)}
    assert kept == {catalog.resolve(name)[0].default_info.title for name in re.findall("`(.*?)`", said.group(1))}


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_torch_does_not(backend):
    q, k, v = torch.randn(3, 1, 2, 40, 8)
    v[:, :, LATER] = float("nan")
    with sdpa_kernel(backend):
        values = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert values[:, :, :LATER].isnan().any()
