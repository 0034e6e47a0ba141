"""Run the examples of docs/gallery.md, and keep their scores and pictures.

    python -m benchmarks.gallery [NAME ...] [--data data] [--workdir runs/gallery] [--pictures]

An example is a few command lines, which the page shows word for word, and a baseline that is measured on the same
held-out data. The commands run in WORKDIR: `data` there is a link to the folder DATA, and the other files that they
name are written by this module. Without names, every example runs whose files are in DATA.

Outputs that exist are not made again, so a stopped run continues; for new numbers give a new WORKDIR. The scores go
into measured/results.json as the table gallery-NAME, and from there into docs/gallery_NAME.png, which --pictures draws
again, and by `python -m docs.reference` into the page. The table gallery-times has how long the examples took.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import proteins, receptors, sessions, studies
from benchmarks.ngram import blocks_of, probabilities
from benchmarks.results import ROOT, Result, keep, print_table, read
from benchmarks.table6 import interval
from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.plots.style import write_png
from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.ranking.trec import TrecRun, mean_scores, read_collection, read_qrels, read_run
from xlnet_jax.tasks.token_classification import entities, entity_scores

PAGE = ROOT / "docs" / "gallery.md"
Row = tuple[str, str]
"""what was measured, and its score"""


class Example(NamedTuple):
    """One example of the page."""

    name: str
    score: str
    """title of the column of scores, with what is better"""
    commands: tuple[str, ...]
    rows: Callable[[Path], list[Row]]
    """return the table, given the workdir after the commands: baselines first"""
    data: tuple[str, ...] = ()
    """files in DATA"""
    write: Callable[[Path], None] = lambda _: None
    """write the files that the commands read into the workdir"""


# ---- files that the commands read ------------------------------------------------------------------------------------


def write_novels(work: Path) -> None:
    """Write the novels of the package: novels.txt, to train, and northanger.txt, which is held out."""
    for name, source in zip(("novels.txt", "northanger.txt"), sources.embedded(), strict=True):
        (work / name).write_text(Path(source).read_text())


def paragraphs_of_novels(text: str) -> list[tuple[str, str]]:
    """Return each paragraph of at least LEAST_WORDS words, with the title of its novel."""
    title, found = "", []
    for line in text.split("\n"):
        title = line.title() if line in TITLES else title
        if len(line.split()) >= LEAST_WORDS:
            found.append((line, title))
    return found


TITLES = ("PRIDE AND PREJUDICE", "SENSE AND SENSIBILITY", "EMMA")
LEAST_WORDS = 20


def write_novel_labels(work: Path) -> None:
    """Write novel/train.csv and dev.csv: paragraphs, and which novel each is from, in a random order."""
    write_novels(work)
    rows = paragraphs_of_novels((work / "novels.txt").read_text())
    random.Random(0).shuffle(rows)
    (work / "novel").mkdir(exist_ok=True)
    for name, part in (("train", rows[600:]), ("dev", rows[:600])):
        with (work / "novel" / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])


def write_marks(work: Path) -> None:
    """Write marks/train.txt, of the novels, and dev.txt, of Northanger Abbey: passages of PASSAGE words without
    punctuation, and after each word the mark that followed it: O (none), B-COMMA or B-STOP."""
    write_novels(work)
    (work / "marks").mkdir(exist_ok=True)
    for name, novel, count in (("train", "novels", 6_000), ("dev", "northanger", 300)):
        words = re.findall(r"([A-Za-z']+)([,.;:!?]?)", (work / f"{novel}.txt").read_text())
        lines = [f"{word} {TAGS.get(mark, 'B-STOP')}" for word, mark in words]
        passages = ["\n".join(lines[i : i + PASSAGE]) for i in range(0, len(lines) - PASSAGE, PASSAGE)]
        kept = random.Random(0).sample(passages, count)
        (work / "marks" / f"{name}.txt").write_text("\n\n".join(kept) + "\n")


PASSAGE = 40
TAGS = {"": "O", ",": "B-COMMA"}


def write_proteins(work: Path) -> None:
    """Write train.fasta and held_out.fasta: groups of related proteins stand on one side."""
    parts = proteins.split(proteins.read_fasta(work / "data" / "uniprot_sample.fasta.gz"))
    for name, part in zip(("train.fasta", "held_out.fasta"), parts, strict=True):
        (work / name).write_text("".join(f">{header}\n{sequence}\n" for header, sequence in part.items()))


def write_receptors(work: Path) -> None:
    """Write test.txt: the sequences whose probability is known."""
    known, _ = receptors.read_test(work / "data" / "tcr")
    (work / "test.txt").write_text("\n".join(known[:TESTED]) + "\n")


TESTED = 500
"""receptors that are scored"""


def write_sessions(work: Path) -> None:
    """Write sessions.txt: the MOST_BOUGHT most frequent items of each user, in the order of time."""
    histories = sessions.histories_of(work / "data" / "amazon_games.txt.gz")
    counts = Counter(item for history in histories for item in history)
    kept = {item for item, _ in counts.most_common(MOST_BOUGHT)}
    shorter = ([item for item in history if item in kept] for history in histories)
    lines = (" ".join(history) for history in shorter if len(history) >= 3)
    (work / "sessions.txt").write_text("\n".join(lines) + "\n")


MOST_BOUGHT = 2_000


def write_cranfield(work: Path) -> None:
    """Write the judgements of every fifth query to judged_eval.txt, the others to judged_train.txt."""
    lines = (work / "data" / "cranfield" / "qrels.txt").read_text().splitlines()
    for name, is_held_out in (("judged_train.txt", False), ("judged_eval.txt", True)):
        part = (line for line in lines if (int(line.split()[0]) % 5 == 0) == is_held_out)
        (work / name).write_text("\n".join(part) + "\n")


def write_gaps(work: Path) -> None:
    """Write sentences of Northanger Abbey of which a word is hidden, one piece of tiny's vocabulary: gaps.txt, and in
    left.txt what stands before the word."""
    write_novels(work)
    draw, pieces = random.Random(0), {*Tokenizer.load("tiny").pieces}
    text = (work / "northanger.txt").read_text()
    sentences = [s for line in text.split("\n") for s in re.split(r"(?<=[.!?]) ", line) if 10 <= len(s.split()) <= 30]
    found = []
    for sentence in draw.sample(sentences, len(sentences)):
        words = sentence.split()
        places = [i for i in range(4, len(words) - 2) if f"▁{words[i]}" in pieces and words[i].isalpha()]
        if places:
            place = draw.choice(places)
            found.append((" ".join(words[:place]), words[place], " ".join(words[place + 1 :])))
    found = found[:GAPS]
    (work / "gaps.txt").write_text("".join(f"{left} ___ {right}\n" for left, _, right in found))
    (work / "left.txt").write_text("".join(f"{left}\n" for left, *_ in found))
    (work / "hidden.txt").write_text("".join(f"{word}\n" for _, word, _ in found))


GAPS = 400


def write_repeated(work: Path) -> None:
    """Write once.txt: the first AGAIN words of passages of Northanger Abbey; twice.txt: the same words after the whole
    passage of REPEATED words; and next.txt: the word that follows them there, one piece of tiny's vocabulary."""
    write_novels(work)
    draw, pieces = random.Random(0), {*Tokenizer.load("tiny").pieces}
    words = (work / "northanger.txt").read_text().split()
    begins = range(0, len(words) - REPEATED, REPEATED)
    fit = [i for i in begins if words[i + AGAIN].isalpha() and f"▁{words[i + AGAIN]}" in pieces]
    kept = draw.sample(fit, PASSAGES)
    again = [" ".join(words[i : i + AGAIN]) for i in kept]
    both = [f"{' '.join(words[i : i + REPEATED])} {line}" for i, line in zip(kept, again, strict=True)]
    for name, lines in (("once", again), ("twice", both), ("next", [words[i + AGAIN] for i in kept])):
        (work / f"{name}.txt").write_text("\n".join(lines) + "\n")


