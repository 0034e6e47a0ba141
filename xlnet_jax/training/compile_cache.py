"""Keep compiled programs in the workdir, so that a restart does not compile them again.

They are in the workdir and not in the user's home, because a restart may be on another machine that shares only the
workdir. JAX_COMPILATION_CACHE_DIR names another place. On CPUs programs are kept only there: compilation is short, and
a program compiled for one CPU can be refused, or crash, on the next.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from data_pipelines.readers import zstd
from xlnet_jax.storage.files import in_bucket

PLATFORMS = ("tpu", "gpu")


@contextmanager
def programs_kept_in(folder: str) -> Iterator[None]:
    """Keep programs in `folder`, a path or gs:// address, that take jax_persistent_cache_min_compile_time_secs or more
    to compile."""
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
    compilation_cache.reset_cache()  # jax reads the setting once, when it first compiles
    jax.config.update("jax_compilation_cache_dir", folder)


def _drop_damaged(folder: Path) -> None:
    """Delete half-written programs: jax writes in place, and never replaces what a killed process has left."""
    for path in folder.glob("*-cache"):
        content = path.read_bytes()
        try:
            zlib.decompress(content) if content[:1] == b"\x78" else zstd.decompress(content)
        except (zlib.error, zstd.ZstdError):
            path.unlink()
