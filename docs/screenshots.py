"""Opens the main pages and reports in Chromium without a network, wide and narrow, and keeps what is seen.

Run as `python -m docs.screenshots docs/_build/html docs/_build/screenshots` from the root of the repository, which
`make screenshots` does. A page that asks for anything, complains on the console or is wider than its window ends it
with 1, and so does a search that does not find what it should; looking at the pictures is left to people.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from regard.cli.main import main as command
from tests.report.test_browser import FLAGS, requests

WIDTHS = {1400: 1400, 400: 2400}
"""width of a window -> its height"""
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
PROBE = """<script>
window.addEventListener("load", () => {
  const root = document.documentElement;
  root.dataset.beyond = root.scrollWidth - root.clientWidth;
});
</script></body>"""
"""says by how many pixels a page is wider than its window"""


def chromium() -> str:
    """The browser.

    Raises:
        SystemExit: there is none.
    """
    found = shutil.which("chromium")
    if found is None:
        raise SystemExit("chromium is not on PATH")
    return found


def opened(address: str, width: int, scratch: Path, picture: Path | None) -> tuple[str, str, str]:
    """(dom, console, log of the network) of a page in a browser that resolves no name; its picture is kept."""
    log = scratch / "net.json"
    words = [word for word in FLAGS.split() if not word.startswith(("--window-size", "--dump-dom"))]
    words += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={scratch / 'profile'}", "--hide-scrollbars"]
    words += ["--run-all-compositor-stages-before-draw"]
    words += [f"--window-size={width},{WIDTHS[width]}", f"--log-net-log={log}"]
    words += ["--dump-dom"] if picture is None else [f"--screenshot={picture}"]
    done = subprocess.run([chromium(), *words, address], capture_output=True, text=True, timeout=120, check=True)
    console = "\n".join(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return done.stdout, console, log.read_text(encoding="utf-8")


def seen(page: Path, title: str, width: int, out: Path, scratch: Path) -> list[str]:
    """Keep the picture of a page; what is wrong with it."""
    _, console, log = opened(page.as_uri(), width, scratch, out / f"{title.replace('/', '-')}-{width}.png")
    name = f"{title} at {width}"
    wrong = [f"{name}: {line}" for line in console.splitlines()]
    wrong += [f"{name} asks for {address}" for address in requests(log)]
    copy = page.with_name(f"{page.stem}.probe.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    try:
        dom, _, _ = opened(copy.as_uri(), width, scratch, None)
    finally:
        copy.unlink()
    beyond = re.search(r'data-beyond="(-?\d+)"', dom)
    return wrong if beyond and int(beyond[1]) <= 0 else [*wrong, f"{name} is wider than its window: {beyond}"]


def searched(root: Path, scratch: Path) -> list[str]:
    """What a search should find and does not."""
    wrong = []
    for phrase, page in FOUND.items():
        address = f"{(root / 'search.html').as_uri()}?q={quote(phrase)}"
        dom, console, _ = opened(address, 1400, scratch, None)
        listed = re.search(r'<ul[^>]* class="search".*?</ul>', dom, re.DOTALL)
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
