"""Mechanisms and models go to other processes and come back: by pickle and `torch.save`."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard import catalog, patterns
from regard.core.errors import UnsupportedError
from regard.core.info import Heads
from regard.models import LanguageModel, ModelConfig
from regard.patterns import Pattern, causal, disjoint, everything, first, per_head, random_blocks, window

HEADS = Heads(count=2, key_dim=8, causal=True)

READ = """
import pickle, sys
from pathlib import Path
import torch

folder = Path(sys.argv[1])
torch.set_grad_enabled(False)  # as where it was written: torch takes another kernel where logits need a gradient
for path in sorted(folder.glob("*.pickle")):
    mechanism, arguments, expected = pickle.loads(path.read_bytes())
    values = mechanism(**arguments).values
    assert torch.equal(values, expected), (path.stem, float((values - expected).abs().max()))
    copied = pickle.loads(pickle.dumps(mechanism))
    assert torch.equal(copied(**arguments).values, expected), path.stem
print(len(list(folder.glob("*.pickle"))))
"""

FORMULAS = """
from typing import final
import torch
from regard.attention.dense import Dense, reference_softmax, inner_products
from regard.engines.dense import Rule, publish, softmax
from regard.core.info import Info, Supports

def far(i, j):
    return (i - j) % 3 == 0

def squared(q, k):
    return (q @ k.mT).square()

class Bilinear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(64.0).reshape(8, 8) / 64)

    def forward(self, q, k):
        return q @ self.weight @ k.mT

@final
class SoftCap(Dense):
    default_info = Info(title="Cap", source="none", supports=Supports.all(but=("marks",)), state="length")
    cap: float = 2.0

    def setup(self):
        cap = self.cap
        self.rule = publish(f"cap({cap})", Rule(lambda q, k: cap * torch.tanh(q @ k.mT / cap), softmax))

    def reference(self, q, k, v, call):
        return reference_softmax(self.cap * torch.tanh(inner_products(q, k) / self.cap), v, call)
