"""Show where every head of every layer looks in a text, as one HTML page that opens offline."""

from dataclasses import dataclass

import tyro

from regard.core.errors import ConfigError
from regard_lab import run_info
from regard_lab.cli._options import Device, Ignore, Trust
from regard_lab.cli._output import console, emit, given, table, tell, will_write


@dataclass(frozen=True)
class Options:
    """The model, the text, and the page."""

    model: tyro.conf.Positional[str]
    """directory of a run; or published weights: a .gguf file, a Hugging Face folder, what `pretrained.save`
    wrote, or package:NAME"""
    text: tyro.conf.Positional[str]
    """at most 4,096 tokens; - reads standard input"""
    beside: str | None = None
    """another model, shown beside it on the same text"""
    out: str = "attention.html"
    """the new HTML file"""
    attention: str | None = None
    """MODEL is published weights: attention of every layer instead of theirs, such as local(window=256)"""
    beside_attention: str | None = None
    """--beside is published weights: the same for these"""
    device: Device = "auto"
    trust: Trust = False
    ignore: Ignore = ()
    json: bool = False
    """machine output on stdout: distance, entropy and the largest weights of every head"""


def run(options: Options) -> int:
    """Write the page, and show the numbers of every layer."""
    from regard.integrations import pretrained
    from regard_lab.report.explore import Explorable, explore

    def chosen(model: str, attention: str | None, flag: str) -> Explorable:
        if attention is not None and run_info.is_run(model):
            raise ConfigError(f"{model} is a run, whose model is as trained: {flag} is for published weights")
        if attention is None and not pretrained.recognised(model):
            return model
        return pretrained.load(
            model, device=options.device, attention=attention, trust=options.trust, ignore=options.ignore
        )

    if options.beside is None and options.beside_attention is not None:
        raise ConfigError("--beside-attention is for the model of --beside, and there is none")
    will_write(options.out, new=True)
    screen = console(machine=options.json)
    found = explore(
        chosen(options.model, options.attention, "--attention"),
        given(options.text),
        beside=None
        if options.beside is None
        else chosen(options.beside, options.beside_attention, "--beside-attention"),
        out=options.out,
        device=options.device,
        trust=options.trust,
        tell=tell,
    )
    if options.json:
        emit(found)
        return 0
    for model in found["models"]:
        rows = [
            (layer["layer"], layer["mechanism"], *(_range(layer["heads"], name) for name in ("distance", "entropy")))
            for layer in model["layers"]
        ]
        columns = ("layer", "attention", "distance (tokens) of heads", "entropy (nats) of heads")
        screen.print(table(*columns, rows=rows, title=model["name"]))
        for layer in model["layers"]:
            if layer["reason"] is not None:
                screen.print(f"layer {layer['layer']} is not drawn: {layer['reason']}", markup=False)
    screen.print(f"Every head, to look at: {found['page']} ({found['bytes'] / 1e6:.1f} MB)", markup=False)
    return 0


def _range(heads: list[dict[str, float]], name: str) -> str:
    """The lowest and the highest of a layer."""
    values = [head[name] for head in heads]
    return f"{min(values):.2f} to {max(values):.2f}" if values else ""
