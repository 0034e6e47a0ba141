"""Links between the pages lead to files, and the index lists every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REPOSITORY = re.compile(r"https://github.com/xlnet-jax/xlnet_jax/(?:blob|raw)/main/")
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "launch/README.md", *sorted(DOCS.glob("*.md"))]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to other files, without anchors. README's are whole addresses."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    if page == ROOT / "README.md":
        targets = [REPOSITORY.sub("", target) for target in targets]
    return [target.partition("#")[0] for target in targets if not target.startswith(("http", "#"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page):
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


def test_the_index_lists_every_page_once():
    listed = [target for target in links(DOCS / "README.md") if "/" not in target]
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "README.md")
