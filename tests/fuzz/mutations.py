"""Damage files and command lines as a hostile or careless hand would.

Every function takes a `random.Random`, so that an example can be made again from its seed.
"""

import copy
import gzip
import json
import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "secret.txt"  # outside of every folder that a command is told to read
EVIL = "evil"  # module in the current folder
NAMES = (
    f"../{SECRET}", f"../../{SECRET}", "/etc/passwd", "/dev/zero", "..", "", "/", f"{EVIL}.F", "os.system", "con\nfig",
    "a\0b", "\ud83d", "x" * 70_000, "gs://fuzz/x", "*", "NaN", "\u202e",
)  # fmt: skip
NUMBERS = (0, -1, 1, 7, 2**31, 2**62, 2**63, 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan"))
VALUES: tuple[Any, ...] = (None, True, [], {}, [[]], {"": None}, "text", *NUMBERS)
WORDS = (
    "9223372036854775808", "9" * 5000, "nan", "-1", "0", "", " ", "0x10", "१", "\udcff", "x", "--", "True", "a\nb",
    "x" * 70_000, "/dev/zero", "--config", "--seed=", "foo://x", "://", "az://b/x", "\x1b[2J\u202e",
)  # fmt: skip
DEEP = 100_000
ZEROS = 32 << 20  # bytes behind a small compressed file


class Ran:
    """Value that leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("ran", "w"))


def damage_file(path: Path, form: str, rng: random.Random) -> str:
    """Damage a file; return what was done, in words."""
    if rng.random() < 0.12:
        return f"{path.name} replaced by {_replace(path, rng)}"
    path.write_bytes(FORMS[form](path.read_bytes(), rng))
    return f"{path.name} damaged as {form}"


def _replace(path: Path, rng: random.Random) -> str:
    """Put something that is no such file in the place of a file; return its name."""
    path.unlink()
    kind = rng.choice(("nothing", "an empty file", "a folder", "a pipe", "/dev/zero", "a loop", "a pickle", "noise"))
    if kind == "an empty file":
        path.touch()
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "/dev/zero":
        path.symlink_to(kind)
    elif kind == "a loop":
        path.symlink_to(path.name)
    elif kind == "a pickle":
        path.write_bytes(pickle.dumps(Ran()))
    elif kind == "noise":
        path.write_bytes(rng.randbytes(rng.choice((1, 64, 5000))))
    return kind


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, extend, zero or repeat some bytes."""
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 20))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 8, 100, len(data)))
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = rng.randbytes(min(length, 64))
        elif kind == 4:
            data[at : at + length] = bytes(min(length, len(data) - at))
        elif kind == 5:
            data[at:at] = data[at : at + length]
        else:
            data[at : at + 8] = struct.pack("<q", rng.choice((-1, 2**31, 2**62, 0)))
    return bytes(data)


# ---- JSON -----------------------------------------------------------------------------------------------------------


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Damage JSON by its values, or by what only its text can hold: keys that occur twice, depth, other encodings."""
    try:
        value = json.loads(content)
    except ValueError:
        return damage_bytes(content, rng)
    text, kind = json.dumps(value), rng.randrange(10)
    if kind == 0 and "{" in text:
        return text.replace("{", '{"x": 1, "x": 2, ', 1).encode()
    if kind == 1:
        return ("[" * DEEP + text + "]" * rng.choice((DEEP, 0))).encode()
    if kind == 2:
        return rng.choice((text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), text.encode() * 2))
    if kind == 3:
        return damage_bytes(content, rng)
    return json.dumps(_other_values(value, rng)).encode()


def _other_values(value: Any, rng: random.Random) -> Any:
    """Drop, retype, exchange or enlarge some values, wherever they are."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return rng.choice(VALUES)
        into, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del into[key]
        elif kind == 1:
            into[key] = rng.choice(NAMES)
        elif kind == 2:
            into[key] = [into[key]] * rng.choice((1, 2, 1000))
        elif kind == 3 and isinstance(into, dict):
            into[rng.choice((*NAMES, key.upper()))] = into.pop(key)
        elif kind == 4 and isinstance(into[key], str):
            into[key] = rng.choice((into[key] * 2, into[key][:1], "../" + into[key], into[key] + "\0"))
        else:
            into[key] = rng.choice(VALUES)
    return value


