"""What several test files share: the reference numbers beside the checkout, where they are."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def reference() -> Path:
    """Numbers obtained by running the original code; absent in a user's checkout."""
    folder = SHARED / "reference"
    if not folder.is_dir():
        pytest.skip(f"the original's reference numbers are not here ({folder})")
    return folder
