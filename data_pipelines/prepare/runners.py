"""Run preparation on the cores of this machine, or as an Apache Beam pipeline, for example on Dataflow, Spark or
Flink."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from types import ModuleType
from typing import Any

from xlnet_jax.errors import InputError


def itself(seed: Any) -> Iterator[Any]:
    """Yield the seed itself, for seeds that are items."""
    yield seed


Work = Callable[[Any], None]
Expand = Callable[[Any], Iterable[Any]]
Runner = Callable[[Sequence[Any], Work, Expand], None]
"""(seeds, work, expand): call work(item) for every item of expand(seed), for every seed, in any order. Results are left
in files. Raises the first exception of a call"""


def run_here(
    seeds: Sequence[Any],
    work: Work,
    expand: Expand = itself,
    *,
    processes: int | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Run on the cores of this machine (`Runner`). This process expands the seeds, and others work on the items; a
    single item is done by this process.

    processes: None = one for each core that this process may use. on_progress: called with the number of finished
    items.
    """
    rest = (item for seed in seeds for item in expand(seed))
    first = list(islice(rest, 2))
    items = chain(first, rest)
    processes = processes or _cores()
    alone = len(first) < 2 or processes == 1
    finished = map(work, items) if alone else _work_in_pool(items, work, processes)
    for done, _ in enumerate(finished, 1):
        on_progress(done)


def run_with_beam(
    seeds: Sequence[Any], work: Work, expand: Expand = itself, *, runner: str, options: Sequence[str] = ()
) -> None:
    """Run as a pipeline of Apache Beam (`Runner`), which may call work(item) more than once per item. Workers share the
    corpus folder, so with several machines it must be in the cloud or on a shared disk.

    runner: Direct, Dataflow, Spark, Flink, or any other runner of Beam. options: as on Beam's own command line.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise InputError("runner", "", "needs Apache Beam: pip install -e '.[beam]' in the clone, or omit it") from None
    name = runner if runner.endswith("Runner") else f"{runner}Runner"
    options_of_beam = PipelineOptions([f"--runner={name}", *options])
    if name == "DirectRunner":  # its workers log exceptions that this call raises anyway
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    try:
        with beam.Pipeline(options=options_of_beam) as pipeline:
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
        raise InputError("runner", runner, f": {str(error).splitlines()[0]}") from error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


DIED = (
    "a worker process died: out of memory, or stopped by somebody; encoded parts are kept, and the same call continues"
)


def _work_in_pool(items: Iterator[Any], work: Work, processes: int) -> Iterator[None]:
    """Work on the items in processes. Yield once per finished item.

    Processes are spawned: a fork could inherit a lock that a thread of jax or TensorFlow holds.
    """
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_worker, (work,))
    running: set[Future[None]] = set()
    try:
        for item in items:
            with _starting_workers():
                running.add(pool.submit(_work_on, item))
            if len(running) > 2 * processes:  # limits the memory of waiting items
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in as_completed(running))
    except BrokenProcessPool:
        raise InputError(DIED) from None
    except KeyboardInterrupt:
        for process in list(pool._processes.values()):  # Python 3.14 has kill_workers
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)  # keeps the results of running calls


@contextlib.contextmanager
def _starting_workers() -> Iterator[None]:
    """Keep two things from workers that start in the body: Ctrl-C, which this process handles, and the caller's script.
    They would import it, although it may do all its work when it is imported, or be the standard input."""
    main, mask = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_work: Work
"""Function of this worker process"""


def _begin_worker(work: Work) -> None:
    global _work
    _work = work
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone, even in the middle of an item."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _work_on(item: Any) -> None:
    _work(item)
