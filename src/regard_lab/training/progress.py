"""The progress of a run, shown while it goes: a bar on a terminal, plain lines elsewhere; always on stderr."""

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from regard_lab.training.metrics import Record


class Display:
    """Shows the events of a run; use it as a context manager and give it to `train` as `on_progress`.

    Args:
        label: the name of what is being trained.
        stream: where to; None: stderr.
    """

    def __init__(self, label: str = "train", *, stream: TextIO | None = None) -> None:
        self.label = label
        self.stream = stream or sys.stderr
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._told: tuple[object, float] = (None, 0.0)
        self._first: tuple[float, int] | None = None
        self._left = ""
        self._said = ""

    def __enter__(self) -> "Display":
        if self.stream.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[said]}"),
                console=Console(file=self.stream),
            )
            self._task = self._bar.add_task(self.label, total=None, said="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()

    def __call__(self, event: Record) -> None:
        """Show one event of `Trainer`; a terminal that was closed meanwhile stops no training."""
        with suppress(OSError):
            self._show(event)

    def _show(self, event: Record) -> None:
        match event["kind"]:
            case "step":
                self._step(int(str(event["step"])), int(str(event["steps"])))
            case "train":
                timing = event["timing"]
                assert isinstance(timing, dict)
                self._said = f"loss {event['loss']:.4f} nats  {timing['tokens_per_second']:,.0f} tokens/s"
                self._line(f"step {event['step']}  {self._said}  {self._left}")
            case "evaluating":
                self._evaluating(event["step"], f"evaluating: {event['done']:,} of {event['examples']:,} examples")
            case "evaluate":
                bits, accuracy = event["bits_per_byte"], event["accuracy"]
                quality = f"accuracy {accuracy:.3f}" if bits is None else f"{bits:.4f} bits per byte"
                if "bits_per_dimension" in event:
                    quality = f"{event['bits_per_dimension']:.4f} bits per dimension"
                scored = f"{event['split']}: {event['nats_per_token']:.4f} nats, {quality}"
                self._line(f"step {event['step']}  {scored}", True)
            case "untaught":
                self._line(
                    f"nothing has learnt in {event['step']} steps: no loss reached what training.only names; give it "
                    "a loss of its own, such as a compressive memory's losses, or let more learn",
                    True,
                )
            case "interrupted":
                self._line(f"{event['signal']}: saved at step {event['step']}; continue with --resume", True)

    def _step(self, step: int, steps: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, step)
        started, since = self._first
        if step > since:
            seconds = round((now - started) / (step - since) * (steps - step))
            self._left = f"{seconds // 60}:{seconds % 60:02d} left"
        if self._bar is not None:
            self._bar.update(self._task, total=steps, completed=step, said=f"{self._said}  {self._left}")

    def _evaluating(self, step: object, text: str) -> None:
        """On a terminal in the bar, elsewhere a line every ten seconds."""
        now = time.monotonic()
        if self._told[0] != step:
            self._told = step, now
        if self._bar is not None:
            self._bar.update(self._task, said=text)
        elif now >= self._told[1] + 10:
            self._told = step, now
            self._line(text)

    def _line(self, text: str, important: bool = False) -> None:
        """A plain line; on a terminal the bar shows what is not important."""
        if self._bar is None:
            print(f"{self.label}: {text}", file=self.stream, flush=True)
        elif important:
            self._bar.console.print(f"{self.label}: {text}", highlight=False)