"""


def arguments(mechanism: regard.Attention) -> dict[str, object]:
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=draw)
    inputs = {}
    for name, each in mechanism.raw_inputs.items():
        heads, width = each.shape(mechanism.heads)
        inputs[name] = torch.rand(1, heads, 9, width, generator=draw)
    given = {"q": k if mechanism.info.shares_query_key else q, "k": k, "v": v}
    return {**given, "inputs": mechanism.activate(inputs)} if inputs else given


def written(folder: Path, name: str, mechanism: regard.Attention) -> None:
    mechanism.eval()
    given = arguments(mechanism)
    with torch.no_grad():
        expected = mechanism(**given).values
    (folder / f"{name}.pickle").write_bytes(pickle.dumps((mechanism, given, expected)))


def read_elsewhere(folder: Path) -> int:
    """Read everything in a new process, which knows nothing but where modules are."""
    places = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder)],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture
def formulas(tmp_path, monkeypatch):
    (tmp_path / "my_formulas.py").write_text(FORMULAS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_formulas  # type: ignore[import-not-found]

    yield my_formulas
    del sys.modules["my_formulas"]


def test_every_mechanism_is_the_same_in_a_new_process(tmp_path):
    count = 0
    for name in regard.names():
        cls, _ = catalog.resolve(name)
        for at, options in enumerate(cls.samples):
            info = cls.describe(options)
            heads = Heads(count=2, key_dim=8, causal=info.supports.causal, max_length=16)
            written(tmp_path, f"{name}-{at}", cls(heads, **options))
            count += 1
    assert read_elsewhere(tmp_path) == count


def test_what_a_user_wrote_is_the_same_in_a_new_process(tmp_path, formulas):
    written(tmp_path, "capped", formulas.SoftCap(HEADS, cap=1.5))
    for name, function in (("squared", formulas.squared), ("module", formulas.Bilinear())):
        written(tmp_path, name, regard.build("score", HEADS, function=function))
    for name, rule in (
        ("function", formulas.far),
        ("pattern", Pattern(formulas.far, distances=(0, 30))),
        ("joined", window(2) | Pattern(formulas.far)),
        ("heads", per_head(Pattern(formulas.far), ~window(3))),
        ("random", random_blocks(2, torch.tensor([[0], [1], [0], [2], [1]]))),
    ):
        written(tmp_path, name, regard.build("pattern", HEADS, rule=rule))
    written(tmp_path, "mix", regard.build("local(window=2):1 + graph:1", HEADS))
    assert read_elsewhere(tmp_path) == 9


def test_a_rule_of_another_process_is_not_taken_for_one_of_this(formulas):
    """Names that hold an address may be those of another formula here."""
    from regard.engines.dense import chunks

    mechanism = regard.build("score", HEADS, function=formulas.squared).eval()
    given = arguments(mechanism)
    expected = mechanism(**given).values
    data = pickle.dumps(mechanism)
    chunks.RULES[mechanism.rule] = chunks.Rule(lambda q, k: 0 * (q @ k.mT), chunks.softmax)
    assert torch.equal(pickle.loads(data)(**given).values, expected)


def test_a_copy_inside_a_process_shares_the_rule(formulas):
    mechanism = regard.build("score", HEADS, function=lambda q, k: q @ k.mT)
    assert copy.deepcopy(mechanism).rule == mechanism.rule
    local = regard.build("pattern", HEADS, rule=lambda i, j: i - j < 3).eval()
    given = arguments(local)
    assert torch.equal(copy.deepcopy(local)(**given).values, local(**given).values)


@pytest.mark.parametrize(
    "pattern",
    [
        everything,
        causal,
        window(3),
        causal & (window(1) | first(2)),
        ~window(2),
        per_head(window(1), causal & first(3)),
        disjoint(window(1), first(1) & ~window(1)),
        per_head(window(1), first(2)) & causal,
        patterns.dilated(2, 3) | patterns.summary(4, 1, 1) | patterns.block(3, 1) | patterns.strided(5),
    ],
    ids=str,
)
def test_a_pattern_comes_back(pattern):
    found = pickle.loads(pickle.dumps(pattern))
    assert found == pattern
    for fact in ("distances", "anchored", "heads", "sign", "order", "text"):
        assert getattr(found, fact) == getattr(pattern, fact)
    at = torch.arange(12)
    assert torch.equal(found.mask(at, at), pattern.mask(at, at))


def test_a_pattern_of_a_function_keeps_what_is_known_of_it(formulas):
    for text in (None, "every third"):
        order = patterns.Residues(3)
        pattern = Pattern(formulas.far, text, distances=(-9, 9), anchored=False, order=order)
        found = pickle.loads(pickle.dumps(pattern))
        assert (found.rule, found.distances, found.anchored, found.order) == (formulas.far, (-9, 9), False, order)
        assert found.text == text or text is None
    one, two = pickle.loads(pickle.dumps((pattern, pattern)))
    assert one is two


def test_functions_that_no_other_process_finds_are_refused():
    for rule in (lambda i, j: i >= j, Pattern(lambda i, j: i >= j)):
        with pytest.raises((UnsupportedError, AttributeError, pickle.PicklingError), match="lambda"):
            pickle.dumps(regard.build("pattern", HEADS, rule=rule))
    with pytest.raises(UnsupportedError, match="only what stands at the top of a module"):
        pickle.dumps(window(1) | Pattern(lambda i, j: i >= j))
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(regard.build("score", HEADS, function=lambda q, k: q @ k.mT))


CONFIG = ModelConfig(dim=16, heads=2, vocab_size=9, layers=2, attention=("local(window=2)", "sigmoid"))
TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])


def logits(model: LanguageModel) -> Tensor:
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def test_a_whole_model_is_saved_and_loaded_elsewhere(tmp_path):
    model = LanguageModel(CONFIG)
    torch.save((model, TOKENS, logits(model)), tmp_path / "model.pt")
    code = """
    import sys, torch
    model, tokens, logits = torch.load(sys.argv[1], weights_only=False)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, logits)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "model.pt")], check=True)
