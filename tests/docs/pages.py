"""The shell commands on the pages of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "launch/README.md", *sorted((ROOT / "docs").glob("*.md"))]
_SHELL = re.compile(r"^ *```(?:bash|sh)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def commands_on(page: Path) -> list[str]:
    """Return the commands of a page in order, each on one line, without its comment.

    In a block marked bash or sh each line is a command. Elsewhere in code, a line behind `$ ` or one that begins with
    `python -m` is one.
    """
    text = page.read_text().replace("\\\n", " ")
    lines = _SHELL.sub(lambda block: re.sub(r"^(?=\s*[^\s#])", "$ ", block[1], flags=re.MULTILINE), text).splitlines()
    commands = (re.fullmatch(r"\s*\$ (.+)|\s*(python -m .+)", line) for line in lines)
    return [re.sub(r"\s+(#.*)?$|\s+(?=\s)", "", found[1] or found[2]) for found in commands if found]
