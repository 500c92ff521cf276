"""The page on scale is computed from what is counted, by the formulas that it states."""

from datetime import date
from pathlib import Path

import costs
import pytest
import scale
import torch

from regard import Heads, build, catalog
from regard.models import LanguageModel, ModelConfig

MEASURED = scale.Machine("measured", 1e9, 1e6, 1e-3, 4, True)


def nbytes(mechanism, length: int) -> int:
    """Of the state behind so many tokens."""
    return mechanism.state_nbytes(1, length, torch.float32)


def one(name: str) -> scale.Attention:
    return next(each for each in scale.attentions() if each.name == name)


def test_every_mechanism_is_in_every_table():
    assert set(scale.recorded()["operations"]) == set(catalog.names())
    shown = [line.split(" | ")[1].strip("`") for line in scale.sequences() if "`" in line]
    assert sorted(shown) == sorted(catalog.names())
    counted = [int(line.split(" | ")[2]) for line in list(scale.overtaking())[2:] if "tree" not in line]
    assert sum(counted) == len(catalog.names())
    assert len(list(scale.data_parallel())) == 2 + len(scale.families())


@pytest.mark.parametrize("name", ["linear", "local"])
def test_what_is_recorded_is_what_is_counted(name):
    """Run `python docs/scale.py` again where this fails."""
    forward, both = scale.operations(name)
    assert scale.recorded()["operations"][name] == [forward, pytest.approx(both, rel=1e-3)]


def test_what_is_exchanged_is_what_a_decoder_keeps():
    """Keys and values of a token, of a window; a state: each from the bytes of a built mechanism."""
    heads = Heads(count=scale.HEADS, key_dim=costs.DIM, causal=True)
    assert (one("softmax").exchange, one("local").exchange, one("linear").exchange) == ("ring", "halo", "state")
    softmax = build("softmax", heads)
    assert one("softmax").kept == nbytes(softmax, 101) - nbytes(softmax, 100)
    assert one("local").kept == nbytes(build("local", heads), 10**5)
    assert one("linear").kept == nbytes(build("linear", heads), 10**5)
    assert scale.window(one("local")) == build("local", heads).options["window"]


def test_operations_go_through_the_counts():
    """The formula has as many numbers as counts, so that it goes through all, where they grow with the square."""
    for found in scale.attentions():
        counts = scale.recorded()["operations"][found.name][0]
        for length, count in list(zip(scale.COUNTED, counts, strict=True))[0 if found.quadratic else 1 :]:
            assert found.operations(length) == pytest.approx(16 * found.backward * count), found.name


@pytest.mark.parametrize(
    ("name", "more"),
    [("local", 1.0), ("longformer", 1.0), ("efficient", 1.0), ("fixed", 1.0), ("local_atrous", 1.0), ("strided", 1.11)],
)
def test_operations_beyond_the_counts_are_those_counted_there(name, more):
    """What windows and patterns have fewer of at the first tokens is no part of what more tokens cost."""
    cls, _ = catalog.resolve(name)
    given = costs.options(cls)
    found = one(name)
    _, count = costs.spent(cls, given, 16384, causal=cls.describe(given).supports.causal)
    assert found.operations(16384) == pytest.approx(16 * more * found.backward * count, rel=0.01)


