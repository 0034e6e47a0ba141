"""Write a safetensors file through Python's own file: it raises where the disk refuses the data only when the file is
closed, as file servers and quotas may, and the safetensors library does not look."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

# By the names of NumPy and ml_dtypes; safetensors/src/tensor.rs lists them all.
_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
_ALIGNMENT = 8


def write(tensors: Mapping[str, np.ndarray], file: Path) -> None:
    """Write the bytes that `safetensors.numpy.save_file` writes for PyTorch: a length, a header of JSON, the arrays."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    in_order = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    begin = 0
    for name, array in in_order:
        end = begin + array.nbytes
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-len(written) % _ALIGNMENT)
    with file.open("wb") as opened:
        opened.write(len(written).to_bytes(8, "little") + written)
        for _, array in in_order:
            opened.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
