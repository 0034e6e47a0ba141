"""Pictures of matplotlib as PNG files, on a disk or in a bucket."""

import io
from typing import Any

from etils import epath

from xlnet_jax.storage.files import write_durably


def write_png(figure: Any, path: epath.PathLike) -> None:
    """Write a matplotlib figure, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_durably(path, picture.getvalue())