@pytest.mark.parametrize("devices", [2, 8, 64])
def test_formulas_are_those_of_the_page(devices):
    """Written out hop by hop."""
    length = 1 << 14
    ring = one("softmax")
    wanted = 0.0
    for _ in range(devices - 1):  # forward hops: keys and values; backward hops: these and their gradients
        wanted += length / devices * ring.kept + 2 * length / devices * ring.kept
    found = scale.shared(ring, devices, MEASURED, length)
    assert found.nbytes == pytest.approx(wanted)
    assert found.messages == 2 * (devices - 1)
    assert found.sending == pytest.approx(found.messages * 1e-3 + wanted / 1e6)
    state = scale.shared(one("linear"), devices, MEASURED, length)
    assert state.nbytes == 2 * one("linear").kept
    assert state.sending == pytest.approx(2 * (devices - 1) * (1e-3 + one("linear").kept / 1e6))
    tree = scale.shared(one("linear"), devices, MEASURED, length, tree=True)
    waits = {2: 1, 8: 3, 64: 6}[devices]
    assert tree.sending == pytest.approx(2 * waits * (1e-3 + one("linear").kept / 1e6))
    halo = scale.shared(one("local"), devices, MEASURED, length)
    assert halo.nbytes == pytest.approx(2 * one("local").kept)  # keys and values forward, their gradients backward
    assert halo.messages == 2 * -(-scale.window(one("local")) * devices // length)
    assert found.operations * devices == pytest.approx(ring.operations(length) + 6 * scale.BLOCK * length)
    assert scale.reduced(devices, MEASURED)[0] == pytest.approx(8 * scale.PARAMETERS * (1 - 1 / devices))


def test_weights_are_those_of_a_decoder_of_this_library():
    """Of another width: matrices of a block, and with the table of tokens all of them."""
    width, tokens = 64, 100
    model = LanguageModel(ModelConfig(dim=width, heads=4, layers=scale.LAYERS, vocab_size=tokens))
    of_block = sum(x.numel() for x in model.blocks[0].parameters() if x.ndim == 2)
    assert of_block * scale.WIDTH**2 == scale.BLOCK * width**2
    every = sum(x.numel() for x in model.parameters() if x.ndim == 2)
    assert every == scale.LAYERS * of_block + tokens * width
    assert scale.PARAMETERS == scale.LAYERS * scale.BLOCK + scale.VOCABULARY * scale.WIDTH


def test_columns_have_what_their_heads_say():
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in scale.sequences()]
    machines = {machine.name: machine for machine in scale.machines()}
    for name in ("softmax", "linear", "local"):
        row = dict(zip(lines[0], next(line for line in lines if line[1] == f"`{name}`"), strict=True))
        for machine, count in ((m, n) for m in machines for n in scale.DEVICES):
            found = scale.shared(one(name), count, machines[machine])
            assert float(row[f"{machine}, {count:,}"]) == pytest.approx(found.ratio, rel=0.06)
        assert float(row["bytes over a link, 8"]) == pytest.approx(
            scale.shared(one(name), 8, machines["core"]).nbytes, rel=6e-3
        )
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in scale.data_parallel())
    for cells in rows:
        members = scale.families()[cells[0]]
        for title, cell in zip(head[1:], cells[1:], strict=True):
            machine, _, count = title.partition(", ")
            wanted = [scale.least_tokens(each, int(count.replace(",", "")), machines[machine]) for each in members]
            shown = [float(part.replace(",", "")) for part in cell.split(" to ")]
            assert (shown[0], shown[-1]) == pytest.approx((min(wanted), max(wanted)), abs=0.5)


def test_overtaking_is_the_first_count_where_the_ratio_is_above_one():
    for machine in (MEASURED, scale.ACCELERATOR):
        for each in scale.attentions():
            first = scale.overtaken(each, machine)
            ratios = {1 << power: scale.shared(each, 1 << power, machine).ratio for power in range(3, 13)}
            assert first == next((count for count, ratio in ratios.items() if ratio > 1), None)
    tokens = scale.least_tokens(one("softmax"), 64, MEASURED)
    work = 6 * scale.PARAMETERS + scale.LAYERS * one("softmax").operations(scale.SHORT) / scale.SHORT
    assert tokens * work / MEASURED.rate == pytest.approx(scale.reduced(64, MEASURED)[1])


def test_the_page_includes_every_table_and_says_what_is_measured(tmp_path):
    scale.write(tmp_path)
    page = Path(scale.__file__).with_name("scale.md").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {f"scale_{name}.inc" for name in scale.TABLES}
    assert all(f"generated/{path.name}" in page for path in tmp_path.iterdir())
    assert [machine.measured for machine in scale.machines()] == [True, False]
    assert date.fromisoformat(scale.recorded()["date"]) >= date(2026, 11, 23)