REPEATED, AGAIN, PASSAGES = 60, 25, 200
"""words of a passage, words of it that are repeated, and passages"""


# ---- scores and baselines --------------------------------------------------------------------------------------------


def of_language(work: Path) -> list[Row]:
    """Return the held-out loss of the network beside those of word frequencies and of trigrams."""
    found, corpus = _json(work / "handbook.json"), Corpus(work / "runs" / "handbook" / "corpus")
    train, held_out = blocks_of(corpus, "train"), blocks_of(corpus, "validation")
    trigrams = probabilities(train, held_out, corpus.tokenizer.vocab_size, 3)[:, 2:]
    return [
        ("unigrams", f"{found['unigram']:.3f}"),
        ("trigrams, from the left", f"{-np.log(trigrams).mean():.3f}"),
        ("network, both sides", f"{found['loss']:.3f}"),
    ]


def of_tokenizers(work: Path) -> list[Row]:
    """Return the bits per character of equally long runs, by tokenizer."""
    byte, piece = (_json(work / f"by-{level}.json") for level in ("byte", "piece"))
    frequencies = piece["unigram"] / math.log(2) * piece["bits_per_character"] / piece["bits_per_piece"]
    return [
        ("frequencies of 4,000 pieces", f"{frequencies:.3f}"),
        ("network, bytes", f"{byte['bits_per_character']:.3f}"),
        ("network, 4,000 pieces", f"{piece['bits_per_character']:.3f}"),
    ]


