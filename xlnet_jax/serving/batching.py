"""Compute the requests of several clients together: a queue, and one thread that uses the device.

Requests of the same work that wait at the same time make a group. Groups take turns after every step, which for drawn
text is a pass, so a short request does not wait for a long one.
"""

import queue
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from xlnet_jax.errors import InputError

TOGETHER_SECONDS = 0.005
"""time for which the first request waits for others"""
MOST_WAITING = 64
"""requests; more are refused"""

STOPS = "the server stops"


class Work(NamedTuple):
    """What a request asks for; those with equal work may be computed together."""

    compute: Callable[[Any, Sequence[Any]], Iterator[Sequence[Any]]]
    """function of the options and of the contents of a group, which yields for each content what is new for it, or None
    after a step without anything new. After an error each content is computed again by itself"""
    options: Hashable
    most: int
    """contents of a group"""


class Ticket:
    """A request in the queue. Iterate over it for its results; it raises the error of its computation."""

    def __init__(self, work: Work, content: Any) -> None:
        self.work, self.content = work, content
        self.is_left = False  # nobody waits for it
        self.results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Any]:
        while (result := self.results.get()) is not None:
            if isinstance(result, Exception):
                raise result
            yield result


class TooBusyError(Exception):
    """Too many requests wait, or the program is about to end."""


class Batcher:
    """The thread that computes. Close it to end it."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._running: list[tuple[list[Ticket], Iterator[Sequence[Any]]]] = []
        self._closing, self._lock = False, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="compute")
        self._thread.start()

    def ask(self, work: Work, content: Any) -> Ticket:
        """Return the ticket of a new request. Raises TooBusyError."""
        ticket = Ticket(work, content)
        with self._lock:  # nothing comes into the queue after the thread has emptied it
            if self._closing or self._waiting.qsize() >= MOST_WAITING:
                raise TooBusyError(STOPS if self._closing else "too many requests wait: try again later")
            self._waiting.put(ticket)
        return ticket

    def close(self) -> None:
        """End the thread after the step that it computes, and refuse what waits."""
        with self._lock:
            self._closing = True
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            arrived = self._gather()
            if self._closing:
                break
            self._start(arrived)
            for group in self._running[:]:
                self._take_step(group)
        left = [*(ticket for tickets, _ in self._running for ticket in tickets), *arrived]
        while not self._waiting.empty():
            left += filter(None, [self._waiting.get()])
        for ticket in left:
            ticket.results.put(TooBusyError(STOPS))

    def _gather(self) -> list[Ticket]:
        """Return the requests that have arrived. If nothing runs, wait for the first one, and for those soon after."""
        arrived, end = list[Ticket | None](), time.monotonic()
        if not self._running:
            arrived, end = [self._waiting.get()], time.monotonic() + TOGETHER_SECONDS
        while not self._closing:
            try:
                arrived.append(self._waiting.get(timeout=max(end - time.monotonic(), 0)))
            except queue.Empty:
                break
        return [ticket for ticket in arrived if ticket]

    def _start(self, tickets: Sequence[Ticket]) -> None:
        groups = defaultdict[Work, list[Ticket]](list)
        for ticket in tickets:
            groups[ticket.work].append(ticket)
        for work, alike in groups.items():
            for begin in range(0, len(alike), work.most):
                group = alike[begin : begin + work.most]
                self._running.append((group, work.compute(work.options, [ticket.content for ticket in group])))

    def _take_step(self, group: tuple[list[Ticket], Iterator[Sequence[Any]]]) -> None:
        """Compute one step of a group, and hand out its results. Forget the group after its last step."""
        tickets, steps = group
        try:
            if all(ticket.is_left for ticket in tickets):
                results = None
            elif (results := next(steps, None)) is not None:
                for ticket, result in zip(tickets, results, strict=True):
                    if result is not None:
                        ticket.results.put(result)
                return
            for ticket in tickets:
                ticket.results.put(None)
        except Exception as error:
            if len(tickets) > 1:
                for ticket in tickets:
                    self._start([ticket])
            else:
                tickets[0].results.put(error)
                if not isinstance(error, InputError):
                    traceback.print_exc()
        self._running.remove(group)
