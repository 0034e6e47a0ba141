"""One vector per text or per token, from the hidden states of the content stream, where all tokens see each other.

The network reads a text as its pieces, <sep> and <cls>, as in finetuning, and a record (data_pipelines/records.py) as
<s>, its symbols and <eod>, as in pretraining. A text longer than max_len is read in segments of max_len tokens, each
with the memory of the segments before it (Transformer-XL, section 3.2); means are over the tokens of all segments.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from data_pipelines.tokenizer import BOS, CLS, EOD, PAD, SEP
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.printing import progress
from xlnet_jax.settings.common import PerTextSettings
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.fields import (
    check_bounds,
    list_of_texts,
    with_plain_paths,
)
from xlnet_jax.storage.outputs import new_file
from xlnet_jax.storage.programs import keep_programs

if TYPE_CHECKING:
    from data_pipelines.sources import Id
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.checkpoints.pretrained import Pretrained

Pooling = Literal["mean", "last", "first", "cls"]
PER_TOKEN = ("token", "symbol")
SEQ_LEN = 512  # tokens, as in the released models (paper, section 3.1)
BATCH_TOKENS = 8192
TEXTS_AT_ONCE = 1024  # read from files


@dataclass(frozen=True)
class EmbedSettings(PerTextSettings):
    """One vector for each text, or for each of its tokens, in the order of the texts."""

    text: tuple[str, ...]
    """files, globs, folders, URLs, tfds:NAME or hf:NAME"""
    out: str
    """file to write: .npy, float32 [texts, width], or .parquet with the columns id and embedding"""
    per: Literal["text", "record", "token", "symbol"] = "text"
    """one vector for each text, or record of symbols (the same); or for each token, or symbol, of it: then `out` is a
    .parquet file whose embedding is a list of vectors"""
    unit: Literal["line", "document"] = "line"
    """what is one text in a text file: a line, or a document, which ends at a blank line; a JSON Lines object or a
    Parquet row is always one text"""
    pooling: Pooling | None = None
    """mean of the tokens of a text, its last or first token, or <cls>, which comes last; of a record, only symbols
    count; None = as finetuned for embedding, or else mean"""
    layer: int = -1
    """layer whose hidden states to use: 1 to the number of layers, or -1, -2, … from the last"""
    normalize: bool = False
    """scale each vector to length 1"""
    specials: bool = True
    """append <sep> and <cls> to each text, or put a record between <s> and <eod>"""


def embed_files(settings: EmbedSettings) -> tuple[int, int, str]:
    """Write the vectors of all texts as they are read; return the number of texts, the width, and how vectors are
    pooled, or "each token" if they are not.

    Raises InputError for invalid settings, texts or checkpoints, and then leaves no file.
    """
    from data_pipelines.faults import Faults
    from data_pipelines.sources import find, read_texts
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.native import PretrainingRun, trained_mem_len
    from xlnet_jax.checkpoints.pretrained import on_device

    s = with_plain_paths(settings)
    if Path(s.out).suffix not in (".npy", ".parquet"):
        raise InputError("out", s.out, ": give a name that ends in .npy or .parquet")
    if s.per in PER_TOKEN and s.out.endswith(".npy"):
        raise InputError("out", s.out, f"cannot hold a vector per {s.per}: give a name that ends in .parquet")
    if s.id_field is not None and s.out.endswith(".npy"):
        raise InputError("id_field", "", ": a .npy file cannot hold ids: give an `out` that ends in .parquet")
    check_bounds(s)
    with new_file(s.out, s.overwrite) as file:
        run, pretrained = PretrainingRun.of(s.checkpoint), load_with_tokenizer(s.checkpoint, s.tokenizer)
        tokenizer, faults = pretrained.require_tokenizer(), Faults()
        texts = read_texts(find(s.text, s, records=tokenizer.records), s.unit, s.id_field)
        window_len, pooling = run.config.data.seq_len if run else SEQ_LEN, s.pooling or pooling_of(pretrained)
        embed: Callable[..., Any] = functools.partial(
            embed_tokens if s.per in PER_TOKEN else functools.partial(embed_texts, pooling=pooling),
            on_device(pretrained, s.dtype),
            layer=s.layer,
            normalize=s.normalize,
            specials=s.specials,
            max_len=window_len if s.max_len is None else s.max_len,
            mem_len=trained_mem_len(pretrained, run) if s.mem_len is None else s.mem_len,
        )
        done = 0
        with progress() as show, (_write_npy if s.out.endswith(".npy") else _write_parquet)(file) as append:
            while records := list(itertools.islice(texts, TEXTS_AT_ONCE)):
                if not done:
                    tokenizer.require_known((r.text for r in records), "the text")
                vectors = embed([r.text for r in records])
                append([done + i if r.id is None else r.id for i, r in enumerate(records)], vectors)
                faults.watch(records, [bool(np.any(of_text)) for of_text in vectors])
                done += len(vectors)
                show(f"{done:,} texts")
            faults.keep("an empty list" if s.per in PER_TOKEN else "zeros")
    return done, pretrained.model.d_model if done else 0, f"each {s.per}" if s.per in PER_TOKEN else pooling


def print_embedding(settings: EmbedSettings) -> None:
    """Write the vectors, and print how many there are."""
    count, width, pooling = embed_files(settings)
    print(f"{settings.out}: {count:,} x {width:,}, {pooling} of layer {settings.layer}")


def pooling_of(pretrained: "Pretrained") -> Pooling:
    """Return the pooling that a checkpoint was finetuned with for embedding; else mean."""
    head = pretrained.head
    return cast(Pooling, head.summary) if head and head.task == "embedding" else "mean"


def embed_texts(
    pretrained: "Pretrained",
    texts: str | Iterable[str],
    pooling: Pooling | None = None,
    *,
    layer: int = -1,
    normalize: bool = False,
    specials: bool = True,
    max_len: int = SEQ_LEN,
    mem_len: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> np.ndarray:
    """Return the vectors of texts, float32 [texts, D], in their order. A vector does not depend on the other texts. A
    text without pieces, such as a blank one, has zeros.

    The keywords are those of `EmbedSettings`. max_len: learned positions may limit it further. mem_len: None = as in
    the checkpoint; must be 0 without relative positions. batch_tokens: tokens in a batch; does not change the vectors.
    Weights of a head are not used. Raises InputError for settings out of range, and for a checkpoint without a
    tokenizer.
    """
    pooling = pooling or pooling_of(pretrained)
    if pooling not in ("mean", "last", "first", "cls"):
        raise InputError("pooling", pooling, "must be mean, last, first or cls")
    if pooling == "cls" and not specials:
        raise InputError("pooling", "cls", "needs `specials`: without them there is no <cls>; give last")
    if pooling == "cls" and pretrained.require_tokenizer().records:
        raise InputError("pooling", "cls", "is for prose: a record has no <cls>; give mean, last or first")
    texts = list_of_texts(texts)
    vectors_BD = np.zeros((len(texts), pretrained.model.d_model), np.float32)
    with keep_programs():
        for places, _, pooled_BD in _read(pretrained, texts, pooling, layer, specials, max_len, mem_len, batch_tokens):
            vectors_BD[places] += pooled_BD
    return _normalized(vectors_BD) if normalize else vectors_BD


def embed_tokens(
    pretrained: "Pretrained",
    texts: str | Iterable[str],
    *,
    layer: int = -1,
    normalize: bool = False,
    specials: bool = True,
    max_len: int = SEQ_LEN,
    mem_len: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[np.ndarray]:
    """Return the vectors of the tokens of each text, or of the symbols of each record: float32 [tokens, D], without
    those of special pieces. The arguments and errors are those of `embed_texts`."""
    texts, frame = list_of_texts(texts), _frame(pretrained.require_tokenizer(), specials)
    parts: list[list[np.ndarray]] = [[np.zeros((0, pretrained.model.d_model), np.float32)] for _ in texts]
    for places, lengths, hidden_BLD in _read(pretrained, texts, None, layer, specials, max_len, mem_len, batch_tokens):
        for i, length, hidden_LD in zip(places, lengths, hidden_BLD, strict=True):
            parts[i].append(hidden_LD[:length])
    found = [np.concatenate(of_text) for of_text in parts]
    found = [vectors_LD[len(frame[0]) : len(vectors_LD) - len(frame[1])] for vectors_LD in found]
    return [_normalized(vectors_LD) for vectors_LD in found] if normalize else found


def _normalized(vectors_BD: np.ndarray) -> np.ndarray:
    return vectors_BD / np.maximum(np.linalg.norm(vectors_BD, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _frame(tokenizer: "Tokenizer", specials: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special pieces before and after a text."""
    return (((BOS,), (EOD,)) if tokenizer.records else ((), (SEP, CLS))) if specials else ((), ())


