"""Checkpoints by Orbax: written in the background, atomic, each one complete in itself.

checkpoints/<step>/ holds params, optimizer, guard, config (the resolved settings) and tokenizer; mems only where rows
are inside their blocks, and only in the newest checkpoint: memory is large, and at the first step of a block there is
none. Finetuning, conversion and generation never read it.
"""

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from xlnet_jax.checksums import find_damage, write_checksums
from xlnet_jax.config import CheckpointConfig, Config, InputError, to_dict
from xlnet_jax.disk import demand_space, full_disk_as_os_error
from xlnet_jax.training.state import Guard, TrainState

# Orbax reports every step of its work, and writes out what it raises as well.
logging.getLogger("absl").setLevel(logging.CRITICAL)


class _FolderHandler(ocp.CheckpointHandler):
    """An item that is a copy of a folder of small files."""

    def save(self, directory: Any, args: "_FolderSave") -> None:
        shutil.copytree(args.source, directory, dirs_exist_ok=True)

    def restore(self, directory: Any, args: Any = None) -> Path:
        return Path(directory)


@ocp.args.register_with_handler(_FolderHandler, for_save=True)
@dataclass
class _FolderSave(ocp.args.CheckpointArgs):
    source: Path


@ocp.args.register_with_handler(_FolderHandler, for_restore=True)
@dataclass
class _FolderRestore(ocp.args.CheckpointArgs):
    pass


class Checkpoints:
    """The checkpoints of one run. Use as a context manager: leaving it waits for what is being written."""

    def __init__(self, folder: Path, config: Config, tokenizer_folder: Path, steps_per_block: int):
        self.folder = folder.absolute()
        self._config = config
        self._tokenizer_folder = tokenizer_folder
        self._steps_per_block = steps_per_block
        self._set_aside = self.folder.with_name("broken-checkpoints")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=config.checkpoint.keep,
            cleanup_tmp_directories=True,
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._record_checksums),
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with full_disk_as_os_error(self.folder):
                self._manager.close()
        except Exception:
            if kind is None:  # else the error that is on its way says more
                raise

    @property
    def latest_step(self) -> int | None:
        """The newest complete checkpoint."""
        return self._manager.latest_step()

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / str(step)

    def save(self, state: TrainState, step: int) -> None:
        """Starts writing the checkpoint of `step` and returns as soon as the state may change. An error of the write
        before is raised here."""
        if step == self._manager.latest_step():
            return
        items: dict[str, Any] = {
            "params": ocp.args.StandardSave(state.params),
            "optimizer": ocp.args.StandardSave(state.opt_state),
            "guard": ocp.args.StandardSave(vars(state.guard)),
            "config": ocp.args.JsonSave(to_dict(self._config)),
            "tokenizer": _FolderSave(self._tokenizer_folder),
        }
        arrays = [state.params, state.opt_state]
        if self._has_memory(step):
            items["mems"] = ocp.args.StandardSave({"mems_ZBMD": state.mems_ZBMD})
            arrays.append(state.mems_ZBMD)
        with full_disk_as_os_error(self.folder):
            self._manager.wait_until_finished()
            demand_space(self.folder, sum(a.nbytes for a in jax.tree.leaves(arrays)))
            self._manager.save(step, args=ocp.args.Composite(**items))
        self._drop_old_memory()

    def wait(self) -> None:
        """Returns when everything is on disk."""
        with full_disk_as_os_error(self.folder):
            self._manager.wait_until_finished()
        self._drop_old_memory()

    def restore(
        self, abstract: TrainState, empty_mems: Callable[[], jax.Array], say: Callable[[str], None]
    ) -> TrainState | None:
        """The newest state that can be read, laid out as `abstract` says; None where there is none.

        A checkpoint that cannot be read is moved to broken-checkpoints/, said, and the one before is taken. InputError
        where there is none before it; then nothing is moved.
        """
        broken: dict[int, str] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            reason = find_damage(self.path(step), self._items(step))
            if reason is None:
                try:
                    state = self._restore_step(step, abstract, empty_mems)
                    for newer, why in broken.items():
                        say(f"checkpoint {newer} cannot be read and was moved to {self._move_aside(newer)}: {why}")
                    return state
                except Exception as error:  # whatever is wrong with a file surfaces as any of half a dozen types
                    reason = str(error).partition("\n")[0][:200]
            broken[step] = reason
        if broken:
            reasons = "; ".join(f"{step}: {reason}" for step, reason in broken.items())
            raise InputError(
                f"no checkpoint in {self.folder} can be read ({reasons}): put one back from a copy, or give another "
                "--workdir to start again"
            )
        return None

    def _restore_step(self, step: int, abstract: TrainState, empty_mems: Callable[[], jax.Array]) -> TrainState:
        items: dict[str, Any] = {
            "params": ocp.args.StandardRestore(abstract.params),
            "optimizer": ocp.args.StandardRestore(abstract.opt_state),
            "guard": ocp.args.StandardRestore(vars(abstract.guard)),
            "config": ocp.args.JsonRestore(),
        }
        if self._has_memory(step):
            items["mems"] = ocp.args.StandardRestore({"mems_ZBMD": abstract.mems_ZBMD})
        restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        mems_ZBMD = restored["mems"]["mems_ZBMD"] if self._has_memory(step) else empty_mems()
        step_array = jax.device_put(jax.numpy.int32(step), abstract.step.sharding)
        guard = Guard(**restored["guard"])
        return TrainState(step_array, restored["params"], restored["optimizer"], mems_ZBMD, guard)

    def _items(self, step: int) -> set[str]:
        return {"params", "optimizer", "guard", "config"} | ({"mems"} if self._has_memory(step) else set())

    def _record_checksums(self) -> None:
        """Called by Orbax when all files are written and their folder is about to be renamed to its step."""
        for unfinished in self.folder.glob("*.orbax-checkpoint-tmp*"):
            write_checksums(unfinished)

    def _has_memory(self, step: int) -> bool:
        """All rows begin their blocks together; at such a step no memory is in use."""
        return self._config.model.mem_len > 0 and step % self._steps_per_block != 0

    def _drop_old_memory(self) -> None:
        for step in sorted(self._manager.all_steps())[:-1]:
            shutil.rmtree(self.path(step) / "mems", ignore_errors=True)

    def _move_aside(self, step: int) -> Path:
        self._set_aside.mkdir(exist_ok=True)
        target = next(t for t in _numbered(self._set_aside / str(step)) if not t.exists())
        self.path(step).rename(target)
        self._manager.reload()
        return target


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.name}-{number}")
        number += 1


def save_interval(config: CheckpointConfig, steps_per_block: int) -> int:
    """every_steps rounded up to whole blocks, where no memory need be saved."""
    return -(-config.every_steps // steps_per_block) * steps_per_block
