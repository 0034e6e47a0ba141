"""Documents and queries of a test collection, their judgements (TREC's qrels) and rankings (TREC's runs)."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from etils import epath

from data_pipelines.readers import whole
from xlnet_jax.errors import InputError
from xlnet_jax.printing import tell
from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.readers import files, json_lines, lines

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


IDS = ("_id", "id")
SMART_ID = re.compile(r"\.I\s+(\S+)\s*")
SMART_FIELD = re.compile(r"\.([A-Z])\s*")
FORMS = "SMART (.I ID, .T, .W), JSON lines (id, title, text) or TSV (ID<tab>TEXT)"

_Text = tuple[int, str, str, str]  # line, id, title, text


def read_collection(paths: Sequence[str], what: str) -> dict[str, str]:
    """Return text by id, in the order of the files: the title, unless the text begins with it, and the text, with white
    space reduced to single spaces.

    TSV has id, text; or id, title, text; or id, url, title, text. what: "documents" or "queries", for messages. Raises
    InputError, with file and line, on what cannot be read and on an id that occurs twice.
    """
    texts: dict[str, str] = {}
    for path in files(paths, what):
        for line, name, title, text in _records(path, what):
            where = f"{what} {path}: line {line}"
            if not name or name.split() != [name]:
                raise InputError(
                    f"{where}: the id {name!r} is empty or has spaces, which divide the fields of TREC files"
                )
            if name in texts:
                raise InputError(f"{where}: the id {name} is there already; an id names one text")
            texts[whole(name, f"{where}: the id")] = whole(_joined(title, text), f"{where}: the text")
    return texts


def _records(path: str, what: str) -> Iterator[_Text]:
    _, first = next(lines(path), (0, ""))
    if SMART_ID.fullmatch(first):
        return _smart(path)
    if first.lstrip().startswith("{"):
        return _json_lines(path, what)
    if "\t" in first:
        return _tsv(path, what)
    raise InputError(f"{what} {path}: {'nothing is in it' if not first else 'its form is unknown'}; give {FORMS}")


def _smart(path: str) -> Iterator[_Text]:
    line, name, field = 0, "", ""
    parts: dict[str, list[str]] = {}
    for number, text in lines(path):
        if begins := SMART_ID.fullmatch(text):
            if line:
                yield line, name, " ".join(parts.get("T", ())), " ".join(parts.get("W", ()))
            line, name, field, parts = number, begins[1], "", {}
        elif begins := SMART_FIELD.fullmatch(text):
            field = begins[1]
        else:
            parts.setdefault(field, []).append(text)
    yield line, name, " ".join(parts.get("T", ())), " ".join(parts.get("W", ()))


def _json_lines(path: str, what: str) -> Iterator[_Text]:
    for number, record in json_lines(path, f"{what} {path}"):
        values = record.content
        name = next((values[key] for key in IDS if key in values), None)
        if name is None or not isinstance(values.get("text"), str):
            raise InputError(
                f"{record.where} has no id or no text; a text is an object with id (or _id), text and maybe title"
            )
        yield number, str(name), str(values.get("title") or ""), values["text"]


def _tsv(path: str, what: str) -> Iterator[_Text]:
    for number, line in lines(path):
        fields = line.split("\t")
        if not 2 <= len(fields) <= 4:
            raise InputError(
                f"{what} {path}: line {number} has {len(fields)} fields between tabs; wanted are id, text; or id, "
                "title, text; or id, url, title, text"
            )
        yield number, fields[0].strip(), "" if len(fields) == 2 else fields[-2], fields[-1]


def _joined(title: str, text: str) -> str:
    title, text = " ".join(title.split()), " ".join(text.split())
    return text if text.startswith(title) else f"{title} {text}".strip()


@dataclass(frozen=True)
class RankedQuery:
    """Query with its judgements and candidates: one example of ranking."""

    id: str
    text: str
    judged: Judgements
    candidates: tuple[str, ...] | None
    """documents to be ranked; None = all that are judged, and others"""
    collection: str
    """SHA-256 of the documents that the ids name"""


class Collection:
    """Documents and queries of a run, read at their first use. Raises InputError on an id that no file has."""

    def __init__(self, settings: RankingConfig):
        self._settings = settings

    @cached_property
    def documents(self) -> dict[str, str]:
        """Text of each document, by id."""
        texts = read_collection(self._named("documents"), "documents")
        if empty := [document for document, text in texts.items() if not text]:
            tell(f"documents: {len(empty)} have no text, {empty[0]} the first; they are ranked by their query alone")
        return texts

    def judged(self, qrels: Sequence[str]) -> list[RankedQuery]:
        """Return the queries of qrels. Raises InputError on a grade above `ranking.max_grade`."""
        r, where = self._settings, f"qrels {qrels[0]}"
        judged = read_qrels(qrels, r.judgements)
        queries = self._known(judged, self._queries, "queries", where)
        self._known((d for q in queries for d in judged[q].grades), self.documents, "documents", where)
        highest = max((grade for q in queries for grade in judged[q].grades.values()), default=0)
        if highest > r.max_grade:
            raise InputError(f"{where}: a grade of {highest}, and `ranking.max_grade` is {r.max_grade}: raise it")
        found = [self._example(q, self._queries[q], judged[q], self._candidates_of(q, judged[q])) for q in queries]
        if without := [example.id for example in found if example.candidates == ()]:
            tell(f"{where}: {len(without)} of {len(found)} queries have no candidates, {without[0]!r} the first")
        return found

    def unjudged(self, paths: Sequence[str]) -> list[RankedQuery]:
        """Return the queries of runs, whose documents are ranked again, or of files of queries, whose documents are
        those of `ranking.candidates`, or else all."""
        none = Judgements()
        if all(map(is_run, files(paths, "`predict`"))):
            best = self._best(read_run(paths), "`predict`")
            known = self._known(best, self._queries, "queries", "`predict`")
            return [self._example(query, self._queries[query], none, best[query]) for query in known]
        everything = None if self._settings.candidates else tuple(self.documents)
        return [
            self._example(query, text, none, everything or self._candidates_of(query, none))
            for query, text in self._read_queries(paths).items()
        ]

    @cached_property
    def _queries(self) -> dict[str, str]:
        return self._read_queries(self._named("queries"))

    @cached_property
    def _candidates(self) -> dict[str, tuple[str, ...]]:
        return self._best(read_run(self._settings.candidates), "`ranking.candidates`")

    @cached_property
    def _sha256(self) -> str:
        texts = "\n".join(f"{name} {text}" for name, text in self.documents.items())
        return hashlib.sha256(texts.encode()).hexdigest()

    def _named(self, what: str) -> tuple[str, ...]:
        names: tuple[str, ...] = getattr(self._settings, what)
        if not names:
            raise InputError(f"`ranking.{what}`: none is given, and qrels and runs have ids alone; name files of texts")
        return names

    def _read_queries(self, paths: Sequence[str]) -> dict[str, str]:
        queries = read_collection(paths, "queries")
        if empty := [query for query, text in queries.items() if not text]:
            raise InputError(f"queries {paths[0]}: {len(empty)} have no text, {empty[0]} the first; leave them out")
        if self._settings.judgements == "cranfield":
            return {str(number): text for number, text in enumerate(queries.values(), 1)}
        return queries

    def _example(self, query: str, text: str, judged: Judgements, candidates: tuple[str, ...] | None) -> RankedQuery:
        return RankedQuery(query, text, judged, candidates, self._sha256)

    def _candidates_of(self, query: str, judged: Judgements) -> tuple[str, ...] | None:
        if not self._settings.candidates:
            return None
        return tuple(d for d in self._candidates.get(query, ()) if d not in judged.left_out)

    def _best(self, run: Run, where: str) -> dict[str, tuple[str, ...]]:
        best = {query: best_first(scores)[: self._settings.depth] for query, scores in run.items()}
        known = set(self._known((d for found in best.values() for d in found), self.documents, "documents", where))
        return {query: tuple(d for d in found if d in known) for query, found in best.items()}

    def _known(self, ids: Iterable[str], texts: Mapping[str, str], what: str, where: str) -> list[str]:
        asked = list(dict.fromkeys(ids))
        known = [name for name in asked if name in texts]
        if len(known) == len(asked):
            return known
        unknown = [name for name in asked if name not in texts]
        message = (
            f"{where}: {len(unknown)} of {len(asked)} {what} are unknown, {unknown[0]!r} the first; "
            f"`ranking.{what}` has {len(texts)}, {next(iter(texts), '')!r} the first"
        )
        if self._settings.unknown == "refuse":
            hint = ", or, of Cranfield, `ranking.judgements` cranfield" if what == "queries" else ""
            raise InputError(f"{message}: mend them, leave them out by `ranking.unknown` skip{hint}")
        tell(f"{message}; they are left out")
        return known
