"""Looks at the built pages: nothing is loaded from elsewhere, and every link within them leads somewhere.

Run as `python docs/built.py docs/_build/html`, which `make docs` does; it ends with 1 and a list of what is wrong.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {
    "img": ("src", "srcset"), "script": ("src",), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"), "input": ("src",),
}  # fmt: skip
"""attributes by which a browser loads something; of a link those of the kinds below"""
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "manifest", "dns-prefetch"}
REMOTE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
STYLE = re.compile(r"@import\s+(?:url\()?[\"']?([^\"');\s]+)|url\(\s*[\"']?([^\"')]+)", re.IGNORECASE)


class Page(HTMLParser):
    """loads: addresses that a browser fetches by itself. links: those of anchors. anchors: ids to which links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self._style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.loads += [found[name] for name in LOADING.get(tag, ()) if found.get(name)]
        if tag == "link" and LOADED_LINKS & set(found.get("rel", "").split()):
            self.loads.append(found.get("href", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.loads += styled(found.get("style", ""))
        self._style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._style:
            self.loads += styled(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = False


def styled(text: str) -> list[str]:
    """Addresses that a style sheet loads."""
    return [one or other for one, other in STYLE.findall(text)]


def problems(root: Path) -> list[str]:
    """Everything that is wrong with the pages in a folder, one line each."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(root.resolve())
        found += [f"{name} loads {address}" for address in page.loads if REMOTE.match(address)]
        found += [f"{name}: {wrong}" for address in page.links if (wrong := broken(path, address, pages))]
    for path in sorted(root.rglob("*.css")):
        remote = [address for address in styled(path.read_text(encoding="utf-8")) if REMOTE.match(address)]
        found += [f"{path.relative_to(root)} loads {address}" for address in remote]
    return found


def broken(path: Path, address: str, pages: dict[Path, Page]) -> str:
    """What is wrong with a link from a page to a page of the same folder; empty if nothing is."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return f"{address} does not exist"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors | {"", "top"}:
        return f"{address} has no such place"
    return ""


def main() -> int:
    """List what is wrong."""
    found = problems(Path(sys.argv[1]))
    print("\n".join(found) or "every page loads from its own folder, and every link leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
