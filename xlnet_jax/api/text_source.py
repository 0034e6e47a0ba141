"""The name under which modules of this folder import how texts are read."""

from data_pipelines.sources import TextSourceSettings

__all__ = ["TextSourceSettings"]
