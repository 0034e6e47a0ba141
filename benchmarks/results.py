"""The numbers of the documentation: kept by name when a command measures them, and written into the pages.

    python -m benchmarks.results NAME [CORPUS=folder]    # run a command of COMMANDS and keep what it prints
    make reference                                       # write the kept results into the pages

measured/results.json has each result by name: a table, or the lines that a command printed, and the command, date,
commit and machine. A page refers to a number by a comment before it:

    ends at <!--modern-widths:64:loss-->4.570

NAME:ROW:COLUMN. ROW is the first cell of a table's row, or the beginning of a line; a colon in it has a space after it.
COLUMN is the title of a column, or
counts the numbers after ROW, from 1, the default. A comment with the NAME alone, on a line of its own, stands before a
table or a block of output: the table is written anew, and so is each line that the output has.

The result `code` counts what the code has; it is not kept, but counted anew.
"""

import contextlib
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "measured" / "results.json"
Result = dict[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""head and rows"""
COMMANDS = {
    "blimp": "xlnet_jax.evaluate tiny --suite blimp --text blimp/data",
    "demo": "xlnet_jax.train",
    "demo-adamw": "xlnet_jax.train --optimizer.method adamw --optimizer.learning-rate 4e-3 --optimizer.matrix-rate 0.5",
    "demo-zero-init": "xlnet_jax.train --model.zero-init",
    "generate": "benchmarks.generate --tables compared",
    "generate-filled": "benchmarks.generate --tables filled --filling tiny",
    "likelihoods": "xlnet_jax.evaluate tiny --max-texts 8 --text data_pipelines/corpora/austen/validation.txt "
    "--orders left-to-right random:4 bound:16",
    "ngram": "benchmarks.ngram CORPUS",
    "pipeline": "benchmarks.pipeline --corpus CORPUS --pairs 3",
    "plan-v5e": "xlnet_jax.plan --topology v5e-1 --preset large --data.batch-size 16 --model.remat dots",
    "plan-v5e-1024": "xlnet_jax.plan --topology v5e:16x16 --mesh.dcn-data 4 --preset large --data.batch-size 8192 "
    "--model.remat dots",
    "plan-v5e-8": "xlnet_jax.plan --topology v5e-8 --preset base --steps 200000 --model.remat feed_forward",
    "prepare": "benchmarks.prepare --corpus NOVELS --tokenizer TOKENIZER --pairs 3",
    "tiny": "xlnet_jax.evaluate tiny --text data_pipelines/corpora/austen/validation.txt",
    "tokenizer": "benchmarks.tokenizer NOVELS TOKENIZER",
    "train-step": "benchmarks.train_step --same-allocator",
}
"""commands whose output the pages show. Words in capitals stand for paths"""
MARK = re.compile(r"<!--([\w-]+)(?::((?:[^:>]|: )+?))?(?::([^:>]+?))?-->")
NUMBER = re.compile(r"[+\-−]?\d(?:[\d,.]*\d)?(?:e[+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z]+")
BLOCK = re.compile(r"(^ *<!--([\w-]+)-->\n\n?)((?: *\|.*\n)+|( *```).*\n(?:.*\n)*?\4\n)", re.MULTILINE)


# ---- keeping results -------------------------------------------------------------------------------------------------


def keep(name: str, result: Result, command: str = "") -> None:
    """Save a result by name. One that is as before keeps its command, date, commit and machine.

    command: that of this process, if empty.
    """
    kept = read()
    if {key: kept.get(name, {}).get(key) for key in result} != result:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        kept[name] = {"command": command or _command(), "date": today, "commit": commit, "machine": _machine()} | result
        write(kept)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table, after a blank line."""
    print("\n" + "\n".join(_markdown(head, rows)))


def keep_table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table, after a blank line, and save it."""
    cells = [list(row) for row in rows]
    print_table(head, cells)
    keep(name, {"head": list(head), "rows": cells})


def read() -> dict[str, Result]:
    """Return the results by name."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def write(kept: dict[str, Result]) -> None:
    """Save all results."""
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _command() -> str:
    """Return the command line of this process."""
    file, *words = sys.argv
    return shlex.join(["python", "-m", f"benchmarks.{Path(file).stem}", *words])


def _machine() -> str:
    """Return the class of this machine."""
    with contextlib.suppress(OSError):
        if model := re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()):
            return f"{os.cpu_count()} cores, {model[1]}"
    return f"{os.cpu_count()} cores"


