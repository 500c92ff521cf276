"""The licences of everything that regard needs when it is installed: `python docs/licences.py` reads and records them.

What is installed says them itself, in its metadata: a licence expression, else classifiers, else a line of text. A
licence that is not in ALLOWED is refused, and the command ends with 7.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "licences.json"
EXTRAS = ("lab", "log", "pretrained", "knn", "metrics", "parquet")
"""that users may ask for; `test` and `docs` are for those who develop it"""
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Unlicense",
    "Zlib",
}
"""SPDX names: permissive, also CNRI-Python (regex) and MIT-CMU (pillow), or copyleft of single files that regard does
not change: MPL-2.0 (tqdm, certifi)"""
EXCEPTIONS = {"WITH LLVM-exception", "WITH GCC-exception-3.1"}
CLASSIFIED = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""classifier -> its SPDX name. "BSD License" says not which; both are allowed"""
TEXTS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "PSF": "PSF-2.0",
    "new BSD": "BSD-3-Clause",
}
"""line of text -> its SPDX name"""


def needed() -> dict[str, str]:
    """Every distribution that a plain installation or an extra brings, by name -> what brings it, found by walking
    through the requirements of what is installed."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [(each, "regard") for each in project["dependencies"]]
    wanted += [(each, f"regard[{extra}]") for extra in EXTRAS for each in project["optional-dependencies"][extra]]
    found: dict[str, str] = {}
    seen: set[tuple[str, ...]] = set()
    while wanted:
        text, by = wanted.pop(0)
        requirement = Requirement(text)
        name = normalised(requirement.name)
        environments = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        key = (name, *sorted(requirement.extras))
        if key in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        found.setdefault(name, by)
        for inner in metadata.requires(name) or []:
            marker = Requirement(inner).marker
            if marker is None or any(marker.evaluate(environment) for environment in environments):
                wanted.append((str(_bare(Requirement(inner))), name))
    return dict(sorted(found.items()))


def _bare(requirement: Requirement) -> Requirement:
    requirement.marker = None
    return requirement


def normalised(name: str) -> str:
    """As package indices compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(name: str) -> str:
    """What a distribution says of its licence, as an SPDX expression where it can be told; else as it says it."""
    about: Mapping[str, str] = metadata.metadata(name)  # type: ignore[assignment]
    expression = about.get("License-Expression")
    if expression:
        return expression
    classifiers = [each.split(" :: ")[-1] for each in metadata.metadata(name).get_all("Classifier") or []
                   if each.startswith("License :: ") and each != "License :: OSI Approved"]  # fmt: skip
    if classifiers:
        return " AND ".join(CLASSIFIED.get(each, each) for each in classifiers)
    said = (about.get("License") or "").strip().partition("\n")[0]
    return TEXTS.get(said, said) or "nothing"


def refused(expression: str) -> list[str]:
    """The parts of an expression that are not allowed; of alternatives one must be."""
    for exception in EXCEPTIONS:
        expression = expression.replace(exception, "")
    parts = re.split(r"\s+AND\s+", expression.replace("(", "").replace(")", ""))
    return [part for part in parts if not any(each.strip() in ALLOWED for each in re.split(r"\s+OR\s+", part))]


def recorded() -> dict[str, dict[str, str]]:
    """Name -> its licence and what needs it."""
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def lines() -> Iterator[str]:
    """A table."""
    yield "| package | licence | needed by |"
    yield "|---|---|---|"
    for name, one in recorded().items():
        yield f"| {name} | {one['licence']} | {one['by']} |"


def write(folder: Path) -> None:
    """Write what `licences.md` includes."""
    (folder / "licences.inc").write_text("\n".join([*lines(), ""]), encoding="utf-8")


def main() -> int:
    """Record what is installed; 7 if a licence is not allowed."""
    found = {name: {"licence": licence(name), "by": by} for name, by in needed().items()}
    wrong = {name: parts for name, one in found.items() if (parts := refused(one["licence"]))}
    for name, parts in wrong.items():
        print(f"{name}: {', '.join(parts)} is not allowed; see ALLOWED in {Path(__file__).name}", file=sys.stderr)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} packages, {len(wrong)} of them refused")
    return 7 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
