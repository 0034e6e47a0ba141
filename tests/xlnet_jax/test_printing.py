"""Nothing that a terminal obeys is printed, and no secret of a URL is printed or stored, whoever chose the text."""

import io
import os
import subprocess
import sys
import unicodedata

import pytest

from data_pipelines.notes import tell
from xlnet_jax.errors import InputError
from xlnet_jax.printing import Console, Printable, printable, without_secrets

EVIL = "\x1b[2J\x1b]0;owned\x07\u202efdp\u2066\x9b31m\x08\rdone\x7f"


def harm(text):
    """Return what a terminal would obey in a text: control characters, and marks that turn its direction."""
    return [c for c in text if (unicodedata.category(c) == "Cc" and c not in "\n\t") or c in "\u202e\u2066\u200f\u061c"]


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://me:word@host:1/a.txt?X-Amz-Signature=1&x=2#y", "https://host:1/a.txt"),
        ("HTTPS://token@host/a?sig=1", "HTTPS://host/a"),
        ("http://me:p@ss@host/a.txt", "http://host/a.txt"),
        ("https://host?token=1", "https://host"),
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("s3://bucket/a?b", "s3://bucket/a?b"),
        ("s3://bucket/a?x=1&X-Amz-Security-Token=1", "s3://bucket/a"),
        ("gs://bucket/a?access_token=1", "gs://bucket/a"),
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


def test_a_text_of_megabytes_is_searched_in_no_time():
    for text in ("a" * 2**21, "://" * 2**19, "https://" * 2**17, "https://h?" + ":" * 2**21):
        without_secrets(text + "://")


def test_an_error_holds_no_secret():
    assert str(InputError("text https://me:word@h/a?sig=1: gone")) == "text https://h/a: gone"


def test_what_a_terminal_obeys_is_escaped_and_all_letters_are_printed():
    assert printable(EVIL).startswith("\\u001b[2J\\u001b]0;owned\\u0007\\u202efdp\\u2066\\u009b31m\\u0008\\u000ddone")
    assert not harm(printable("".join(map(chr, range(0x10000)))))
    plain = "Ünï é 中文 עברית हिन्दी می\u200cخواهم 👩\u200d👧\n\tend"
    assert printable(plain) == plain


@pytest.mark.parametrize("terminal", [True, False])
def test_a_table_holds_colours_of_ours_and_no_escapes_of_strangers(terminal):
    from rich.table import Table

    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200, color_system="standard" if terminal else None)
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, style="bold")
    ours = out.getvalue()
    assert ("\x1b[1m" in ours) == terminal
    assert "\x1b[2J" not in ours
    assert "\x1b]" not in ours
    assert "\u202e" not in ours
    assert "owned" in ours


def test_a_note_is_one_line_without_secrets(capsys):
    tell(f"text https://me:word@h/a?sig=1: {EVIL}\nfake")
    printed = capsys.readouterr().err
    assert not harm(printed)
    assert printed.startswith("note: text https://h/a: ")
    assert printed.count("\n") == 1


def test_colours_of_help_pass_and_nothing_else():
    out = io.StringIO()
    Printable(out, colours=True).write("\x1b[1;31mbold\x1b[0m\x1b[2J")
    assert out.getvalue() == "\x1b[1;31mbold\x1b[0m\\u001b[2J"


@pytest.mark.parametrize(
    "command",
    [
        ["prepare", "--source", f"{EVIL}.txt", "--tokenizer", "tokenizer", "--out", "corpus"],
        ["train", "--workdir", f"{EVIL}\x1b[31m", "--init", f"{EVIL}"],
        ["tokenizer", "train", "--source", f"{EVIL}.json", "--out", "out", "--vocab-size", "300"],
        ["convert", EVIL, "out"],
        [EVIL],
        ["train", f"--{EVIL}", "1"],
        ["train", "--config", "hostile.json", "--help"],
        ["tokenizer", "train", "--config", "hostile.json", "--help"],
    ],
)
def test_a_command_prints_nothing_of_strangers_that_a_terminal_obeys(tmp_path, command):
    command = [word.replace("\0", "") for word in command]
    (tmp_path / f"{EVIL}.json".replace("/", "")).write_text('{"text": 1}\n')
    (tmp_path / "hostile.json").write_text('{"corpus": ["\\u001b[2J\\u202e"], "source": ["\\u001b[2J\\u202e"]}')
    ended = subprocess.run(
        [sys.executable, "-m", "xlnet_jax", *command], cwd=tmp_path, capture_output=True, text=True, errors="replace"
    )
    assert ended.returncode in (0, 2), ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout + ended.stderr
    assert not harm(ended.stdout + ended.stderr)


def command(words, folder, **options):
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m xlnet_jax {words}', sys.executable],
        cwd=folder, capture_output=True, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("words", ["tokenizer --help", "--help", "--version", "plan --help"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_nobody_who_reads(tmp_path, words, closed):
    ended = command(f"{words} {closed}", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_mistake_ends_with_its_code_where_nobody_reads_it(tmp_path):
    assert command("convert missing out >&- 2>&-", tmp_path).returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_an_encoding_without_a_letter_prints_it_as_an_escape(tmp_path, encoding):
    (tmp_path / "中 é.txt").write_text("a b\n")
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    ended = command('prepare --source "中 é.txt" --tokenizer missing --out corpus', tmp_path, env=environment)
    assert ended.returncode == 2, ended.stderr
    ended = command("plan --help", tmp_path, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
