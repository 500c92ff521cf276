"""Opens the main pages and reports in Chromium without a network, wide and on a phone's 390 pixels, and keeps the
pictures. The screen is emulated through the DevTools protocol, because a window has a least width.

Run as `python -m docs.screenshots docs/_build/html docs/_build/screenshots` from the root of the repository, which
`make screenshots` does. A page that asks for anything, complains on the console or is wider than its window ends it
with 1, and so does a search that does not find what it should; looking at the pictures is left to people.
"""

import base64
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from regard.cli.main import main as command
from tests.report.test_browser import FLAGS, requests

WIDTHS = {1400: 1400, 390: 2400}
"""width of a screen -> its height"""
PAGES = (
    "index", "quickstart", "concepts", "glossary", "gpu", "fine_tune", "comparing", "gallery", "retrieval",
    "generated/mechanisms", "generated/mechanisms/local", "generated/mechanisms/linear", "generated/api/functions",
    "generated/claims", "zh/index", "zh/quickstart", "zh/mechanisms", "measured_claims", "search",
)  # fmt: skip
FOUND = {
    "sliding window": "generated/mechanisms/local.html",
    "GPU": "gpu.html",
    "fine-tune": "fine_tune.html",
    "KV cache": "concepts.html",
}
"""what is searched for -> the page that must be among the first three that are found"""
PROBE = """(() => {
  const root = document.documentElement;
  return {width: innerWidth, beyond: root.scrollWidth - root.clientWidth, dom: root.outerHTML};
})()"""
"""how wide the page thinks that its screen is, by how many pixels it is wider, and what is in it"""
SETTLED = 8000
"""milliseconds of the page's own clock, after which its scripts have drawn"""


def chromium() -> str:
    """The browser.

    Raises:
        SystemExit: there is none.
    """
    found = shutil.which("chromium")
    if found is None:
        raise SystemExit("chromium is not on PATH")
    return found


class Browser:
    """A Chromium that is told what to do through a pipe: file descriptors 3 and 4, one JSON document after another."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        self._sent, self._rest = 0, b""

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self.answers.fileno(), 1 << 20)
            if not read:
                raise SystemExit("chromium ended before it answered")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """The answer of a method; events that come before it are kept."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        message |= {} if self.session is None else {"sessionId": self.session}
        self.commands.write(json.dumps(message).encode() + b"\0")
        self.commands.flush()
        while (got := self._next()).get("id") != self._sent:
            self.events.append(got)
        if "error" in got:
            raise SystemExit(f"chromium: {method}: {got['error']['message']}")
        return got["result"]

    def wait(self, event: str) -> None:
        """Go on when an event has come."""
        while not any(each.get("method") == event for each in self.events):
            self.events.append(self._next())


@contextmanager
def browser(scratch: Path, log: Path) -> Iterator[Browser]:
    """A browser that resolves no name and logs what it asks for."""
    words = [word for word in FLAGS.split() if not word.startswith(("--window-size", "--dump-dom", "--virtual"))]
    words += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={scratch / 'profile'}", "--hide-scrollbars"]
    words += ["--remote-debugging-pipe", f"--log-net-log={log}"]
    (read, commands), (answers, write) = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]  # out of the way of 3 and 4
    shell = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", chromium(), *words], pass_fds=ends, stderr=subprocess.DEVNULL
    )
    for end in (read, write, *ends):
        os.close(end)
    told = Browser(commands, answers)
    try:
        yield told
        told.session = None
        told.call("Browser.close")
        process.wait(timeout=60)
    finally:
        process.kill()
        told.commands.close()
        told.answers.close()


