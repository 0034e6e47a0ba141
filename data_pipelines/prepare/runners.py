"""Run preparation on the cores of this machine, or as an Apache Beam pipeline on Dataflow, Spark or Flink."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from xlnet_jax.errors import InputError


def itself(seed: Any) -> Iterator[Any]:
    """Yield the seed, where each is an item."""
    yield seed


@dataclass(frozen=True)
class LocalRunner:
    """The cores of this machine: this process expands the seeds, and one process a core works on the items. This
    process also does the work if there is only one item. Results are left in files."""

    processes: int | None = None  # None = one for each core that this process may use
    on_progress: Callable[[int], None] = lambda done: None  # called with the number of finished items

    def run(
        self, seeds: Sequence[Any], work: Callable[[Any], None], expand: Callable[[Any], Iterable[Any]] = itself
    ) -> None:
        """Call work(item) for each item of expand(seed) of each seed, in any order. Raises the first exception of a
        call."""
        rest = (item for seed in seeds for item in expand(seed))
        first = list(islice(rest, 2))
        items = chain(first, rest)
        processes = self.processes or _cores()
        alone = len(first) < 2 or processes == 1
        finished = map(work, items) if alone else _work_in_pool(items, work, processes)
        for done, _ in enumerate(finished, 1):
            self.on_progress(done)


@dataclass(frozen=True)
class BeamRunner:
    """A runner of Apache Beam, with one pipeline for each call of `run`. Workers share the folder of the corpus: on
    several machines it must be in the cloud, or on a disk that all of them mount."""

    runner: str  # 'Direct', 'Dataflow', 'Spark', 'Flink', or any other name that Beam knows
    options: tuple[str, ...] = ()  # in the form of Beam's own command line

    def run(
        self, seeds: Sequence[Any], work: Callable[[Any], None], expand: Callable[[Any], Iterable[Any]] = itself
    ) -> None:
        """Work as `LocalRunner.run` does, on an item perhaps more than once."""
        try:
            import apache_beam as beam
            from apache_beam.options.pipeline_options import PipelineOptions
        except ImportError:
            raise InputError(
                "`runner` needs Apache Beam: pip install 'xlnet_jax[beam]', or leave `runner` out"
            ) from None
        name = self.runner if self.runner.endswith("Runner") else f"{self.runner}Runner"
        options = PipelineOptions([f"--runner={name}", *self.options])
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


Runner = LocalRunner | BeamRunner


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work_in_pool(items: Iterator[Any], work: Callable[[Any], None], processes: int) -> Iterator[None]:
    """Work on the items in a pool of processes; yield once for each finished item."""
    # Fork from a clean process: a fork of this one could inherit a lock that a thread of jax or TensorFlow holds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["data_pipelines.prepare"])  # import it once, not in each process
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(work,))
    running: set[Future[None]] = set()
    try:
        for item in items:
            running.add(pool.submit(_work, item))
            if len(running) > 2 * processes:  # bounds the memory of waiting items
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in as_completed(running))
    except BaseException as error:
        if isinstance(error, InputError):
            wait(running)  # keep the results of calls that are still running
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                "a worker process ended at once: out of memory, or started by a script without `if __name__ == "
                "'__main__':`; encoded parts are kept, and the same call goes on from there"
            ) from None
        raise
    pool.shutdown()


_assigned: Callable[[Any], None]  # set once in each worker process, as it may hold a vocabulary


def _begin(work: Callable[[Any], None]) -> None:
    global _assigned
    _assigned = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent was killed; it would wait for work for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _work(item: Any) -> None:
    _assigned(item)
