"""Compiled programs on a disk, from which the next process reads them instead of compiling: jax's compilation cache.

Its settings are environment variables of jax: JAX_ENABLE_COMPILATION_CACHE=false turns it off,
JAX_COMPILATION_CACHE_DIR names another folder, and JAX_COMPILATION_CACHE_MAX_SIZE its size in bytes. Processes may
share the folder: jax locks it while it reads or writes. A program is read only by the same version of jaxlib, with the
same flags of XLA, on the same kind of device: of a CPU, one with the same instructions.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlnet_jax.printing import tell

MAX_BYTES = 512 * 1024**2
"""size of the user's folder; the programs used least recently are deleted"""
SHORTEST = 0.1
"""seconds; what compiles faster is not kept: with each new program, jax looks at all"""
_SECONDS_OF_A_WRITE = 60.0


@contextlib.contextmanager
def keep_programs(folder: str | None = None) -> Iterator[None]:
    """Keep the programs that are compiled in the body in a folder, or in the user's (`users_folder`). Do nothing if
    jax keeps them elsewhere, or nowhere."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    given, settings = jax.config.values, dict[str, Any]()
    if given["jax_enable_compilation_cache"] and given["jax_compilation_cache_dir"] is None:
        if folder:
            settings = {"jax_compilation_cache_dir": folder}
        elif ours := users_folder():
            settings = {"jax_compilation_cache_dir": str(ours)}
            if given["jax_compilation_cache_max_size"] == -1:
                settings["jax_compilation_cache_max_size"] = MAX_BYTES
            if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
                settings["jax_persistent_cache_min_compile_time_secs"] = SHORTEST
    if not settings:
        yield
        return
    before = {name: given[name] for name in settings}
    try:
        _update(settings)
        compilation_cache.reset_cache()  # jax reads the settings once, when it first compiles
        yield
    finally:
        _update(before)
        compilation_cache.reset_cache()


def _update(settings: dict[str, Any]) -> None:
    import jax

    for name, value in settings.items():
        jax.config.update(name, value)


def users_folder() -> Path | None:
    """Return the folder of this user's programs, XDG_CACHE_HOME/xlnet_jax/programs, and create it if it does not exist.
    Return None, with a note, if that is impossible, or if others could put programs there, which this process would
    execute."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (root if root.is_absolute() else Path.home() / ".cache") / "xlnet_jax" / "programs"
        for part in (*reversed(folder.parents), folder):
            part.mkdir(0o700, exist_ok=True)
        folder = folder.resolve()
        if not (wrong := _find_strangers(folder)):
            _delete_unfinished(folder)
            return folder
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        wrong = str(error)
    tell(
        f"compiled programs are not kept, and the next call compiles again: {wrong}; JAX_COMPILATION_CACHE_DIR names "
        "another folder, JAX_ENABLE_COMPILATION_CACHE=false keeps none"
    )
    return None


def _find_strangers(folder: Path) -> str | None:
    """Return why others than this user and root can write in a folder, or put another one in its place; None if they
    cannot."""
    for part in (folder, *folder.parents):
        about = part.stat()
        if about.st_uid not in (os.getuid(), 0):
            return f"{part} belongs to another user"
        keeps_ours = part != folder and about.st_mode & stat.S_ISVTX  # as /tmp, where all make folders of their own
        if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not keeps_ours:
            return f"others may write in {part} (chmod go-w)"
    return None


def _delete_unfinished(folder: Path) -> None:
    """Delete programs whose process was killed while it wrote them: jax writes NAME-atime after NAME-cache, would read
    what lacks it at every call in vain, and would write no other program."""
    for program in folder.glob("*-cache"):
        finished = program.with_name(program.name.removesuffix("-cache") + "-atime").exists()
        if not finished and time.time() - program.stat().st_mtime > _SECONDS_OF_A_WRITE:
            program.unlink(missing_ok=True)
