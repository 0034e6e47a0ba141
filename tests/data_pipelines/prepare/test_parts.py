import pytest

from data_pipelines import sources
from data_pipelines.prepare import parts
from data_pipelines.prepare.parts import cut_parts, groups_of


@pytest.fixture
def parts_of(tmp_path):
    def parts_of(text):
        (tmp_path / "a.txt").write_text(text)
        (group,) = groups_of(sources.find([str(tmp_path / "a.txt")]), "strict")
        return list(cut_parts(group))

    return parts_of


@pytest.mark.parametrize("begin", ["", "one\n"])
def test_blank_lines_for_more_than_a_part_are_no_document_and_part_two_of_them(parts_of, begin):
    cut = parts_of(begin + "\n" * (3 * parts.PART_CHARS) + "two\n")
    words = [part.text.strip() for part in cut if part.text.strip()]
    assert words == [*begin.split(), "two"]
    assert not any(part.continues for part in cut if part.text.strip() == "two")
    assert cut[-1].ends


def test_short_lines_make_smaller_parts(parts_of):
    cut = parts_of("a b\n\n" * 600_000)
    assert max(part.text.count("\n") for part in cut) < 600_000
    assert sum(part.text.count("a b") for part in cut) == 600_000
