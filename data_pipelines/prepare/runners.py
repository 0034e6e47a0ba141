"""Run preparation on the cores of this machine, or as an Apache Beam pipeline, for example on Dataflow, Spark or
Flink."""

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
    """Yield the seed itself, for seeds that are items."""
    yield seed


@dataclass(frozen=True)
class LocalRunner:
    """The cores of this machine. This process expands the seeds, and one process per core works on the items. A single
    item is done by this process. Results are left in files."""

    processes: int | None = None  # None = one for each core that this process may use
    on_progress: Callable[[int], None] = lambda done: None  # called with the number of finished items

    def run(
        self, seeds: Sequence[Any], work: Callable[[Any], None], expand: Callable[[Any], Iterable[Any]] = itself
    ) -> None:
        """Call work(item) for every item of expand(seed), for every seed, in any order. Raises the first exception of a
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
    """An Apache Beam runner, with one pipeline per call of `run`. Workers share the corpus folder, so with several
    machines it must be in the cloud or on a shared disk."""

    runner: str  # 'Direct', 'Dataflow', 'Spark', 'Flink', or any other runner of Beam
    options: tuple[str, ...] = ()  # as on Beam's own command line

    def run(
        self, seeds: Sequence[Any], work: Callable[[Any], None], expand: Callable[[Any], Iterable[Any]] = itself
    ) -> None:
        """Do the same as `LocalRunner.run`, but possibly call work(item) more than once per item."""
        try:
            import apache_beam as beam
            from apache_beam.options.pipeline_options import PipelineOptions
        except ImportError:
            raise InputError("`runner` needs Apache Beam: pip install -e '.[beam]' in the clone, or omit it") from None
        name = self.runner if self.runner.endswith("Runner") else f"{self.runner}Runner"
        options = PipelineOptions([f"--runner={name}", *self.options])
        if name == "DirectRunner":  # its workers log exceptions that this call raises anyway
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
    """Work on the items in a pool of processes. Yield once per finished item."""
    # Fork from a clean process: a fork of this one could inherit a lock held by a thread of jax or TensorFlow.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["data_pipelines.prepare"])  # import it once, not in each process
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(work,))
    running: set[Future[None]] = set()
    try:
        for item in items:
            running.add(pool.submit(_work, item))
            if len(running) > 2 * processes:  # limits the memory of waiting items
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in as_completed(running))
    except BaseException as error:
        if isinstance(error, InputError):
            wait(running)  # keep the results of running calls
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                "a worker process died: out of memory, or started by a script without `if __name__ == "
                "'__main__':`; encoded parts are kept, and the same call continues"
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
    """End this worker when its parent is gone, or it would wait for work forever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _work(item: Any) -> None:
    _assigned(item)
