"""Start a run from the checkpoint that the setting `init` names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints import formats
from xlnet_jax.checkpoints.pretrained import Pretrained, check_given
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten, nest, size
from xlnet_jax.objectives.language_model import Objective
from xlnet_jax.settings.config import FIXED_BY_WEIGHTS, RunConfig
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage import hub
from xlnet_jax.storage.files import require_weights_on_disk
from xlnet_jax.training.sharding import unboxed

R = TypeVar("R", bound=RunConfig)


def describe_origin(init: str | None, drawn: Sequence[str]) -> str:
    """Return where the first weights of a run come from, for the user. drawn: names of the parameters that are not in
    the checkpoint `init`."""
    path = Path(str(init))  # a model of the Hub stays as it is
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"weights of {shown}" + (f"; randomly initialized: {', '.join(drawn)}" if drawn else "")


def begin_from(settings: Resolution[R], there: R | None) -> Pretrained | None:
    """Give the run the network of the checkpoint that `init` names; return the checkpoint.

    `init` is a path, or the name of a model on the Hugging Face Hub, to which its commit is added. there: settings of
    the run that resumes in the workdir. If it started from the same `init`, its weights are in its own checkpoints: the
    source is not read again, may be gone, and None is returned.

    Raises InputError if a setting of the network was given with another value than the weights have.
    """
    init = str(settings.config.init)
    require_weights_on_disk(init, "`init` ")
    origin = _origin(init, there)
    start = None if there and there.init == origin else formats.load(origin)
    source = start or there
    assert source is not None
    settings.set({"init": origin})
    network = {f"model.{name}": getattr(source.model, name) for name in FIXED_BY_WEIGHTS}
    settings.require(network, lambda has: f"the weights of `init` {origin} have {has}")
    return start


def _origin(init: str, there: RunConfig | None) -> str:
    """Return what identifies the weights: an absolute path, so that another spelling is not another run;
    OWNER/NAME@COMMIT for a model on the Hugging Face Hub, with the commit of the run that resumes if `init` has none;
    or the name of a model in the package.

    there: settings of the run that resumes."""
    path = Path(init).expanduser().absolute()
    before = there.init if there else None
    if str(path) != before and hub.is_bundled(init):
        return init
    if str(path) == before or not formats.is_remote(init):
        return str(path)
    return before if before and hub.is_same(init, before) else str(hub.find(init, ()))


def tokenizer_of(start: Pretrained, config: RunConfig) -> Tokenizer:
    """Return the tokenizer that belongs to the weights.

    Raises InputError if there is none, or if the setting `tokenizer` names another.
    """
    if config.tokenizer is None:
        if start.tokenizer is None:
            raise InputError(
                "init",
                config.init,
                "has no tokenizer: give `tokenizer` the spiece.model with which its weights were trained",
            )
        return start.tokenizer
    given = Tokenizer.load(config.tokenizer)
    same = given.model == start.tokenizer.model if start.tokenizer else given.vocab_size == start.model.vocab_size
    if not same:
        why = f"does not belong to the weights of `init` {config.init}: leave it out"
        if start.tokenizer is None:
            why = f"has {given.vocab_size:,} pieces, the weights of `init` {config.init} {start.model.vocab_size:,}"
        raise InputError("tokenizer", config.tokenizer, why)
    check_given(given, start, f"`tokenizer` {config.tokenizer} for `init` {config.init}")
    return start.tokenizer or given


def params_of(start: Pretrained, objective: Objective) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters of the checkpoint that the objective uses, and the paths of those that are missing.

    A finetuned checkpoint has no output bias, and one of another objective may have no mask embedding; the head of a
    task is left out. Raises InputError if a parameter has another shape.
    """
    wanted = flatten(unboxed(jax.eval_shape(objective.init, jax.random.key(0))))
    given = flatten(start.params)
    for path in wanted.keys() & given.keys():
        if given[path].shape != wanted[path].shape:
            raise InputError(
                f"the checkpoint's {path} is {size(given[path].shape)}, and here it would be "
                f"{size(wanted[path].shape)}: give the `rtd.generator_share` that it was trained with"
            )
    return nest({path: given[path] for path in wanted if path in given}), sorted(wanted.keys() - given.keys())
