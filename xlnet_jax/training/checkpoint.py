"""Checkpoints with Orbax: written in the background, atomic, and self-contained.

checkpoints/<step>/ holds params, optimizer, guard, config (the resolved settings), tokenizer and data (the fingerprint
of the corpus). It has mems, the memory, only if it is inside a block, and only if it is the newest checkpoint, because
memory is large. At the first step of a block memory is empty. Finetuning, conversion and generation never read it.

All processes of a run make the same calls. Each writes the arrays of its own devices, and process 0 everything else.
Arrays are restored to the shardings of the run that reads them, whichever mesh wrote them.
"""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
from etils import epath

from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.listing import CONFIG, MEMORY, STATE, TOKENIZER, UNVERIFIED, damage_of, is_verified
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.fields import from_dict, identity_difference, to_dict
from xlnet_jax.storage.files import (
    absolute,
    disk_errors_as_os_error,
    in_bucket,
    move_folder,
    require_space,
    sync,
    sync_tree,
)
from xlnet_jax.storage.reading import read_json, write_checksums, write_versioned
from xlnet_jax.training import sharding
from xlnet_jax.training.hosts import Process
from xlnet_jax.training.optimizer import learning_rate
from xlnet_jax.training.selection import Evaluation
from xlnet_jax.training.step import Guard, TrainState, empty_mems_ZBMD


