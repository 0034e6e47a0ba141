"""Damage files of binary forms by their structure: compressed text, arrays, messages, records, tables."""

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_pipelines.opening import zstd
from tests.fuzz.mutations import NAMES, Ran, json_lines, json_text, raw, replaced, text

ZEROS = 32 << 20  # bytes behind a small compressed file


def compressed(opens: Callable[[bytes], bytes], closes: Callable[[bytes], bytes]) -> Callable[[bytes, Any], bytes]:
    """Return a mutation of compressed text: the stream is damaged, or its text, or it holds no end of zeros."""

    def mutate(content: bytes, rng: random.Random) -> bytes:
        kind = rng.randrange(6)
        if kind < 2:
            return raw(content, rng)
        if kind == 2:
            return content + closes(rng.choice((b"", b"\xff", b"more\n" * 9))) + rng.choice((b"", b"\0" * 9, b"x"))
        if kind == 3:
            return closes(closes(content)) if rng.random() < 0.5 else closes(bytes(ZEROS))
        return closes(text(opens(content), rng))

    return mutate


def npy(content: bytes, rng: random.Random) -> bytes:
    """Write the header of an array anew: huge, of objects, of another version; or pickle it."""
    array = np.load(io.BytesIO(content))
    row = np.atleast_1d(array)
    kind = rng.randrange(5)
    if kind == 0:
        return raw(content, rng)
    if kind == 1:
        into = io.BytesIO()
        np.save(into, np.array([Ran()], object), allow_pickle=True)
        return into.getvalue()
    if kind == 2:
        into = io.BytesIO()
        other = rng.choice(
            (array.astype("f4"), row[:-1], array[None], array.astype(">i8"), -array.astype("i8"), array.astype("O"))
        )
        np.save(into, other, allow_pickle=True)
        return into.getvalue()
    shape = rng.choice(
        ("(10**12,)", "(1000000000000,)", "(-1,)", "(2**63,)", "(9223372036854775807, 4)", "()", "'x'", "(1.5,)")
    )
    descr = rng.choice(("'<i8'", "'|O'", "'<i4'", "[('a', '<i8', (1000000,))]", "'<U9'", "None"))
    header = f"{{'descr': {descr}, 'fortran_order': {rng.choice(('False', 'True', '7'))}, 'shape': {shape}, }}"
    header = rng.choice((header, header[:-4], "(" * 500, "__import__('os').system('touch ran')")).ljust(117) + "\n"
    version = rng.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    size = struct.pack("<H" if version[0] == 1 else "<I", rng.choice((len(header), len(header), 65535)))
    return b"\x93NUMPY" + bytes(version) + size + header.encode("latin1") + array.tobytes()


def npz(content: bytes, rng: random.Random) -> bytes:
    """Damage an archive of arrays: its bytes, the form or the name of one array, or let it expand to far more."""
    if rng.random() < 0.3:
        return raw(content, rng)
    into, chosen = io.BytesIO(), rng.randrange(16)
    packed = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(into, "w", packed) as written:
        names = given.namelist()
        for number, name in enumerate(names):
            array = given.read(name)
            if number == chosen % len(names):
                name = rng.choice((name, name, name, "other.npy", f"../{name}"))
                array = npy(array, rng) + bytes(rng.choice((0, 0, ZEROS)))
            written.writestr(name, array)
    return into.getvalue()


def safetensors(content: bytes, rng: random.Random) -> bytes:
    """Damage the header of a safetensors file, its length, or the arrays behind it."""
    kind = rng.randrange(4)
    if kind == 0:
        return raw(content, rng)
    (length,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + length], content[8 + length :]
    if kind == 1:
        return struct.pack("<Q", rng.choice((0, 2**63, 2**40, length - 1, length + 8, 100_000_000))) + header + data
    if kind == 2:
        header = header.replace(b"F32", rng.choice((b"F64", b"BF16", b"F8_E4M3", b"I64", b"BOOL", b"C64", b"X")), 1)
    else:
        header = json_text(header, rng)
    return struct.pack("<Q", len(header)) + header + data


