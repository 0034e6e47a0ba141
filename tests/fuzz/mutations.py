"""Damage files and command lines as a hostile or careless hand would. An example can be made again from its seed: every
function takes a `random.Random`."""

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
    "a:/(/", "a:/a|/", ":item", "1:item", "a:b:c", "x" * 70_000, "/dev/zero", "--config", "--seed=",
    "foo://x", "://", "az://b/x", "\x1b[2J\u202e",
)  # fmt: skip
DEEP = 100_000
Damage = Callable[[bytes, random.Random], bytes]


class Ran:
    """Value that leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("ran", "w"))


REPLACEMENTS: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda path: None,
    "an empty file": Path.touch,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a loop": lambda path: path.symlink_to(path.name),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Ran())),
    "noise": lambda path: path.write_bytes(random.Random(0).randbytes(5000)),
}


def damage_file(path: Path, form: str, rng: random.Random) -> str:
    """Damage a file, or replace it with something else; return what was done, in words."""
    if rng.random() < 0.12:
        name = rng.choice(list(REPLACEMENTS))
        path.unlink()
        REPLACEMENTS[name](path)
        return f"{path.name} replaced by {name}"
    path.write_bytes(FORMS[form](path.read_bytes(), rng))
    return f"{path.name} damaged as {form}"


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 20))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 4, 8, 100, len(data)))
        removed, put = rng.choice(
            (
                (1, rng.randbytes(1)),
                (len(data), b""),
                (length, b""),
                (0, rng.randbytes(min(length, 64))),
                (length, bytes(min(length, len(data) - at))),
                (0, data[at : at + length]),
                (8, struct.pack("<q", rng.choice((-1, 2**31, 2**62, 0)))),
            )
        )
        data[at : at + removed] = put
    return bytes(data)


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Damage JSON by its values, or by what only its text can hold: keys that occur twice, depth, other encodings."""
    try:
        value = json.loads(content)
    except ValueError:
        return damage_bytes(content, rng)
    text = json.dumps(value)
    if rng.random() < 0.6:
        return json.dumps(_other_values(value, rng)).encode()
    return rng.choice(
        (
            text.replace("{", '{"x": 1, "x": 2, ', 1).encode(),
            ("[" * DEEP + text + "]" * rng.choice((DEEP, 0))).encode(),
            text.encode("utf-16"),
            b"\xef\xbb\xbf" + text.encode(),
            text.encode() * 2,
            damage_bytes(content, rng),
        )
    )


def _other_values(value: Any, rng: random.Random) -> Any:
    """Drop, retype, exchange or enlarge some values of a container, wherever they are."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return rng.choice(VALUES)
        into, key = rng.choice(places)
        old = into.pop(key)
        new = [old] * rng.choice((1, 2, 50))
        if isinstance(old, str):
            new = rng.choice((new, old * 2, old[:1], "../" + old, old + "\0"))
        new = copy.deepcopy(rng.choice((new, rng.choice(NAMES), rng.choice(VALUES), rng.choice(VALUES))))
        if isinstance(into, list):
            into[key:key] = [new] * rng.randrange(2)
        elif rng.random() < 0.8:
            into[rng.choice((key, key, key, key.upper(), *NAMES[:1]))] = new
    return value


def _places(value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def damage_line(content: bytes, damage: Damage, rng: random.Random) -> bytes:
    rows = content.split(b"\n")
    at = rng.randrange(max(len(rows) - 1, 1))
    rows[at] = damage(rows[at], rng)
    return b"\n".join(rows)


def damage_text(content: bytes, rng: random.Random) -> bytes:
    """Damage lines of fields: another number of them, other values, other encodings."""
    utf16 = content.decode(errors="replace").encode("utf-16")
    fields = damage_line(content, _damage_fields, rng)
    others = (damage_bytes(content, rng), utf16, b"\xef\xbb\xbf" + content, b"", b"\n \n")
    return fields if rng.random() < 0.7 else rng.choice(others)


def _damage_fields(line: bytes, rng: random.Random) -> bytes:
    between = next((b for b in (b"\t", b",", b" ") if b in line), b" ")
    fields = line.split(between)
    place = rng.randrange(len(fields))
    value = rng.choice((*NAMES, *map(str, NUMBERS), "", '"', "x", "\r", "\x85", "\0")).encode(errors="surrogatepass")
    fields[place : place + rng.randrange(2)] = rng.choice(([], [value]))
    return between.join(fields)


def damage_gzip(content: bytes, rng: random.Random) -> bytes:
    """Damage compressed text: its stream, its text, or let it expand to 32 MiB."""
    text = rng.choice((bytes(32 << 20), damage_text(gzip.decompress(content), rng)))
    return rng.choice((gzip.compress(text), damage_bytes(content, rng)))


def damage_npy(content: bytes, rng: random.Random) -> bytes:
    kind, shape = rng.choice((("<i8", "(10**12,)"), ("<i8", "(-1,)"), ("|O", "(4,)"), (None, "'x'")))
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + content[128:]


def damage_safetensors(content: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + length], content[8 + length :]
    header = rng.choice(
        (header, damage_json(header, rng), header.replace(b"F32", rng.choice((b"F64", b"I64", b"X")), 1))
    )
    length = rng.choice((len(header), len(header), 0, 2**63, 2**40, len(header) - 1, len(header) + 8))
    return rng.choice((struct.pack("<Q", length) + header + data, damage_bytes(content, rng)))


FORMS: dict[str, Damage] = {
    "bytes": damage_bytes,
    "json": damage_json,
    "text": damage_text,
    "json lines": lambda content, rng: damage_line(content, damage_json, rng),
    "gz": damage_gzip,
    "npy": damage_npy,
    "safetensors": damage_safetensors,
}
"""A mutation of the content of a file, by its form."""


def damage_words(given: list[str], flags: list[str], rng: random.Random) -> list[str]:
    at, flag, word = rng.randrange(len(given)), rng.choice(flags), rng.choice(WORDS)
    before, here, after = given[:at], given[at], given[at + 1 :]
    others = ([], [word, here], [here.upper()], [here[:-1]], [f"{here}={word}"], [word])
    at_the_end = ([flag, word], [f"{flag}={word}"], [flag])
    return rng.choice(([*before, *rng.choice(others), *after], [*given, *rng.choice(at_the_end)]))