def _read(
    pretrained: "Pretrained",
    texts: Sequence[str],
    pooling: Pooling | None,
    layer: int,
    specials: bool,
    max_len: int,
    mem_len: int | None,
    batch_tokens: int,
) -> Iterator[tuple[list[int], list[int], np.ndarray]]:
    """Yield segments of a batch of texts, in order: (numbers of the texts, how many tokens of each are in the segment,
    hidden states [B, L, D] or, with pooling, their weighted sums [B, D])."""
    import jax.numpy as jnp

    from xlnet_jax.inference.log_probs import batches_by_length, padded
    from xlnet_jax.objectives.registry import segment_of_V

    if max_len < 1:
        raise InputError("max_len", max_len, "must be at least 1")
    model, backbone = _first_layers(pretrained, layer, mem_len)
    alone = replace(model, mem_len=0, same_length=False)  # with same_length rows would see mem_len positions: none
    max_len = min(max_len, model.num_places)
    tokenizer = pretrained.require_tokenizer()
    rows, (before, after) = tokenizer.encode_lines(texts), _frame(tokenizer, specials)
    places = [i for i, ids in enumerate(rows) if len(ids)]
    rows = [np.array([*before, *rows[i], *after], np.int32) for i in places]
    lengths = [len(row) for row in rows]
    # Only symbols of a record count, and all of the pieces that finetuning reads.
    uncounted = (len(before), len(after)) if tokenizer.records else (0, 0)
    segment_V = segment_of_V(tokenizer, model).copy()
    segment_V[CLS] = CLS_SEGMENT

    for indices, count, length in batches_by_length(lengths, batch_tokens, max_len):
        longest = lengths[indices[-1]]
        config = model if longest > length else alone
        mems_ZBMD = jnp.zeros((model.num_layers, count, config.mem_len, model.d_model), model.dtype)
        for begin in range(0, longest, length):
            parts = [rows[i][begin : begin + length] for i in indices]
            ids_BL = padded(parts, count, length, PAD)
            real_BL = padded([np.ones_like(part) for part in parts], count, length, 0)
            weights_BL = None
            if pooling:
                weights = [_weights(lengths[i], pooling, uncounted)[begin : begin + length] for i in indices]
                weights_BL = padded(weights, count, length, 0, np.float32)
            arrays, filled = (ids_BL, segment_V[ids_BL], real_BL, weights_BL), min(begin, config.mem_len)
            found, mems_ZBMD = _program(config)(backbone, *arrays, mems_ZBMD, filled)
            yield [places[i] for i in indices], [len(part) for part in parts], np.asarray(found)[: len(indices)]