def of_proteins(work: Path) -> list[Row]:
    """Return the held-out loss of the network beside those of n-grams, over the residues that it reads."""
    train, held_out = ([s[:RESIDUES] for s in proteins.read_fasta(work / f"{name}.fasta").values()]
                       for name in ("train", "held_out"))  # fmt: skip
    names = {1: "unigrams", 2: "bigrams", 3: "trigrams"}
    ngrams = [(name, f"{proteins.ngram_loss(train, held_out, n):.4f}") for n, name in names.items()]
    loss = studies.rows_of(work / "runs" / "proteins", "validation")[-1]["loss"]
    return [*ngrams, ("network", f"{loss:.4f}")]


RESIDUES = 254
"""of a protein in a window, which also has <s> and <eod>"""


def of_receptors(work: Path) -> list[Row]:
    """Return the excess, mean ln p - ln q, of n-grams and of the network."""
    scores = [json.loads(line) for line in (work / "receptors.jsonl").read_text().splitlines()]
    log_q_T = np.array([score["log_mean_likelihood"] + score["log_prob_of_lengths"] for score in scores])
    log_p_T = receptors.read_test(work / "data" / "tcr")[1][: len(scores)]
    found = receptors.measure_ngrams(work / "data" / "tcr", (3, 5, 8), len(scores))["ngrams"]
    ngrams = [
        (f"{n}-grams", f"{one['excess']:.3f} ({one['low']:.3f} to {one['high']:.3f})") for n, one in found.items()
    ]
    return [*ngrams, ("network, 4 orders", _mean(log_p_T - log_q_T))]


def of_sessions(work: Path) -> list[Row]:
    """Return the hit rate at 10 among all items."""
    of_metric = _json(work / "sessions.json")["all items"]["HR@10"]
    names = {"popularity": "popularity", "item-kNN": "item-kNN", "model": "network"}
    return [(name, "{value:.4f} ({low:.4f} to {high:.4f})".format(**of_metric[who])) for who, name in names.items()]


def of_tagging(work: Path) -> list[Row]:
    """Return the F1 of marks beside that of the mark that follows each word most often."""
    of_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for passage in _tagged(work / "marks" / "train.txt"):
        for word, tag in passage:
            of_word[word][tag] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in of_word.items()}
    held_out = _tagged(work / "marks" / "dev.txt")
    truth = [entities([tag for _, tag in passage]) for passage in held_out]
    guessed = [entities([usual.get(word, "O") for word, _ in passage]) for passage in held_out]
    found = _json(work / "runs" / "marks" / "results.json")
    return [
        ("most frequent tag", f"{found['baseline']['metrics']['f1']:.3f}"),
        ("most frequent tag of the word", f"{entity_scores(truth, guessed)[None].f1:.3f}"),
        ("network", f"{found['metrics']['f1']:.3f}"),
    ]


def _tagged(file: Path) -> list[list[tuple[str, str]]]:
    """Return the passages of a file as words with their tags."""
    passages = file.read_text().strip().split("\n\n")
    return [[(line.split()[0], line.split()[1]) for line in passage.splitlines()] for passage in passages]


