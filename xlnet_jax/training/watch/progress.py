"""Progress of a run: a bar on a terminal, elsewhere one plain line for each logged step."""

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from xlnet_jax.training.watch.goodput import clock


class ProgressView:
    """Show training. Use as a context manager; call `show` at every logged step, `advance` at every step."""

    def __init__(self, start: int, steps: int, reference: Mapping[str, float], console: Console):
        """reference: numbers to show beside the loss."""
        self._console = console
        self._steps = steps
        self._reference = "  ".join(f"{name} {value:.3f}" for name, value in reference.items())
        self._bar = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TextColumn(f"[dim]{self._reference}[/dim]"),
            TextColumn("lr {task.fields[rate]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps, completed=start, loss="", rate="-", speed="")

    def __enter__(self) -> "ProgressView":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show metrics: loss in nats and learning_rate; where known also pair_loss, seconds_per_step, tokens_per_second
        or examples_per_second, and mfu."""
        rates = [f"{n:,.0f} {kind}/s" for kind in ("tokens", "examples") if (n := metrics.get(f"{kind}_per_second"))]
        speed = "".join(rates)
        mfu = f"MFU {metrics['mfu']:.1%}" if "mfu" in metrics else ""
        left = clock(metrics["seconds_per_step"] * (self._steps - step)) + " left" if speed else ""
        pairs = f"  pairs {metrics['pair_loss']:.3f}" if "pair_loss" in metrics else ""
        loss, rate = f"loss {metrics['loss']:.3f}{pairs}", metrics["learning_rate"]
        self._bar.update(self._task, loss=loss, rate=f"{rate:.1e}", speed="  ".join(filter(None, (speed, mfu))))
        if not self._console.is_terminal:
            parts = (loss, self._reference, f"lr {rate:.2e}", speed, mfu, left)
            self.say(f"step {step}/{self._steps}  " + "  ".join(filter(None, parts)))

    def say(self, line: str) -> None:
        """Print one line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