def _first_layers(pretrained: "Pretrained", layer: int, mem_len: int | None) -> tuple[ModelConfig, Any]:
    """Return the settings and the parameters of the network up to a layer."""
    import jax

    from xlnet_jax.inference.log_probs import with_mem_len

    model, backbone = pretrained.model, pretrained.params["backbone"]
    n = model.num_layers
    depth = layer if layer > 0 else n + 1 + layer
    if not 1 <= depth <= n:
        raise InputError("layer", layer, f"does not exist: there are 1 to {n}, or -1 to -{n} from the last")
    model = replace(with_mem_len(model, model.mem_len if mem_len is None else mem_len), num_layers=depth)
    if depth == n or model.share_layers == "all":
        return model, backbone
    return model, {**backbone, "layers": jax.tree.map(lambda by_layer: by_layer[:depth], backbone["layers"])}


def _weights(length: int, pooling: Pooling, uncounted: tuple[int, int] = (0, 0)) -> np.ndarray:
    """Return float32 [length]: each pooling is a weighted sum over the tokens of all segments. uncounted: number of
    first and of last tokens whose weight is 0."""
    counted = length - sum(uncounted)
    weights = np.full(counted, 1 / counted if pooling == "mean" else 0, np.float32)
    if pooling != "mean":
        weights[0 if pooling == "first" else -1] = 1
    return np.pad(weights, uncounted)


