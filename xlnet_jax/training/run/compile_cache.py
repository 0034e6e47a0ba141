"""Compiled programs in the folder of the run, so that a restart does not compile them again.

In the workdir and not in the user's home, as a restart may be on another machine that has only the workdir in common.
JAX_COMPILATION_CACHE_DIR names another place. Not on CPUs unless it does: compilation is short there, and what one
CPU's compiler has stored can be refused, or crash, on the next.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from data_pipelines.opening import zstd
from xlnet_jax.storage.files import in_bucket

PLATFORMS = ("tpu", "gpu")


@contextmanager
def programs_kept_in(folder: str) -> Iterator[None]:
    """While inside, programs that take jax_persistent_cache_min_compile_time_secs to compile are kept in `folder`, a
    path or gs:// address."""
    if jax.config.values["jax_compilation_cache_dir"] is not None or jax.default_backend() not in PLATFORMS:
        yield
        return
    if not in_bucket(folder) and jax.process_index() == 0:
        _drop_damaged(Path(folder))
    _use(folder)
    try:
        yield
    finally:
        _use(None)


def _use(folder: str | None) -> None:
    compilation_cache.reset_cache()  # jax looks at the setting once, when it first compiles
    jax.config.update("jax_compilation_cache_dir", folder)


def _drop_damaged(folder: Path) -> None:
    """jax writes in place, so a process that is killed leaves half a program, which jax never replaces."""
    for path in folder.glob("*-cache"):
        content = path.read_bytes()
        try:
            zlib.decompress(content) if content[:1] == b"\x78" else zstd.decompress(content)
        except (zlib.error, zstd.ZstdError):
            path.unlink()
