"""Convert checkpoints from one format to another."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.settings.fields import at_least, check_bounds, setting, with_plain_paths

MODULES = "sentence-transformers"


@dataclass(frozen=True)
class ConvertSettings:
    """Convert a checkpoint to another format."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """folder of the checkpoint, in any format; for TensorFlow 1 also a prefix, such as model.ckpt-1000; or the name
    of a model on the Hugging Face Hub"""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """folder to write"""
    to: Literal["native", "hf", "sentence-transformers", "tf1", "stablehlo"] | None = None
    """format to write; None = native; sentence-transformers = hf for vectors of texts, with the pooling that the model
    was finetuned with, or else the mean; stablehlo = the forward pass of a finetuned model, which needs only jax to
    run"""
    normalize: bool = False
    """with --to sentence-transformers: scale each vector to length 1"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """with --to hf or sentence-transformers: type of the weights; bfloat16 halves the files, and rounds to 8 bits"""
    seq_len: int | None = setting(None, at_least(1))
    """with --to stablehlo: tokens per row; None = as in finetuning"""
    push: str | None = None
    """with --to hf or sentence-transformers: upload TARGET to the Hugging Face Hub as OWNER/NAME; needs a token with
    write access (`hf auth login`, or HF_TOKEN). A model that does not exist is created, as public unless the owner's
    settings differ"""
    partial: bool = False
    """convert what fits if parameters are missing, unknown or of another shape; missing ones are initialized"""
    activation: Literal["gelu", "gelu_erf", "relu"] | None = None
    """activation of the feed-forward layers; None = that of the source"""


def convert(settings: ConvertSettings) -> list[str]:
    """Write a checkpoint in another format, complete or not at all; for Hugging Face with a model card. Upload it if
    `push` names a model. Return lines on what was done, with notes on what did not fit or was left out.

    Raises InputError for what cannot be converted or uploaded.
    """
    from xlnet_jax.checkpoints.formats import new_folder
    from xlnet_jax.storage import hub

    settings = with_plain_paths(settings)
    check_bounds(settings)
    is_hugging_face, has_modules = settings.to in ("hf", MODULES), settings.to == MODULES
    if settings.normalize and not has_modules:
        raise InputError("normalize", "", "is a module of `to` sentence-transformers: leave it out")
    if settings.dtype != "float32" and not is_hugging_face:
        raise InputError("dtype", settings.dtype, "is a type of the files of `to` hf: others hold float32")
    if settings.seq_len and settings.to != "stablehlo":
        raise InputError("seq_len", "", "is the length of rows of `to` stablehlo; a checkpoint takes any length")
    if settings.push is not None:
        if not is_hugging_face:
            raise InputError("push", settings.push, ": a folder of Hugging Face is uploaded: give `to` hf")
        hub.require_account(settings.push)
    with new_folder(settings.target) as target:
        done = _convert_into(target, settings)
    return [*done, f"  uploaded to {hub.push(Path(settings.target), settings.push)}"] if settings.push else done


def _convert_into(target: Path, settings: ConvertSettings) -> list[str]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from xlnet_jax.checkpoints.formats import load, locate, recognize, write
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.inference.embed import SEQ_LEN, pooling_of
    from xlnet_jax.interop.sentence_transformers import write_modules
    from xlnet_jax.tasks import exporting
    from xlnet_jax.tasks.model import load as load_model
    from xlnet_jax.tasks.model_card import write_card

    is_hugging_face, has_modules = settings.to in ("hf", MODULES), settings.to == MODULES
    source = locate(settings.source)
    source_format = recognize(source)
    if source_format == "native" and settings.to is None:
        raise InputError(f"{settings.source} is a native checkpoint already: give `to` hf or `to` tf1")
    partial, activation = settings.partial, settings.activation
    model: Pretrained

    if settings.to == "stablehlo":
        finetuned = load_model(source, partial=partial, activation=activation)
        exporting.write(finetuned, target, seq_len=settings.seq_len)
        model, notes = finetuned, [*finetuned.notes]
    else:
        model = load(source, partial=partial, activation=activation)
        if has_modules:
            model.require_tokenizer()
            head = HeadConfig("embedding", summary=cast(Any, pooling_of(model)), use_projection=False)
            params = {"backbone": model.params["backbone"]}
            model = replace(model, head=head, params=params, thresholds={})
        if settings.dtype == "bfloat16":
            model = replace(model, params=jax.tree.map(lambda weight: np.asarray(weight, jnp.bfloat16), model.params))
        to: Any = "hf" if has_modules else settings.to or "native"
        left_out = write(model, target, to)
        if has_modules:
            seq_len = min(SEQ_LEN, model.model.num_places)
            write_modules(target, model.model, cast(HeadConfig, model.head), seq_len, settings.normalize)
        if is_hugging_face:
            write_card(model, source, target, settings.push or Path(settings.target).name, left_out)
        notes = [*model.notes, *left_out]
    task = model.head.task if model.head else "language model"
    return [
        f"{settings.source} ({source_format}) -> {settings.target} ({settings.to or 'native'})",
        f"  {task}, {model.model.num_layers} layers of {model.model.d_model}",
        *(f"  note: {note}" for note in notes),
    ]


def print_conversion(settings: ConvertSettings) -> None:
    """Convert a checkpoint, and print what was done."""
    print("\n".join(convert(settings)))