@dataclass(frozen=True)
class _Preserved:
    """Policy for Orbax: keep the newest checkpoints, one every `period` steps (0 = none), and chosen ones."""

    newest: int
    period: int
    chosen: Callable[[], Collection[Any]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        chosen, count = self.chosen(), len(checkpoints)
        return [
            i >= count - self.newest or c.step in chosen or (self.period > 0 and c.step % self.period == 0)
            for i, c in enumerate(checkpoints)
        ]


class Checkpoints:
    """Checkpoints of one run. Use as a context manager, which waits for the save in progress at the end."""

    def __init__(
        self,
        folder: epath.PathLike,
        config: RunConfig,
        tokenizer_folder: epath.PathLike,
        steps_per_block: int,
        data: dict[str, str],
        process: Process,
        evaluation: Evaluation | None = None,
    ):
        """steps_per_block: number of steps after which memory is empty again; data: fingerprints of the training data;
        evaluation: says which checkpoint is the best, which is kept however old it is."""
        self.folder = absolute(folder)
        self._config = config
        self._tokenizer_folder = epath.Path(tokenizer_folder)
        self._steps_per_block = steps_per_block
        self._process = process
        self._data = data
        self._every, self._kept = (
            self._whole_blocks(n) for n in (config.checkpoint.every_steps, config.checkpoint.keep_every)
        )
        self._before_decay = self.last_before_decay(config.steps)
        self._saving: int | None = None  # step of the save in progress
        self._response: Any = None  # of the save in progress
        self._saved_at = time.monotonic()
        context = ocp.Context()
        # Made in the background, folders that a full disk refuses would be waited for in vain.
        context.asynchronous.create_directories_asynchronously = False
        # Orbax copies its options: it would copy the object of a bound method.
        context.asynchronous.post_finalization_callback = lambda: self._complete()
        self._orbax = ocp.training.Checkpointer(
            self.folder,
            context=context,
            preservation_policy=_Preserved(
                config.checkpoint.keep, self._kept, lambda: (evaluation and evaluation.best_step, self._before_decay)
            ),
            cleanup_tmp_directories=True,
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with disk_errors_as_os_error(self.folder):
                if kind is None:
                    self.wait()
                self._orbax.close()
        except Exception:
            if kind is None:  # else let the first error through, which says more
                raise

    def latest_up_to(self, step: int) -> epath.Path | None:
        """Return the newest checkpoint of at most `step` steps; None if there is none."""
        newest = max((saved for saved in self._steps() if saved <= step), default=None)
        return None if newest is None else self.path(newest)

    def has(self, step: int) -> bool:
        """Return True if this step has a checkpoint. All processes agree, even if the file system is slow."""
        return step in self._steps()

    def due(self, step: int) -> bool:
        """Return True if the settings ask for a checkpoint of this step."""
        return step % self._every == 0 or (self._kept > 0 and step % self._kept == 0) or step == self._before_decay

    def last_before_decay(self, steps: int) -> int | None:
        """Return the last step without memory before the learning rate of schedule wsd falls in a run of this many
        steps, from where a run with another number of steps branches; None with other schedules."""
        optimizer = self._config.optimizer
        if optimizer.schedule != "wsd" or optimizer.decay_steps is not None:
            return None
        return optimizer.first_decaying_step(steps) // self._steps_per_block * self._steps_per_block or None

    @property
    def overdue(self) -> bool:
        """True if the last save is more than checkpoint.every_minutes ago."""
        minutes = self._config.checkpoint.every_minutes
        return minutes > 0 and time.monotonic() - self._saved_at >= 60 * minutes

    def path(self, step: int) -> epath.Path:
        """Return the folder of the checkpoint of a step."""
        return self.folder / str(step)

    def save(self, state: TrainState, step: int) -> None:
        """Start writing the checkpoint of `step`; return as soon as the state may change.

        Raises OSError if the disk is full.
        """
        if self.has(step):
            return
        items: dict[str, Any] = {"params": state.params, "optimizer": state.opt_state, "guard": vars(state.guard)}
        if self._has_memory(step):
            items["mems"] = {"mems_ZBMD": state.mems_ZBMD}
        self.wait()
        with disk_errors_as_os_error(self.folder):
            require_space(self.folder, sum(a.nbytes for a in jax.tree.leaves(items)))
            self._saving = step
            self._response = self._orbax.save_checkpointables_async(step, items, force=True)
        self._saved_at = time.monotonic()

    def check(self) -> None:
        """Raise the error of a save that failed meanwhile. Do not wait for one in progress."""
        if self._saving is not None and not self._orbax.is_saving_in_progress():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is on disk. Raises the error of a save that failed."""
        with disk_errors_as_os_error(self.folder):
            if self._response is not None:
                self._response.result()
            if self._saving is not None and not in_bucket(self.folder):
                sync(self.folder)
        self._saving = self._response = None
        self._drop_old_memory()

    def restore(self, plan: TrainState, say: Callable[[str], None]) -> TrainState | None:
        """Return the newest state that can be read, laid out by `plan`; None if there is no checkpoint.

        A checkpoint that cannot be read is moved to broken-checkpoints/ and reported, and the one before it is taken.
        Raises InputError if no checkpoint can be read, or if one belongs to another model or corpus; then nothing is
        moved. Several processes step back only from a checkpoint whose checksums are wrong: a file that one process
        alone cannot read ends the run.
        """
        self._change_end(say)
        broken, aside = dict[int, str](), self.folder.parent / "broken-checkpoints"
        for step in reversed(self._steps()):
            reason = self._damage(step)
            if reason is None:
                try:
                    self._require_same_run(self.path(step))
                    state = self._restore_step(step, plan, say)
                    if not is_verified(self.path(step)):
                        say(f"checkpoint {step} {UNVERIFIED}")
                    for newer, why in broken.items():
                        say(f"checkpoint {newer} cannot be read and was moved to {self._move(newer, aside)}: {why}")
                    return state
                except InputError:
                    raise
                except Exception as error:  # a damaged file raises any of half a dozen types
                    if jax.process_count() > 1:  # the others may have read it, and wait for this process
                        raise
                    reason = str(error).partition("\n")[0][:200]
            broken[step] = reason
        if broken:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in broken.items())
            raise InputError(
                f"no checkpoint in {self.folder} can be read ({reasons}): put one back from a copy, or give another "
                "`workdir` to start again"
            )
        return None

    def _change_end(self, say: Callable[[str], None]) -> None:
        """If the run had another number of steps, say how its learning rate continues.

        With schedule wsd it branches before the decay: later checkpoints and a copy of the records are moved to
        WORKDIR/steps-N. With other schedules it continues from its newest checkpoint.
        """
        saved = self._steps()
        before = next((end for step in reversed(saved) if (end := self._end_of(step))), self._config.steps)
        config, optimizer = self._config, self._config.optimizer
        if before == config.steps:
            return
        done, words = saved[-1], f"steps       {config.steps:,} in place of {before:,}"
        rates = [float(learning_rate(optimizer, steps)(done)) for steps in (before, config.steps)]
        branch = min(filter(None, map(self.last_before_decay, (before, config.steps))), default=None)
        starts = [step for step in saved if branch and step <= branch and not self._has_memory(step)]
        if rates[0] == rates[1] and (branch is None or done <= branch):
            say(f"{words}: the learning rate so far is the same")
        elif starts:
            folder = self.folder.parent / f"steps-{before}"
            for step in [step for step in saved if step > starts[-1]]:
                self._move(step, folder / "checkpoints")
            records = self.folder.parent / "metrics.jsonl"
            if self._process.first and records.exists():
                records.copy(folder / records.name, overwrite=True)
            say(f"{words}: continues from step {starts[-1]:,}, before the decay; what came after it is in {folder}")
        else:
            say(
                f"{words}: from step {done:,} on the learning rate follows schedule {optimizer.schedule} of the new "
                f"steps, where it is {rates[1]:.2e} and not {rates[0]:.2e}"
            )

    def _end_of(self, step: int) -> int | None:
        """Return the number of steps of the run that saved a checkpoint; None if it cannot be read."""
        with contextlib.suppress(InputError):
            return from_dict(type(self._config), native.read_settings(self.path(step))).steps
        return None

    def restore_params(self, step: int, abstract_params: Any) -> Any:
        """Return the parameters of a checkpoint that exists, laid out as `abstract_params` says."""
        return self._orbax.load_checkpointables(step, {"params": abstract_params})["params"]

    def _restore_step(self, step: int, abstract: TrainState, say: Callable[[str], None]) -> TrainState:
        items: dict[str, Any] = {
            "params": abstract.params,
            "optimizer": abstract.opt_state,
            "guard": vars(abstract.guard),
        }
        has_memory = (self.path(step) / "mems").exists()
        if has_memory:
            items["mems"] = {"mems_ZBMD": abstract.mems_ZBMD}
        restored = self._orbax.load_checkpointables(step, items)
        mems_ZBMD = restored["mems"]["mems_ZBMD"] if has_memory else empty_mems_ZBMD(abstract.mems_ZBMD)
        everywhere = abstract.step.sharding
        step_array, mems_begin = sharding.from_host((np.array(step, np.int32),) * 2, (everywhere,) * 2)
        guard = Guard(**restored["guard"])
        if self._has_memory(step) and not has_memory:
            guard = replace(guard, mems_begin=mems_begin)
            say(f"checkpoint {step} lost its memory to a newer one: rows have none until their next block")
        return TrainState(step_array, restored["params"], restored["optimizer"], mems_ZBMD, guard)

    def _damage(self, step: int) -> str | None:
        """Return in all processes the damage that process 0 finds, as they must choose the same step."""
        memory = [MEMORY] * (self.path(step) / MEMORY).exists()
        found = damage_of(self.path(step), (*STATE, *memory)) if self._process.first else None
        damage: str | None = self._process.gather(f"damage of checkpoint {step}", found)[0]
        return damage

    def _require_same_run(self, checkpoint: epath.Path) -> None:
        there = from_dict(type(self._config), native.read_settings(checkpoint))
        if difference := identity_difference(self._config, there, resumes=True):
            raise InputError(
                f"checkpoint {checkpoint} belongs to a different model or run ({'; '.join(difference)}): give its "
                "settings, or another `workdir`"
            )
        if (found := read_json(checkpoint / "data" / "metadata")) != self._data:
            passed, here = (data.get("own", "none") for data in (found, self._data))
            what = "another text" if passed == here else f"a call with other arguments ({passed} there, {here} here)"
            raise InputError(f"checkpoint {checkpoint} is of {what}: give the same, or another `workdir`")

    def _complete(self) -> None:
        """Add config, data and tokenizer; on a disk, also write checksums and sync the files. Orbax calls this in
        process 0 when its own files are written, before it renames their folder to the step (in a bucket: marks it as
        complete) and deletes older checkpoints."""
        assert self._saving is not None
        is_on_disk = not in_bucket(self.folder)
        for unfinished in self.folder.glob("*.orbax-checkpoint-tmp*") if is_on_disk else [self.path(self._saving)]:
            for folder in (CONFIG.parts[0], "data", *([TOKENIZER] if self._tokenizer_folder.exists() else ())):
                (unfinished / folder).mkdir(exist_ok=True)
            write_versioned(unfinished / CONFIG, "checkpoint", to_dict(self._config))
            (unfinished / "data" / "metadata").write_text(json.dumps(self._data))
            for file in self._tokenizer_folder.iterdir() if self._tokenizer_folder.exists() else ():
                file.copy(unfinished / TOKENIZER / file.name)
            if is_on_disk:
                write_checksums(Path(unfinished))
                sync_tree(unfinished)

    def _steps(self) -> list[int]:
        """Return the steps of all checkpoints, oldest first."""
        return [checkpoint.step for checkpoint in self._orbax.checkpoints]

    def _has_memory(self, step: int) -> bool:
        """Return False at the first step of a block, where memory is empty."""
        return self._config.model.mem_len > 0 and step % self._steps_per_block != 0

    def _whole_blocks(self, steps: int) -> int:
        """Round up to whole blocks, after which no memory needs to be saved."""
        return -(-steps // self._steps_per_block) * self._steps_per_block

    def _drop_old_memory(self) -> None:
        """Delete the memory of all checkpoints except the newest. Call it while nothing is being written: the previous
        checkpoint must stay complete until the newest is."""
        if jax.process_index() == 0:
            for step in filter(self._has_memory, self._steps()[:-1]):
                (self.path(step) / "mems").rmtree(missing_ok=True)

    def _move(self, step: int, folder: epath.Path) -> epath.Path:
        """Move a checkpoint into another folder. Return its path there."""
        target = folder / str(step)
        if self._process.first:
            target.rmtree(missing_ok=True)
            move_folder(self.path(step), target)
        self._process.gather(f"checkpoint {step} is moved", None)
        self._orbax.reload()
        return target
