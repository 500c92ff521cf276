"""`regard.explore`: what the page holds, how large it is, what it refuses, and the page in a browser."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import ConfigError, InputError, LimitError, UnsupportedError
from regard.integrations import pretrained
from regard.models import Encoder, EncoderDecoder, LanguageModel, MaskedLanguageModel, presets
from regard.models.config import ModelConfig
from regard.text.tokenizer import ByteTokenizer
from regard_lab.attention_maps import LayerMaps
from regard_lab.report import explore as page
from regard_lab.tasks.config import ClassificationConfig, MaskedConfig, RecallConfig, TextConfig
from regard_lab.training import RunConfig, TrainedModel
from tests.report.test_browser import Visit, framed

TEXT = "Ein Hut, 一 <script>\nzwei."
ATTENTION = ("softmax", "linear(post=softmax)", "local(window=4):1 + linear:1")


def trained(*attention: str, name: str = "first", seed: int = 0, **options: object) -> TrainedModel:
    shape = {"dim": 8, "heads": 2, "layers": len(attention), "max_length": 64, "attention": attention, "seed": seed}
    model = LanguageModel(ModelConfig(**{**shape, **options})).eval()
    return TrainedModel(model, ByteTokenizer(), RunConfig(task=TextConfig()), Path("runs") / name, 3)


def content(path: Path) -> list[dict]:
    (line,) = re.findall(r"^const models = (.*);$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return json.loads(line)


def unpacked(cells: str, blocks: int) -> np.ndarray:
    """The lower triangle of a head, as the page's script reads it."""
    data = base64.b64decode(cells)
    largest, steps = np.frombuffer(data[: 4 * blocks], "<f4"), np.frombuffer(data[4 * blocks :], np.int8)
    matrix = np.zeros((blocks, blocks))
    matrix[np.tril_indices(blocks)] = np.sign(steps) * (steps / 127.0) ** 2
    return matrix * largest[:, None]


def test_the_page_has_what_the_answer_has(tmp_path):
    told: list[str] = []
    answer = regard.explore(trained(*ATTENTION), TEXT, out=tmp_path / "a.html", tell=told.append)
    assert answer["bytes"] == (tmp_path / "a.html").stat().st_size
    (model,), (shown,) = answer["models"], content(tmp_path / "a.html")
    assert told == ["first: 27 tokens", *(f"layer {at + 1} of 3: {spec}" for at, spec in enumerate(ATTENTION))]
    assert model["tokens"] == shown["tokens"]
    assert "".join(model["tokens"]).replace("\\xe4\\xb8\\x80", "一") == TEXT
    assert [layer["mechanism"] for layer in model["layers"]] == list(ATTENTION)
    assert "has no attention matrix" in model["layers"][1]["reason"] == shown["layers"][1]["reason"]
    for layer, drawn in zip(model["layers"], shown["layers"], strict=True):
        for head, picture in zip(layer["heads"], drawn.get("heads", []), strict=True):
            matrix = unpacked(picture["cells"], 27)
            assert matrix.sum(1) == pytest.approx(1, abs=0.05)
            for pair, short in zip(head["pairs"], picture["pairs"], strict=True):
                assert short == [pair["query"], pair["key"], pytest.approx(pair["weight"], rel=1e-3)]
                assert matrix[pair["query"], pair["key"]] == pytest.approx(pair["weight"], rel=0.02)
            assert head["effective_keys"] == pytest.approx(picture["keys"], abs=0.01)


