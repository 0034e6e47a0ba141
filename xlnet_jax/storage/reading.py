"""Read files that may be damaged or untrusted. All JSON and NumPy arrays are decoded here.

Checks that a file is regular and not too large, that JSON has the expected types and version, that the header of an
array fits its file, that names stay inside their folder, and the size and CRC-32 of every file of a checkpoint. Every
InputError names the file and what is wrong with it.

Each JSON file of this project has the version of its format under `format_version`; metrics.jsonl has it in its first
record. From the first release on, a format changes only together with its number here. docs/recovery.md lists the files
of each format.
"""

import contextlib
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from etils import epath

from xlnet_jax.errors import InputError, shown
from xlnet_jax.storage.files import in_bucket, write_durably

FORMAT_VERSION = "format_version"
Format = Literal["checkpoint", "run", "metrics", "results", "thresholds", "comparison", "corpus", "tokenizer", "export"]
VERSIONS: dict[Format, int] = dict.fromkeys(get_args(Format), 1)

DOCUMENT = 256 << 20
"""maximum bytes of a file that is read at once, such as JSON or a vocabulary"""

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
"""count in a type for `read_json`; small enough that results computed from a few of them fit an int64"""
Positive = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
"""size of one thing, such as a vocabulary, in a type for `read_json`"""


@contextlib.contextmanager
def naming_damage(where: object, remedy: str = "") -> Iterator[None]:
    """Turn any exception that a library raises for a damaged or hostile file into an InputError.

    where: the file, or a name of the content. remedy: what to do about it. InputErrors pass unchanged.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each library raises half a dozen types
        reason = " ".join(str(error).replace("`", "").split())[:200] or type(error).__name__
        reason = f"it has no {reason}" if isinstance(error, KeyError) and " " not in reason else reason
        raise InputError(f"{where} is damaged: {reason}{remedy and '; ' + remedy}") from None


def require_fitting(announced: int, there: int, where: object) -> None:
    """Raise InputError if a file claims more bytes than it can hold, before they are allocated."""
    if announced > there:
        raise InputError(f"{where} is damaged: it claims {announced:,} bytes, but has {there:,}")


def require_regular(file: epath.PathLike) -> int:
    """Return the size in bytes of a file. Raises InputError if it is missing, or is a folder, a pipe or a device, which
    may be endless."""
    try:
        if in_bucket(file):
            there = epath.Path(file).stat()
            kind, size = "a folder" if there.is_directory else "", there.length
        else:
            found = os.stat(file)  # follows links
            other = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
            kind, size = "" if stat.S_ISREG(found.st_mode) else other, found.st_size
    except FileNotFoundError:
        raise InputError(f"{file} is missing") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if kind:
        raise InputError(f"{file} is {kind}, not a file")
    return int(size)


def read_document(file: epath.PathLike, limit: int = DOCUMENT) -> bytes:
    """Return the content of a small file. Raises InputError as `require_regular` does, and if it has more than `limit`
    bytes."""
    if (size := require_regular(file)) > limit:
        raise InputError(f"{file} is too large: it has {size:,} bytes, at most {limit:,} are allowed")
    try:
        return bytes(epath.Path(file).read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from None


def read_json(file: epath.PathLike, form: Any = dict[str, Any], remedy: str = "") -> Any:
    """Return the content of a JSON file.

    form: type of the content, made of lists, dictionaries, dataclasses and numbers with bounds (`Count`); unknown keys
    of a dataclass are ignored. remedy: what to do about a damaged file. Raises InputError with the place of the first
    value of a wrong type.
    """
    return parse_json(read_document(file), str(file), form, remedy)


def parse_json(content: bytes | str, where: str, form: Any = dict[str, Any], remedy: str = "") -> Any:
    """Return the value of a JSON text, checked as in `read_json`. where: name of the content in messages."""
    with naming_damage(where, remedy):
        value = json.loads(content)
        msgspec.json.encode(value)  # refuses lone surrogates and numbers of more than 64 bits
        return msgspec.convert(value, form)


def with_version(name: Format, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file of this format with its version first."""
    return {FORMAT_VERSION: VERSIONS[name], **content}


def without_version(name: Format, content: Any, where: str, remedy: str = "") -> dict[str, Any]:
    """Return the content of a file of this format without its version.

    where: name of the file in messages. remedy: what to do about a file of another version. Raises InputError if the
    content is not a dictionary, or has no version or a different one.
    """
    reads = f"this xlnet_jax reads version {VERSIONS[name]} of {name} files"
    end = remedy and f"; {remedy}"
    if not isinstance(content, Mapping) or FORMAT_VERSION not in content:
        raise InputError(f"{where} has no {FORMAT_VERSION}: {reads}{end}")
    if (found := content[FORMAT_VERSION]) != VERSIONS[name] or isinstance(found, bool):
        raise InputError(f"{where} has {FORMAT_VERSION} {shown(found)}: {reads}{end}")
    return {key: value for key, value in content.items() if key != FORMAT_VERSION}


