"""The animation of the first page shows what `tiny` draws, and asks no other host for anything."""

import re

from docs.filling_animation import FILE, PROMPT, draw, pieces_of, run


def test_the_animation_is_that_of_a_run_of_tiny():
    drawn = run()
    assert FILE.read_text() == draw(drawn), "run `python -m docs.filling_animation`"
    spaced = "".join(f" {piece.text}" if piece.begins_word else piece.text for piece in pieces_of(drawn))
    assert " ".join(spaced.split()) == " ".join(drawn.text.split())
    given = " ".join(piece.text for piece in pieces_of(drawn) if piece.shown_in is None)
    assert given == " ".join(PROMPT.replace("___", "").split())


def test_the_animation_has_no_script_and_no_address():
    svg = FILE.read_text()
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in svg