def test_the_text_cannot_end_the_script(tmp_path):
    regard.explore(trained("softmax", name="</script>&"), "</script><b>", out=tmp_path / "a.html")
    written = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert written.count("</script>") == 1
    assert "https:" not in written
    assert "http:" not in written


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("models", "heads"), [(1, 8), (1, 270), (2, 270), (1, 1024)])
def test_4096_tokens_stay_below_5_megabytes(models, heads, causal):
    """With cells that no picture compresses, and long tokens."""
    block = page._block(4096, heads, causal=causal, models=models)
    blocks = -(-4096 // block)
    assert block > 1
    cells = np.random.default_rng(0).normal(size=(heads, blocks, blocks)).astype(np.float32)
    pairs = tuple(tuple((4000 + at, 4000, 1.234e-5) for at in range(page.PAIRS)) for _ in range(heads))
    number = np.full(heads, 1234.5678)
    layer = LayerMaps("softmax", causal, cells, number, number, number, pairs)
    subject = page._Subject("one", LanguageModel(ModelConfig(dim=8)), np.zeros(4096, np.int64), ("x" * 30,) * 4096)
    size = len(page.render([page._shown(subject, block, [layer])] * models).encode())
    assert 3_000_000 < size < 5_000_000


def test_short_texts_are_shown_pair_by_pair():
    assert page._block(128, 270, causal=True, models=1) == 1
    assert page._block(1, 100_000, causal=False, models=2) == 1


def of_task(task, model) -> TrainedModel:
    return replace(trained("softmax"), model=model, config=RunConfig(task=task))


def encoder(**options: object) -> Encoder:
    return Encoder(presets.build("bert", vocab_size=258, dim=8, layers=1, heads=2, max_length=64, **options))


def test_what_an_encoder_reads(tmp_path):
    masked = of_task(MaskedConfig(), MaskedLanguageModel(encoder(cls_token=True)))
    answer = regard.explore(masked, "ab", out=tmp_path / "masked.html")
    assert answer["models"][0]["tokens"] == ["[cls]", "a", "b"]
    classes = of_task(ClassificationConfig(), MaskedLanguageModel(encoder()))
    answer = regard.explore(classes, "ab", out=tmp_path / "classes.html")
    assert answer["models"][0]["tokens"] == ["\\x00", "a", "b"]
    assert not content(tmp_path / "classes.html")[0]["layers"][0]["causal"]


@pytest.mark.parametrize(
    ("model", "text", "error", "message"),
    [
        (lambda: trained("softmax"), "", InputError, "the text has no token"),
        (lambda: trained("softmax"), "a" * 4097, LimitError, "as 4,097 tokens, and a page shows at most 4,096"),
        (
            lambda: trained("softmax", position="transformer_xl", memory="recent(length=4)"),
            "a",
            UnsupportedError,
            "memory",
        ),
        (
            lambda: replace(trained("softmax"), tokenizer=None, config=RunConfig(task=RecallConfig())),
            "a",
            ConfigError,
            "was trained on recall without text",
        ),
        (
            lambda: of_task(MaskedConfig(summaries=4), MaskedLanguageModel(encoder())),
            "a",
            UnsupportedError,
            "reads tokens for its sentences",
        ),
        (
            lambda: pretrained.PublishedModel(torch.nn.Linear(2, 2), None, ModelConfig(), (), "linear", Path("x")),
            "a",
            UnsupportedError,
            "x is a Linear; explore shows decoders and encoders",
        ),
        (
            lambda: of_task(TextConfig(), EncoderDecoder(presets.build("t5", dim=8, heads=2, vocab_size=256))),
            "a",
            UnsupportedError,
            "first is an encoder-decoder",
        ),
    ],
)
def test_what_is_refused(tmp_path, model, text, error, message):
    with pytest.raises(error, match=message):
        regard.explore(model(), text, out=tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "a.html").write_text("mine")
    with pytest.raises(ConfigError, match="exists; choose another name"):
        regard.explore(trained("softmax"), "a", out=tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == "mine"


PROBE = """<script>
window.addEventListener("load", () => {
  const found = { width: innerWidth, overflow: [], said: [], colours: [], shades: [] };
  const root = document.documentElement, measure = () => found.overflow.push(root.scrollWidth - root.clientWidth);
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  measure();
  found.buttons = all("button.head").length;
  found.boxes = all(".model").map((x) => [x.getBoundingClientRect().left, x.getBoundingClientRect().top]);
  found.reasons = all("td.reason").map((x) => x.innerText);
  all("button.head")[3].click();
  found.titles = all(".view h3").map((x) => x.innerText);
  const big = all("canvas.big")[0], box = big.getBoundingClientRect(), blocks = big.width;
  const place = (start, size, at) => start + (at + .5) * size / blocks;
  const at = (row, column) =>
    ({ clientX: place(box.left, box.width, column), clientY: place(box.top, box.height, row) });
  const said = () => found.said.push(all(".readout").map((x) => x.innerText));
  big.dispatchEvent(new PointerEvent("pointermove", at(20, 12))); said();
  big.dispatchEvent(new PointerEvent("pointermove", at(2, 5))); said();
  big.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" })); said();
  all(".strip span")[7]?.dispatchEvent(new PointerEvent("pointerenter")); said();
  const image = big.getContext("2d").getImageData(0, 0, blocks, blocks).data;
  const pixel = (row, column) => Array.from(image.slice(4 * (row * blocks + column), 4 * (row * blocks + column) + 3));
  found.colours = [pixel(2, 5), pixel(5, 2), getComputedStyle(document.body).backgroundColor];
  found.square = [box.width, box.height];
  for (const what of ["distance", "entropy", "map"]) {
    const select = document.getElementById("shade");
    select.value = what;
    select.dispatchEvent(new Event("change"));
    found.shades.push(all("button.head")[0].innerText || all("button.head canvas").length);
  }
  for (const details of all("details")) { details.open = true; details.dispatchEvent(new Event("toggle")); }
  measure();
  found.tables = all("table.data tr").length;
  parent.postMessage(JSON.stringify([window.name, found]), "*");
});
</script></body>"""


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Two models side by side, with a script at the end that moves the pointer and measures."""
    path = tmp_path_factory.mktemp("explore") / "page.html"
    regard.explore(trained(*ATTENTION), TEXT, beside=trained("softmax", name="second", seed=1), out=path)
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["light", "dark"])
def seen(request, written, tmp_path_factory) -> tuple[str, Visit, dict]:
    """That page, wide and narrow, and a page in blocks."""
    scratch = tmp_path_factory.mktemp("seen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_CELL_BYTES", 400)
        regard.explore(trained("linear"), TEXT, out=scratch / "a.html")
    (shown,) = content(scratch / "a.html")
    assert shown["block"] == 2
    whole = written.read_text(encoding="utf-8")
    cells = (scratch / "a.html").read_text(encoding="utf-8").replace("</body>", PROBE.replace("[3].click", "[1].click"))
    pages = {"1400": (whole, 1400), "400": (whole, 400), "blocks": (cells, 700)}
    return request.param, *framed(pages, scratch, request.param)


@pytest.mark.parametrize("width", [1400, 400])
def test_the_page_in_a_browser(written, seen, width):
    scheme, found, probes = seen
    probe = probes[str(width)]
    assert (found.console, found.requests) == ([], [])
    assert probe["width"] == width
    assert probe["width"] == width
    assert max(probe["overflow"]) <= 0
    first, second = probe["boxes"]
    assert (first[1] == second[1]) == (width == 1400)
    assert probe["buttons"] == 2 + 2 + 2
    assert [reason.partition(":")[0] for reason in probe["reasons"]] == ["linear(post=softmax)"]
    assert probe["titles"] == ["Layer 2, head 1: local(window=4):1 + linear:1", "Layer 0, head 0: softmax"]
    pointed, hidden, left, strip = probe["said"]
    assert pointed[0].startswith("Query 20 gives key 12 the weight ~")
    assert "distance 8" in pointed[0]
    for words, model, layer, head in ((pointed[0], 0, 2, 1), (pointed[1], 1, 0, 0)):
        weight = unpacked(content(written)[model]["layers"][layer]["heads"][head]["cells"], 27)[20, 12]
        (shown,) = re.findall(r"weight ~([\d.]+);", words)
        assert float(shown) == pytest.approx(weight, rel=0.06)
    assert pointed[1].startswith("Query 20 gives key 12 the weight ~"), "the same text is pointed at in both"
    assert hidden[0].startswith("Query 2 cannot see key 5, which comes later.")
    assert left[0].startswith("Query 2 cannot see key 4")
    assert strip[0].startswith("Query 7 gives key 4 the weight")
    backgrounds = {"light": ([227, 231, 236], "rgb(255, 255, 255)"), "dark": ([43, 51, 61], "rgb(18, 22, 28)")}
    assert (probe["colours"][0], probe["colours"][2]) == backgrounds[scheme]
    assert probe["colours"][1] != probe["colours"][0]
    assert probe["square"][0] == pytest.approx(probe["square"][1], abs=1)
    assert [float(shade) > 0 for shade in probe["shades"][:2]] == [True, True]
    assert probe["shades"][2] == 6
    assert probe["tables"] == (1 + 4) + (1 + 2)


def test_a_page_in_blocks_in_a_browser(seen):
    said = [each[0].partition("\n")[0] for each in seen[2]["blocks"]["said"]]
    assert said[0].startswith("Weight ~")
    assert "the mean over queries 26 to 26, keys 24 to 25." in said[0]
    assert said[1] == "Hidden: queries 4 to 5, keys 10 to 11; these keys come later."
