"""Run preparation on the cores of this machine, or as an Apache Beam pipeline, for example on Dataflow, Spark or
Flink."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle  # noqa: TID251 between a process and its own workers
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from itertools import chain, islice
from queue import Empty, SimpleQueue
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


def _work_in_pool(items: Iterator[Any], work: Callable[[Any], None], processes: int) -> Iterator[None]:
    """Work on the items in processes; a thread waits for each of them. Yield once per finished item."""
    pool, workers, idle = ThreadPoolExecutor(processes), list[_Worker](), SimpleQueue[_Worker]()

    def work_on(item: Any) -> None:
        try:
            worker = idle.get_nowait()
        except Empty:
            worker = _Worker(work)
            workers.append(worker)
        worker.work_on(item)
        idle.put(worker)

    running: set[Future[None]] = set()
    try:
        for item in items:
            running.add(pool.submit(work_on, item))
            if len(running) > 2 * processes:  # limits the memory of waiting items
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in as_completed(running))
    except BaseException as error:
        if isinstance(error, InputError):
            wait(running)  # keep the results of running calls
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in running):  # a call that was just begun may start a worker
            for worker in workers:
                worker.process.kill()
            time.sleep(0.01)
        for worker in workers:
            worker.close()


DIED = (
    "a worker process died: out of memory, or stopped by somebody; encoded parts are kept, and the same call continues"
)
_BEGIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
sys.path[:] = sys.argv[1:]
from data_pipelines.prepare import runners
runners.serve()"""


class _Worker:
    """A process that calls `work` for the items that this one sends.

    Python starts it anew: a fork could inherit a lock that a thread of jax or TensorFlow holds. Unlike a process of
    multiprocessing, it does not import the caller's script, which would have to be a file that does nothing when it is
    imported. So scripts of any kind, interactive shells and notebooks can prepare text.
    """

    def __init__(self, work: Callable[[Any], None]) -> None:
        words = [sys.executable, "-P", "-c", _BEGIN, *map(str, sys.path)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._send(work)

    def work_on(self, item: Any) -> None:
        """Call work(item) there. Raises what it raises, or InputError if the process died."""
        assert self.process.stdout
        self._send(item)
        try:
            error = pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise InputError(DIED) from None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):  # of an item that was never sent
                pipe.close()

    def _send(self, value: Any) -> None:
        assert self.process.stdin
        try:
            pickle.dump(value, self.process.stdin)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise InputError(DIED) from None


def serve() -> None:
    """Call the function that comes first on the standard input with each item after it, and answer each with the
    exception that it raised, or None. Ends when the parent process is gone, even in the middle of an item."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed here is no answer
    received: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                received.put(pickle.load(sys.stdin.buffer))
        finally:  # the input ends, perhaps inside an item
            os._exit(1)

    threading.Thread(target=receive, daemon=True).start()
    work = received.get()
    while True:
        error = None
        try:
            work(received.get())
        except Exception as raised:
            raised.add_note(traceback.format_exc())
            error = raised
        pickle.dump(error, answers)
        answers.flush()
