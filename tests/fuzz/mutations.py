"""Damage a file as a hostile or careless hand would: its bytes, its text, its values, or what stands in its place; and
damage command lines.

Every function takes a `random.Random`, so that an example can be made again from its seed, and returns what it did.
"""

import copy
import json
import os
import pickle
import random
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

SECRET = "secret.txt"  # stands outside of every folder that a command is told to read
EVIL = "evil"  # module in the current folder
NAMES = (
    f"../{SECRET}", f"../../{SECRET}", f"{{box}}/{SECRET}", "/etc/passwd", "/dev/zero", "/proc/self/environ", "..", ".",
    "", "/", f"{EVIL}.F", f"dataset.{EVIL}.F", "os.system", "con\nfig", "a\0b", "\ud83d", "x" * 70_000, "%s{0}{SPLIT}",
    "gs://fuzz/x", "~", "*", "-1", "NaN", "ünï", "\u202e", "`x`",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63),
    1_500_000_000, 0.5, -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": None}, "text", *NUMBERS)
DEEP = 100_000


class Ran:
    """Value that leaves a file behind where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("ran", "w"))


def replaced(path: Path, rng: random.Random) -> str:
    """Put something that is no such file in the place of a file."""
    content = path.read_bytes()
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    kind = rng.choice(("nothing", "empty", "folder", "pipe", "zeros", "loop", "dangling", "socket", "pickle", "binary"))
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
        if rng.random() < 0.5:
            (path / path.name).write_bytes(content)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("zeros", "loop", "dangling"):
        path.symlink_to({"zeros": "/dev/zero", "loop": path.name, "dangling": "not-there"}[kind])
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's name may have 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path.name[:100])
        finally:
            os.chdir(here)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Ran()))
    elif kind == "binary":
        path.write_bytes(rng.randbytes(rng.choice((1, 7, 64, 5000))))
    return f"replaced by {kind}"


def raw(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut, extend, zero, repeat or move some bytes."""
    data = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((1, 2, 4, 8, 100, len(data)))
        kind = rng.randrange(8)
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
        elif kind == 6:
            data[at : at + 8] = struct.pack("<q", rng.choice((-1, 2**31, 2**62, 2**63 - 1, 0)))
        else:
            data[at : at + 1] = rng.choice((b"\xff", b"\0", b"\n", b"\xed\xa0\x80", b"\xff\xfe", b"\x80"))
    return bytes(data)


# ---- JSON -----------------------------------------------------------------------------------------------------------