def read_versioned(file: epath.PathLike, name: Format, form: Any = dict[str, Any], remedy: str = "") -> Any:
    """Return the content of a JSON file of this format, without its version. Arguments and errors as in `read_json`;
    also raises InputError for a missing or different version."""
    content = without_version(name, read_json(file, dict[str, Any], remedy), str(file), remedy)
    with naming_damage(file, remedy):
        return msgspec.convert(content, form)


def write_versioned(file: epath.PathLike, name: Format, content: Mapping[str, Any]) -> None:
    """Write a JSON file of this format with its version, all or nothing."""
    write_durably(file, (json.dumps(with_version(name, content), indent=2) + "\n").encode())


def decode_json(content: bytes | str, where: str, wanted: str = "give JSON") -> Any:
    """Return the value of any JSON text, with numbers of any size: a line of a user's text, or a message from another
    process of the run.

    where: name of the content in messages. wanted: what to give instead. Raises InputError if it is not JSON.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}); {wanted}") from None


def require_regular_files(folder: epath.PathLike) -> int:
    """Return the total bytes of all files in a folder on a disk. Raises InputError if one of them is a pipe, a device
    or a broken link."""
    return sum(require_regular(os.path.join(root, name)) for root, _, names in os.walk(folder) for name in names)


def inside(folder: epath.Path, name: str, where: str) -> epath.Path:
    """Return the path of a file in a folder whose name comes from another file.

    where: name of that other file. Raises InputError for a name that leads out of the folder, such as /etc/passwd, ../x
    or gs://x, and for a name that some libraries read as a pattern, such as * or x/, because it would stand for other
    files. Links in the folder are followed: its author chose them.
    """
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "://" in name or "\0" in name or "\\" in name:
        raise InputError(f"{where} names {name[:200]!r}, which is not in {folder}: do not use this folder")
    if set(name) & set("*?[") or name.endswith("/"):
        raise InputError(f"{where} names {name[:200]!r}, which is a pattern and not a file: do not use this folder")
    return folder / name


def read_array(file: epath.Path, kind: type[np.generic], rank: int) -> np.ndarray:
    """Return the array in an .npy file. Raises InputError if its type or rank is wrong, or its shape does not fit the
    size of the file. Nothing is unpickled."""
    require_regular(file)
    with naming_damage(file), file.open("rb") as opened:
        return _array_in(opened, kind, rank, str(file))


def read_arrays(file: epath.Path, forms: Mapping[str, tuple[type[np.generic], int]]) -> dict[str, np.ndarray]:
    """Return arrays of an uncompressed .npz file. forms: type and rank by name. Raises InputError as `read_array` does,
    and if an array is missing."""
    size = require_regular(file)
    found = {}
    with naming_damage(file), file.open("rb") as opened, zipfile.ZipFile(opened) as archive:
        for name, (kind, rank) in forms.items():
            member = archive.getinfo(f"{name}.npy")
            require_stored([member], size, str(file))
            with archive.open(member) as array:
                found[name] = _array_in(array, kind, rank, f"{file}: {name}")
    return found


def require_stored(members: Sequence[zipfile.ZipInfo], size: int, where: str) -> None:
    """Raise InputError if a member of a ZIP file is compressed, or larger than the file of `size` bytes."""
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size > size:
            name = member.filename.removesuffix(".npy")
            raise InputError(f"{where} is damaged: its array {name} is compressed or larger than the file")


def _array_in(opened: IO[bytes], kind: type[np.generic], rank: int, where: str) -> np.ndarray:
    """Return the array of an open .npy file. Raises an error if it has more or fewer numbers than its header claims."""
    array = np.lib.format.read_array(opened, allow_pickle=False)
    if array.dtype != np.dtype(kind) or array.ndim != rank:
        raise InputError(f"{where} is damaged: it contains {array.dtype} of shape {str(array.shape)[:80]}")
    if opened.read(1):
        raise InputError(f"{where} is damaged: it has more numbers than its header claims")
    return array


NAME = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Write checksums.json for all other files into a finished folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != NAME)
    record = {p.relative_to(folder).as_posix(): _checksum(p) for p in files}
    write_durably(folder / NAME, json.dumps(record).encode())


def find_damage(folder: Path, parts: Iterable[str]) -> str | None:
    """Return a line about the first damaged file in these sub-folders, or None. A folder without checksums.json passes:
    its process was killed before it wrote the checksums."""
    record = folder / NAME
    if not record.exists():
        return None
    try:
        expected = read_json(record, dict[str, tuple[Count, Count]])
    except InputError as damage:
        return str(damage)
    for name, (size, crc) in expected.items():
        if name.partition("/")[0] not in parts:
            continue
        try:
            file = Path(inside(epath.Path(folder), name, str(record)))
            there = require_regular(file)
        except InputError as damage:
            return str(damage)
        if there != size:
            return f"{name} has {there:,} bytes of {size:,}"
        if _checksum(file)[1] != crc:
            return f"{name} was changed"
    return None


def _checksum(file: Path) -> tuple[int, int]:
    size, crc = 0, 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 22):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc
