"""What a loaded checkpoint answers to a request: texts filled or continued, scores, vectors, predictions.

A request is a dictionary, as JSON has it. Its keys are settings of the command that does the same. `Service.read`
checks it and returns its work for `batching.Batcher`.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from data_pipelines.readers import whole
from data_pipelines.records import FIELD
from data_pipelines.stateless import Purpose, uniforms
from data_pipelines.tokenizer import PAD
from xlnet_jax.checkpoints.formats import load_with_tokenizer
from xlnet_jax.checkpoints.native import PretrainingRun, trained_mem_len
from xlnet_jax.checkpoints.pretrained import on_device
from xlnet_jax.errors import InputError, shown
from xlnet_jax.inference.embed import SEQ_LEN, EmbedSettings, embed_texts
from xlnet_jax.inference.orders import LEFT_TO_RIGHT, PSEUDO, check_orders
from xlnet_jax.inference.requests import GAP, GenerateSettings, Request, fill, read_prompt, read_record
from xlnet_jax.inference.sampler import Sampler
from xlnet_jax.inference.score import ScoreSettings, numbers_of, require_orders, score_texts
from xlnet_jax.serving.batching import Work
from xlnet_jax.settings.fields import list_of_texts
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.tasks.model import Model, finetuning_of

MOST_PIECES = 512
"""pieces to draw for a request"""
MOST_READ = 1 << 20
"""characters to read for the scores of a request, counted once for each pass over them"""
TOGETHER, TEXTS_TOGETHER = 4, 32
"""requests in a group: of drawn texts, whose number of rows is fixed, so that few programs are compiled; and others"""
_FILL = """prefix gap_pieces max_new_tokens temperature top_k top_p repetition_penalty order block_size parallel exact
    stop seed""".split()
_SCORE, _EMBED = "orders context field_order seed".split(), "pooling layer normalize specials".split()


class Service:
    """A checkpoint that answers requests. `can` has for each kind None, or why it cannot answer requests of it."""

    def __init__(self, checkpoint: str, tokenizer: str | None) -> None:
        """Load a checkpoint, as the commands do. Raises InputError if there is none, or it has no tokenizer."""
        loaded = on_device(load_with_tokenizer(checkpoint, tokenizer))
        of_loaded = {field.name: getattr(loaded, field.name) for field in dataclasses.fields(loaded)}
        self.model = Model(**of_loaded, finetuning=finetuning_of(Path(checkpoint)))
        self.tokenizer, run = self.model.require_tokenizer(), PretrainingRun.of(checkpoint)
        self._max_len, self._mem_len = run.config.data.seq_len if run else SEQ_LEN, trained_mem_len(self.model, run)
        self.is_ready = False  # usual programs are compiled
        self._order = LEFT_TO_RIGHT  # of scores, by default
        self._sampler = functools.lru_cache(2)(functools.partial(Sampler, self.model))  # each has a copy of the weights
        checks: dict[str, Callable[[], Any]] = {
            "fill": lambda: self._sampler(_of_group(GenerateSettings("loaded"))),
            "score": self._choose_order,
            "embed": lambda: None,
            "predict": self._require_head,
        }
        self.can = {kind: _why_not(check) for kind, check in checks.items()}

    def _require_head(self) -> None:
        if self.model.head is None or not self.model.head.has_weights:
            raise InputError("the checkpoint is not finetuned to predict: `xlnet-jax finetune` does that")

    def _choose_order(self) -> None:
        try:
            require_orders(self.model, [LEFT_TO_RIGHT])
        except InputError:
            require_orders(self.model, [PSEUDO])
            self._order = PSEUDO

    def about(self) -> dict[str, Any]:
        """Return what a page needs to know of the model."""
        model, head, records = self.model.model, self.model.head, self.tokenizer.records
        usual = GenerateSettings("loaded").limits(records is not None)
        return {
            "objective": self.model.objective,
            "layers": model.num_layers,
            "width": model.d_model,
            "pieces": model.vocab_size,
            "parameters": sum(array.size for array in jax.tree.leaves(self.model.params)),
            "fills_gaps": not self.model.is_causal,
            "can": self.can,
            "score_order": self._order,
            "fields": [field.name for field in records.parsed] if records else [],
            "task": head.task if head else None,
            "defaults": dict(zip(("temperature", "top_p", "repetition_penalty"), usual, strict=True)),
        }

    def read(self, kind: str, given: Mapping[str, Any]) -> tuple[Work, Any]:
        """Return the work and the content of a request. Raises InputError if it has mistakes, or the checkpoint cannot
        answer it."""
        if why := self.can[kind]:
            raise InputError(why)
        read = {
            "fill": self._read_fill, "score": self._read_score, "embed": self._read_embed,
            "predict": self._read_predict,
        }  # fmt: skip
        return read[kind](given)

    def warm_up(self, *_: Any) -> Iterator[list[None]]:
        """Compile the programs of usual requests. Other requests are answered between these steps."""
        found: dict[str, Any] = {}
        length = {} if self.tokenizer.records else {"max_new_tokens": 8}

        def answer(kind: str, given: Mapping[str, Any], count: int = 1) -> Iterator[list[None]]:
            with contextlib.suppress(InputError):  # of a network that cannot, or a task with other inputs
                work, content = self.read(kind, given)
                for results in work.compute(work.options, [content] * count):
                    found.update(results[0] or {})
                    yield [None]

        yield from answer("fill", {"text": "", **length})
        text = found.get("text") or "a"
        yield from answer("score", {"texts": [text]})
        yield from answer("predict", {"inputs": [text]})
        yield from answer("embed", {"texts": [text], "normalize": True})
        yield from answer("fill", {"text": "", **length}, TOGETHER)
        self.is_ready = True
        longer = " ".join([text] * 5)
        yield from answer("fill", {"text": longer, **length})
        yield from answer("score", {"texts": [longer]})

    # ---- drawn texts -------------------------------------------------------------------------------------------------

    def _read_fill(self, given: Mapping[str, Any]) -> tuple[Work, Any]:
        (text,), settings = _read(GenerateSettings("loaded"), given, "text", _FILL)
        sizes, prefix, seed = (settings.gap_pieces, settings.max_new_tokens), settings.prefix, settings.seed
        sampler, symbols = self._sampler(_of_group(settings)), self.tokenizer.symbols
        if symbols and prefix:
            raise InputError(f"`prefix` {prefix!r} is for prose: a record sees no other; leave it out")
        if symbols:
            uniform_F = uniforms(seed, Purpose.LENGTHS, 0, range(1), len(symbols.records.parsed))[0]
            request = read_record(symbols, text, sampler.is_causal, *sizes, uniform_F)
        else:
            self.tokenizer.require_known([prefix, text], "the text")
            request = read_prompt(self.tokenizer, text, prefix, *sizes)
        if len(request.targets_P) > MOST_PIECES:
            why = f"{len(request.targets_P):,} pieces are open, but a request may have at most {MOST_PIECES}"
            raise InputError(f"{why}: lower `{'gap_pieces' if GAP.search(text) else 'max_new_tokens'}`")
        sampler.require_room(request)
        return Work(self._fill, _of_group(settings), TOGETHER), (request, seed)

    def _fill(self, settings: GenerateSettings, contents: Sequence[tuple[Request, int]]) -> Iterator[list[Any]]:
        """Yield what the page shows of each request, the pieces of each pass, and the whole text as the last. A group
        is filled up, because a program is compiled for each number of rows: there are one, and TOGETHER."""
        rows = list(contents) * TOGETHER if len(contents) > 1 else contents
        rows = rows[:TOGETHER]
        requests = [dataclasses.replace(request) for request, _ in rows]
        seeds = np.array([seed for _, seed in rows], np.uint32)
        keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), 0))(seeds)
        own = requests[: len(contents)]
        yield [{"parts": list(r.parts), "gaps": np.bincount(r.gap_P).tolist()} for r in own]
        shown = [np.zeros(len(request.targets_P), bool) for request in own]
        for known in self._sampler(settings).draw(requests, keys, chunk=1):
            events = []
            for was_shown_P, (ids_P, log_probs_P, passes_P) in zip(shown, known, strict=False):
                new = np.flatnonzero((ids_P != PAD) & ~was_shown_P).tolist()
                was_shown_P[new] = True
                pieces = [
                    {"number": i, "piece": self._piece(int(ids_P[i])), "log_prob": _rounded(log_probs_P[i])}
                    for i in new
                ]
                events.append({"pass": int(passes_P[new[0]]), "pieces": pieces} if new else None)
            yield events
        yield [self._as_text(request) for request in own]

    def _piece(self, i: int) -> str:
        """Return the text of a piece; ▁ in prose is the space before a word."""
        symbols = self.tokenizer.symbols
        return symbols.decode([i]).strip(FIELD) if symbols else self.tokenizer.pieces[i]

    def _as_text(self, request: Request) -> dict[str, Any]:
        return {
            "text": fill(self.tokenizer, request),
            "pieces": [self._piece(i) for i in request.ids_P],
            "log_probs": [_rounded(log_prob) for log_prob in request.log_probs_P],
            "passes": request.passes_P.tolist(),
            "ended": request.is_stopped,
        }

    # ---- scores, vectors, predictions --------------------------------------------------------------------------------

    def _read_score(self, given: Mapping[str, Any]) -> tuple[Work, Any]:
        texts, settings = _read(ScoreSettings("loaded", orders=(self._order,)), given, "texts", _SCORE)
        check_orders(settings.orders)
        require_orders(self.model, settings.orders)
        self.tokenizer.require_known(texts, "the text")
        size = sum(map(len, texts)) + len(settings.context)
        longest = max(map(len, texts))
        passes = sum(longest if order == PSEUDO else int(order.partition(":")[2] or 1) for order in settings.orders)
        if size * passes > MOST_READ:
            why = f"{passes:,} passes over {size:,} characters are more than {MOST_READ:,} characters to read"
            raise InputError("orders", " ".join(settings.orders), f": {why}: give fewer orders, or a shorter text")
        return Work(self._score, settings, TEXTS_TOGETHER), texts

    def _score(self, settings: ScoreSettings, contents: Sequence[list[str]]) -> Iterator[list[Any]]:
        texts = [text for own in contents for text in own]
        scores = score_texts(
            self.model, texts, settings.orders, context=settings.context, seed=settings.seed,
            field_order=settings.field_order, max_len=self._max_len, mem_len=self._mem_len,
        )  # fmt: skip
        rows = []
        for text, score in zip(texts, scores, strict=True):
            nats = -score.log_likelihood if score.pieces else None
            each = {
                "nats_per_piece": nats and _rounded(nats / len(score.pieces)),
                "bits_per_character": nats and _rounded(nats / math.log(2) / len(text)),
            }
            rows.append({"text": text, **numbers_of(score, settings.orders[0]), **each})
        yield [{"scores": own} for own in _split(rows, contents)]

    def _read_embed(self, given: Mapping[str, Any]) -> tuple[Work, Any]:
        texts, settings = _read(EmbedSettings("loaded", ("texts",), "vectors.npy"), given, "texts", _EMBED)
        self.tokenizer.require_known(texts, "the text")
        return Work(self._embed, settings, TEXTS_TOGETHER), texts

    def _embed(self, settings: EmbedSettings, contents: Sequence[list[str]]) -> Iterator[list[Any]]:
        vectors_BD = embed_texts(
            self.model, [text for own in contents for text in own], settings.pooling, layer=settings.layer,
            normalize=settings.normalize, specials=settings.specials, max_len=self._max_len, mem_len=self._mem_len,
        )  # fmt: skip
        yield [{"vectors": own} for own in _split(vectors_BD.astype(float).round(6).tolist(), contents)]

    def _read_predict(self, given: Mapping[str, Any]) -> tuple[Work, Any]:
        inputs = given.get("inputs")
        if not isinstance(inputs, list) or not inputs or len(given) > 1:
            raise InputError("inputs", "", f"must be a list of inputs, and nothing else: {shown(given)}")
        # A pair of texts is a list in JSON.
        is_words = self.model.head is not None and self.model.head.task == "token_classification"
        return Work(self._predict, (), TEXTS_TOGETHER), [
            tuple(one) if isinstance(one, list) and not is_words else one for one in inputs
        ]

    def _predict(self, _: Any, contents: Sequence[list[Any]]) -> Iterator[list[Any]]:
        found = self.model.predict([one for own in contents for one in own])
        rows = [
            {
                "value": prediction.value,
                "probabilities": {name: _rounded(p) for name, p in prediction.probabilities.items()},
            }
            for prediction in found
        ]
        yield [{"predictions": own} for own in _split(rows, contents)]


def _read(usual: Any, given: Mapping[str, Any], key: str, allowed: Sequence[str]) -> tuple[list[str], Any]:
    """Return the texts of a request under a key, and its settings: `usual`, with those given. Raises InputError if
    there is no text, and for settings that a request cannot have."""
    others = {name: value for name, value in given.items() if name != key}
    if unknown := [name for name in others if name not in allowed]:
        raise InputError(f"a request has no {shown(unknown[0])}: it has {key!r} and may have {', '.join(allowed)}")
    texts: Any = given.get(key)
    if not (isinstance(texts, str) if key == "text" else isinstance(texts, list) and texts):
        raise InputError(key, "", f"must be {'a text' if key == 'text' else 'a list of at least one text'}")
    texts = list_of_texts(texts, key)
    for text in [*texts, *(value for value in others.values() if isinstance(value, str))]:
        whole(text, f"`{key}`")
    return texts, with_keywords(usual, others)


def _of_group(settings: GenerateSettings) -> GenerateSettings:
    """Return the settings with defaults in place of those that may differ in a group."""
    usual = GenerateSettings("loaded")
    return dataclasses.replace(settings, prefix="", gap_pieces=(), max_new_tokens=usual.max_new_tokens, seed=usual.seed)


def _why_not(check: Callable[[], Any]) -> str | None:
    """Return the text of the InputError that a function raises."""
    try:
        check()
    except InputError as why:
        return str(why)
    return None


def _split(rows: Sequence[Any], contents: Sequence[list[Any]]) -> list[Any]:
    """Return the rows of each request."""
    ends = np.cumsum([len(own) for own in contents])
    return [rows[end - len(own) : end] for end, own in zip(ends, contents, strict=True)]


def _rounded(number: Any) -> float:
    return round(float(number), 6)
