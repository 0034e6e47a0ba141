"""Settings of Hugging Face transformers (TrainingArguments, XLNetConfig, its example scripts) and what to use here: for
messages about flags that a command does not have. Imports nothing of this project."""

from collections.abc import Collection

FLAGS: dict[str, tuple[str, ...]] = {
    "adam-beta1": ("optimizer.beta1",),
    "adam-beta2": ("optimizer.beta2",),
    "adam-epsilon": ("optimizer.eps",),
    "attention-probs-dropout-prob": ("model.attention-dropout",),
    "bf16": ("model.dtype bfloat16",),
    "bi-data": ("data.bidirectional",),
    "block-size": ("data.seq-len",),
    "config-name": ("preset",),
    "d-inner": ("model.d-ff",),
    "data-seed": ("seed",),
    "dataset-name": ("corpus hf:NAME", "train hf:NAME"),
    "deepspeed": ("mesh.fsdp",),
    "do-eval": ("eval",),
    "do-predict": ("predict",),
    "do-train": ("train",),
    "early-stopping-patience": ("selection.patience",),
    "eval-steps": ("eval.every-steps", "selection.every-steps"),
    "ff-activation": ("model.activation",),
    "fp16": ("model.dtype bfloat16",),
    "gradient-accumulation-steps": ("optimizer.accumulate",),
    "gradient-checkpointing": ("model.remat full",),
    "hidden-dropout-prob": ("model.dropout",),
    "hidden-size": ("model.d-model",),
    "initializer-range": ("model.init-std",),
    "intermediate-size": ("model.d-ff",),
    "label-names": ("columns.label",),
    "layer-norm-epsilon": ("model.layer-norm-eps",),
    "load-best-model-at-end": ("selection.metric",),
    "logging-steps": ("log.every-steps",),
    "lr": ("optimizer.learning-rate",),
    "lr-scheduler-type": ("optimizer.schedule",),
    "max-grad-norm": ("optimizer.clip-norm",),
    "max-length": ("max-new-tokens", "data.seq-len"),
    "max-seq-length": ("data.seq-len",),
    "max-span-length": ("data.span-max",),
    "max-steps": ("steps",),
    "metric-for-best-model": ("selection.metric",),
    "model-name-or-path": ("init",),
    "n-head": ("model.num-heads",),
    "n-layer": ("model.num-layers",),
    "num-attention-heads": ("model.num-heads",),
    "num-hidden-layers": ("model.num-layers",),
    "num-return-sequences": ("num-samples",),
    "num-train-epochs": ("epochs",),
    "output-dir": ("workdir",),
    "per-device-eval-batch-size": ("data.batch-size",),
    "per-device-train-batch-size": ("data.batch-size",),
    "plm-probability": ("data.mask-alpha",),
    "report-to": ("log.wandb",),
    "save-steps": ("checkpoint.every-steps",),
    "save-total-limit": ("checkpoint.keep",),
    "summary-type": ("head.summary",),
    "test-file": ("predict",),
    "tokenizer-name": ("tokenizer",),
    "train-batch-size": ("data.batch-size",),
    "train-file": ("corpus", "train"),
    "validation-file": ("validation", "eval"),
    "validation-split-percentage": ("data.validation-fraction",),
}
"""Their names with dashes, and the flags here without --. The hint names the first that the command has. A name that is
the last part of a flag, such as learning-rate, needs no entry."""

ADVICE = {
    "epochs": "counts epochs; this command counts steps: set --steps; a run prints the steps of an epoch as it begins",
    "no-cuda": "is JAX_PLATFORMS=cpu in the environment here",
    "optim": "is AdamW here in any case; leave it out",
    "overwrite-output-dir": "does not exist here: name another --workdir, or delete the old one",
    "push-to-hub": "is a command here: python -m xlnet_jax.convert RUN FOLDER --to hf --push ME/NAME",
    "resume-from-checkpoint": "is the default here: the same command continues its run",
    "use-cpu": "is JAX_PLATFORMS=cpu in the environment here",
    "warmup-ratio": "is a number of steps here: set --optimizer.warmup-steps",
}
"""What to do where no flag has the same meaning"""
ADVICE |= dict.fromkeys(("num-train-epochs", "num-epochs", "max-epochs"), ADVICE["epochs"])
ADVICE |= dict.fromkeys(("eval-strategy", "evaluation-strategy"), "is a number of steps here: set --eval.every-steps")
ADVICE |= dict.fromkeys(("save-strategy",), "is a number of steps here: set --checkpoint.every-steps")


def hint_from_transformers(name: str, flags: Collection[str], unflagged: Collection[str] = ()) -> str | None:
    """Return what to use in place of a setting of transformers, as 'is --optimizer.learning-rate here'; None where the
    command has nothing like it. flags, unflagged: dotted names of the settings of the command, with and without one."""
    same = [setting for setting in (*flags, *unflagged) if setting.rpartition(".")[2] == name]
    for flag in FLAGS.get(name, same[:1] if len(same) == 1 else ()):
        setting = flag.split()[0]
        if setting in flags:
            return f"is --{flag} here"
        if setting in unflagged:
            return f"is {setting.replace('-', '_')} here, in the file of --config"
    return ADVICE.get(name)
