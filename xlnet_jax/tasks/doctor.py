"""Find damage in everything that a run or `prepare` has written: checkpoints, tokenizers, corpora, and other files."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from data_pipelines.corpus import MANIFEST_FILE, Corpus, entropy
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.listing import (
    CONFIG,
    MEMORY,
    PARAMS,
    RESULTS,
    STATE,
    TOKENIZER,
    UNVERIFIED,
    WEIGHTS,
    damage_of,
    is_verified,
    last_good,
    step_of,
)
from xlnet_jax.errors import USER_ERROR, InputError, first_line, with_flags
from xlnet_jax.printing import printing_until_unread
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import from_dict, identity_difference
from xlnet_jax.storage.files import require_weights_on_disk
from xlnet_jax.storage.reading import NAME as CHECKSUMS
from xlnet_jax.storage.reading import decode_json, read_document, read_json, read_versioned, require_regular
from xlnet_jax.tasks.config import FinetuneConfig

_PNG = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"  # its first and its last bytes
_UNFINISHED = ".orbax-checkpoint-tmp"
_PASSED_OVER = ("compiled", "tensorboard", "broken-checkpoints")


@dataclass(frozen=True)
class DoctorSettings:
    """Find damage in a workdir, a checkpoint or a corpus."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """workdir of a run or of several, a checkpoint, or a corpus, on a disk"""


@dataclass(frozen=True)
class Finding:
    """What was found in a file or a folder."""

    path: Path
    damage: str | None
    """None = no damage"""
    note: str = ""


def examine(folder: str | Path) -> list[Finding]:
    """Return what was found in each checkpoint, tokenizer, corpus and file of a folder, in the order of their names.

    Every byte is compared with its checksum where there is one. Raises InputError if the folder has nothing that this
    project writes.
    """
    require_weights_on_disk(folder)
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{folder} is not a folder")
    found = list(_walk(path))
    if not found:
        raise InputError(f"{folder} has no checkpoint, corpus or run: give a workdir, a checkpoint or a corpus")
    return found


def print_findings(settings: DoctorSettings) -> int:
    """Print a line for each finding; return 2 if something is damaged, else 0."""
    found = examine(settings.folder)
    damaged = [one for one in found if one.damage]
    with printing_until_unread():
        for one in found:
            print(f"{'damaged' if one.damage else 'note' if one.note else 'ok':9} {one.path}", end="")
            print(f": {with_flags(text)}" if (text := one.damage or one.note) else "")
        print(f"{len(damaged):,} of {len(found):,} are damaged" if damaged else f"{len(found):,} checked, no damage")
        for run in sorted({one.path.parent for one in damaged if step_of(one.path) is not None}):
            good = last_good(run)
            print(f"newest checkpoint without damage: {good or 'none'}")
    return USER_ERROR if damaged else 0


def _walk(folder: Path, is_of_run: bool = False) -> Iterator[Finding]:
    """Yield what is found in a folder and below it. is_of_run: it is in the workdir of a run, whose files are read."""
    names = sorted(os.listdir(folder))
    if folder.name == "checkpoints":
        yield from _walk_checkpoints(folder)
    elif MANIFEST_FILE in names:
        yield from _corpus(folder)
    elif PARAMS in names or (folder / CONFIG).exists() or _is_of_run(folder):
        yield _checkpoint(folder)
    elif folder.name == TOKENIZER:
        yield _tokenizer(folder)
    else:
        has_settings = "config.json" in names and not {"checkpoints", TOKENIZER}.isdisjoint(names)
        is_of_run = is_of_run or has_settings or RESULTS in names
        for path in (folder / name for name in names if name not in _PASSED_OVER and not name.startswith(".")):
            if path.is_dir() and path.resolve() not in (real := folder.resolve(), *real.parents):
                yield from _walk(path, is_of_run)
            elif path.name == "config.json" and has_settings:
                yield _finding(path, _check_settings, folder)
            elif is_of_run and path.suffix in _READERS:
                yield _finding(path, _READERS[path.suffix], path)


def _walk_checkpoints(folder: Path) -> Iterator[Finding]:
    steps = {name: step_of(name) for name in os.listdir(folder)}
    for name, step in sorted(steps.items(), key=lambda item: (item[1] is None, item[1], item[0])):
        path = folder / name
        if step is not None:
            yield _checkpoint(path) if path.is_dir() else Finding(path, "it is a file, not the folder of a checkpoint")
        elif name.endswith(_UNFINISHED):
            yield Finding(path, None, "a save was interrupted; the next run removes it")
        else:
            yield Finding(path, None, "no checkpoint: its name is not a step")


def _checkpoint(folder: Path) -> Finding:
    """Compare all files with their checksums. Without checksums, read what `load` reads."""
    from xlnet_jax.checkpoints import native

    parts = STATE if _is_of_run(folder) else WEIGHTS
    if not is_verified(folder):
        damage = damage_of(folder, parts) or _finding(folder, native.read, folder).damage
        return Finding(folder, damage or UNVERIFIED)

    def check() -> None:
        listed = {name.partition("/")[0] for name in read_json(folder / CHECKSUMS)}
        listed.discard("_CHECKPOINT_METADATA")  # of times, which Orbax changes later, and nobody reads
        if not (folder / MEMORY).exists():  # a newer checkpoint has it
            listed.discard(MEMORY)
        if damage := damage_of(folder, {*parts, *listed}):
            raise InputError(damage)

    return _finding(folder, check)


def _is_of_run(checkpoint: Path) -> bool:
    return checkpoint.parent.name == "checkpoints" and step_of(checkpoint) is not None


def _corpus(folder: Path) -> Iterator[Finding]:
    """Compare shards and tokenizer with the manifest, and the counts with their entropy there."""
    manifest = _finding(folder / MANIFEST_FILE, Corpus, folder)
    yield manifest
    if manifest.damage:
        return
    corpus = Corpus(folder)
    for split in corpus.manifest.splits.values():
        for shard in split.shards:
            yield _finding(folder / shard.name, corpus.check_shard, shard)
    yield _finding(folder / TOKENIZER, lambda: corpus.tokenizer)
    yield _finding(folder / "unigram_counts.npy", _check_counts, corpus)
    for path in sorted(folder.glob("*.json")):
        if path.name != MANIFEST_FILE:
            yield _finding(path, _read_json, path)


def _check_counts(corpus: Corpus) -> None:
    if not math.isclose(entropy(corpus.unigram_counts), corpus.manifest.unigram_entropy, rel_tol=1e-9, abs_tol=1e-9):
        raise InputError("its entropy is not that of the manifest")


def _tokenizer(folder: Path) -> Finding:
    """Read a tokenizer. In a workdir, compare it with the newest checkpoint without damage."""

    def check() -> None:
        Tokenizer.load(folder)
        if good := last_good(folder.parent / "checkpoints"):
            for same in (Path(good) / TOKENIZER).iterdir():
                if same.read_bytes() != read_document(folder / same.name):
                    raise InputError(f"{same.name} differs from {same}")

    return _finding(folder, check)


def _check_settings(folder: Path) -> None:
    """Compare the settings of a run with those of its newest checkpoint without damage."""
    from xlnet_jax.checkpoints import native

    content, good = read_versioned(folder / "config.json", "run"), last_good(folder / "checkpoints")
    if good is None:
        return
    kind: Any = FinetuneConfig if "task" in content else Config
    own, saved = (from_dict(kind, settings) for settings in (content, native.read_settings(Path(good))))
    if difference := identity_difference(own, saved, resumes=True):
        raise InputError(f"it differs from {good} ({'; '.join(difference)})")


def _read_json(file: Path) -> None:
    decode_json(read_document(file), "it")


def _read_lines(file: Path) -> None:
    """Read a file with a JSON object per line. A killed run may leave a part of the last line."""
    require_regular(file)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                decode_json(line, f"line {number}")


def _read_png(file: Path) -> None:
    content = read_document(file)
    if not (content.startswith(_PNG[0]) and content.endswith(_PNG[1])):
        raise InputError("it is not a whole PNG")


_READERS: dict[str, Any] = {".json": _read_json, ".jsonl": _read_lines, ".png": _read_png}


def _finding(path: Path, check: Callable[..., Any], *args: Any) -> Finding:
    try:
        check(*args)
    except Exception as error:  # each library raises half a dozen types for a damaged file
        return Finding(path, first_line(error).removeprefix(f"{path} is damaged: "))
    return Finding(path, None)