def _places(value: Any) -> Any:
    """Yield (container, key) of every value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


# ---- text -----------------------------------------------------------------------------------------------------------


def damage_text(content: bytes, rng: random.Random) -> bytes:
    """Damage lines of fields: another number of them, other values, other encodings."""
    rows, kind = content.split(b"\n"), rng.randrange(6)
    if kind == 0:
        return damage_bytes(content, rng)
    if kind == 1:
        return rng.choice((content.decode(errors="replace").encode("utf-16"), b"\xef\xbb\xbf" + content, b"", b"\n \n"))
    at = rng.randrange(len(rows))
    between = next((b for b in (b"\t", b",", b" ") if b in rows[at]), b" ")
    fields = rows[at].split(between)
    place = rng.randrange(len(fields))
    if kind == 2:
        del fields[place]
    elif kind == 3:
        fields.insert(place, rng.choice((b"", b'"', b"x", b"\r", b"\x85", b"\0")))
    else:
        value = rng.choice((*NAMES, *map(str, NUMBERS)))
        fields[place] = value.encode(errors="surrogatepass")
    rows[at] = between.join(fields)
    return b"\n".join(rows)


def damage_json_lines(content: bytes, rng: random.Random) -> bytes:
    """Damage a line of JSON."""
    rows = content.split(b"\n")
    at = rng.randrange(max(len(rows) - 1, 1))
    rows[at] = damage_json(rows[at], rng)
    return b"\n".join(rows)


# ---- binary forms ---------------------------------------------------------------------------------------------------


def damage_gzip(content: bytes, rng: random.Random) -> bytes:
    """Damage compressed text: its stream, its text, or let it expand to far more."""
    kind = rng.randrange(3)
    if kind == 0:
        return damage_bytes(content, rng)
    return gzip.compress(bytes(ZEROS) if kind == 1 else damage_text(gzip.decompress(content), rng))


def damage_npy(content: bytes, rng: random.Random) -> bytes:
    """Write the header of an array anew: huge, of objects, malformed."""
    shape = rng.choice(("(10**12,)", "(1000000000000,)", "(-1,)", "()", "'x'"))
    header = f"{{'descr': {rng.choice(('<i8', '|O', None))!r}, 'fortran_order': False, 'shape': {shape}, }}"
    header = rng.choice((header, header[:-4], "(" * 500)).ljust(117) + "\n"
    damaged = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + content[128:]
    return rng.choice((damaged, damage_bytes(content, rng)))


def damage_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Damage the header of a safetensors file, its length, or its arrays."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data, kind = content[8 : 8 + length], content[8 + length :], rng.randrange(4)
    if kind == 0:
        return damage_bytes(content, rng)
    if kind == 1:
        return struct.pack("<Q", rng.choice((0, 2**63, 2**40, length - 1, length + 8))) + header + data
    header = damage_json(header, rng) if kind == 2 else header.replace(b"F32", rng.choice((b"F64", b"I64", b"X")), 1)
    return struct.pack("<Q", len(header)) + header + data


FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bytes": damage_bytes,
    "json": damage_json,
    "text": damage_text,
    "json lines": damage_json_lines,
    "gz": damage_gzip,
    "npy": damage_npy,
    "safetensors": damage_safetensors,
}
"""A mutation of the content of a file, by its form."""


def damage_words(given: list[str], flags: list[str], rng: random.Random) -> list[str]:
    """Damage a command line: its values, its flags, their order and number."""
    found, at = list(given), rng.randrange(len(given))
    kind = rng.randrange(6)
    if kind == 0:
        del found[at]
    elif kind == 1:
        found.insert(at, rng.choice(WORDS))
    elif kind == 2:
        found[at] = rng.choice((found[at].upper(), found[at][:-1], f"{found[at]}={rng.choice(WORDS)}"))
    elif kind == 3:
        found[at] = rng.choice(WORDS)
    else:
        flag = rng.choice(flags)
        found += rng.choice(([flag, rng.choice(WORDS)], [f"{flag}={rng.choice(WORDS)}"], [flag]))
    return found
