"""Links lead to files and headings, site and index list each page once, and the site builds without a warning."""

import configparser
import functools
import re
from pathlib import Path

import yaml

from docs.reference import WIDTH, pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OF_JAX = {"tasks are unhealthy", "the leader task was preempted"}
HOSTS = r"https://(?:github\.com|colab\.research\.google\.com/github)"
ADDRESS = re.compile(rf"{HOSTS}/xlnet-jax/xlnet_jax/(?:blob|raw)/main/([^)\s\"\\]+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/.])((?:docs|launch|benchmarks)/(?:\w+/)?\w+\.md(?:#[\w-]+(?:\.[\w-]+)*)?)")
OF_CODE = ("xlnet_jax", "data_pipelines", "launch", "benchmarks", "docs", ".ci")
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def links(page):
    """Return the targets of a page's links, those to other hosts left out."""
    return [target for target in LINK.findall(page.read_text()) if not target.startswith("http")]


@functools.cache
def anchors_of(page):
    """Return the names of a page's headings, as GitHub makes them, and those given in it."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    made = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(made) == len(set(made)), f"{page}: two headings are equal"
    return {*made, *re.findall(r'<a id="([^"]*)">', text)}


def leads_nowhere(page, target):
    """Whether a link on a page names a file that is not there, or a heading that the file does not have."""
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    return not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors_of(file))


def test_every_link_leads_to_a_file_and_its_heading():
    """Links of notebooks and of README.md are whole addresses, because Colab and PyPI show these files alone."""
    pages = [*ROOT.glob("*.md"), ROOT / "launch/README.md", ROOT / "benchmarks/README.md", *DOCS.rglob("*.md")]
    found = [(page, target) for page in pages for target in links(page)]
    pages += ROOT.glob("launch/colab/*.ipynb")
    found += [(ROOT / "any", path) for page in pages for path in ADDRESS.findall(page.read_text())]
    assert [f"{page}: {target}" for page, target in found if leads_nowhere(page, target)] == []


def test_every_page_that_code_names_is_there():
    """Messages, comments and settings of tools name pages from the top of the repository."""
    files = [
        file for folder in OF_CODE for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".sh", ".yaml")
    ]
    files += [ROOT / name for name in ("setup.cfg", "pyproject.toml", "Makefile", "mkdocs.yml")]
    found = [(file, path) for file in files for path in NAMED.findall(file.read_text())]
    assert len(found) > 10
    assert [f"{file}: {path}" for file, path in found if leads_nowhere(ROOT / "any", path)] == []


def test_the_index_links_every_page_and_the_menu_lists_it_once():
    pages = sorted(page.name for page in DOCS.glob("*.md"))
    listed = [target for target in links(DOCS / "README.md") if re.fullmatch(r"\w+\.md", target)]
    assert sorted({*listed, "README.md"}) == pages
    shown = [*pages_in(SETTINGS["nav"])]
    of_the_repository = ["first_run.md", "contributing.md", "changelog.md"]
    notebooks = [f"notebook_{name}.md" for name in ("pretrain", "finetune", "library", "any_order", "sequences")]
    assert sorted(shown) == sorted([*pages, *of_the_repository, *notebooks])
    package = configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    assert SETTINGS["repo_url"] == package["metadata"]["url"]


def pages_in(entry):
    """Yield the pages of a part of the site's menu."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_in(part)


def test_the_reference_pages_are_those_of_the_code():
    written = {f"{folder}/{page.name}" for folder in ("settings", "api") for page in (DOCS / folder).glob("*.md")}
    assert {"settings.md", "api.md"} | written == set(pages()), "run `make reference`"
    for name, content in pages().items():
        assert (DOCS / name).read_text() == content, f"docs/{name} is out of date: run `make reference`"
        anchors = re.findall(r'<a id="([^"]*)">', content) + re.findall(r"^#+ (.*)$", content, re.MULTILINE)
        assert len(anchors) == len(set(anchors))


def _without_code(text):
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def test_the_site_builds_without_a_warning(site):
    folder, printed = site
    assert "WARNING" not in printed
    html = "\n".join(page.read_text() for page in folder.rglob("*.html"))
    assert re.findall(r'(?:src|<link rel="stylesheet" href)="https?:[^"]*"', html) == [], "requests to other hosts"
    assert 'data-md-component="source"' not in html, "asks GitHub for the repository's stars"
    assert "notebook_library_0.png" in html
    explained = (folder / "explained/index.html").read_text()
    formulas = {
        page: re.findall(r"\$[^$`]+\$", _without_code((DOCS / f"{page}.md").read_text()).replace("$$", "$"))
        for page in ("explained", "tutorials")
    }
    assert explained.count("<math") == len(formulas["explained"]) > 20
    expected = sum(map(len, formulas.values()))
    assert html.count("<math") == expected, "a price or a shell variable became a formula"
    assert "$$" not in explained
    assert "\\(" not in explained
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
