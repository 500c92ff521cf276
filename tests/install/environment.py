"""A wheel of the checkout, and an environment that has it and not the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and a folder to work in that is not the checkout."""

    wheel: Path
    folder: Path
    scripts: Path
    environment: dict[str, str]

    def run(self, *words: str, code: int = 0, seconds: float = 240) -> subprocess.CompletedProcess[str]:
        """A command of the environment, in the folder."""
        found = subprocess.run(
            [str(self.scripts / words[0]), *words[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert found.returncode == code, found.stdout + found.stderr
        return found


def build(out: Path) -> Path:
    """A wheel as `pip wheel` makes it, with the build backend that is installed here."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    (built,) = out.glob("*.whl")
    return built


def install(wheel: Path, home: Path) -> Installed:
    """A new environment. Its only other packages are those that this one has: nothing is downloaded, and an editable
    install of the checkout does not reach it, because a .pth file in a folder that a .pth file adds is not read.
    """
    venv.create(home / "venv", with_pip=False)
    scripts = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    site = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index",
         "--no-compile", str(wheel)],
        check=True, capture_output=True, timeout=240,
    )  # fmt: skip
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (home / "work").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REGARD"))}
    environment = {**kept, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(home / "cache")}
    return Installed(wheel, home / "work", scripts, environment)
