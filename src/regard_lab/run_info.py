"""A run as `regard info` shows it: what it was trained on and to, and what its heads and its exits have learned."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli import emit, say, table

if TYPE_CHECKING:
    from regard_lab.benchmark.decisions import HeadSpan

EXAMPLES = 16
"""validation examples whose tokens say how far they look"""
_OTHERS = "calibrated for other weights than these, for which nothing is promised; remove them and calibrate again"


def is_run(name: str) -> bool:
    """Whether it is the folder of a run."""
    return (Path(name) / "config.toml").is_file()


def show(path: str, *, trust: bool, json: bool) -> int:
    """Print what a run is.

    Raises:
        As `regard.load`.
    """
    found = described(path, trust=trust)
    if json:
        emit(found)
        return 0
    spans, calibration = found.pop("spans"), found.pop("exits")
    say(table("what", "value", rows=[(key, _plain(value)) for key, value in found.items()]))
    if spans:
        heads = max(one["head"] for one in spans) + 1
        columns = ("layer", "attention", *(f"head {head}" for head in range(heads)), "state keeps")
        say(table(*columns, rows=span_rows(spans), title="\nSpans: tokens back at full weight"))
        if any(one["low"] != one["high"] for one in spans):
            say(f"Spans of tokens: the mean, and 10 to 90 % of them, over {EXAMPLES} validation examples.")
    if calibration:
        said = calibration["guarantee"] if calibration["of_these_weights"] else _OTHERS
        say(f"\nExits ({calibration['heads']}): {said}")
    return 0


def described(path: str, *, trust: bool) -> dict[str, Any]:
    """A run as plain data: `spans` of every head that has one, `exits` as regard calibrate left them.

    Raises:
        CheckpointError: a calibration that does not say what it promises. Others: as `regard.load`.
    """
    from regard_lab.benchmark.decisions import body, learned_spans, lookers
    from regard_lab.networks import exits
    from regard_lab.retrieval.documents import fingerprint
    from regard_lab.training import load

    run = load(path, trust=trust)
    model: Any = body(run.model)
    spans = learned_spans(run.model)
    if any(looker.by_token for looker in lookers(run.model)):
        spans = _of_tokens(run)
    folder = run.path / exits.FOLDER
    calibration = exits.stored(folder)[0] if folder.is_dir() else None
    shape: Any = run.config.model
    return {
        "kind": "run",
        "path": str(run.path),
        "task": run.config.task.name,
        "step": run.step,
        "parameters": sum(x.numel() for x in run.model.parameters()),
        "attention": list(getattr(model.config, "specs", shape.attention)),
        "memory": [spec or "none" for spec in getattr(model.config, "memories", [None])],
        "depth": getattr(shape, "depth", "fixed"),
        "spans": [asdict(one) for one in spans],
        "exits": calibration
        and {
            "heads": calibration["heads"],
            "guarantee": calibration["guarantee"],
            "of_these_weights": calibration["model"] == fingerprint(run.model),
            **calibration["calibrated"],
        },
    }


def _of_tokens(run: Any) -> "list[HeadSpan]":
    """Spans that depend on what is read."""
    from regard_lab.benchmark.decisions import observe
    from regard_lab.tasks import build_task
    from regard_lab.training.beside import alone

    task = build_task(run.config.task, seed=run.config.training.seed, tokenizer=run.tokenizer)
    return observe(run.model, alone(run.config, task), limit=EXAMPLES).spans


def span_rows(spans: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each layer, a column for each head."""
    heads = max(one["head"] for one in spans) + 1
    rows = []
    for layer in sorted({one["layer"] for one in spans}):
        own = {one["head"]: one for one in spans if one["layer"] == layer}
        cells = [_span(own[head]) if head in own else "" for head in range(heads)]
        names = ", ".join(dict.fromkeys(one["mechanism"] for one in own.values()))
        rows.append((str(layer), names, *cells, f"{max(one['kept'] for one in own.values()):,}"))
    return rows


def _span(one: dict[str, Any]) -> str:
    between = "" if one["low"] == one["high"] else f" ({one['low']:.0f} to {one['high']:.0f})"
    return f"{one['span']:.1f}{between}"


def _plain(value: object) -> object:
    return ", ".join(dict.fromkeys(map(str, value))) if isinstance(value, list) else value