def json_value(value: Any, rng: random.Random) -> Any:
    """Drop, retype, exchange or enlarge some values of JSON, wherever they stand."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(value))
        if not places:
            return rng.choice(VALUES)
        into, key = rng.choice(places)
        kind = rng.randrange(9)
        if kind == 0:
            del into[key]
        elif kind == 1:
            into[key] = rng.choice(NAMES)
        elif kind == 2:
            into[key] = _nested(rng)
        elif kind == 3:
            other, there = rng.choice(places)
            into[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
        elif kind == 4:
            into[key] = [into[key]] * rng.choice((1, 2, 1000))
        elif kind == 5 and isinstance(into, dict):
            into[rng.choice((*NAMES, key.upper(), key + " "))] = into.pop(key)
        elif kind == 6 and isinstance(into[key], int | float):
            into[key] = rng.choice(NUMBERS)
        elif kind == 7 and isinstance(into[key], str):
            into[key] = rng.choice(
                (into[key] * 2, into[key][:1], into[key] + "\ud83d", "../" + into[key], into[key] + "\0")
            )
        else:
            into[key] = rng.choice(VALUES)
    return value


def json_text(content: bytes, rng: random.Random) -> bytes:
    """Damage JSON by its values, or by what only its text can hold: keys that stand twice, depth, other encodings."""
    try:
        value = json.loads(content)
    except ValueError:
        return raw(content, rng)
    kind = rng.randrange(12)
    if kind == 0:
        text = content.decode()
        twice = [i for i, c in enumerate(text) if c == "{"]
        at = rng.choice(twice) + 1 if twice else 0
        key = rng.choice([k for into, k in _places(value) if isinstance(into, dict)] or ["x"])
        return f"{text[:at]}{json.dumps(key)}: {json.dumps(rng.choice(VALUES))}, {text[at:]}".encode()
    if kind == 1:
        text, what = json.dumps(value), rng.choice((("[", "]"), ('{"a":', "}")))
        return (what[0] * DEEP + text + what[1] * rng.choice((DEEP, 0))).encode()
    if kind == 2:
        text = json.dumps(value, ensure_ascii=False)
        return rng.choice(
            (text.encode("utf-16"), b"\xef\xbb\xbf" + text.encode(), text.encode() + b",", text.encode() * 2)
        )
    if kind == 3:
        numbers = ("1e999999", "9" * 5000, "-" + "9" * 400, "01", "+1", "0x10", ".5", "Infinity", "1e-999999")
        places = [p for p in _places(value) if not isinstance(p[0][p[1]], dict | list)]
        if places:
            into, key = rng.choice(places)
            into[key] = "@@@"
        return json.dumps(value).replace('"@@@"', rng.choice(numbers)).encode()
    if kind == 4:
        return raw(content, rng)
    return json.dumps(json_value(value, rng), indent=rng.choice((None, 2))).encode()


def _places(value: Any) -> Any:
    """Yield (container, key) of every value."""
    for key in _keys(value):
        yield value, key
        yield from _places(value[key])


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value)
    return list(range(len(value))) if isinstance(value, list) else []


def _nested(rng: random.Random) -> Any:
    value: Any = rng.choice(VALUES)
    for _ in range(rng.choice((1, 3, 500))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


# ---- text -----------------------------------------------------------------------------------------------------------


def text(content: bytes, rng: random.Random) -> bytes:
    """Damage lines of fields: another number of them, other values, other encodings."""
    rows = content.split(b"\n")
    kind = rng.randrange(8)
    if kind == 0:
        return raw(content, rng)
    if kind == 1:
        return rng.choice(
            (content.decode(errors="replace").encode("utf-16"), b"\xef\xbb\xbf" + content, b"", b"\n\n \n")
        )
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(rows))
        between = next((b for b in (b"\t", b",", b" ") if b in rows[at]), b" ")
        fields = rows[at].split(between)
        place = rng.randrange(len(fields))
        if kind == 2:
            del fields[place]
        elif kind == 3:
            fields.insert(place, rng.choice((b"", b'"', b"'", b"x", b"\r", b"\x85", b"\0")))
        elif kind == 4:
            fields[place] = str(rng.choice(NUMBERS)).encode()
        elif kind == 5:
            fields[place] = rng.choice(NAMES).encode(errors="surrogatepass")
        elif kind == 6:
            rows.insert(rng.randrange(len(rows)), rows[at])
        else:
            fields[place] = raw(fields[place], rng)
        rows[at] = between.join(fields)
    return b"\n".join(rows)


def json_lines(content: bytes, rng: random.Random) -> bytes:
    """Damage some lines of JSON."""
    rows = content.split(b"\n")
    at = rng.randrange(max(len(rows) - 1, 1))
    rows[at] = json_text(rows[at], rng) if rows[at] and rng.random() < 0.8 else text(rows[at], rng)
    return b"\n".join(rows)


# ---- command lines --------------------------------------------------------------------------------------------------

WORDS = (
    "9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" + "0" * 30, "9" * 5000, "nan", "inf",
    "-inf", "-1", "0", "", " ", "1e400", "0x10", "1_0", "१", "\udcff", "\ud83d", "x", "--", "-", "True", "None", "null",
    "a\nb", "x" * 70_000, "/dev/zero", "[", "--help-me", "--config", "--seed=", "²",
    "foo://x", "foo:///x/y", "://", "x:/y", "az://b/x", "\x1b[2J\u202e", "\x1b]0;x\x07.json",
)  # fmt: skip
VARIABLES = (
    "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_BIND_ADDRESS", "SLURM_NTASKS",
    "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID", "MEGASCALE_NUM_SLICES", "XLNET_JAX_ROLL",
)  # fmt: skip
"""Variables that a command reads when it runs; the parent has imported jax, which read its own. Without SLURM_JOB_ID no
combination names a run of several hosts, for whom the example would wait."""


def environment(rng: random.Random) -> str:
    """Set some variables of this process to anything that they can hold; return what was done."""
    given = {name: rng.choice(WORDS) for name in rng.sample(VARIABLES, rng.choice((1, 2, 3, 5)))}
    given = {name: value for name, value in given.items() if "\udcff" != value != "\ud83d"}
    os.environ.update(given)
    return f"environment: {given}"[:500]


def words(given: list[str], flags: list[str], rng: random.Random) -> list[str]:
    """Damage a command line: its values, its flags, their order and number."""
    found = list(given)
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(found)) if found else 0
        kind = rng.randrange(8)
        if kind == 0 and found:
            del found[at]
        elif kind == 1:
            found.insert(at, rng.choice(WORDS))
        elif kind == 2 and found:
            found.insert(at, found[at])
        elif kind == 3 and found:
            found[at] = rng.choice(
                (found[at].upper(), found[at][:-1], found[at] + "=" + rng.choice(WORDS), found[at] * 2)
            )
        elif kind == 4 and found:
            values = [i for i, word in enumerate(found) if not word.startswith("--")]
            found[rng.choice(values or [at])] = rng.choice(WORDS)
        elif flags:
            flag = rng.choice(flags)
            found += rng.choice(([flag, rng.choice(WORDS)], [f"{flag}={rng.choice(WORDS)}"], [flag]))
    return found