# ---- writing pages ---------------------------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Return the pages that may refer to results."""
    return [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/*.md")),
        *(ROOT / f / "README.md" for f in ("benchmarks", "launch")),
    ]


def fill(text: str, results: dict[str, Result]) -> str:
    """Return a page with the results that it refers to. Raises KeyError for one that is not kept."""

    def block(found: re.Match[str]) -> str:
        result, shown = results[found[2]], found[3]
        if "head" in result:
            return found[1] + "".join(f"{line}\n" for line in _markdown(result["head"], result["rows"]))
        return found[1] + _with_lines(shown, result["lines"])

    text, end = BLOCK.sub(block, text), 0
    parts: list[str] = []
    for mark in MARK.finditer(text):
        if mark[2] is not None:
            value = look_up(results, mark[1], mark[2], mark[3])
            shown = (_WORD if value.isalpha() else NUMBER).match(text, mark.end())
            if not shown:
                raise KeyError(f"{mark[0]} stands before no number")
            parts += [text[end : mark.end()], value if shown[0].startswith("+") else value.removeprefix("+")]
            end = shown.end()
    return "".join([*parts, text[end:]])


def look_up(results: dict[str, Result], name: str, row: str, column: str | None) -> str:
    """Return a number, or a word. Raises KeyError if there is none."""
    result = results[name]
    if "head" in result:
        cells = next((cells for cells in result["rows"] if cells[0] == row), None)
        titles = [title for title in result["head"][1:] if title == column]
        if cells is None or (column and not column.isdigit() and not titles):
            raise KeyError(f"{name} has no {row}, {column}")
        cell = cells[result["head"].index(titles[0])] if titles else cells[int(column or 1)]
        return cell if cell.isalpha() else NUMBER.search(cell)[0]  # type: ignore[index]
    line = next((line.strip() for line in result["lines"] if line.strip().startswith(row)), None)
    if line is None:
        raise KeyError(f"{name} has no line {row}")
    return NUMBER.findall(line[len(row) :])[int(column or 1) - 1]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(cells)} |" for cells in rows)]


def _with_lines(shown: str, lines: Sequence[str]) -> str:
    """Return a block of output whose lines are those of the output that begin in the same way, up to a number."""

    def begin_of(line: str) -> list[str]:
        return re.split(r"\d", line)[0].split()

    left, written, is_command = list(lines), [], False
    for line in shown.splitlines():
        begin, is_command = begin_of(line), line.startswith("$") or (is_command and written[-1].endswith("\\"))
        if begin and not is_command and not line.lstrip().startswith(("```", "…")):
            place = next((i for i, other in enumerate(left) if begin_of(other) == begin), None)
            if place is None:
                raise KeyError(f"the output has no line that begins with {' '.join(begin)!r}")
            line, left = left[place].rstrip(), left[place + 1 :]
        written.append(line)
    return "\n".join(written) + "\n"


def counts_of_code() -> Result:
    """Return how many of each the code has, and the pieces of the texts that the package brings."""
    from xlnet_jax.__main__ import COMMANDS as COMMANDS_THERE
    from xlnet_jax.objectives.presets import PRESETS
    from xlnet_jax.objectives.records import OBJECTIVES
    from xlnet_jax.tasks.defaults import DEFAULTS

    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    notebooks = words[len(list(ROOT.glob("launch/colab/*.ipynb")))]
    numbers: dict[str, str | int] = {
        "tasks": len(DEFAULTS), "presets": len(PRESETS), "commands": len(COMMANDS_THERE), "objectives": len(OBJECTIVES),
        "notebooks": notebooks, "Notebooks": notebooks.capitalize(),
    }  # fmt: skip
    return {"head": ["what", "count"], "rows": [[name, str(number)] for name, number in numbers.items()]}


def main(words: Sequence[str]) -> None:
    paths = dict(word.split("=", 1) for word in words if "=" in word)
    for name in words:
        if "=" not in name:
            command = [paths.get(word, word) for word in shlex.split(COMMANDS[name])]
            run = subprocess.run(
                [sys.executable, "-m", *command], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
            )
            printed = run.stdout
            for placeholder, path in paths.items():
                printed = printed.replace(path, placeholder)
            print(printed)
            keep(name, {"lines": printed.splitlines()}, f"python -m {COMMANDS[name]}")


def fill_pages() -> dict[Path, str]:
    """Return the content of each page, with the results as they are."""
    results = read() | {"code": counts_of_code()}
    return {page: fill(page.read_text(), results) for page in pages()}


if __name__ == "__main__":
    main(sys.argv[1:])
