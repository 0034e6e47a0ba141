"""Test collections: documents and queries, judgements (TREC qrels), rankings (TREC runs), and the metrics of trec_eval
and of gdeval, which the Web tracks use.

A document without a judgement, or with one below 0, has grade 0. DCG@k = sum over ranks i <= k of gain / log2(i + 1),
NDCG@k = DCG@k / the highest possible DCG@k; ERR@k = sum of R_i / i x product over j < i of (1 - R_j) with R = (2^grade
- 1) / 2^highest (Chapelle et al. 2009). highest: the highest grade, and at least 4, that of gdeval.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal

from etils import epath

from data_pipelines.readers import read_text
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.readers import files, json_lines, lines

JudgementsForm = Literal["graded", "cranfield"]
MAX_GRADE = 4  # of gdeval
CRANFIELD_GRADES = {1: 4, 2: 3, 3: 2, 4: 1, 5: 0, -1: None}
"""Cleverdon's codes: 1 = a complete answer, 4 = of minimum interest, 5 = of no interest. His list does not have -1.
Each question has one such document, and it shares more words with the question than documents of any other code: it is
the paper that the question was taken from."""
RUN_TAG = "xlnet_jax"

Judgements = dict[str, int | None]
"""grade by document: higher is better, below 1 = not relevant; None = neither, and not ranked"""
TrecRun = dict[str, dict[str, float]]  # query -> document -> score


def read_qrels(paths: Sequence[str], form: JudgementsForm = "graded") -> dict[str, Judgements]:
    """Return judgements by query, in the order of the files.

    Lines have query, iteration, document and grade, without the iteration if there is BEIR's header. cranfield: the
    codes 1 to 5 become the grades 4 to 0, and the iteration is optional. Raises InputError, with file and line, for
    what cannot be read.
    """
    found: dict[str, Judgements] = {}
    for path in files(paths, "qrels"):
        columns: tuple[int, ...] = (3, 4) if form == "cranfield" else (4,)
        for where, fields in _fields_of_lines(path):
            if fields[2:] == ["score"]:
                columns = (3,)
                continue
            if len(fields) not in columns:
                raise InputError(
                    f"{where} has {len(fields)} fields; qrels have 4: query iteration document grade; for those of "
                    "Cranfield, with 3 fields and 1 as the best, give `ranking.judgements` cranfield"
                )
            query, document, code = fields[0], fields[-2], fields[-1]
            try:
                grade = int(code) if form == "graded" else CRANFIELD_GRADES[int(code)]
            except (ValueError, KeyError):
                raise InputError(
                    f"{where}: {code!r} is not a judgement: give a whole number, or for Cranfield 1 to 5 or -1"
                ) from None
            if found.setdefault(query, {}).setdefault(document, grade) != grade:
                raise InputError(f"{where}: document {document} has another judgement before, for query {query}")
    if not found:
        raise InputError(f"qrels {', '.join(paths)}: there are no judgements in it")
    return found


def is_run(path: str) -> bool:
    """Return True if the first line of a file looks like a run rather than a query."""
    _, fields = next(_fields_of_lines(path), ("", []))
    return len(fields) == 6 and fields[1] == "Q0" and fields[3].isdigit()


def read_run(paths: Sequence[str]) -> TrecRun:
    """Return scores by query and document. Raises InputError, with file and line, for what cannot be read."""
    run: TrecRun = {}
    for path in files(paths, "run"):
        for where, fields in _fields_of_lines(path):
            try:
                query, _, document, _, score, _ = fields
                run.setdefault(query, {})[document] = float(score)
            except ValueError:
                raise InputError(f"{where}: a run has 6 fields: query Q0 document rank score tag") from None
    return run


def best_first(scores: Mapping[str, float]) -> list[str]:
    """Return documents, best first. Of equal scores the greater id comes first, as in trec_eval and gdeval."""
    return sorted(scores, key=lambda document: (scores[document], document), reverse=True)


def write_run(path: epath.Path, run: Mapping[str, Mapping[str, float]]) -> None:
    """Write a run, with enough digits to tell float32 numbers apart."""
    with path.open("w") as file:
        for query, scores in run.items():
            for rank, document in enumerate(best_first(scores), 1):
                file.write(f"{query} Q0 {document} {rank} {scores[document]:.9g} {RUN_TAG}\n")


def _fields_of_lines(path: str) -> Iterator[tuple[str, list[str]]]:
    return ((f"{path}: line {number}", line.split()) for number, line in lines(path))


_Text = tuple[str, str, str, str]  # place, id, title, text


def read_collection(paths: Sequence[str], what: str) -> dict[str, str]:
    """Return text by id, in the order of the files: the title, unless the text begins with it, and the text, with
    single spaces.

    JSON lines have id (or _id), text and maybe title. TSV has id, text; or id, title, text; or id, url, title, text.
    what: "documents" or "queries", for messages. Raises InputError, with file and line, for what cannot be read and for
    an id that occurs twice.
    """
    texts: dict[str, str] = {}
    for path in files(paths, what):
        for where, name, title, text in _records(path):
            if name in texts or name.split() != [name]:
                raise InputError(f"{where}: the id {name!r} is used before, is empty or has spaces")
            title, text = " ".join(title.split()), " ".join(text.split())
            texts[name] = text if text.startswith(title) else f"{title} {text}".strip()
    return texts


def _records(path: str) -> Iterator[_Text]:
    _, first = next(lines(path), (0, ""))
    if first.startswith(".I"):
        return _smart(path)
    if first.lstrip().startswith("{"):
        return _json_lines(path)
    if "\t" in first:
        return _tsv(path)
    raise InputError(
        f"{path}: unknown format; give SMART (.I ID, .T, .W), JSON lines (id, title, text) or TSV (id, text)"
    )


def _smart(path: str) -> Iterator[_Text]:
    _, *records = re.split(r"^\.I[ \t]+(\S+)\s*$", read_text(path), flags=re.MULTILINE)
    for name, record in zip(records[::2], records[1::2], strict=True):
        _, *fields = re.split(r"^\.([A-Z])\s*$", record, flags=re.MULTILINE)
        title, text = (" ".join(t for f, t in zip(fields[::2], fields[1::2], strict=True) if f == of) for of in "TW")
        yield f"{path}: .I {name}", name, title, text


def _json_lines(path: str) -> Iterator[_Text]:
    for record in json_lines(path):
        name = record.get("_id" if "_id" in record.content else "id", object)
        yield record.where, str(name), str(record.content.get("title") or ""), record.get("text", str)


def _tsv(path: str) -> Iterator[_Text]:
    for number, line in lines(path):
        fields = line.split("\t")
        if not 2 <= len(fields) <= 4:
            raise InputError(
                f"{path}: line {number} has {len(fields)} fields between tabs; give id, text; or id, title, text; or "
                "id, url, title, text"
            )
        yield f"{path}: line {number}", fields[0].strip(), "" if len(fields) == 2 else fields[-2], fields[-1]


def mean_scores(
    grades: Mapping[str, Mapping[str, int]], run: Mapping[str, Mapping[str, float]], settings: RankingConfig
) -> dict[str, float]:
    """Return the means over the judged queries. A query without a ranking counts as 0, as with option -c of both tools.

    A query without a relevant document counts as 0 in the metrics of trec_eval (MAP, MRR, P@k, NDCG@k with linear gain)
    and is left out of those of gdeval (ERR@k, NDCG@k with exponential gain).
    """
    highest = max([MAX_GRADE, *(grade for judged in grades.values() for grade in judged.values())])
    of_queries = [
        query_scores(judged, best_first(run.get(query, {})), settings, highest) for query, judged in grades.items()
    ]
    counted = {
        name: [s[name] for s in of_queries if not math.isnan(s[name])] for name in query_scores({}, (), settings)
    }
    return {name: fmean(values) if values else 0.0 for name, values in counted.items()}


def query_scores(
    grades: Mapping[str, int], ranking: Sequence[str], settings: RankingConfig, highest: int = MAX_GRADE
) -> dict[str, float]:
    """Return the metrics of one ranking, best first, 0 to 1. Relevant documents count even if they are not ranked. NaN
    = the query is left out. highest: the highest possible grade, for ERR."""
    k = settings.cutoff
    found = [max(grades.get(document, 0), 0) for document in ranking]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    hits = [rank for rank, grade in enumerate(found, 1) if grade >= settings.relevant_from]
    relevant = sum(grade >= settings.relevant_from for grade in grades.values())
    of_none = math.nan if not ideal else 0.0
    best = _dcg(ideal[:k], settings)
    return {
        f"ndcg@{k}": _dcg(found[:k], settings) / best if best else of_none if settings.gain == "exponential" else 0.0,
        f"err@{k}": _err(found[:k], highest) + of_none,
        "map": sum(i / rank for i, rank in enumerate(hits, 1)) / max(relevant, 1),
        "mrr": 1 / hits[0] if hits else 0.0,
        f"p@{k}": sum(rank <= k for rank in hits) / k,
    }


def _dcg(grades: Sequence[int], settings: RankingConfig) -> float:
    gains = grades if settings.gain == "linear" else [2.0**grade - 1 for grade in grades]
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _err(grades: Sequence[int], highest: int) -> float:
    score, unsatisfied = 0.0, 1.0
    for rank, grade in enumerate(grades, 1):
        satisfied = (2.0**grade - 1) / 2.0**highest
        score += unsatisfied * satisfied / rank
        unsatisfied *= 1 - satisfied
    return score
