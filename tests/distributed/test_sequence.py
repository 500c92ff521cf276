"""Processes that share the positions of sequences: what each has is what the whole gives; what they send is counted."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from regard import Heads, build
from regard.core.errors import ConfigError, RegardError, UnsupportedError
from regard.distributed.group import Group
from regard.distributed.sequence import way_of
from regard.distributed.sequence.balance import Blocks, balanced, contiguous
from regard.distributed.sequence.context import require
from regard.distributed.sequence.ring import Again
from regard.layer import AttentionLayer
from regard.models import Classifier, Encoder, EncoderConfig, LanguageModel, MaskedLanguageModel
from regard.models.config import ModelConfig
from regard.models.neighbours import NeighbourTokens
from regard_lab.distributed import SequenceParts
from regard_lab.tasks import RecallConfig
from regard_lab.training import RunConfig, TrainingConfig, checkpoint, toml
from regard_lab.training.batches import Batch
from regard_lab.training.beside import alone
from regard_lab.training.new_run import made
from tests.mutants.edited_sequence import SEQUENCE

PROGRAM = Path(__file__).with_name("sequence_parts.py")


def run(folder: Path, *jobs: str) -> None:
    words = [sys.executable, str(PROGRAM), str(folder), *jobs]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr


def found(folder: Path, job: str, scenario: str) -> list[dict]:
    """What each process of a job found."""
    codes = json.loads((folder / job / "codes.json").read_text())
    said = [(folder / job / f"{rank}.txt").read_text()[-500:] for rank in range(len(codes))]
    assert codes == [0] * len(codes), said
    return [json.loads((folder / job / f"{scenario} {rank}.json").read_text()) for rank in range(len(codes))]


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """What the processes of every job found; torch is imported once for all of them."""
    folder = tmp_path_factory.mktemp("compared")
    run(folder, "one", "three", "four")
    return folder


def differences(each: dict) -> dict[str, float]:
    return {key: value for key, value in each.items() if key not in ("way", "why", "numbers")}


@pytest.mark.processes
def test_every_mechanism_that_can_gives_what_the_whole_gives(compared):
    """Values and gradients of q, k, v, inputs and weights, with hidden keys too, in parts of unequal length."""
    ways: dict[str, set[str]] = {}
    for each in found(compared, "three", "mechanisms"):
        for name, case in each.items():
            ways.setdefault(case["way"], set()).add(name.partition("(")[0])
            if case["way"] != "refused":
                assert max(differences(case).values()) < 1e-12, (name, case)
                assert {"values", "gradient of v"} <= case.keys()
    assert {"softmax", "cosine", "bilinear", "forgetting", "strided_union", "pattern"} <= ways["ring"]
    assert {"local", "fixed", "image_local_2d", "adaptive_span", "dynamic_span", "strided"} <= ways["window"]
    assert {"linear", "efficient", "uniform"} <= ways["sums"]
    assert {"performer", "rfa", "local_linear", "mixed_chunk", "vector_quantized", "longformer"} <= ways["passed"]
    assert ways["around"] == {"local"}
    assert {"additive", "lsh", "linformer", "etc"} <= ways["refused"]


@pytest.mark.processes
def test_layers_give_what_the_whole_gives(compared):
    """Positions of every kind, grouped heads, mixes over heads, padding; what every process has joins to the whole."""
    for each in found(compared, "four", "layers"):
        for name, case in each.items():
            assert max(case.values()) < 1e-12, (name, case)


@pytest.mark.processes
@pytest.mark.parametrize(("job", "scenario"), [("three", "in_threes"), ("four", "in_pairs")])
def test_every_step_is_that_of_one_process(compared, job, scenario):
    """In float64, with accumulation; codebooks, features that are drawn again, recomputed blocks; both directions."""
    (alone,) = found(compared, "one", "alone")
    several = found(compared, job, scenario)
    for name, expected in alone.items():
        for curve in ("losses", "norms", "valid"):
            assert several[0][name][curve] == pytest.approx(expected[curve], rel=1e-9), (name, curve)
        for key, values in expected["tensors"].items():
            assert several[0][name]["tensors"][key] == pytest.approx(values, rel=1e-7, abs=1e-9), (name, key)
        assert all(each[name]["tensors"] == several[0][name]["tensors"] for each in several), name
        assert expected["losses"][-1] != pytest.approx(expected["losses"][0], rel=1e-3), "nothing was learned"


@pytest.mark.parametrize(("length", "count"), [(64, 2), (96, 3), (61, 3), (1000, 8)])
def test_a_balanced_ring_has_as_many_pairs_in_every_process(length, count):
    """Of a query and a key that it sees; in contiguous parts the last process has almost twice the mean."""
    bounds = [n * length // count for n in range(count + 1)]
    mean = length * (length + 1) / 2 / count

    def most(blocks: Blocks) -> float:
        assert sorted(at for each in blocks for block in each for at in block) == list(range(length))
        return max(sum(at + 1 for block in each for at in block) for each in blocks) / mean

    assert most(balanced(bounds)) < 1 + 2 * count / length
    assert most(contiguous(bounds)) > 2 - 1.5 / count


@pytest.mark.processes
def test_what_is_sent_grows_with_the_length_in_a_ring_alone(compared):
    """Forward and backward, at 96 and at 384 positions among 4 processes: batch 2, 2 heads, keys of 4, values of 3."""
    everyone = found(compared, "four", "counted")
    for each in everyone:
        for name, (short, short_back, long, long_back) in each.items():
            if name == "softmax":
                assert (long, long_back) == (4 * short, 4 * short_back)
            elif name.startswith("fixed"):  # whose summary columns every later query sees
                assert long + long_back < (each["softmax"][2] + each["softmax"][3]) / 3
            else:
                assert (long, long_back) == (short, short_back), name
    first, last = everyone[0], everyone[-1]
    of_half = 2 * 2 * 12 * (4 + 4 + 3 + 3)  # queries, keys and values there, values back
    assert first["softmax"][0] == 2 * 2 * 24 * 3 * (4 + 3) + of_half
    assert first["local(window=8)"] == 2 * [2 * 2 * 8 * (4 + 3), 0]
    assert last["local(window=8)"] == 2 * [0, 2 * 2 * 8 * (4 + 3)]
    assert first["linear"] == 2 * [3 * 2 * 2 * 4 * (3 + 1), 0]


def test_what_sets_of_processes_cannot_share_is_refused_with_what_they_can():
    ranks = SequenceParts(Group(1, 4, dist.HashStore()), 2)
    fits = TrainingConfig(batch_size=8, accumulation=2)
    ranks.require(fits)
    with pytest.raises(ConfigError, match=r"gives 3 examples to 2 sets of 2 processes, .*; use training.batch_size=4"):
        ranks.require(replace(fits, batch_size=6))
    with pytest.raises(UnsupportedError, match=r"training\.carry"):
        ranks.require(replace(fits, carry=True))
    with pytest.raises(UnsupportedError, match=r"training.compile does not go with --parallel.sequence"):
        ranks.require(replace(fits, compile=True))
    with pytest.raises(ConfigError, match=r"--parallel.sequence 3 does not divide 4 processes; start 3 of them"):
        SequenceParts(Group(1, 4, dist.HashStore()), 3)
    assert [ranks.share(range(8)), ranks.number] == [range(4), 0]


@pytest.mark.parametrize(
    ("model", "training", "said"),
    [
        ({"memory": "recent(length=4)", "max_length": 8}, {}, "this model has a memory; leave it out"),
        ({}, {"batch_size": 3}, "gives 3 examples to 2 sets of 2 processes"),
        ({}, {"only": ("blocks.0",)}, "several processes have not been taught to share"),
    ],
)
def test_what_processes_cannot_share_leaves_no_run(tmp_path, model, training, said):
    """Its name is free for the command that is right."""
    shape = ModelConfig(**{"dim": 16, "heads": 2, "layers": 1, "max_length": 18, "position": "rotary"} | model)
    config = RunConfig(shape, RecallConfig(num_examples=50), TrainingConfig(**{"batch_size": 8} | training))
    with pytest.raises(RegardError, match=re.escape(said)):
        made(config, tmp_path / "run", None, alone, SequenceParts(Group(0, 4, dist.HashStore()), 2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_dropout_has_the_gradient_of_what_was_dropped(compared):
    for each in found(compared, "four", "dropped"):
        for name, (slope, differences) in each.items():
            assert slope == pytest.approx(differences, rel=1e-6), name


@pytest.mark.processes
@pytest.mark.parametrize("mutant", SEQUENCE, ids=lambda mutant: mutant.name)
def test_a_fault_shows(compared, mutant):
    """A change of a line, by which some process is no longer near the whole."""
    cases = [case for each in found(compared, "three", "mutants") for case in each[mutant.name].values()]
    assert max(value for case in cases for value in differences(case).values()) > 1e-6


def short(folder: Path) -> str:
    """A configuration of four steps, and its path."""
    values = RunConfig(
        model=ModelConfig(dim=16, heads=2, layers=1, dropout=0.1, vocab_size=16, max_length=16),
        task=RecallConfig(vocab_size=16, length=16, num_pairs=2, num_examples=21, num_held_out=5),
        training=TrainingConfig(
            steps=4, batch_size=4, warmup=1, log_every=2, evaluate_every=4, checkpoint_every=2, threads=1
        ),
    )
    toml.save(values, folder / "config.toml")
    return str(folder / "config.toml")


@pytest.mark.processes
def test_a_signal_to_one_during_evaluation_stops_all(tmp_path):
    run(tmp_path, f"interrupted={short(tmp_path)}")
    folder = tmp_path / "interrupted"
    assert json.loads((folder / "codes.json").read_text()) == [143, 143]
    assert checkpoint.step_of(checkpoint.paths(folder / "run" / "checkpoints")[-1]) == 4


@pytest.mark.parametrize(
    ("spec", "causal", "reason"),
    [
        ("additive", True, "its state grows with the length"),
        ("lsh", True, "its state grows with the length"),
        ("softmax(impl=reference)", True, "keeps every key"),
        ("linformer(rank=4)", False, "no softmax whose parts merge"),
        ("performer", False, "no state that adds up"),
        ("softmax:1 + additive:1", True, "additive cannot share a sequence"),
    ],
)
def test_mechanisms_without_an_exchange_are_refused_by_name(spec, causal, reason):
    with pytest.raises(UnsupportedError, match=reason):
        way_of(build(spec, Heads(count=2, key_dim=8, causal=causal, max_length=32)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"short_convolution": 3}, "a convolution over its tokens"),
        ({"depth": "universal(steps=2)"}, "a depth that its tokens decide"),
        ({"memory": "recent(length=8)"}, "a memory"),
        ({"neighbours": 2}, "neighbours that a search gives"),
        ({"attention": ("local(window=4)", "gaussian")}, "gaussian cannot share a sequence"),
    ],
)
def test_models_that_mix_tokens_elsewhere_are_refused(options, reason):
    with pytest.raises(UnsupportedError, match=reason):
        require(LanguageModel(ModelConfig(dim=16, heads=2, layers=2, vocab_size=16, max_length=16, **options)))


def test_models_that_pool_or_cross_are_refused():
    shape = EncoderConfig(dim=16, heads=2, layers=1, vocab_size=16, max_length=16)
    with pytest.raises(UnsupportedError, match="Classifier reads or pools"):
        require(Classifier(Encoder(shape), classes=2))
    with pytest.raises(UnsupportedError, match="attention to another sequence"):
        require(AttentionLayer(16, "softmax", heads=2, context_dim=16))
    with pytest.raises(UnsupportedError, match="a token in front of every sequence"):
        require(MaskedLanguageModel(Encoder(replace(shape, cls_token=True))))
    with pytest.raises(UnsupportedError, match="rows of their own for global tokens"):
        require(AttentionLayer(16, "longformer(window=4)", heads=2, causal=False, projections="global"))


def test_a_model_whose_cache_is_reduced_is_refused_until_it_is_whole_again():
    model = LanguageModel(ModelConfig(dim=16, heads=2, layers=1, vocab_size=16, max_length=16)).eval()
    model.reduce_cache("h2o(budget=4)")
    with pytest.raises(UnsupportedError, match="a cache policy"):
        require(model)
    model.reduce_cache(None)
    require(model)


@pytest.mark.parametrize("given", ["source", "neighbours", "targets"])
def test_a_batch_that_is_no_sequence_with_a_target_for_each_position_is_refused(given):
    """Each of the three by itself, before anything is cut."""
    tokens = torch.zeros(2, 6, dtype=torch.int64)
    batch = Batch([0, 1], tokens, tokens, None, [0, 1], [6, 6])
    ranks = object.__new__(SequenceParts)
    ranks.parts = object()  # type: ignore[assignment]
    other = {
        "source": tokens,
        "neighbours": NeighbourTokens(tokens[..., None], tokens[..., None].double()),
        "targets": tokens[:, :1],
    }
    with pytest.raises(UnsupportedError, match="with a target for each position"):
        ranks.cut(replace(batch, **{given: other[given]}))


@pytest.mark.parametrize("rank", [0, 1])
def test_all_that_stands_at_a_position_is_cut(rank):
    """Bytes are of the whole example, and count once."""

    class Part:
        def __init__(self) -> None:
            self.rank = rank

        def cut(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, 2:5]

    ranks = object.__new__(SequenceParts)
    ranks.parts = Part()  # type: ignore[assignment]
    x = torch.arange(14).view(2, 7)
    whole = Batch([3, 4], x, x + 1, x % 2 == 0, [0, 1], [8, 9], marks=x + 2, contents=x + 3)
    cut = ranks.cut(whole)
    for name in ("inputs", "targets", "key_mask", "marks", "contents"):
        assert torch.equal(getattr(cut, name), getattr(whole, name)[:, 2:5]), name
    assert (cut.ids, cut.documents, cut.nbytes) == ([3, 4], [0, 1], [0, 0] if rank else [8, 9])
    bare = ranks.cut(Batch([3], x[:1], x[:1], None, [0], [8]))
    assert (bare.key_mask, bare.marks, bare.contents) == (None, None, None)


@pytest.mark.parametrize("enabled", [False, True])
def test_a_hop_runs_again_in_the_dtypes_of_its_forward_pass(enabled):
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        again = Again(torch.zeros(1))
    with torch.autocast("cpu", torch.float16, enabled=not enabled), again.begin():
        assert torch.is_autocast_enabled("cpu") is enabled
        assert not enabled or torch.get_autocast_dtype("cpu") == torch.bfloat16


@pytest.mark.processes
def test_positions_are_those_that_are_said_and_no_more_than_there_are(compared):
    for each in found(compared, "four", "at_positions"):
        assert each["values"] < 1e-12
        assert each["said"] != ""


@pytest.mark.processes
def test_parts_that_do_not_fit_are_named_by_all(compared):
    for each in found(compared, "four", "misused"):
        assert each["said"] == [
            "ShapeError: a part of 3 positions has 2 in axis 1",
            "InputError: the parts of a sequence have [3, 0, 3, 3] positions; give each of the 4 processes one",
        ]


@pytest.mark.processes
def test_gradients_of_inputs_alone_find_their_way_back(compared):
    for each in found(compared, "three", "inputs_alone"):
        assert each
        assert max(each.values()) < 1e-12
