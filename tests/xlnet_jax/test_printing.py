"""Nothing that a terminal obeys is printed, and no secret of a URL is printed or stored, whoever chose the text."""

import io
import sys
import unicodedata

import pytest
from rich.table import Table

from xlnet_jax.__main__ import COMMANDS, main, run
from xlnet_jax.printing import Console, Printable, counted, printable, tell, without_secrets

EVIL = "\x1b[2J\x1b]0;owned\x07\u202efdp\u2066\x9b31m\x08\rdone\x7f"


def harm(text):
    """Return what a terminal would obey in a text: control characters, and marks that turn its direction."""
    return [c for c in text if (unicodedata.category(c) == "Cc" and c not in "\n\t") or c in "\u202e\u2066\u200f\u061c"]


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:word@host:1/a.txt?X-Amz-Signature=1&x=2#y", "https://host:1/a.txt"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("s3://bucket/a?x=1&X-Amz-Security-Token=1", "s3://bucket/a"),
        ("hf://datasets/me/mine@main/a.txt", "hf://datasets/me/mine@main/a.txt"),
        ("abfs://container@account.net/a", "abfs://container@account.net/a"),
        ("text https://me:word@host/a?sig=1: no such file (URL('https://host/b?k=2')); check",
         "text https://host/a: no such file (URL('https://host/b')); check"),
        ("https://a/x,https://me:word@host/b?sig=1,", "https://a/x,https://host/b,"),
        ("a/b@c?d=e", "a/b@c?d=e"),
    ],
)  # fmt: skip
def test_a_url_keeps_what_names_its_text_and_loses_what_gives_access(url, public):
    assert without_secrets(url) == public
    assert without_secrets((url, 1, None)) == (public, 1, None)


def test_what_a_terminal_obeys_is_escaped_and_all_letters_are_printed():
    assert printable(EVIL).startswith("\\u001b[2J\\u001b]0;owned\\u0007\\u202efdp\\u2066\\u009b31m\\u0008\\u000ddone")
    assert not harm(printable("".join(map(chr, range(0x10000)))))
    plain = "Ünï é 中文 עברית हिन्दी می\u200cخواهم 👩\u200d👧\n\tend"
    assert printable(plain) == plain


def test_a_table_holds_colors_of_ours_and_no_escapes_of_strangers():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200, color_system="standard")
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, style="bold")
    ours = out.getvalue()
    assert "\x1b[1m" in ours
    assert "owned" in ours
    assert not any(obeyed in ours for obeyed in ("\x1b[2J", "\x1b]", "\u202e"))


def test_a_note_is_one_line_without_secrets(capsys):
    tell(f"text https://me:word@h/a?sig=1: {EVIL}\nfake")
    printed = capsys.readouterr().err
    assert not harm(printed)
    assert printed.startswith("note: text https://h/a: ")
    assert printed.count("\n") == 1


def test_colors_of_help_pass_and_nothing_else():
    out = io.StringIO()
    Printable(out, colors=True).write("\x1b[1;31mbold\x1b[0m\x1b[2J")
    assert out.getvalue() == "\x1b[1;31mbold\x1b[0m\\u001b[2J"


@pytest.mark.parametrize(
    "words",
    [
        ["tokenizer", "train", "--source", f"{EVIL}.json", "--out", "out", "--vocab-size", "300"],
        [EVIL],
        ["train", f"--{EVIL}", "1"],
        ["train", "--config", "hostile.json", "--help"],
    ],
)
def test_a_command_prints_nothing_of_strangers_that_a_terminal_obeys(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{EVIL}.json").write_text('{"text": 1}\n')
    (tmp_path / "hostile.json").write_text('{"corpus": ["\\u001b[2J\\u202e"]}')
    monkeypatch.setattr(sys, "argv", words if words[0] in COMMANDS else ["xlnet-jax", *words])
    with pytest.raises(SystemExit) as stop:
        run(COMMANDS[words[0]].main if words[0] in COMMANDS else main)
    assert stop.value.code in (0, 2)
    printed = "".join(capsys.readouterr())
    assert printed
    assert not harm(printed)


def test_a_command_in_a_notebook_draws_no_progress_bar(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # ipykernel sets it, so that rich takes a pipe for a terminal
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert Console().is_terminal
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # as in a kernel of Jupyter or Colab
    assert not Console().is_terminal


def test_a_count_has_the_number_of_its_noun():
    assert [counted(n, "text") for n in (0, 1, 2_000)] == ["0 texts", "1 text", "2,000 texts"]
