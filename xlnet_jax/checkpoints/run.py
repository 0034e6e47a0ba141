"""The pretraining run that a checkpoint belongs to: its settings, and the text that it learned from."""

from dataclasses import dataclass
from pathlib import Path

from data_pipelines.corpus import Corpus, is_corpus
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.files import from_dict


@dataclass(frozen=True)
class Run:
    """Pretraining run that a checkpoint belongs to."""

    folder: Path
    config: Config

    @classmethod
    def of(cls, checkpoint: str | Path) -> "Run | None":
        """Return the run of a checkpoint; None for a converted one or one of another project."""
        source = Path(checkpoint)
        found = native.find(source) if source.is_dir() else None
        settings = native.read_settings(found) if found else {}
        return cls(found.parent.parent, from_dict(Config, settings)) if found and "preset" in settings else None

    def corpus(self) -> Corpus | None:
        """Return the text that the run learned from, with its held-out part; None where it is gone."""
        beside = self.folder / "corpus"
        there = next((name for name in (beside, *(self.config.corpus or ())) if is_corpus(name)), None)
        return Corpus(there) if there else None


def trained_mem_len(pretrained: Pretrained, run: Run | None) -> int:
    """Return the positions of memory that the weights were trained with; the paper's where the checkpoint does not say,
    as most of Hugging Face's, and its positions have room for memory."""
    if pretrained.model.positions != "relative":
        return 0
    return pretrained.model.mem_len if run else pretrained.model.mem_len or ModelConfig().mem_len
