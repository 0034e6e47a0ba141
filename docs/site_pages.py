"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, and links out of it.

Pages are written for GitHub too, where links are relative paths.
"""

import base64
import re
from html import unescape
from pathlib import Path
from posixpath import normpath, relpath
from textwrap import indent

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from pymdownx.slugs import slugify

from xlnet_jax.storage.reading import read_json

ROOT = Path(__file__).resolve().parents[1]
FROM_OUTSIDE = {
    "README.md": "first_run.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "launch/colab/pretrain_tpu.ipynb": "notebook_pretrain.md",
    "launch/colab/finetune_tpu.ipynb": "notebook_finetune.md",
    "launch/colab/library.ipynb": "notebook_library.md",
    "launch/colab/any_order.ipynb": "notebook_any_order.md",
    "launch/colab/sequences.ipynb": "notebook_sequences.md",
}
"""Pages of the repository that the site shows too, each with its name on the site."""
GENERATED = ("settings.md", "api.md")
"""Pages that docs/reference.py writes: each lists those of the folder with its name, and nobody edits them."""
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
_BLOCK = re.compile(r"(<pre[^>]*>(?:<span></span>)?)<code>(.*?)(?=</code></pre>)", re.DOTALL)
_PICTURE = re.compile(r'<img[^>]* src="([^"]*)"[^>]*>')
_TABS = re.compile(r"<!-- tabs -->\n(.*?)<!-- /tabs -->", re.DOTALL)
_IMAGE_ELSEWHERE = re.compile(r"!\[([^\]]*)\]\(https?:[^)\s]*\)")


def on_config(config):
    """List the generated pages below their index, in its order, and name headings as GitHub does."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    for entry in config.nav[-1]["Reference"]:
        for pages in entry.values() if isinstance(entry, dict) else ():
            (index,) = pages[0].values()
            pages += [{Path(page).stem.replace("_", " "): page} for page in _pages_of(index)]


def on_files(files, config):
    """Add the pages that lie outside docs/, and let nobody edit those that are generated."""
    for name in GENERATED:
        for page in (name, *_pages_of(name)):
            files.get_file_from_path(page).edit_uri = None
    for source, name in FROM_OUTSIDE.items():
        is_notebook = source.endswith(".ipynb")
        path, stem = ROOT / source, Path(name).stem
        text, images = from_notebook(read_json(path), stem) if is_notebook else (path.read_text(), {})
        page = File.generated(config, name, content=text)
        page.edit_uri = f"../{source}"
        files.append(page)
        for image, content in images.items():
            files.append(File.generated(config, image, content=content))
    return files


def _pages_of(index):
    """Return the pages that a generated index lists."""
    folder = index.removesuffix(".md")
    return list(dict.fromkeys(re.findall(rf"\(({folder}/\w+\.md)", (ROOT / "docs" / index).read_text())))


def from_notebook(notebook, stem):
    """Return a notebook's cells and outputs as Markdown, and its images by name. stem: begins the names of images."""
    parts, images = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = ""
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                image = f"{stem}_{len(images)}.png"
                images[image] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({image})")
            elif "text/markdown" in data:
                parts.append("".join(data["text/markdown"]))
            else:
                printed += "".join(data["text/plain"]).rstrip("\n") + "\n"
        parts += [f"```text\n{printed}```"] if printed else []
    return "\n\n".join(parts), images


def on_page_markdown(markdown, page, config, files):
    """Point links to the site's own pages or to the repository, and leave out images of other hosts."""
    source = {name: source for source, name in FROM_OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    place = Path(source).parent
    of_the_repository = f"{config.repo_url}/blob/main/"
    images_of_the_repository = f"{config.repo_url}/raw/main/"

    def site_link(link: re.Match) -> str:
        target = link[2]
        if target.startswith((of_the_repository, images_of_the_repository)):
            path = target.removeprefix(of_the_repository).removeprefix(images_of_the_repository)
        elif "://" in target or ((image := files.get_file_from_path(target)) and image.generated_by):
            return link[0]
        else:
            path = normpath((place / target).as_posix())
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, and there is no {path}")
        if path in FROM_OUTSIDE or path.startswith("docs/"):
            shown = FROM_OUTSIDE.get(path, path.removeprefix("docs/"))
            return link[1] + relpath(shown, Path(page.file.src_uri).parent) + link[3]
        return link[1] + of_the_repository + path + link[3]

    if page.file.src_uri.startswith(("settings/", "api/")):
        page.meta["search"] = {"boost": 0.5}  # below the pages that explain the same
    markdown = _TABS.sub(_tabbed, markdown)
    return _IMAGE_ELSEWHERE.sub(r"\1", _LINK.sub(site_link, markdown))


def _tabbed(found):
    """Return sections between two comments as tabs. On GitHub they are sections."""
    sections = re.split(r"^### (.*)\n", found[1], flags=re.MULTILINE)[1:]
    pairs = zip(sections[::2], sections[1::2], strict=True)
    return "\n".join(f'=== "{title}"\n{indent(text, "    ")}' for title, text in pairs)


def on_page_content(html, page, config, files):
    """Tell site.css what it needs: which code is a name, how long the lines of a block are, how wide a picture is.

    Formulas become MathML.
    """
    html = with_mathml(html)
    html = re.sub(r"<code>(?=[^\s<]{1,40}</code>)", '<code class="name">', html)
    if page.file.src_uri.startswith(("settings/", "api/")):
        html = f'<div class="reference">\n{html}\n</div>'
    html = _BLOCK.sub(lambda block: f'{block[1]}<code style="--columns: {_columns(block[2])}">{block[2]}', html)
    return _PICTURE.sub(lambda image: _picture(image, page, files), html)


def with_mathml(html: str) -> str:
    """Return a page whose formulas, marked by pymdownx.arithmatex, are MathML, which browsers draw without scripts."""

    def formula(found: re.Match) -> str:
        latex, display = unescape(found[2]), "block" if "<div" in found[1] else "inline"
        mathml = convert(latex.strip()[2:-2].strip(), display=display)  # without the marks around it
        return found[1] + re.sub(r"<mi>(log|exp)</mi>", r'<mi>\1</mi><mspace width="0.17em" />', mathml)

    return re.sub(r'(<(?:span|div) class="arithmatex">)([^<]*)', formula, html)


def _columns(code):
    """Return the number of characters of the longest line of a code block, which is HTML."""
    return max(map(len, unescape(re.sub(r"<[^>]*>", "", code)).splitlines()), default=0)


def _picture(image, page, files):
    """Return an image with a link to its file."""
    file = files.get_file_from_path(normpath((Path(page.file.dest_uri).parent / image[1]).as_posix()))
    content = file.content_bytes if file else b""
    width = int.from_bytes(content[16:20], "big") if content.startswith(b"\x89PNG") else 0
    style = f' style="--width: {width}"' if width else ""
    return f'<a class="picture" href="{image[1]}"><img{style}{image[0].removeprefix("<img")}</a>'


def on_post_page(output, page, config):
    """Keep the theme from asking GitHub for the repository's stars: the site sends no request to other hosts."""
    return output.replace(' data-md-component="source"', "")


def on_post_template(output, template_name, config):
    """Do the same in 404.html, which is not a page."""
    return on_post_page(output, None, config)
