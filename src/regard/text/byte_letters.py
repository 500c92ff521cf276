"""The letters that byte-level tokenizers write bytes with."""


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it is printable Latin-1, else the next letter from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(substitutes)) for byte in range(256)]
