"""Starts killed_run.py, and reads what became of the processes that it killed."""

import os
import subprocess
import sys
from pathlib import Path

import evidence
import regard

PROGRAM = Path(__file__).with_name("killed_run.py")


def start(*arguments: object) -> subprocess.Popen[str]:
    source = os.pathsep.join(str(Path(package.__file__).parents[1]) for package in (regard, evidence))
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fates(process: subprocess.Popen[str]) -> list[list[float]]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return [[float(word) for word in line.split()] for line in out.splitlines()]
