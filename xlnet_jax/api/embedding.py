"""Vectors of the texts in files, as .npy or Parquet."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xlnet_jax.api.command import CheckpointArgument
from xlnet_jax.api.text_source import TextSourceSettings
from xlnet_jax.errors import InputError
from xlnet_jax.settings.bounds import at_least, check_bounds
from xlnet_jax.settings.fields import setting
from xlnet_jax.settings.keywords import with_plain_paths


@dataclass(frozen=True)
class EmbedSettings(TextSourceSettings):
    """One vector for each text, in the order of the texts."""

    checkpoint: CheckpointArgument
    """checkpoint with a tokenizer, in any format and with any head, the folder of a run, tiny, or a name on the Hugging
    Face Hub"""
    text: tuple[str, ...]
    """files, globs, folders, URLs, tfds:NAME or hf:NAME"""
    out: str
    """file to write: .npy, float32 [texts, width], or .parquet, with the columns id and embedding"""
    unit: Literal["line", "document"] = "line"
    """what counts as one text in a text file: a line, or the lines up to a blank one; an object of JSON Lines and a row
    of Parquet are always one text"""
    pooling: Literal["mean", "last", "first", "cls"] = "mean"
    """mean of the tokens of a text, its last or its first token, or <cls>, which comes last; padding never counts"""
    layer: int = -1
    """layer whose hidden states are read: 1 to the number of layers, or -1, -2, … from the last"""
    normalize: bool = False
    """scale each vector to length 1"""
    specials: bool = True
    """read <sep> and <cls> after a text; without them its last token is its last piece"""
    seq_len: int | None = None
    """longest segment, in tokens; a longer text is read in several segments; None = the length of the run's windows, or
    512"""
    mem_len: int | None = None
    """positions of earlier segments that a segment sees; None = as in training, or the paper's 384; 0 = none"""
    batch_tokens: int = setting(8192, at_least(1))
    """tokens that the network reads at once; the vectors do not depend on it"""
    overwrite: bool = False
    """replace an existing file"""
    tokenizer: str | None = None
    """SentencePiece model, for a checkpoint without one"""
    id_field: str | None = None
    """field that holds the id in JSON and Parquet; None = number the texts from 0"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute type; the vectors are always float32"""

    def check(self) -> None:
        """Raise InputError for what cannot work, before anything is read."""
        from xlnet_jax.storage.files import demand_new_file

        if Path(self.out).suffix not in (".npy", ".parquet"):
            raise InputError(f"`out` {self.out}: give a name that ends in .npy or .parquet")
        if self.id_field is not None and self.out.endswith(".npy"):
            raise InputError("`id_field`: a .npy file has no place for ids; let `out` end in .parquet")
        check_bounds(self)
        demand_new_file(self.out, self.overwrite)


def embed_files(settings: EmbedSettings, on_embedded: Callable[[int], None] = lambda count: None) -> tuple[int, int]:
    """Write the vectors of all texts; return their number and their width.

    on_embedded: called with the number of texts so far. Raises InputError for settings, texts or a checkpoint that
    cannot work; no file is left then.
    """
    settings = with_plain_paths(settings)
    settings.check()
    from data_pipelines import texts
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import on_device
    from xlnet_jax.inference.embedding import SEQ_LEN, embed_texts
    from xlnet_jax.inference.embedding_files import write_embeddings
    from xlnet_jax.training.heldout.evaluation import Run, trained_mem_len

    found = settings.find(settings.text)
    run = Run.of(settings.checkpoint)
    pretrained = load_with_tokenizer(settings.checkpoint, settings.tokenizer)
    window_len = run.config.data.seq_len if run else SEQ_LEN
    embed = functools.partial(
        embed_texts,
        on_device(pretrained, settings.dtype),
        pooling=settings.pooling,
        layer=settings.layer,
        normalize=settings.normalize,
        specials=settings.specials,
        seq_len=window_len if settings.seq_len is None else settings.seq_len,
        mem_len=trained_mem_len(pretrained, run) if settings.mem_len is None else settings.mem_len,
        batch_tokens=settings.batch_tokens,
    )
    given = texts.read_texts(found, settings.unit, settings.id_field, settings.corpus_errors)
    return write_embeddings(embed, given, settings.out, on_embedded)
