"""Run preparation as an Apache Beam pipeline on Dataflow, Spark, Flink or this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xlnet_jax.errors import InputError


@dataclass(frozen=True)
class BeamRunner:
    """A runner of Beam, with one pipeline for each call of `run`. Workers share the folder of the corpus: on several
    machines it must be in the cloud, or on a disk that all of them mount."""

    runner: str  # 'Direct', 'Dataflow', 'Spark', 'Flink', or any other name that Beam knows
    options: tuple[str, ...] = ()  # in the form of Beam's own command line

    def run(self, seeds: Sequence[Any], expand: Callable[[Any], Iterable[Any]], work: Callable[[Any], None]) -> None:
        """See `runners.Runner`."""
        beam = _beam()
        name = self.runner if self.runner.endswith("Runner") else f"{self.runner}Runner"
        options = beam.options.pipeline_options.PipelineOptions([f"--runner={name}", *self.options])
        if name == "DirectRunner":  # its workers log an exception that this call raises anyway
            logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        try:
            with beam.Pipeline(options=options) as pipeline:
                (
                    pipeline
                    | "seeds" >> beam.Create(list(seeds))
                    | "spread seeds" >> beam.Reshuffle()
                    | "expand" >> beam.FlatMap(expand)
                    | "spread items" >> beam.Reshuffle()
                    | "work" >> beam.Map(work)
                )
        except (ValueError, RuntimeError) as error:
            if isinstance(error, InputError) or "[while running" in str(error):  # raised by our functions
                raise
            raise InputError(f"`runner` {self.runner}: {str(error).splitlines()[0]}") from error


def _beam() -> Any:
    try:
        import apache_beam
        import apache_beam.options.pipeline_options
    except ImportError:
        raise InputError("`runner` needs Apache Beam: pip install 'xlnet_jax[beam]', or leave `runner` out") from None
    return apache_beam
