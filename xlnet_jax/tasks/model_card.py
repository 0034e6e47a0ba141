"""Model card of a folder for Hugging Face: README.md, with the header that the Hub reads."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath

from data_pipelines.sources import describe
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.objectives.presets import defaults_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences
from xlnet_jax.settings.files import from_dict
from xlnet_jax.storage import hub
from xlnet_jax.storage.reading import read_json, read_versioned
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.training.metrics import read_records

FILE = "README.md"
_PIPELINES = {  # by the end of the class in transformers; the Hub's names of what a model does
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
_PLACES = ("init", "corpus", "validation", "train", "eval", "predict")  # names of files: a card has them in words


def write_card(pretrained: Pretrained, source: Path, folder: Path, name: str, notes: Sequence[str] = ()) -> None:
    """Write the card of a checkpoint into its Hugging Face folder.

    source: checkpoint that was converted; if a run wrote it, the card has its text, settings and held-out numbers.
    folder: holds config.json already. name: model or folder to load in the card's examples. notes: what transformers
    does otherwise. The licence and the language of the weights are not known here: the header leaves them out.
    """
    config = read_json(folder / "config.json")
    (architecture,), run = config["architectures"], _run_of(source)
    parts = [
        _header(architecture, config["model_type"], run),
        f"# {_plain(name.rpartition('/')[2])}",
        f"{_network(pretrained, architecture)}, made with xlnet_jax: pretraining XLNet and its relatives in JAX.",
        "## Training",
        *(_training(run) if run else ["How the weights were trained is not stored with them."]),
        "## Loading",
        _loading(architecture, name, pretrained.tokenizer is not None),
    ]
    if notes:
        lines = (f"- {note.replace('<', chr(92) + '<')}" for note in notes)  # a page would take <sep> for a tag
        parts += ["In transformers:", "\n".join(lines)]
    # Only such a network can be asked for the pieces of a text in their order.
    reads_any_order = objective_named(pretrained.objective).order == "any" and pretrained.model.attn_type == "bi"
    if architecture == "XLNetLMHeadModel" and reads_any_order and pretrained.tokenizer:
        parts += ["## Scoring", _SCORING]
    (folder / FILE).write_text("\n\n".join(parts) + "\n")


class _Run(NamedTuple):
    settings: dict[str, Any]
    workdir: Path | None  # None for a checkpoint outside its workdir
    step: int | None


def _run_of(source: Path) -> _Run | None:
    """Return the run that wrote the checkpoint; None for a checkpoint that no run wrote."""
    found = native.find(source.absolute()) if source.is_dir() else None
    settings = native.read_settings(found) if found else {}
    if found is None or not {"preset", "task"} & settings.keys():
        return None
    in_workdir = found.parent.name == "checkpoints" and found.name.isdecimal()
    return _Run(settings, found.parents[1], int(found.name)) if in_workdir else _Run(settings, None, None)


def _header(architecture: str, model_type: str, run: _Run | None) -> str:
    lines = ["---", "library_name: transformers"]
    lines += [f"pipeline_tag: {tag}" for end, tag in _PIPELINES.items() if architecture.endswith(end)]
    init = str(run.settings.get("init") or "") if run else ""
    if hub.is_name(init):
        lines.append(f"base_model: {init.partition('@')[0]}")
    return "\n".join((*lines, "tags:", f"- {model_type}", "- xlnet_jax", "---"))


def _network(pretrained: Pretrained, architecture: str) -> str:
    model, head = pretrained.model, pretrained.head
    size = sum(weight.size for weight in jax.tree.leaves(pretrained.params))
    purpose = f"with a head for {head.task}" if head else "a language model"
    labels = f" ({', '.join(map(_plain, head.labels))})" if head and head.labels else ""
    return (
        f"{architecture} of {model.num_layers} layers x {model.d_model}, {size:,} parameters, {purpose}{labels}, "
        f"{model.vocab_size:,} pieces"
    )


def _training(run: _Run) -> list[str]:
    """Return the paragraphs that say how the weights were trained."""
    config: Config | FinetuneConfig
    start: Config | FinetuneConfig
    if "task" in run.settings:
        config = from_dict(FinetuneConfig, run.settings)
        rows, start, name = _finetuning(run, config), DEFAULTS[config.task](), f"the task {config.task}"
    else:
        config = from_dict(Config, run.settings)
        rows, start, name = _pretraining(run, config), defaults_of(config), f"the preset {config.preset}"
    changed = {
        setting.name: setting.value
        for setting, _ in differences(config, start)
        if not setting.has("operational") and setting.name not in _PLACES
    }
    table = "\n".join(("| | |", "|---|---|", *(f"| {label} | {text} |" for label, text in rows if text)))
    settings = f"Settings that differ from those of {name}:"
    return [table, settings, f"```json\n{json.dumps(changed, indent=2)}\n```"]


def _pretraining(run: _Run, config: Config) -> list[tuple[str, str]]:
    return [
        ("objective", f"{config.objective}: {objective_named(config.objective).summary}"),
        ("started from", _origin(config.init)),
        ("text", _names(config.corpus) or "novels of Jane Austen, which come with xlnet_jax"),
        ("held-out text", _names(config.validation)),
        ("steps", _steps(run, config.steps)),
        ("a step", f"{config.data.batch_size:,} rows of {config.data.seq_len:,} tokens"),
        ("held-out loss", _held_out_loss(run)),
    ]


def _finetuning(run: _Run, config: FinetuneConfig) -> list[tuple[str, str]]:
    results = run.workdir / native.RESULTS if run.workdir else None
    metrics = read_versioned(results, "results", native.Results).metrics if results and results.is_file() else {}
    return [
        ("task", config.task),
        ("started from", "random weights" if config.reinitialize else _origin(config.init)),
        ("pretrained by", "" if config.reinitialize else config.objective),
        ("training examples", _names(config.train)),
        ("held-out examples", _names(config.eval)),
        ("steps", _steps(run, config.steps)),
        ("a step", f"{config.data.batch_size:,} examples"),
        *((f"held-out {name}", f"{value:.4g}") for name, value in metrics.items() if value is not None),
    ]


def _steps(run: _Run, steps: int) -> str:
    return f"{steps:,}" if run.step is None else f"{run.step:,} of {steps:,}"


def _held_out_loss(run: _Run) -> str:
    if run.workdir is None or run.step is None:
        return ""
    records = read_records(epath.Path(run.workdir / "metrics.jsonl"))
    measured = [r for r in records if r["split"] == "validation" and r["step"] <= run.step]
    if not measured:
        return ""
    last = measured[-1]
    unigram = f"; by word frequencies alone {last['unigram']:.3f}" if "unigram" in last else ""
    return f"{last['loss']:.3f} nats at step {last['step']:,}{unigram}"


def _origin(init: str | None) -> str:
    """Return the name of a model on the Hub, or the last part of a path: the folders of a machine are its owner's."""
    return init if init and hub.is_name(init) else _plain(Path(init or "").name)


