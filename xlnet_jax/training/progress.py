"""What a user watches: a bar on a terminal, one plain line every so many steps elsewhere."""

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressView:
    """Shows training. Use as a context manager; `show` at every logged step, `advance` at every step."""

    def __init__(self, start: int, steps: int, unigram_nats: float, console: Console):
        self._console = console
        self._steps = steps
        self._unigram = unigram_nats
        self._bar = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn(f"[dim]unigram {unigram_nats:.3f}[/dim]"),
            TextColumn("lr {task.fields[rate]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps, completed=start, loss="-", rate="-", speed="-")

    def __enter__(self) -> "ProgressView":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def show(self, step: int, metrics: Mapping[str, float], seconds_left: float) -> None:
        """metrics: loss in nats, learning_rate, tokens_per_second."""
        loss, rate, speed = (metrics[k] for k in ("loss", "learning_rate", "tokens_per_second"))
        self._bar.update(self._task, loss=f"{loss:.3f}", rate=f"{rate:.1e}", speed=f"{speed:,.0f}")
        if not self._console.is_terminal:
            self.say(
                f"step {step}/{self._steps}  loss {loss:.3f}  unigram {self._unigram:.3f}  lr {rate:.2e}  "
                f"{speed:,.0f} tokens/s  {_clock(seconds_left)} left"
            )

    def say(self, line: str) -> None:
        """One line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"