def of_objectives(work: Path) -> list[Row]:
    """Return the accuracy of each contender on the task."""
    found = _json(work / "runs" / "objectives" / "results.json")
    names = {"clm": "clm (Transformer-XL)", "mlm": "mlm (BERT)", "plm": "plm (XLNet)"}
    rows = [("most frequent novel", f"{found['baselines']['classification']:.3f}")]
    for contender, name in names.items():
        rows.append((name, f"{found['contenders'][contender]['classification']['mean']:.3f}"))
    return rows


def of_search(work: Path) -> list[Row]:
    """Return the NDCG@20 of vectors before finetuning and after, and of BM25, over all documents."""
    return _rankings(work, {"network, not finetuned": "search-before", "network, finetuned": "search"})


def of_reranking(work: Path) -> list[Row]:
    """Return the NDCG@20 of the network and of BM25 over the judged documents and 50 others of each query."""
    return _rankings(work, {"network": "reranking"})


def _rankings(work: Path, runs: Mapping[str, str]) -> list[Row]:
    """Return the NDCG@20 of a random order, of runs by name, and of BM25, all of the documents that the runs rank."""
    grades, (texts, queries) = _grades(work), _collection(work)
    ranked = {name: read_run([str(work / "runs" / run / "predictions/eval/run.trec")]) for name, run in runs.items()}
    (*_, last), score_D = ranked.values(), bm25([*texts.values()])
    lexical = {query: dict(zip(texts, score_D(queries[query]).tolist(), strict=True)) for query in last}
    ranked["BM25"] = {query: {document: lexical[query][document] for document in of} for query, of in last.items()}
    baseline = _json(work / "runs" / [*runs.values()][-1] / "results.json")["baseline"]["metrics"][NDCG]
    return [("random order", f"{baseline:.3f}"), *((name, _ndcg(grades, run)) for name, run in ranked.items())]


def of_filling(work: Path) -> list[Row]:
    """Return the share of hidden words that are found: by trigrams of the novels, and by tiny from the words before
    the gap, and from both sides."""
    hidden = (work / "hidden.txt").read_text().split()
    left = [line.split()[-2:] for line in (work / "left.txt").read_text().splitlines()]
    guess = trigrams((work / "novels.txt").read_text().split())
    guesses = {
        "always “the”": ["the"] * len(hidden),
        "trigrams": [guess(*words) for words in left],
        "tiny, from the left": _drawn(work / "left.jsonl"),
        "tiny, from both sides": _drawn(work / "gaps.jsonl"),
    }
    return [(name, _share(words, hidden)) for name, words in guesses.items()]


def trigrams(words: Sequence[str]) -> Callable[[str, str], str]:
    """Return a function that gives the word that follows two words most often, or else the second one."""
    after: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for first, second, third in zip(words, words[1:], words[2:], strict=False):
        after[first, second][third] += 1
        after[(second,)][third] += 1
    usual = Counter(words).most_common(1)[0][0]

    def guess(first: str, second: str) -> str:
        counts = after.get((first, second)) or after.get((second,))
        return counts.most_common(1)[0][0] if counts else usual

    return guess


def of_windows(work: Path) -> list[Row]:
    """Return the share of words that are predicted, by the words that the network sees."""
    words = (work / "next.txt").read_text().split()
    guess = trigrams((work / "novels.txt").read_text().split())
    left = [line.split()[-2:] for line in (work / "once.txt").read_text().splitlines()]
    guesses = {
        "trigrams": [guess(*pair) for pair in left],
        f"tiny, {AGAIN} words": _drawn(work / "once.jsonl"),
        f"tiny, {REPEATED + AGAIN} words": _drawn(work / "twice.jsonl"),
    }
    return [(name, _share(of, words)) for name, of in guesses.items()]


NDCG = "ndcg@20"


