"""Lines, characters and files of Python in each room of the repository, now or since a revision.

    python evidence/benchmarks/mass.py            # the tree as committed
    python evidence/benchmarks/mass.py HEAD~20    # and what changed since then

A room is a folder of `src/regard`, `src/regard_lab` or `evidence`, or a folder at the top of the repository.
"""

import io
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]


def room(path: PurePosixPath) -> str:
    """The folder that a file counts for."""
    parts = path.parts[:-1]
    return (
        "/".join(parts[: 3 if parts[0] == "src" else 2])
        if parts[:1] in (("src",), ("evidence",))
        else parts[0]
        if parts
        else "."
    )


def masses(revision: str) -> dict[str, Counter[str]]:
    """Lines, characters and files of each room at a revision."""
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    found: dict[str, Counter[str]] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            path, file = PurePosixPath(member.name), files.extractfile(member)
            if path.suffix == ".py" and file is not None:
                text = file.read().decode()
                counted = Counter(lines=text.count("\n"), characters=len(text), files=1)
                for name in (room(path), *(["src"] if path.parts[0] == "src" else [])):
                    found.setdefault(name, Counter()).update(counted)
    return found


def main(revision: str | None = None) -> None:
    """Print a table."""
    now, then = masses("HEAD"), masses(revision) if revision else None
    for name in sorted(now.keys() | (then or {}).keys()):
        cells = []
        for unit in ("lines", "characters", "files"):
            count = now.get(name, Counter())[unit]
            change = f" ({count - then.get(name, Counter())[unit]:+,})" if then is not None else ""
            cells.append(f"{count:,}{change} {unit}".rjust(32 if then is not None else 22))
        print(name.ljust(30), *cells)


if __name__ == "__main__":
    main(*sys.argv[1:2])