@functools.cache
def _program(config: ModelConfig) -> Callable[..., tuple[Any, Any]]:
    """Return the compiled pass over one segment of each text in a batch."""
    import jax
    import jax.numpy as jnp

    from xlnet_jax.models.heads import build_encoder
    from xlnet_jax.models.inputs import compact_inputs
    from xlnet_jax.models.masks import memory_in_use_BM

    @jax.jit
    def pool(
        backbone: Any,
        ids_BL: jax.Array,
        segments_BL: jax.Array,
        real_BL: jax.Array,
        weights_BL: jax.Array | None,
        mems_ZBMD: Any,
        filled: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Return (weighted sum of the hidden states of each text [B, D], memory for the next segment); without weights,
        all hidden states [B, L, D].

        real: 1 = token, 0 = padding. mems: memory of the segments before, [layers, B, M, D], with the newest `filled`
        positions in use.
        """
        memory_BM = memory_in_use_BM(jnp.full(len(ids_BL), filled), config.mem_len)
        inputs = compact_inputs(ids_BL, segment_ids_BL=segments_BL, memory_BM=memory_BM, attention_mask_BL=real_BL)
        outputs = cast(Any, build_encoder(config).apply({"params": backbone}, inputs, mems_ZBMD))
        hidden_BLD = outputs.content_BLD.astype(jnp.float32)
        if weights_BL is None:
            return hidden_BLD, outputs.new_mems_ZBMD
        return jnp.einsum("BL,BLD->BD", weights_BL, hidden_BLD), outputs.new_mems_ZBMD

    return pool


Append = Callable[["Sequence[Id]", Any], Any]


@contextlib.contextmanager
def _write_npy(path: Path) -> Iterator[Append]:
    count = 0
    with path.open("wb") as file:

        def append(ids: "Sequence[Id]", vectors_BD: np.ndarray) -> None:
            # NumPy leaves room in the header for the number of rows to grow.
            nonlocal count
            count += len(vectors_BD)
            shape = (count, vectors_BD.shape[1])
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            file.seek(0, os.SEEK_END)
            file.write(vectors_BD.astype("<f4").tobytes())

        yield append


@contextlib.contextmanager
def _write_parquet(path: Path) -> Iterator[Append]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: pq.ParquetWriter | None = None

    def append(ids: "Sequence[Id]", of_texts: "np.ndarray | list[np.ndarray]") -> None:
        """of_texts: [texts, width], or [tokens, width] of each text."""
        nonlocal writer
        rows_BD = of_texts if isinstance(of_texts, np.ndarray) else np.concatenate(of_texts)
        vectors: Any = pa.FixedSizeListArray.from_arrays(pa.array(rows_BD.ravel()), rows_BD.shape[1])
        if rows_BD is not of_texts:
            vectors = pa.ListArray.from_arrays(np.cumsum([0, *map(len, of_texts)], dtype=np.int32), vectors)
        try:
            table = pa.table({"id": pa.array(ids), "embedding": vectors})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        except (pa.ArrowException, ValueError):
            raise InputError("id_field", "", ": ids must be all texts or all whole numbers") from None

    yield append
    if writer:
        writer.close()
