"""docs/explained.md: its pictures and numbers are those of the code, and its paragraphs end in links to definitions."""

import re

import numpy as np
import pytest

from benchmarks import results
from docs import explained_pictures as explained
from docs.code_links import LINK, with_lines
from tests.docs.pictures import DOCS, assert_same_svg

PAGE = DOCS / "explained.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", explained.PICTURES)
def test_the_pictures_are_those_that_the_code_draws(name):
    assert_same_svg(explained.PICTURES[name](), name)
    assert f"]({name})" in PAGE.read_text()


def test_every_svg_is_drawn_by_the_script():
    assert {file.name for file in DOCS.glob("explained_*.svg")} == set(explained.PICTURES)


def test_the_numbers_are_those_of_tiny():
    kept = results.read()
    for name, (head, rows) in explained.numbers().items():
        assert kept[name]["head"] == list(head)
        assert [row[0] for row in kept[name]["rows"]] == [row[0] for row in rows]
        now, then = (np.array([row[1:] for row in table], float) for table in (rows, kept[name]["rows"]))
        np.testing.assert_allclose(now, then, rtol=0, atol=0.02, err_msg="run `python -m docs.explained_pictures`")


def test_one_stream_predicts_the_same_at_both_positions_and_two_streams_do_not():
    of_one, of_two = ([np.exp(explained.next_V(s, t)) for t in explained.NEXT] for s in ("one stream", "two streams"))
    assert np.array_equal(*of_one)
    assert np.abs(of_two[0] - of_two[1]).sum() > 0.5


def test_links_lead_to_the_lines_of_the_definitions_that_they_name():
    pages = sorted(DOCS.glob("*.md"))
    assert sum(len(LINK.findall(page.read_text())) for page in pages) >= 25
    for page in pages:
        text = page.read_text()
        assert text == with_lines(text, page), f"{page.name}: lines have moved: run `make reference`"


def test_a_link_to_code_gets_the_line_of_its_definition(tmp_path):
    (tmp_path / "models.py").write_text("import jax\n\n\nclass Layer:\n    def shift(self):\n        pass\n")
    written = with_lines("[models.py: Layer](models.py) and [models.py: Layer.shift](models.py#L99)", tmp_path / "a.md")
    assert written == "[models.py: Layer](models.py#L4) and [models.py: Layer.shift](models.py#L5)"
    with pytest.raises(KeyError, match=r"a.md: models.py defines no Norm: give the name that it has now"):
        with_lines("[models.py: Norm](models.py#L4)", tmp_path / "a.md")
    with pytest.raises(KeyError, match=r"a.md: masks.py does not name the file models.py"):
        with_lines("[masks.py: Layer](models.py#L4)", tmp_path / "a.md")


def test_every_paragraph_ends_in_a_link_to_code():
    _, *sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    assert len(sections) == 10
    paragraphs = [part for section in sections for part in section.strip().split("\n\n")[1:]]
    prose = [part for part in paragraphs if not part.startswith(("$$", "![", "|", "<!--"))]
    assert len(prose) >= 25
    assert [part for part in prose if not re.search(rf"{LINK.pattern}$", part)] == []
