"""Ways to damage a file, each by a seed. What is written where it was need not have its checksum."""

import json
import os
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

Way = Callable[[Path, random.Random], None]

VALUES = ("null", "-1", "0", "1e999", "NaN", "true", '""', "[]", "{}", "1.5", "9" * 40, '"x"', '"\\ud800"', "[[[[1]]]]")
"""written in place of a value of JSON"""
TOML_VALUES = ("-1", "0", "inf", "nan", "true", '""', "[]", "{}", "1.5", "9" * 40, '"x"', "2026-01-01", '["x", 3]')
OFFERED = b'\0\x01\x7f\x80\xff\n{}[]",:0123456789abcdef'
"""bytes that parsers turn at, written over others"""


def _rewritten(path: Path, data: bytes) -> None:
    path.unlink()  # other names of the same file stay as they are
    path.write_bytes(data)


def flip(path: Path, draw: random.Random) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    _rewritten(path, bytes(data))


def flip_early(path: Path, draw: random.Random) -> None:
    """One bit of the first bytes, where formats say what follows."""
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(min(len(data), 64))] ^= 1 << draw.randrange(8)
    _rewritten(path, bytes(data))


def overwrite(path: Path, draw: random.Random) -> None:
    """A few bytes by others that parsers turn at."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 8) if data else 0):
        data[draw.randrange(len(data))] = draw.choice(OFFERED)
    _rewritten(path, bytes(data))


def truncate(path: Path, draw: random.Random) -> None:
    """All behind a byte is gone."""
    data = path.read_bytes()
    _rewritten(path, data[: draw.choice((0, 1, len(data) - 1, draw.randint(0, max(0, len(data)))))])


def extend(path: Path, draw: random.Random) -> None:
    """Something follows the end."""
    data = path.read_bytes()
    _rewritten(path, data + draw.choice((b"\0", b"\n", b"x" * 100, data[:100], bytes(4096))))


def zero(path: Path, draw: random.Random) -> None:
    """A page that was never written."""
    data = bytearray(path.read_bytes())
    if data:
        first = draw.randrange(len(data))
        length = min(len(data) - first, draw.choice((8, 512, 4096)))
        data[first : first + length] = bytes(length)
    _rewritten(path, bytes(data))


def swap(path: Path, draw: random.Random) -> None:
    """Two parts in each other's place."""
    data = path.read_bytes()
    at = draw.randint(0, len(data))
    _rewritten(path, data[at:] + data[:at])


def repeat(path: Path, draw: random.Random) -> None:
    """A part twice."""
    data = path.read_bytes()
    at = draw.randint(0, len(data))
    _rewritten(path, data[:at] + data[max(0, at - 64) :])


def line(path: Path, draw: random.Random) -> None:
    """A line is gone, or there twice, or elsewhere."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines:
        taken = lines.pop(draw.randrange(len(lines)))
        for _ in range(draw.choice((0, 1, 2))):
            lines.insert(draw.randint(0, len(lines)), taken)
    _rewritten(path, b"".join(lines))


def gone(path: Path, draw: random.Random) -> None:
    """The file is not there."""
    path.unlink()


def sibling(path: Path, draw: random.Random) -> None:
    """Another file of its folder under its name."""
    others = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    if others:
        _rewritten(path, draw.choice(others).read_bytes())


def link(path: Path, draw: random.Random) -> None:
    """A link: to the same content elsewhere, to nothing, to itself, to what has no end, to a file of the system."""
    elsewhere = path.parent / f"{path.name}.elsewhere"
    target = draw.choice((elsewhere, Path("absent"), Path(path.name), Path("/dev/zero"), Path("/etc/passwd")))
    path.rename(elsewhere)
    path.symlink_to(target)


def folder(path: Path, draw: random.Random) -> None:
    """A folder of its name."""
    path.unlink()
    path.mkdir()


def pipe(path: Path, draw: random.Random) -> None:
    """A pipe of its name, which nobody writes to."""
    path.unlink()
    os.mkfifo(path)


def value(path: Path, draw: random.Random) -> None:
    """Another value in JSON, JSON lines or TOML; other shapes in safetensors."""
    text = path.read_bytes()
    if path.suffix == ".safetensors":
        _rewritten(path, _other_shape(text, draw))
        return
    found = list(re.finditer(rb'"[^"\n]*"(?=\s*[,\]}\n])|-?\d[\d.e+-]*|true|false|null', text))
    if not found:
        return flip(path, draw)
    at = draw.choice(found)
    other = draw.choice(TOML_VALUES if path.suffix == ".toml" else VALUES).encode()
    _rewritten(path, text[: at.start()] + other + text[at.end() :])
    return None


def _other_shape(data: bytes, draw: random.Random) -> bytes:
    """Safetensors whose first lines say something else of a tensor: a shape, a type, a place, a name."""
    try:
        length = struct.unpack("<Q", data[:8])[0]
        head = json.loads(data[8 : 8 + length])
        name = draw.choice(sorted(set(head) - {"__metadata__"}))
    except (ValueError, struct.error, IndexError):
        return data[:-1]
    entry = head[name]
    what = draw.randrange(6)
    if what == 0:
        entry["shape"] = entry["shape"][::-1] if len(entry["shape"]) > 1 else [1, *entry["shape"]]
    elif what == 1:
        entry["shape"] = [1 << 40, *entry["shape"]]
    elif what == 2:
        entry["dtype"] = draw.choice(("F64", "I32", "BF16", "U8", "X9"))
    elif what == 3:
        entry["data_offsets"] = [draw.randint(-9, 99), draw.randint(0, 1 << 60)]
    elif what == 4:
        head[f"{name}.other"] = head.pop(name)
    else:
        del head[name]
    packed = json.dumps(head).encode()
    return struct.pack("<Q", len(packed)) + packed + data[8 + length :]


def twin_of(twin: Path) -> Way:
    """The file of the same name that another like it has, of another seed."""

    def way(path: Path, draw: random.Random) -> None:
        if twin.exists():
            path.unlink()
            shutil.copy(twin, path)
        else:
            gone(path, draw)

    return way


WAYS: dict[str, Way] = {
    each.__name__.replace("_", " "): each
    for each in (
        flip,
        flip_early,
        overwrite,
        truncate,
        extend,
        zero,
        swap,
        repeat,
        line,
        gone,
        sibling,
        link,
        folder,
        pipe,
        value,
    )
}