def protobuf(content: bytes, rng: random.Random) -> bytes:
    """Damage a message by its fields: other numbers, lengths, orders and depths."""
    if rng.random() < 0.2:
        return raw(content, rng)
    fields = list(_fields(content))
    if not fields:
        return raw(content, rng)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(fields))
        number, wire, value = fields[at]
        kind = rng.randrange(7)
        if kind == 0 and len(fields) > 1:
            del fields[at]
        elif kind == 1:
            fields.insert(rng.randrange(len(fields)), fields[at])
        elif kind == 2:
            fields[at] = (rng.choice((number, 0, 1, 15, 2**29 - 1)), rng.randrange(6), value)
        elif wire == 0:
            fields[at] = (number, 0, _varint(rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))))
        elif wire == 2 and kind < 5:
            inner = protobuf(value, rng) if value else b""
            fields[at] = (number, 2, inner)
        elif wire == 2:
            fields[at] = (number, 2, rng.choice((b"", value * 2, raw(value, rng), b"\xff" * 9, value[:-1])))
        else:
            fields[at] = (
                number,
                wire,
                rng.choice((b"\xff" * len(value), bytes(len(value)), rng.randbytes(len(value)))),
            )
    return b"".join(_field(*field) for field in fields)


def _fields(content: bytes) -> Any:
    """Yield (number, wire type, bytes of the value) of a message, as far as it can be read."""
    at = 0
    while at < len(content):
        try:
            tag, at = _read_varint(content, at)
            wire = tag & 7
            if wire == 0:
                begin = at
                _, at = _read_varint(content, at)
                yield tag >> 3, 0, content[begin:at]
                continue
            length = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                length, at = _read_varint(content, at)
            if length is None or at + length > len(content):
                return
        except IndexError:
            return
        yield tag >> 3, wire, content[at : at + length]
        at += length


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, wire: int, value: bytes) -> bytes:
    return _varint(number << 3 | wire) + (_varint(len(value)) + value if wire == 2 else value)


def records(content: bytes, rng: random.Random) -> bytes:
    """Damage TFRecords: the examples in them, with checksums that agree, or the file as bytes."""
    if rng.random() < 0.3:
        return raw(content, rng)
    found, at = [], 0
    while at < len(content):
        (length,) = struct.unpack("<Q", content[at : at + 8])
        found.append(content[at + 12 : at + 12 + length])
        at += length + 16
    for _ in range(rng.choice((1, 1, 4))):
        place = rng.randrange(len(found))
        kind = rng.randrange(4)
        if kind == 0 and len(found) > 1:
            del found[place]
        elif kind == 1:
            found.insert(place, rng.choice((found[place], b"")))
        else:
            found[place] = protobuf(found[place], rng)
    written = [struct.pack("<Q", len(record)) for record in found]
    return b"".join(
        length + _masked(length) + record + _masked(record) for length, record in zip(written, found, strict=True)
    )


