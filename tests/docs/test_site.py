"""Links lead to files, the site and the index list each page once, and the site builds without a warning."""

import configparser
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from docs.reference import WIDTH, pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OF_JAX = {"tasks are unhealthy", "the leader task was preempted"}
HOSTS = r"https://(?:github\.com|colab\.research\.google\.com/github)"
ADDRESS = re.compile(rf"{HOSTS}/xlnet-jax/xlnet_jax/(?:blob|raw)/main/([^)\s#\"\\]+)")
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def links(page):
    """Return the targets of a page's links to other files, without anchors."""
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [target.partition("#")[0] for target in targets if not target.startswith(("http", "#"))]


def test_every_link_leads_to_a_file():
    """Links of notebooks and of README.md are whole addresses, because Colab and PyPI show these files alone."""
    pages = [*ROOT.glob("*.md"), ROOT / "launch/README.md", ROOT / "benchmarks/README.md", *DOCS.glob("*.md")]
    found = [(page, page.parent / target) for page in pages for target in links(page)]
    pages += ROOT.glob("launch/colab/*.ipynb")
    found += [(page, ROOT / path) for page in pages for path in ADDRESS.findall(page.read_text())]
    assert [f"{page}: {target}" for page, target in found if not target.exists()] == []


def test_index_and_site_list_every_page_once():
    pages = sorted(page.name for page in DOCS.glob("*.md"))
    listed = [target for target in links(DOCS / "README.md") if re.fullmatch(r"\w+\.md", target)]
    assert sorted([*listed, "README.md"]) == pages
    entries = [entry for section in SETTINGS["nav"] for entries in section.values() for entry in entries]
    shown = [page for entry in entries for page in (entry.values() if isinstance(entry, dict) else [entry])]
    of_the_repository = ["first_run.md", "contributing.md", "changelog.md"]
    notebooks = ["notebook_pretrain.md", "notebook_finetune.md", "notebook_library.md", "notebook_any_order.md"]
    assert sorted(shown) == sorted([*pages, *of_the_repository, *notebooks])
    package = configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    assert SETTINGS["repo_url"] == package["metadata"]["url"]


def test_the_reference_pages_are_those_of_the_code():
    for name, content in pages().items():
        assert (DOCS / name).read_text() == content, f"docs/{name} is out of date: run `make reference`"
        anchors = re.findall(r'<a id="([^"]*)">', content)
        assert len(anchors) == len(set(anchors))


@pytest.mark.long
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra [docs] is not installed")
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    html = "\n".join(page.read_text() for page in (tmp_path / "site").rglob("*.html"))
    assert re.findall(r'(?:src|<link rel="stylesheet" href)="https?:[^"]*"', html) == [], "requests to other hosts"
    assert 'data-md-component="source"' not in html, "asks GitHub for the repository's stars"
    assert "notebook_library_0.png" in html
    edited = re.findall(rf'href="{SETTINGS["repo_url"]}/edit/main/([^"]*)"', html)
    assert "CONTRIBUTING.md" in edited
    assert [path for path in edited if not (ROOT / path).exists()] == []


def test_the_messages_among_the_symptoms_are_printed_somewhere():
    headings = re.findall(r"^### .*", (DOCS / "symptoms.md").read_text(), re.MULTILINE)
    messages = [quoted for heading in headings for quoted in re.findall(r"`([a-z]+ [^`]+)`", heading)]
    code = " ".join(
        re.sub(r'"\s+f?"', "", file.read_text())
        for package in ("xlnet_jax", "data_pipelines")
        for file in (ROOT / package).rglob("*.py")
    )
    assert len(messages) >= 5
    assert [message for message in messages if message not in code and message not in OF_JAX] == []


def test_commands_fit_the_code_blocks_of_the_site():
    too_long = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]
        for block in re.findall(r"^ *```(?:bash|sh)\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if len(line) > WIDTH
    ]
    assert too_long == [], f"break lines of more than {WIDTH} characters with a backslash"