def opened(address: str, width: int, scratch: Path, picture: Path | None) -> tuple[dict[str, Any], list[str], str]:
    """(what `PROBE` finds, console, log of the network) of a page on a screen of this width; its picture is kept."""
    log = scratch / "net.json"
    with browser(scratch, log) as told:
        target = told.call("Target.createTarget", url="about:blank")["targetId"]
        told.session = told.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            told.call(f"{domain}.enable")
        screen = {"width": width, "height": WIDTHS[width], "deviceScaleFactor": 1, "mobile": False}
        told.call("Emulation.setDeviceMetricsOverride", **screen)
        told.call("Page.navigate", url=address)
        told.wait("Page.loadEventFired")
        told.call("Emulation.setVirtualTimePolicy", policy="pauseIfNetworkFetchesPending", budget=SETTLED)
        told.wait("Emulation.virtualTimeBudgetExpired")
        found = told.call("Runtime.evaluate", expression=PROBE, returnByValue=True)["result"]["value"]
        if picture is not None:
            picture.write_bytes(base64.b64decode(told.call("Page.captureScreenshot")["data"]))
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    console = [json.dumps(event["params"]) for event in told.events if event.get("method") in kinds]
    return found, console, log.read_text(encoding="utf-8")


def seen(page: Path, title: str, width: int, out: Path, scratch: Path) -> list[str]:
    """Keep the picture of a page; what is wrong with it."""
    picture = out / f"{title.replace('/', '-')}-{width}.png"
    found, console, log = opened(page.as_uri(), width, scratch, picture)
    name = f"{title} at {width}"
    wrong = [f"{name}: {line}" for line in console] + [f"{name} asks for {address}" for address in requests(log)]
    if found["width"] != width:
        wrong.append(f"{name} was shown {found['width']} pixels wide")
    if found["beyond"] > 0:
        wrong.append(f"{name} is {found['beyond']} pixels wider than its screen")
    return wrong


def searched(root: Path, scratch: Path) -> list[str]:
    """What a search should find and does not."""
    wrong = []
    for phrase, page in FOUND.items():
        address = f"{(root / 'search.html').as_uri()}?q={quote(phrase)}"
        probe, console, _ = opened(address, 1400, scratch, None)
        listed = re.search(r'<ul[^>]* class="search".*?</ul>', probe["dom"], re.DOTALL)
        links = re.findall(r'href="([^"#?]+)', listed[0]) if listed else []
        first = list(dict.fromkeys(links))[:3]
        print(f"search {phrase!r}: {', '.join(first)}")
        if page not in first or console:
            wrong.append(f"a search for {phrase!r} finds {first}, not {page} {console}")
    return wrong


def reports(folder: Path) -> dict[str, Path]:
    """A report of each kind that a newcomer opens, from as little work as possible."""
    small = "--threads 1 --rounds 1 --lengths 64 128 --evaluate-examples 20 --text-steps 20 --recall-steps 20"
    run, model = str(folder / "run"), "--model.dim 32 --model.layers 2 --model.heads 2 --task.length 64 --steps 20"
    deciding, spans = str(folder / "deciding"), "adaptive_span(max_span=64, initial=0.5)"
    for words in (
        ["compare", "softmax", "local(window=16)", "linear", *small.split(), "--out", str(folder / "comparison")],
        ["train", *model.split(), "--threads", "1", "--out", run],
        [
            "train",
            *model.split(),
            "--model.attention",
            spans,
            "--model.depth",
            "early_exit",
            "--threads",
            "1",
            "--out",
            deciding,
        ],
        [
            "calibrate",
            deciding,
            "--risk",
            "0.5",
            "--passages",
            "60",
            "--thresholds",
            "0.9",
            "0.1",
            "0.02",
            "--threads",
            "1",
        ],
        ["report", deciding, "--beside", run, "--limit", "8", "--threads", "1"],
        ["explore", run, "The state of the Union is strong.", "--out", str(folder / "attention.html")],
    ):
        assert command(words) == 0, words
    found = {"report": folder / "comparison" / "report.html", "attention": folder / "attention.html"}
    return {**found, "run": folder / "deciding" / "report.html"}


def main() -> int:
    """Open everything; list what is wrong."""
    root, out = (Path(word).resolve() for word in sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        wrong = searched(root, scratch)
        pages = {title: root / f"{title}.html" for title in PAGES} | reports(scratch / "reports")
        for title, page in pages.items():
            for width in WIDTHS:
                wrong += seen(page, title, width, out, scratch)
    print("\n".join(wrong) or f"{len(pages)} pages at {len(WIDTHS)} widths, in {out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
