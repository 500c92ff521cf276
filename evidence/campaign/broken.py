"""Ways to damage a file, each by a seed. What is written where it was need not have its checksum."""

import json
import random
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

Way = Callable[[Path, random.Random], None]
Content = Callable[[bytearray, random.Random], bytes]

VALUES = ("null", "-1", "0", "1e999", "NaN", "true", '""', "[]", "{}", "1.5", "9" * 40, '"x"', '"\\ud800"', "[[[[1]]]]")
"""written in place of a value of JSON"""
TOML_VALUES = ("-1", "0", "inf", "nan", "true", '""', "[]", "{}", "1.5", "9" * 40, '"x"', "2026-01-01", '["x", 3]')
OFFERED = b'\0\x01\x7f\x80\xff\n{}[]",:0123456789abcdef'
"""bytes that parsers turn at, written over others"""


def rewritten(content: Content) -> Way:
    """The way that gives a file, if there is anything in it, another content."""

    def way(path: Path, draw: random.Random) -> None:
        data = path.read_bytes()
        path.unlink()  # other names of the same file stay as they are
        path.write_bytes(content(bytearray(data), draw) if data else data)

    return way


def flip(data: bytearray, draw: random.Random) -> bytes:
    """One bit, of all or of the first bytes, where formats say what follows."""
    data[draw.randrange(draw.choice((len(data), min(len(data), 64))))] ^= 1 << draw.randrange(8)
    return data


def overwrite(data: bytearray, draw: random.Random) -> bytes:
    """A few bytes by others that parsers turn at."""
    for _ in range(draw.randint(1, 8)):
        data[draw.randrange(len(data))] = draw.choice(OFFERED)
    return data


def truncate(data: bytearray, draw: random.Random) -> bytes:
    """All behind a byte is gone."""
    return data[: draw.choice((0, 1, len(data) - 1, draw.randint(0, len(data))))]


def extend(data: bytearray, draw: random.Random) -> bytes:
    """Something follows the end."""
    return data + draw.choice((b"\0", b"\n", b"x" * 100, bytes(data[:100]), bytes(4096)))


def zero(data: bytearray, draw: random.Random) -> bytes:
    """A page that was never written."""
    first = draw.randrange(len(data))
    length = min(len(data) - first, draw.choice((8, 512, 4096)))
    data[first : first + length] = bytes(length)
    return data


def swap(data: bytearray, draw: random.Random) -> bytes:
    """Two parts in each other's place, or a part twice."""
    at = draw.randint(0, len(data))
    return draw.choice((data[at:] + data[:at], data[:at] + data[max(0, at - 64) :]))


def line(data: bytearray, draw: random.Random) -> bytes:
    """A line is gone, or there twice, or elsewhere."""
    lines = data.splitlines(keepends=True)
    taken = lines.pop(draw.randrange(len(lines)))
    for _ in range(draw.choice((0, 1, 2))):
        lines.insert(draw.randint(0, len(lines)), taken)
    return b"".join(lines)


def value(path: Path, draw: random.Random) -> None:
    """Another value in JSON, JSON lines or TOML; other heads of safetensors; else a bit."""
    change = _other_head if path.suffix == ".safetensors" else _other_value
    rewritten(lambda data, draw: change(data, draw, TOML_VALUES if path.suffix == ".toml" else VALUES))(path, draw)


def _other_value(data: bytearray, draw: random.Random, values: tuple[str, ...]) -> bytes:
    found = list(re.finditer(rb'"[^"\n]*"(?=\s*[,\]}\n])|-?\d[\d.e+-]*|true|false|null', data))
    if not found:
        return flip(data, draw)
    at = draw.choice(found)
    return data[: at.start()] + draw.choice(values).encode() + data[at.end() :]


def _other_head(data: bytearray, draw: random.Random, _: tuple[str, ...]) -> bytes:
    """Safetensors whose first lines say something else of a tensor: a shape, a type, a place, a name."""
    length = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + length])
    name = draw.choice(sorted(set(head) - {"__metadata__"}))
    entry = head.pop(name)
    shape = entry["shape"][::-1] if len(entry["shape"]) > 1 else [1, *entry["shape"]]
    others = ({"shape": shape}, {"dtype": draw.choice(("F64", "I32", "BF16", "U8", "X9"))})
    changed = draw.choice((*others, {"data_offsets": [draw.randint(-9, 99), draw.randint(0, 1 << 60)]}, {}, None))
    if changed is not None:  # otherwise it is gone
        head[name if changed else f"{name}.other"] = entry | changed
    packed = json.dumps(head).encode()
    return struct.pack("<Q", len(packed)) + packed + data[8 + length :]


def gone(path: Path, draw: random.Random) -> None:
    """The file is not there."""
    path.unlink()


def sibling(path: Path, draw: random.Random) -> None:
    """Another file of its folder under its name."""
    others = sorted(each for each in path.parent.iterdir() if each.is_file() and each != path)
    if others:
        rewritten(lambda data, draw: draw.choice(others).read_bytes())(path, draw)


def folder(path: Path, draw: random.Random) -> None:
    """A folder of its name."""
    path.unlink()
    path.mkdir()


def twin_of(twin: Path) -> Way:
    """The file of the same name that another like it has, of another seed."""

    def way(path: Path, draw: random.Random) -> None:
        path.unlink()
        if twin.exists():
            shutil.copy(twin, path)

    return way


WAYS: dict[str, Way] = {
    **{each.__name__: rewritten(each) for each in (flip, overwrite, truncate, extend, zero, swap, line)},
    **{each.__name__: each for each in (value, gone, sibling, folder)},
}
