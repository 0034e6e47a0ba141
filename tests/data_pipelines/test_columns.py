"""Two columns of one name in a Parquet table: which one is meant is not guessed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_pipelines import sources
from data_pipelines.readers import parquet_rows
from xlnet_jax.errors import InputError


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table([["a"], ["b"], [1]], names=["text", "text", "id"]), path)
    for read in (lambda: sources.read_lines(sources.find([path]), "strict"), lambda: parquet_rows(path)):
        with pytest.raises(InputError, match=r"t\.parquet: 2 of its columns are called 'text'; rename all but one"):
            list(read())
