"""Preparation as an Apache Beam pipeline: the same functions on Dataflow, Spark, Flink or this machine's Beam."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from xlnet_jax.errors import InputError


@dataclass(frozen=True)
class BeamRunner:
    """One pipeline for each `run`. Workers share the folder of the corpus: on several machines it must be in the cloud,
    or on a disk that all of them mount."""

    runner: str  # 'Direct', 'Dataflow', 'Spark', 'Flink', or any other name that Beam knows
    options: tuple[str, ...] = ()  # as Beam's own command line takes them

    def run(self, seeds: Sequence[Any], expand: Callable[[Any], Iterable[Any]], work: Callable[[Any], None]) -> None:
        """See `runners.Runner`."""
        beam = _beam()
        name = self.runner if self.runner.endswith("Runner") else f"{self.runner}Runner"
        options = beam.options.pipeline_options.PipelineOptions([f"--runner={name}", *self.options])
        if name == "DirectRunner":  # what its workers log as they fail comes out of this call
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
            raise InputError(f"--runner {self.runner}: {str(error).splitlines()[0]}") from error


def _beam() -> Any:
    try:
        import apache_beam
        import apache_beam.options.pipeline_options
    except ImportError:
        raise InputError("--runner needs Apache Beam: pip install 'xlnet_jax[beam]', or leave --runner out") from None
    return apache_beam
