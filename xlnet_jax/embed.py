"""python -m xlnet_jax.embed: sentences or documents to vectors, as .npy or Parquet."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli


@dataclass(frozen=True)
class Embed:
    """A vector for each text, in the order of the texts."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """a checkpoint with a tokenizer, of any format and with any head, or a run's folder"""
    text: tuple[str, ...]
    """files, globs, folders, or tfds:NAME"""
    out: str
    """file to make: .npy, float32 [texts, width], or .parquet, with the columns id and embedding"""
    unit: Literal["line", "document"] = "line"
    """what is a text in a text file: a line, or the lines up to a blank one; an object of JSON Lines and a row of
    Parquet are one always"""
    pooling: Literal["mean", "last", "first", "cls"] = "mean"
    """the mean of a text's tokens, its last one, its first one, or <cls>, which stands last; padding never counts"""
    layer: int = -1
    """whose hidden states: 1 to the number of layers, or -1, -2, … from the last"""
    normalize: bool = False
    """vectors of length 1"""
    specials: bool = True
    """read <sep> and <cls> behind a text; without them its last token is its last piece"""
    seq_len: int | None = None
    """longest segment, in tokens; a longer text is read in several; None = the length of the run's windows, or 512"""
    mem_len: int | None = None
    """positions of earlier segments that a segment sees; None = as in training, or the paper's 384; 0 = none"""
    batch_tokens: int = 8192
    """tokens that the network reads at once; the vectors do not depend on it"""
    overwrite: bool = False
    """write over a file that is there"""
    tokenizer: str | None = None
    """a SentencePiece model, where the checkpoint came without one"""
    text_field: str = "text"
    """what holds the text in JSON, Parquet and TFDS"""
    id_field: str | None = None
    """what holds the id in JSON and Parquet; None = texts are numbered from 0"""
    tfds_data_dir: str | None = None
    """where TFDS datasets are prepared; None = TFDS's default"""
    corpus_errors: Literal["strict", "replace"] = "strict"
    """bytes that are not UTF-8: refused, or replaced by U+FFFD"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute type; the vectors are float32 always"""

    def check(self) -> None:
        """Raises InputError on what cannot work, before anything is read."""
        from xlnet_jax.storage.files import demand_new_file

        if Path(self.out).suffix not in (".npy", ".parquet"):
            raise InputError(f"--out {self.out}: give a name that ends in .npy or .parquet")
        if self.id_field is not None and self.out.endswith(".npy"):
            raise InputError("--id-field: a .npy file has no place for ids; let --out end in .parquet")
        if self.batch_tokens < 1:
            raise InputError(f"--batch-tokens {self.batch_tokens} must be at least 1")
        demand_new_file(self.out, self.overwrite)


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Embeds as the command line says; returns the exit code."""
    options = cli.parse(Embed, argv, "python -m xlnet_jax.embed", __doc__ or "")
    options.check()
    from rich.console import Console

    from data_pipelines import sources, texts
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.pretrained import on_device
    from xlnet_jax.inference.embedding import SEQ_LEN, embed_texts
    from xlnet_jax.inference.embedding_files import write_embeddings
    from xlnet_jax.training.heldout.evaluation import Run, trained_mem_len

    found = sources.find(options.text, options.text_field, options.tfds_data_dir)
    run = Run.of(options.checkpoint)
    pretrained = load_with_tokenizer(options.checkpoint, options.tokenizer)
    embed = functools.partial(
        embed_texts,
        on_device(pretrained, options.dtype),
        pooling=options.pooling,
        layer=options.layer,
        normalize=options.normalize,
        specials=options.specials,
        seq_len=(run.config.data.seq_len if run else SEQ_LEN) if options.seq_len is None else options.seq_len,
        mem_len=trained_mem_len(pretrained, run) if options.mem_len is None else options.mem_len,
        batch_tokens=options.batch_tokens,
    )
    given = texts.read_texts(found, options.unit, options.id_field, options.corpus_errors)
    with Console(stderr=True).status("reading") as status:  # nothing where no terminal is
        count, width = write_embeddings(embed, given, options.out, lambda done: status.update(f"{done:,} texts"))
    print(f"{options.out}: {count:,} x {width:,}, {options.pooling} of layer {options.layer}")
    return 0


if __name__ == "__main__":
    command.run(main)