def bm25(texts: Sequence[str]) -> Callable[[str], np.ndarray]:
    """Return a function that scores each text for a query, [texts]: Robertson and Zaragoza (2009), equation 3.15, with
    the usual k1 and b, over words in lower case."""
    k1, b = 1.2, 0.75
    postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    words = [_words(text) for text in texts]
    mean = statistics.mean(map(len, words))
    for number, of_text in enumerate(words):
        length = k1 * (1 - b + b * len(of_text) / mean)
        for word, count in Counter(of_text).items():
            postings[word].append((number, count / (count + length)))

    def score(query: str) -> np.ndarray:
        scores = np.zeros(len(texts))
        for word in _words(query):
            found = postings.get(word, ())
            weight = math.log(1 + (len(texts) - len(found) + 0.5) / (len(found) + 0.5))
            for number, share in found:
                scores[number] += weight * share
        return scores

    return score


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _grades(work: Path) -> dict[str, dict[str, int]]:
    judged = read_qrels([str(work / "judged_eval.txt")], "cranfield")
    return {query: {d: g for d, g in grades.items() if g is not None} for query, grades in judged.items()}


def _collection(work: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the documents and the queries, which the judgements number from 1."""
    folder = work / "data" / "cranfield"
    texts, queries = (read_collection([str(folder / f"{name}.txt")], name) for name in ("docs", "queries"))
    return texts, {str(number): text for number, text in enumerate(queries.values(), 1)}


def _ndcg(grades: Mapping[str, Mapping[str, int]], run: TrecRun) -> str:
    by_query = [mean_scores({query: judged}, run, RankingConfig())[NDCG] for query, judged in grades.items()]
    return _mean(np.array(by_query))


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))


def _mean(values: np.ndarray) -> str:
    low, high = interval(values)
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def _share(words: Sequence[str], truth: Sequence[str]) -> str:
    return _mean(np.array([float(word == true) for word, true in zip(words, truth, strict=True)]))


def _drawn(file: Path) -> list[str]:
    """Return the words that `generate --json` drew, each one piece."""
    return ["".join(json.loads(line)["pieces"]).lstrip("▁") for line in file.read_text().splitlines()]


# ---- the examples ----------------------------------------------------------------------------------------------------

CRANFIELD = """--ranking.documents data/cranfield/docs.txt --ranking.queries data/cranfield/queries.txt
    --ranking.judgements cranfield"""
GREEDY = "--temperature 0 --repetition-penalty 1 --json"
EXAMPLES = (
    Example(
        "language", "held-out nats per piece, lower is better",
        (
            "xlnet_jax.train --corpus data/handbook.txt --data.validation-fraction 0.15 --steps 1500 "
            "--workdir runs/handbook",
            "xlnet_jax.evaluate runs/handbook --out handbook.json",
        ),
        of_language, ("handbook.txt",),
    ),
    Example(
        "tokenizer", "held-out bits per character, lower is better",
        (
            "data_pipelines.tokenizer train --source novels.txt --vocab-size 4000 --out runs/tokenizer",
            "xlnet_jax.train --objective clm --tokenizer runs/tokenizer --steps 200 --workdir runs/by-piece",
            "xlnet_jax.train --objective clm --data.token-level byte --steps 200 --workdir runs/by-byte",
            "xlnet_jax.evaluate runs/by-piece --max-windows 256 --out by-piece.json",
            "xlnet_jax.evaluate runs/by-byte --max-windows 256 --out by-byte.json",
        ),
        of_tokenizers, write=write_novels,
    ),
    Example(
        "proteins", "held-out nats per residue, lower is better",
        (
            "xlnet_jax.train --corpus train.fasta --validation held_out.fasta --long cut --data.seq-len 256 "
            "--data.batch-size 8 --eval.max-windows 256 --steps 1200 --workdir runs/proteins",
        ),
        of_proteins, ("uniprot_sample.fasta.gz",), write_proteins,
    ),
    Example(
        "receptors", "nats per sequence above the truth, lower is better",
        (
            "xlnet_jax.train --corpus data/tcr/train.tsv.xz --fields cdr3:protein --data.seq-len 64 --steps 600 "
            "--workdir runs/receptors",
            "xlnet_jax.score runs/receptors --texts test.txt --orders random:4 --out receptors.jsonl",
        ),
        of_receptors, ("tcr",), write_receptors,
    ),
    Example(
        "sessions", "hit rate at 10 among all items, higher is better",
        (
            "xlnet_jax.train --corpus sessions.txt --fields items:item --hold-out last --long cut --objective clm "
            "--data.seq-len 52 --model.dropout 0.3 --optimizer.learning-rate 2e-2 --optimizer.matrix-rate 1 "
            "--steps 1000 --workdir runs/sessions",
            "xlnet_jax.evaluate runs/sessions --next-item --max-texts 3000 --out sessions.json",
        ),
        of_sessions, ("amazon_games.txt.gz",), write_sessions,
    ),
    Example(
        "objectives", "accuracy after finetuning, higher is better",
        (
            "xlnet_jax.compare --corpus novels.txt --objectives plm,mlm,clm --budget 2.5e5 "
            "--model.d-model 64 --model.num-heads 2 --model.d-ff 256 --eval.max-windows 64 "
            "--tasks classification=novel --finetune steps=60 data.seq-len=64 --workdir runs/objectives",
        ),
        of_objectives, write=write_novel_labels,
    ),
    Example(
        "filling", "share of hidden words found, higher is better",
        (
            f"xlnet_jax.generate tiny --prompt-file left.txt --max-new-tokens 1 {GREEDY} > left.jsonl",
            f"xlnet_jax.generate tiny --prompt-file gaps.txt --gap-pieces 1 {GREEDY} > gaps.jsonl",
        ),
        of_filling, write=write_gaps,
    ),
    Example(
        "tagging", "F1 of marks, higher is better",
        (
            "xlnet_jax.finetune --task ner --init tiny --train marks/train.txt --eval marks/dev.txt "
            "--data.seq-len 64 --data.batch-size 16 --steps 150 --selection.every-steps 150 --workdir runs/marks",
        ),
        of_tagging, write=write_marks,
    ),
    Example(
        "search", "NDCG@20, higher is better",
        (
            f"xlnet_jax.finetune --task embedding --init tiny {CRANFIELD} --eval judged_eval.txt --data.seq-len 64 "
            "--workdir runs/search-before",
            f"xlnet_jax.finetune --task embedding --init tiny {CRANFIELD} --train judged_train.txt "
            "--eval judged_eval.txt --ranking.negatives 1 --data.seq-len 64 --data.batch-size 8 --steps 60 "
            "--selection.every-steps 60 --workdir runs/search",
        ),
        of_search, ("cranfield",), write_cranfield,
    ),
    Example(
        "reranking", "NDCG@20, higher is better",
        (
            f"xlnet_jax.finetune --task ranking --init tiny {CRANFIELD} --train judged_train.txt "
            "--eval judged_eval.txt --ranking.others 50 --data.max-query-len 30 --data.seq-len 64 "
            "--data.batch-size 8 --steps 100 --workdir runs/reranking",
        ),
        of_reranking, ("cranfield",), write_cranfield,
    ),
    Example(
        "windows", "share of words predicted, higher is better",
        tuple(
            f"xlnet_jax.generate tiny --prompt-file {name}.txt --max-new-tokens 1 {GREEDY} > {name}.jsonl"
            for name in ("once", "twice")
        ),
        of_windows, write=write_repeated,
    ),
)  # fmt: skip
"""in the order in which they run; the last five start from tiny"""


def lines_of(example: Example) -> list[str]:
    """Return the command lines of an example, each with single spaces."""
    return [" ".join(f"python -m {command}".split()) for command in example.commands]


def block(example: Example) -> str:
    """Return the command lines as the page has them: broken before a flag where they would be too long."""
    wrapped = []
    for line in lines_of(example):
        parts = (part.replace(" ", "\0") for part in re.split(r" (?=--[a-z]|> )", line))
        broken = textwrap.wrap(" ".join(parts), WIDTH - 2, subsequent_indent="    ", break_on_hyphens=False)
        wrapped.append(" \\\n".join(broken).replace("\0", " "))
    return "\n".join(["```bash", *wrapped, "```"])


WIDTH = 78
"""characters of a line, as in docs/reference.py"""


def run(example: Example, work: Path) -> None:
    """Run the commands of an example that have not ended well before, write its table, and draw its picture."""
    example.write(work)
    seconds = 0.0
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": str(work / "programs")}
    for line in lines_of(example):
        done = work / "done" / hashlib.sha256(line.encode()).hexdigest()
        if done.exists():
            seconds = math.inf  # not all are timed
            continue
        print(f"$ {line}", flush=True)
        begin = time.monotonic()
        words, _, out = line.partition(" > ")
        arguments = shlex.split(words)[1:]
        if out:
            with (work / out).open("w") as file:
                subprocess.run([sys.executable, *arguments], cwd=work, env=environment, check=True, stdout=file)
        else:
            subprocess.run([sys.executable, *arguments], cwd=work, env=environment, check=True)
        seconds += time.monotonic() - begin
        done.parent.mkdir(exist_ok=True)
        done.write_text(f"{line}\n")
    head, rows = ["", example.score], [list(row) for row in example.rows(work)]
    print_table(head, rows)
    result: Result = {"head": head, "rows": rows}
    keep(f"gallery-{example.name}", result, f"python -m benchmarks.gallery {example.name}")
    draw(result, picture(example))
    if seconds < math.inf:
        keep_time(example, seconds)


def keep_time(example: Example, seconds: float) -> None:
    """Save how long the commands of an example took, beside those of the others."""
    cores = len(os.sched_getaffinity(0))
    times = {row[0]: row for row in read().get(TIMES, {"rows": []})["rows"]}
    times[example.name] = [example.name, f"{seconds / 60:.1f}", str(cores)]
    rows = [times[other.name] for other in EXAMPLES if other.name in times]
    keep(TIMES, {"head": ["example", "minutes", "CPU cores"], "rows": rows}, "python -m benchmarks.gallery")


TIMES = "gallery-times"


def picture(example: Example) -> Path:
    """Return the file of an example's picture."""
    return PAGE.with_name(f"gallery_{example.name}.png")


def draw(result: Result, file: Path) -> None:
    """Draw the scores of a table as bars, with their intervals, to be read on a phone."""
    from matplotlib.figure import Figure

    rows = result["rows"]
    numbers = [[float(number) for number in re.findall(r"\d+\.\d+", score)] for _, score in rows]
    figure = Figure(figsize=(5, 0.8 + 0.36 * len(rows)), dpi=150, layout="constrained")
    axes, places = figure.add_subplot(), range(len(rows))
    colors = [NETWORK if OF_NETWORK.match(name) else BASELINE for name, _ in rows]
    axes.barh(places, [of_row[0] for of_row in numbers], color=colors)
    for place, of_row in zip(places, numbers, strict=True):
        if len(of_row) == 3:
            axes.plot(of_row[1:], [place, place], color="black", lw=1.5)
    widest = max(max(of_row) for of_row in numbers)
    for place, of_row, (_, score) in zip(places, numbers, rows, strict=True):
        axes.text(max(of_row) + widest / 60, place, score.split()[0], va="center")
    axes.set(yticks=places, yticklabels=[name for name, _ in rows], xlim=(0, widest * 1.17), xlabel=result["head"][1])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    write_png(figure, file)


NETWORK, BASELINE = "tab:blue", "silver"
OF_NETWORK = re.compile("network|tiny|plm|mlm|clm")


def main() -> None:
    named = {example.name: example for example in EXAMPLES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(named))
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the files that the page lists")
    parser.add_argument("--workdir", type=Path, default=Path("runs", "gallery"))
    parser.add_argument("--pictures", action="store_true", help="only draw the pictures of the kept scores")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in named]:
        parser.error(f"no example is called {unknown[0]}: choose from {', '.join(named)}")
    chosen = [named[name] for name in given.names or named]
    if given.pictures:
        for example in chosen:
            draw(read()[f"gallery-{example.name}"], picture(example))
        return
    work = given.workdir.absolute()
    work.mkdir(parents=True, exist_ok=True)
    link = work / "data"
    link.unlink(missing_ok=True)
    link.symlink_to(given.data.absolute())
    for example in chosen:
        if missing := [name for name in example.data if not (link / name).exists()]:
            note = f"{example.name} needs {given.data / missing[0]}; docs/gallery.md says where it comes from"
            if given.names:
                parser.error(note)
            print(f"left out: {note}")
        else:
            run(example, work)


if __name__ == "__main__":
    main()