def _plain(text: str) -> str:
    """Return the words of a stranger as Markdown that shows them and does nothing else."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"[\\`*_{}\[\]<>#+!|~$&:]|(?<=www)\.", r"\\\g<0>", printable, flags=re.IGNORECASE)


def _names(places: Sequence[str]) -> str:
    return ", ".join(_plain(describe(place)) for place in places)


_SCORING = """\
XLNet predicts a piece from its query stream, which `perm_mask` and `target_mapping` ask. Without them every piece sees
itself and all later ones, so that a harness that takes this model for a causal one (`AutoModelForCausalLM`) prints
numbers that mean nothing: they are worse than those of equally likely pieces. From left to right:

```python
import torch


def log_likelihoods(text):
    \"\"\"Return the log-probability of each piece given those before it, in nats.\"\"\"
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    ones = torch.ones(1, ids.shape[1], ids.shape[1], dtype=model.dtype)
    one, empty = ones[:, :1, :1], torch.zeros(1, 1, model.config.d_model, dtype=model.dtype)
    with torch.no_grad():
        # perm_mask: 1 = may not see; here itself and what comes later
        logits = model(ids, perm_mask=ones.triu(), target_mapping=torch.diag_embed(ones[:, 0])).logits
        # The first piece sees nothing but an empty memory; without it, it would see the mean of all pieces.
        memory = [empty] * model.config.n_layer
        logits[:, :1] = model(ids[:, :1], perm_mask=one, target_mapping=one, mems=memory).logits
    return logits.float().log_softmax(-1).gather(2, ids[:, :, None])[0, :, 0]
```

In xlnet_jax: `xlnet_jax.score_texts(model, [text])`."""


def _loading(architecture: str, name: str, has_tokenizer: bool) -> str:
    quoted = json.dumps(name)
    classes, theirs, ours = architecture, "", ""
    if has_tokenizer:
        classes = ", ".join(sorted((architecture, "AutoTokenizer")))
        theirs = f"tokenizer = AutoTokenizer.from_pretrained({quoted})\n"
        ours = 'hidden = model.hidden_states(*model.encode(["A text."]))  # [texts, tokens, width]\n'
    return f"""\
```python
from transformers import {classes}

model = {architecture}.from_pretrained({quoted})
{theirs}```

```python
import xlnet_jax  # pip install 'xlnet_jax[hub]'

model = xlnet_jax.load({quoted})
{ours}```"""
