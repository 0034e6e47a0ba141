"""The site in a browser, on a desktop and on a phone: nothing is cut off."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

import pytest

from tests.chromium import browsing, needs_chromium

pytestmark = needs_chromium
CUT_OFF = """(() => {
    const blocks = [...document.querySelectorAll("article pre > code")].filter(block => block.offsetParent);
    const wide = blocks.filter(block => block.scrollWidth > block.clientWidth);
    const page = document.documentElement;
    return [...wide.map(block => block.innerText.slice(0, 60)), ...page.scrollWidth > innerWidth ? ["page"] : []];
})()"""

# What people search for, and a page that must be among the first five that are found.
SEARCHED = {
    "OOM": "symptoms",
    "RESOURCE_EXHAUSTED": "symptoms",
    "Noam": "tutorials",
    "HuggingFace": "from_transformers",
    "NaN": "symptoms",
    "resume": "recovery",
    "preemption": "first_tpu_run",
    "learning rate": "trainer",
    "spiece": "weights",
    "GPT": "tutorials",
    "infilling": "",
    "bf16": "from_transformers",
}
FOUND = """[...document.querySelectorAll('.md-search-result__item > a')].slice(0, 5).map(
    link => new URL(link.href).pathname.replaceAll('/', ''))"""


class Files(SimpleHTTPRequestHandler):
    """Serves the files of a folder, and prints nothing."""

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Return the address of the site, on a server of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=site[0]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def page(address, tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        yield browser.open(address)


def test_no_code_is_cut_off_and_no_page_is_wider_than_the_window(site, address, page):
    found = {}
    for file in sorted(site[0].rglob("index.html")):
        name = str(file.parent.relative_to(site[0]))
        page.open(f"{address}/{name}/")
        for width in (1280, 390):
            page.show(width, 900)
            if cut_off := page.run(CUT_OFF):
                found[name, width] = cut_off
    assert found == {}


def test_who_prefers_less_motion_sees_the_filled_text_at_once(address, page):
    shown = {}
    for preference in ("no-preference", "reduce"):
        page.prefer("prefers-reduced-motion", preference)
        page.open(f"{address}/filling_animation.svg")
        script = "[...document.querySelectorAll('.p0, .p1')].map(piece => getComputedStyle(piece).opacity)"
        shown[preference] = set(page.run(script)), page.run("document.getAnimations().length")
    page.prefer("prefers-reduced-motion", "no-preference")
    assert shown["no-preference"][0] == {"0"}
    assert shown["no-preference"][1] > 0
    assert shown["reduce"] == ({"1"}, 0)


def test_search_finds_what_people_type(address, page):
    missing = {}
    for words, expected in SEARCHED.items():
        page.open(f"{address}/?q={quote(words)}")
        page.wait("/\\d|^No/.test(document.querySelector('.md-search-result__meta')?.innerText)")
        found = page.run(FOUND)
        if expected not in found:
            missing[words] = found
    assert missing == {}
