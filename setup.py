"""What a package index shows: README.md with whole addresses, as no files lie beside it there. All else: setup.cfg."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")

settings = ConfigParser()
settings.read(HERE / "setup.cfg", encoding="utf-8")
url = settings["metadata"]["url"]


def whole(link: re.Match[str]) -> str:
    """Return a link of the README with the address of its file; pictures are loaded from there."""
    picture, text, path = link.groups()
    return f"{picture}{text}({url}/{'raw' if picture else 'blob'}/main/{path})"


setup(
    long_description=LINK.sub(whole, (HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    project_urls={
        "Documentation": f"{url}/blob/main/docs/README.md",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
        "Issues": f"{url}/issues",
    },
)
