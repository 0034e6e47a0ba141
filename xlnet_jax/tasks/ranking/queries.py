"""Queries with the judgements and candidates of their documents, from a collection, qrels and runs."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from data_pipelines.notes import tell
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.ranking.collection import read_collection
from xlnet_jax.tasks.ranking.trec import Judgements, Run, best_first, is_run, read_qrels, read_run
from xlnet_jax.tasks.readers import files


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
