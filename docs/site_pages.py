"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, and links out of it.

The pages are written to be read in the repository as well: links are relative paths there.
"""

import re
from pathlib import Path
from posixpath import normpath

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
FROM_OUTSIDE = {
    "README.md": "first_run.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository that the site shows too, by the name that each has there."""
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")


def on_files(files, config):
    """Add the pages that lie outside docs/."""
    for source, name in FROM_OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to the site's own pages or to the repository."""
    place = Path({name: source for source, name in FROM_OUTSIDE.items()}.get(page.file.src_uri, "docs/any.md")).parent
    of_the_repository = f"{config.repo_url}/blob/main/"
    images_of_the_repository = f"{config.repo_url}/raw/main/"

    def site_link(link: re.Match) -> str:
        target = link[2]
        if target.startswith((of_the_repository, images_of_the_repository)):
            path = target.removeprefix(of_the_repository).removeprefix(images_of_the_repository)
        elif "://" in target:
            return link[0]
        else:
            path = normpath((place / target).as_posix())
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, and there is no {path}")
        if path in FROM_OUTSIDE:
            return link[1] + FROM_OUTSIDE[path] + link[3]
        if path.startswith("docs/"):
            return link[1] + path.removeprefix("docs/") + link[3]
        return link[1] + of_the_repository + path + link[3]

    return _LINK.sub(site_link, markdown)
