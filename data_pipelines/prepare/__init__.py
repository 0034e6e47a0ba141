"""Turn text into a prepared corpus: `prepare` from Python, `python -m data_pipelines.prepare` from a shell."""

from data_pipelines.prepare.commands import prepare

__all__ = ["prepare"]
