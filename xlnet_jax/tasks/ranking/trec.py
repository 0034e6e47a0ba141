"""Read and write TREC's qrels (judgements of documents) and runs (rankings of systems).

qrels: `query iteration document grade`, a higher grade is better; or the three columns of BEIR under a header.
Cranfield has `query document code`, where 1 is best and 4 least (`JudgementsForm`). A run: `query Q0 document rank
score tag`, ranked by its scores alone, as trec_eval and gdeval do.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.tasks.readers import files, lines

JudgementsForm = Literal["graded", "cranfield"]
CRANFIELD_GRADES = {1: 4, 2: 3, 3: 2, 4: 1, 5: 0}
"""Cleverdon's codes: 1 = a complete answer, 4 = of minimum interest, 5 = of none."""
CRANFIELD_SOURCE = -1
"""A code that Cleverdon's list lacks. Each question has one such document, and it shares more words with the question
than those of any other code: the paper that the question was put from."""
RUN_TAG = "xlnet_jax"
QRELS_FIELDS = "query iteration document grade"


@dataclass
class Judgements:
    """Judgements of one query."""

    grades: dict[str, int] = field(default_factory=dict)
    """by document; the higher the better, below 1 = not relevant"""
    left_out: list[str] = field(default_factory=list)
    """documents that count neither as relevant nor as not, and are not ranked"""


Run = dict[str, dict[str, float]]  # query -> document -> score


def read_qrels(paths: Sequence[str], form: JudgementsForm = "graded") -> dict[str, Judgements]:
    """Return judgements by query, in the order of the files.

    cranfield: the codes 1 to 5 become the grades 4 to 0, and documents of code -1 are left out; an iteration may come
    between query and document. Raises InputError, with file and line, on what cannot be read.
    """
    found: dict[str, Judgements] = {}
    for path in files(paths, "qrels"):
        for number, query, document, code in _judgements(path, form):
            where = f"qrels {path}: line {number}"
            judged = found.setdefault(query, Judgements())
            if document in judged.grades or document in judged.left_out:
                raise InputError(f"{where}: document {document} is judged already for query {query}; leave one line")
            if form == "graded":
                judged.grades[document] = code
            elif code == CRANFIELD_SOURCE:
                judged.left_out.append(document)
            elif code in CRANFIELD_GRADES:
                judged.grades[document] = CRANFIELD_GRADES[code]
            else:
                raise InputError(f"{where}: {code} is not a code of Cranfield, which are 1 (best) to 5, and -1")
    if not found:
        raise InputError(f"qrels {', '.join(paths)}: no judgement is in it; qrels have lines of {QRELS_FIELDS}")
    return found


def is_run(path: str) -> bool:
    """Return True where the first line of a file looks like a run rather than a query."""
    _, first = next(lines(path), (0, ""))
    fields = first.split()
    return len(fields) == 6 and fields[1] == "Q0" and fields[3].isdigit()


def read_run(paths: Sequence[str]) -> Run:
    """Return scores by query and document. Raises InputError, with file and line, on what cannot be read."""
    run: Run = {}
    for path in files(paths, "run"):
        for number, line in lines(path):
            where, fields = f"run {path}: line {number}", line.split()
            if len(fields) != 6:
                raise InputError(f"{where} has {len(fields)} fields; a run has 6: query Q0 document rank score tag")
            query, _, document, _, score, _ = fields
            of_query = run.setdefault(query, {})
            if document in of_query:
                raise InputError(f"{where}: document {document} is there already for query {query}; leave one line")
            try:
                of_query[document] = float(score)
            except ValueError:
                of_query[document] = math.nan
            if math.isnan(of_query[document]):
                raise InputError(f"{where}: the score {score!r} is not a number")
    return run


def best_first(scores: Mapping[str, float]) -> list[str]:
    """Return documents, best first; of equal scores the greater id comes first, as in trec_eval and gdeval."""
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)


def write_run(path: epath.Path, run: Mapping[str, Mapping[str, float]], tag: str = RUN_TAG) -> None:
    """Write a run, with the digits that tell float32 numbers apart."""
    with path.open("w") as file:
        for query, scores in run.items():
            for rank, document in enumerate(best_first(scores), 1):
                file.write(f"{query} Q0 {document} {rank} {scores[document]:.9g} {tag}\n")


def _judgements(path: str, form: JudgementsForm) -> Iterator[tuple[int, str, str, int]]:
    columns = 4
    for i, (number, line) in enumerate(lines(path)):
        where, fields = f"qrels {path}: line {number}", line.split()
        if i == 0:
            columns = len(fields)
            if columns == 3 and form == "graded" and fields[2] == "score":
                continue
            _demand_form(where, fields, form)
        if len(fields) != columns:
            raise InputError(f"{where} has {len(fields)} fields, and those before it {columns}")
        try:
            yield number, fields[0], fields[-2], int(fields[-1])
        except ValueError:
            raise InputError(f"{where}: the judgement {fields[-1]!r} is not a whole number") from None


def _demand_form(where: str, fields: Sequence[str], form: JudgementsForm) -> None:
    if len(fields) == 4 or (len(fields) == 3 and form == "cranfield"):
        return
    if len(fields) == 3:
        raise InputError(
            f"{where} has 3 fields, as Cranfield's, whose 1 is the best: read them by `ranking.judgements` cranfield; "
            "where the higher is the better, put 0 between query and document"
        )
    raise InputError(f"{where} has {len(fields)} fields; qrels have 4: {QRELS_FIELDS}")