def _masked(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _crc_of(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
    return byte


_CRC = [_crc_of(byte) for byte in range(256)]


def parquet(content: bytes, rng: random.Random) -> bytes:
    """Write a table with other columns, types and names, or damage its bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if rng.random() < 0.4:
        return raw(content, rng)
    table = pq.read_table(io.BytesIO(content), use_threads=False)
    names = list(table.column_names)
    at = rng.randrange(len(names))
    rows = table.num_rows
    kind = rng.randrange(6)
    if kind == 0:
        names[at] = rng.choice(names)
        table = table.rename_columns(names)
    elif kind == 1:
        table = table.drop_columns([names[at]])
    elif kind == 2:
        table = table.rename_columns([*names[:at], rng.choice(NAMES[:-4]).replace("\ud83d", "?"), *names[at + 1 :]])
    elif kind == 3:
        table = table.slice(0, 0)
    else:
        others = [
            pa.array([b"\xff\xfe"] * rows), pa.array([None] * rows), pa.array([[1]] * rows),
            pa.array([{"a": 1}] * rows), pa.array([2**63 - 1] * rows), pa.array([float("nan")] * rows),
            pa.array([""] * rows), pa.array(["a"] * rows).dictionary_encode(),
            pa.array(["a"] * rows, pa.large_string()), pa.array(["x\0y"] * rows),
            pa.array([0] * rows, pa.timestamp("us")), pa.array([b"\xff"] * rows, pa.large_binary()),
        ]  # fmt: skip
        table = table.set_column(at, names[at], rng.choice(others))
    into = io.BytesIO()
    pq.write_table(table, into)
    return into.getvalue()


def charsmap(content: bytes, rng: random.Random) -> bytes:
    """Damage the table of a Precompiled normalizer, and little else of the tokenizer around it."""
    if rng.random() < 0.2:
        return json_text(content, rng)
    tokenizer = json.loads(content)
    table = bytearray(base64.b64decode(tokenizer["normalizer"]["precompiled_charsmap"]))
    size = int.from_bytes(table[:4], "little")
    kind = rng.randrange(4)
    if kind == 0:
        table[:4] = struct.pack("<I", rng.choice((0, 4, 1024, size // 2, size - 4, size + 4, 2**31, 2**32 - 1)))
    elif kind == 1:
        table = bytearray(raw(bytes(table), rng))
    for _ in range(rng.choice((0, 1, 30, 1000)) if kind > 1 else 0):
        at = 4 + 4 * rng.randrange(size // 4)
        unit = rng.choice((0, 2**32 - 1, rng.getrandbits(32), struct.unpack_from("<I", table, at)[0] ^ 256))
        struct.pack_into("<I", table, at, unit)
    tokenizer["normalizer"]["precompiled_charsmap"] = base64.b64encode(table).decode()
    return json.dumps(tokenizer).encode()


def torch_file(content: bytes, rng: random.Random) -> bytes:
    """Let tensors of PyTorch be views of far more numbers than the file has, compress them, or damage its bytes."""
    import torch

    if rng.random() < 0.4:
        return raw(content, rng)
    tensors = torch.load(io.BytesIO(content), weights_only=True)
    name, into = rng.choice(sorted(tensors)), io.BytesIO()
    kind = rng.randrange(4)
    if kind == 0:
        tensors[name] = tensors[name].flatten()[:1].expand(rng.choice((10**7, 10**9, 10**12)))
    elif kind == 1:
        shared = torch.zeros(1000)
        tensors |= {f"{name}.{i}": shared for i in range(rng.choice((3, 5000)))}
    elif kind == 2:
        tensors[name] = tensors[name].to_sparse()
    torch.save(tensors, into)
    if kind < 3:
        return into.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(into) as given, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as written:
        for member in given.namelist():
            written.writestr(member, given.read(member) + bytes(rng.choice((0, ZEROS))))
    return packed.getvalue()


FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bytes": raw,
    "json": json_text,
    "text": text,
    "json lines": json_lines,
    "npy": npy,
    "npz": npz,
    "safetensors": safetensors,
    "protobuf": protobuf,
    "records": records,
    "parquet": parquet,
    "charsmap": charsmap,
    "torch": torch_file,
    "gz": compressed(gzip.decompress, gzip.compress),
    "xz": compressed(lzma.decompress, lzma.compress),
    "zst": compressed(zstd.decompress, zstd.compress),
    "bz2": compressed(bz2.decompress, bz2.compress),
}
"""A mutation of the content of a file, by its form."""


def mutate(path: Path, form: str, rng: random.Random) -> str:
    """Damage a file; return what was done, in words."""
    if rng.random() < 0.12:
        return f"{path.name} {replaced(path, rng)}"
    path.write_bytes(FORMS[form](path.read_bytes(), rng).replace(b"{box}", os.fsencode(os.getcwd())))
    return f"{path.name} damaged as {form}"
