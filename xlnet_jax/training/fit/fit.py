"""Does a run fit its devices? Its step is compiled before the first one; where it does not fit, lighter settings are
tried in the same way, and proposed or, with `auto_fit`, applied.

The same settings on the same devices end in the same choice. fit.json in the workdir keeps the one that was applied,
and a run that resumes takes it from there, without a search.
"""

import json
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax

from xlnet_jax.errors import OutOfMemory, first_line
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.storage.files import write_durably
from xlnet_jax.storage.reading import read_json
from xlnet_jax.training.fit.lighter import changed, in_words, values_of, with_values
from xlnet_jax.training.fit.need import AbstractStep, Need, bytes_in_words
from xlnet_jax.training.fit.search import PATIENCE, Search, Tried
from xlnet_jax.training.program import Program
from xlnet_jax.training.run.process import Process
from xlnet_jax.training.run.workdir import Workdir

C = TypeVar("C", bound=RunConfig)

_ON_CHIP = re.compile(r"memory space [vcs]mem|scoped vmem|shared memory", re.IGNORECASE)


@dataclass(frozen=True)
class Fit(Generic[C]):
    """Settings of a run that its devices can hold, with the program of their step."""

    tried: Tried[C]
    search: Search[C]
    workdir: Workdir
    seconds: float
    """spent on compiling"""

    @property
    def config(self) -> C:
        """Settings of the run: those that were asked for, or what `auto_fit` has made of them."""
        return self.tried.config

    @property
    def program(self) -> Program[Any]:
        """Program of these settings; its step is compiled."""
        return self.tried.step.program

    def refusal(self, error: Exception) -> OutOfMemory:
        """Return what to say of a run that ran out of memory although its step fits, and keep the error in the workdir.

        Lighter settings are tried where this process is the only one: another may still be computing.
        """
        words = _keep(self.workdir, "".join(traceback.format_exception(error)))
        traceback.clear_frames(error.__traceback__)  # they hold the state, and compiling for a GPU takes memory there
        need, advice = self.tried.need, "Give more `model.remat` or `optimizer.accumulate`, or a smaller batch"
        if jax.local_devices()[0].platform != "cpu" and not isinstance(error, jax.errors.JaxRuntimeError):
            advice = "The memory that ran out is the machine's, not its devices': close other programs, or take more"
        elif jax.process_count() == 1:
            less = min(self.search.available or need.known, need.known - 1)
            found = self.search.first_lighter(self.tried, less, self.workdir.has_checkpoints, PATIENCE)
            advice = _advice(self.config, found)
        return OutOfMemory(
            f"out of memory while it ran ({first_line(error)}): "
            f"{_sizes(need, self.search.available)}. {advice}. {words}"
        )


def fitted(config: C, build: Callable[[C], AbstractStep], workdir: Workdir, process: Process) -> Fit[C]:
    """Return these settings if their step fits the devices, or with `auto_fit` the first lighter ones that do.

    build: make the step of settings, as it runs on the largest batch. Raises OutOfMemory, with the first lighter
    settings that fit, where they are not asked for, or where none fits.
    """
    began = time.perf_counter()
    search = Search(build, process, str(workdir.folder))
    recorded = _recorded(config, search, workdir)
    if search.agreed(workdir.newest_step)[0] == config.steps:
        return Fit(search.untried(recorded), search, workdir, 0.0)
    tried = search.attempt(recorded, search.available)
    if not tried.fits and recorded != config:
        tried = search.attempt(config, search.available)
    if not tried.fits:
        asked, tried = tried, _lighter(tried, search, workdir)
        search.say(f"auto-fit    {_sizes(asked.need, search.available)} as asked")
    if config.auto_fit:
        _record(tried, config, search, workdir)
    return Fit(tried, search, workdir, time.perf_counter() - began)


def _lighter(asked: Tried[C], search: Search[C], workdir: Workdir) -> Tried[C]:
    """Return the first lighter settings that fit, with `auto_fit`. Raises OutOfMemory where none does, and without it.

    Only a search for advice ends after some time: the choice of `auto_fit` must not depend on the clock.
    """
    config, words = asked.config, ""
    if asked.need.refused:
        words = f". {_keep(workdir, asked.need.refused)}"
        if _ON_CHIP.search(asked.need.refused):
            raise OutOfMemory(f"out of memory on the chip, which a kernel wants: give `model.attention` plain{words}")
    keep_batch = config.auto_fit or search.agreed(workdir.has_checkpoints)[0]
    found = search.first_lighter(asked, search.available, keep_batch, None if config.auto_fit else PATIENCE)
    if found and config.auto_fit:
        return found
    advice = _advice(config, found)
    if found and found.fits and found.config.data.batch_size == config.data.batch_size:
        advice += "; `auto_fit` applies that"
    raise OutOfMemory(f"out of memory: {_sizes(asked.need, search.available)}. {advice}{words}")


def _sizes(need: Need, available: int | None) -> str:
    device = jax.local_devices()[0].device_kind
    there = "" if available is None else f", and {device} has {bytes_in_words(available)} for it"
    return f"a step needs {need.in_words()} on each device{there}"


def _advice(config: RunConfig, found: Tried[Any] | None) -> str:
    if found:
        words = in_words(changed(found.config, config))
        if found.fits:
            batch = "" if "data.batch_size" in changed(found.config, config) else " and the same batch"
            return f"{words} would fit, with {bytes_in_words(found.need.known)}{batch}"
        even = f"Even {words} needs {bytes_in_words(found.need.known)}; the" if words else "The"
        return f"{even} search for lighter settings ended after {PATIENCE:.0f} s"
    return (
        "Nothing that was tried fits, up to `model.remat` full, one row at a time and all devices along `mesh.fsdp`: "
        "take devices with more memory, or a smaller network or window"
    )


def _keep(workdir: Workdir, words: str) -> str:
    """Keep the backend's own words in the workdir; return where they are, as a sentence."""
    file = workdir.out_of_memory
    if process := jax.process_index():  # each process has its own
        file = file.with_name(f"{file.stem}-{process}{file.suffix}")
    write_durably(file, words.encode())
    return f"The backend's own words are in {file}"


# ---- the choice of auto_fit, kept for a run that resumes -------------------------------------------------------------


def _key(config: RunConfig) -> dict[str, Any]:
    return {"asked": values_of(config), "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}"}


def _recorded(config: C, search: Search[C], workdir: Workdir) -> C:
    """Return the settings that an earlier start has chosen in place of these; these where there was none."""
    if not config.auto_fit:
        return config
    record = search.agreed(read_json(workdir.fit) if workdir.fit.exists() else {})[0]
    is_same = {name: record.get(name) for name in _key(config)} == _key(config)
    return with_values(config, record["chosen"]) if is_same else config


def _record(tried: Tried[C], asked: C, search: Search[C], workdir: Workdir) -> None:
    chosen, need = changed(tried.config, asked), tried.need
    words = in_words(chosen).replace("`", "") or "nothing to change"
    search.say(f"auto-fit    {words}: {_sizes(need, search.available)}")
    if jax.process_index() == 0:
        record = _key(asked) | {"chosen": chosen, "needs": need.inputs | {"temporaries": need.temporaries}}
        write_durably(workdir.fit, json.dumps(record, indent=2).encode())
        workdir.write_settings(tried.config)
