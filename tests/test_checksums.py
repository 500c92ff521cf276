"""A flipped bit in what a later command believes is seen."""

import json
from pathlib import Path

import pytest

from regard.files import checksums
from regard.files.checksums import opened, sealed

DOCUMENT = {"name": "é", "values": [0.1, 2.5e-300, -0.0, 1], "deep": {"flag": True, "nothing": None}}


def flips(data: bytes, every: int = 1) -> list[bytes]:
    """The data with one bit flipped: every k-th of its bits in turn."""
    return [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        for at, bit in (divmod(number, 8) for number in range(0, 8 * len(data), every))
    ]


@pytest.mark.parametrize("indent", [None, 1])
def test_every_bit_of_a_document(indent):
    text = json.dumps(sealed(DOCUMENT), ensure_ascii=False, indent=indent).encode()
    assert opened(text) == DOCUMENT
    seen = 0
    for flipped in flips(text):
        try:
            assert json.dumps(opened(flipped), sort_keys=True) == json.dumps(DOCUMENT, sort_keys=True)
        except ValueError:
            seen += 1
    assert seen > 0.9 * 8 * len(text)


def test_a_seal_is_put_on_anew():
    assert sealed(sealed(DOCUMENT)) == sealed(DOCUMENT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"loss": 0.5}', "has no checksum"),
        ("[1]", "holds list, not an object"),
        ("{", "is not JSON"),
        (b"\xff{}", "is not JSON"),
        ('{"loss": 0.5, "sha256": 3}', "differs"),
    ],
)
def test_what_is_not_sealed(text, message):
    with pytest.raises(ValueError, match=message):
        opened(text)


def test_every_bit_of_a_folder(tmp_path: Path):
    contents = {"one": b"some numbers", "two": bytes(range(40))}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    checksums.write_manifest(tmp_path, contents)
    checksums.verify(tmp_path, contents)
    with pytest.raises(ValueError, match="does not name three"):
        checksums.verify(tmp_path, [*contents, "three"])
    for path in tmp_path.iterdir():
        data, same = path.read_bytes(), 0
        for flipped in flips(data, every=29):
            path.write_bytes(flipped)
            try:
                checksums.verify(tmp_path, contents)
                same += 1
            except ValueError:
                pass
        assert not same or (path.name == checksums.MANIFEST and same < len(data) / 50)
        path.write_bytes(data)


def test_a_manifest_names_plain_files():
    described = checksums.manifest({"../other": checksums.Entry.of(b"")})
    with pytest.raises(ValueError, match="not a plain file name"):
        checksums.entries(described)
