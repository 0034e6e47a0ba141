"""Vectors of many texts in a file, in flat memory."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data_pipelines.texts import Id, TextRecord
from xlnet_jax.errors import InputError
from xlnet_jax.inference.lengths import chunks
from xlnet_jax.storage.files import complete_file

CHARS_AT_ONCE, CHARS_OF_A_VECTOR = 2**22, 2**10  # a chunk holds 4,096 texts at the most

Append = Callable[[Sequence[Id], np.ndarray], Any]


class Embedder(Protocol):
    """Signature of `embed_texts` once its settings are bound."""

    def __call__(self, texts: Sequence[str], *, names: Sequence[str]) -> np.ndarray: ...


def write_embeddings(
    embed: Embedder, texts: Iterable[TextRecord], out: str, on_embedded: Callable[[int], None] = lambda count: None
) -> tuple[int, int]:
    """Write the vectors of texts as the texts are read; return (number of texts, D).

    out: .npy, float32 [texts, D], or .parquet, with the columns id (numbers from 0 where texts have no id) and
    embedding. on_embedded: called with the number of texts so far. Raises InputError where there is no text, or one
    cannot be embedded; no file is left then.
    """
    opened = _parquet if out.endswith(".parquet") else _npy
    done = width = 0
    with complete_file(out) as partial, opened(partial) as append:
        for records in chunks(texts, CHARS_AT_ONCE, lambda r: len(r.text) + CHARS_OF_A_VECTOR):
            vectors_BD = embed([r.text for r in records], names=[r.where for r in records])
            append([done + i if r.id is None else r.id for i, r in enumerate(records)], vectors_BD)
            done, width = done + len(vectors_BD), vectors_BD.shape[1]
            on_embedded(done)
        if not done:
            raise InputError("there is no text to embed")
    return done, width


@contextlib.contextmanager
def _npy(path: Path) -> Iterator[Append]:
    # NumPy leaves room in the header for the number of rows to grow.
    shape = (0, 0)
    with path.open("wb") as file:

        def write_header() -> None:
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})

        def append(ids: Sequence[Id], vectors_BD: np.ndarray) -> None:
            nonlocal shape
            if not shape[0]:
                shape = (0, vectors_BD.shape[1])
                write_header()
            shape = (shape[0] + len(vectors_BD), shape[1])
            file.write(vectors_BD.astype("<f4").tobytes())

        yield append
        write_header()


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Append]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        kinds: set[type] = set()

        def append(ids: Sequence[Id], vectors_BD: np.ndarray) -> None:
            nonlocal writer
            kinds.update(map(type, ids))
            if len(kinds) > 1:
                raise InputError(
                    "`id_field`: some ids are text and some are whole numbers, and a column holds one type"
                )
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(vectors_BD.ravel()), vectors_BD.shape[1])
            table = pa.table({"id": pa.array(ids), "embedding": vectors})
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(path, table.schema))
            writer.write_table(table)

        yield append
