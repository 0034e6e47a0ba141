"""JSON files that come with checkpoints."""

import json
from pathlib import Path
from typing import Any

from xlnet_jax.config import InputError


def read_json(file: Path) -> dict[str, Any]:
    """The object in the file. InputError where there is none."""
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        raise InputError(f"{file} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{file} holds no JSON object")
    return content
