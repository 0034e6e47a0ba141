"""Turn text into a prepared corpus: `prepare` from Python, `python -m data_pipelines.prepare` from a shell."""

from data_pipelines.prepare.job import prepare, prepare_to_measure

__all__ = ["prepare", "prepare_to_measure"]
