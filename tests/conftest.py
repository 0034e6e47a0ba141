"""Fixtures of several test files: the original's numbers, data of others, a bucket."""

import ctypes
import dataclasses
import gc
import os
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.bucket import Bucket, serving

UNTRACED = (
    "workdir corpus validation preset text_field corpus_errors tokenizer init auto_fit trace_steps "
    "checkpoint eval log given train predict columns selection epochs seeds narrow_start reinitialize"
).split()
"""Settings of a run on which its train step and first state do not depend"""
MOST_MEMORY = 2 << 30
"""Bytes in use after a file of tests, above which its programs are forgotten"""
DATA_OF_OTHERS = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def programs_traced_once():
    """Let runs of this process share their programs and first states where their settings make equal ones: most of the
    time of a tiny run is tracing, which no cache of compiled programs saves."""
    from xlnet_jax.kernels.mesh import interpret_argument
    from xlnet_jax.tasks.selection import Predictor
    from xlnet_jax.training import evaluation, pretrain, step

    programs: dict[str, Any] = {}
    made: dict[tuple[Any, ...], Any] = {}  # of the plan of a program, which lives as long as the program

    def recall(plan, what, make):
        """Return what was made for a plan before; make it anew where the program of this plan is not shared."""
        if not any(plan is program.plan for program in programs.values()):
            return make()
        if (id(plan), what) not in made:
            made[id(plan), what] = make()
        return made[id(plan), what]

    make_program, make_eval_step, init_state = step.Program.of.__func__, step.make_eval_step, step.init_state
    make_predictor = Predictor.__init__

    def program_of(cls, config, objective, devices=None, optimizer=None):
        is_own = optimizer or getattr(objective, "network", None) or not type(objective).__module__.startswith("xlnet")
        if devices or is_own or interpret_argument():
            return make_program(cls, config, objective, devices, optimizer)
        has_dropout = config.model.dropout > 0 or config.model.attention_dropout > 0
        untraced = UNTRACED if has_dropout else [*UNTRACED, "seed"]
        key = repr([type(config), *(item for item in vars(config).items() if item[0] not in untraced)])
        if key not in programs:
            programs[key] = make_program(cls, config, objective)
        return dataclasses.replace(programs[key], config=config, objective=objective)

    def eval_step_of(objective, plan, mesh, count=1):
        return recall(plan, ("eval", count), lambda: make_eval_step(objective, plan, mesh, count))

    def predictor_of(self, program):
        make_predictor(self, program)
        self._predict = recall(program.plan, "predict", lambda: self._predict)

    def first_state(seed, create, plan):
        state = recall(plan, ("state", seed), lambda: init_state(seed, create, plan))
        # The first step takes the memory of the state; a copy of an empty array forgets its sharding.
        return jax.tree.map(lambda array: jax.device_put(array.copy(), array.sharding), state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step.Program, "of", classmethod(program_of))
        patch.setattr(step, "init_state", first_state)
        patch.setattr(Predictor, "__init__", predictor_of)
        for module in (pretrain, evaluation):
            patch.setattr(module, "make_eval_step", eval_step_of)
        yield lambda: (programs.clear(), made.clear())


@pytest.fixture(scope="module", autouse=True)
def memory_of_programs_freed(programs_traced_once):
    """Forget the programs of earlier files where they hold much memory: those of all files hold 8 GB."""
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        programs_traced_once()
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
        trim(0)  # else the C library keeps it


@pytest.fixture(scope="session", autouse=True)
def arrays_saved_by_one_device():
    """Let one device save an array that all of them hold: Orbax compiles each slice that it lets another one save. The
    processes that tests start save as users' do."""
    from orbax.checkpoint.experimental.v1.options import ArrayOptions

    ArrayOptions.Saving.__init__.__kwdefaults__["use_replica_parallel"] = False


@pytest.fixture(autouse=True)
def current_folder_searched_as_before():
    """Undo what a command that a test runs in this process says to the processes that it starts."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(scope="session")
def reference() -> Path:
    return Path(__file__).parent / "reference"


@pytest.fixture(scope="session")
def published():
    """Return a function that turns a name into the path of a file or folder that others published. It skips the test
    where the checkout has no such data beside it."""

    def path_of(name: str) -> Path:
        path = DATA_OF_OTHERS / name
        if not path.exists():
            pytest.skip(f"{path} is not here")
        return path

    return path_of


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """Return the server that gs:// leads to, with the empty bucket gs://bucket."""
    server = Bucket(tmp_path / "cloud")
    (server.folder / "bucket").mkdir(parents=True)
    with serving(server) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def bucket(cloud):
    return cloud.folder / "bucket"
