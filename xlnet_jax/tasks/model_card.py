"""Write the model card of a Hugging Face folder: README.md, with the header for the Hub."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from etils import epath

from data_pipelines.sources import describe
from xlnet_jax.checkpoints import native
from xlnet_jax.checkpoints.listing import step_of
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.interop.hf_xlnet import ANY_ORDER
from xlnet_jax.interop.sentence_transformers import MODULES
from xlnet_jax.objectives.presets import defaults_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences, from_dict
from xlnet_jax.storage import hub
from xlnet_jax.storage.reading import read_json, read_versioned
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.training.metrics import read_records

FILE = "README.md"
_PIPELINES = {  # the Hub's name of the task, by the suffix of the class in transformers; the first counts
    "LMHeadModel": "text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "Model": "sentence-similarity",
}
_PLACES = ("init", "corpus", "validation", "train", "eval", "predict")  # names of files; the card lists them separately


def write_card(pretrained: Pretrained, source: Path, folder: Path, name: str, notes: Sequence[str] = ()) -> None:
    """Write the card of a checkpoint into its Hugging Face folder.

    source: the converted checkpoint; if a run wrote it, the card has its text, settings and held-out metrics. folder:
    already contains config.json. name: model or folder to load in the card's examples. notes: differences in
    transformers. The header has no license and no language, which are not known here.
    """
    config = read_json(folder / "config.json")
    (architecture,), checkpoint = config["architectures"], native.find(source.absolute())
    settings = native.read_settings(checkpoint) if checkpoint else {}
    # ---- header -----------------------------------------------------------------------------------------------------
    has_modules = (folder / MODULES).exists()
    header = ["---", f"library_name: {'sentence-transformers' if has_modules else 'transformers'}"]
    header += [f"pipeline_tag: {tag}" for end, tag in _PIPELINES.items() if architecture.endswith(end)][:1]
    if hub.is_name(init := str(settings.get("init") or "")):
        header.append(f"base_model: {init.partition('@')[0]}")
    header += ["tags:", f"- {config['model_type']}", "- xlnet_jax", "---"]
    # ---- network and training ---------------------------------------------------------------------------------------
    model, head = pretrained.model, pretrained.head
    size = sum(weight.size for weight in jax.tree.leaves(pretrained.params))
    purpose = f"with a head for {head.task}" if head else "a language model"
    labels = f" ({', '.join(map(_plain, head.labels))})" if head and head.labels else ""
    parts = [
        "\n".join(header),
        f"# {_plain(name.rpartition('/')[2])}",
        f"{architecture} of {model.num_layers} layers x {model.d_model}, {size:,} parameters, {purpose}{labels}, "
        f"{model.vocab_size:,} pieces, made with xlnet_jax: pretraining XLNet and its relatives in JAX.",
        "## Training",
        _training(checkpoint, settings),
        "## Loading",
        *([_VECTORS.format(name=json.dumps(name))] if has_modules else []),
        _loading(architecture, name, pretrained.tokenizer is not None),
    ]
    # ---- use --------------------------------------------------------------------------------------------------------
    if notes:
        lines = (f"- {note.replace('<', chr(92) + '<')}" for note in notes)  # Markdown would read <sep> as a tag
        parts += ["In transformers:", "\n".join(lines)]
    if "auto_map" in config and pretrained.tokenizer:
        parts += ["## Scoring", _SCORING.format(code=ANY_ORDER, name=json.dumps(name))]
    (folder / FILE).write_text("\n\n".join(parts) + "\n")


def _training(checkpoint: Path | None, settings: dict[str, Any]) -> str:
    """Return paragraphs on how the weights were trained: the numbers and settings of the run."""
    if checkpoint is None or not {"preset", "task"} & settings.keys():
        return "How the weights were trained is not stored with them."
    step = step_of(checkpoint) if checkpoint.parent.name == "checkpoints" else None
    workdir = None if step is None else checkpoint.parents[1]
    done = "" if step is None else f"{step:,} of "
    config: Config | FinetuneConfig
    start: Config | FinetuneConfig
    if "task" in settings:
        config = from_dict(FinetuneConfig, settings)
        start, name = DEFAULTS[config.task](), f"the task {config.task}"
        rows = {
            "task": config.task,
            "started from": "random weights" if config.reinitialize else _origin(config.init),
            "pretrained by": "" if config.reinitialize else config.objective,
            "training examples": _names(config.train),
            "held-out examples": _names(config.eval),
            "steps": f"{done}{config.steps:,}",
            "a step": f"{config.data.batch_size:,} examples",
        }
        results = workdir / native.RESULTS if workdir else None
        if results and results.is_file():
            rows |= _scores(read_versioned(results, "results", native.Results))
    else:
        config = from_dict(Config, settings)
        start, name = defaults_of(config), f"the preset {config.preset}"
        rows = {
            "objective": f"{config.objective}: {objective_named(config.objective).summary}",
            "started from": _origin(config.init),
            "text": _names(config.corpus) or "novels of Jane Austen, which come with xlnet_jax",
            "held-out text": _names(config.validation),
            "steps": f"{done}{config.steps:,}",
            "a step": f"{config.data.batch_size:,} rows of {config.data.seq_len:,} tokens",
            "held-out loss": _held_out_loss(workdir, step) if workdir and step else "",
        }
    changed = {
        setting.name: setting.value
        for setting, _ in differences(config, start)
        if not setting.has("operational") and setting.name not in _PLACES
    }
    table = "\n".join(("| | |", "|---|---|", *(f"| {label} | {text} |" for label, text in rows.items() if text)))
    differing = f"Settings that differ from those of {name}:\n\n```json\n{json.dumps(changed, indent=2)}\n```"
    return f"{table}\n\n{differing}"


def _scores(results: native.Results) -> dict[str, str]:
    """Return the rows of the held-out metrics, with their baselines."""
    baseline = results.baseline.metrics if results.baseline else {}
    rows = {}
    for name, value in results.metrics.items():
        if value is not None:
            beside = baseline.get(name)
            rows[f"held-out {name}"] = f"{value:.4g}" + ("" if beside is None else f" (baseline {beside:.4g})")
    return rows | ({"baseline": _plain(results.baseline.answer)} if results.baseline else {})


def _held_out_loss(workdir: Path, step: int) -> str:
    records = read_records(epath.Path(workdir / "metrics.jsonl"))
    measured = [r for r in records if r["split"] == "validation" and r["step"] <= step]
    if not measured:
        return ""
    last = measured[-1]
    unigram = f"; by word frequencies alone {last['unigram']:.3f}" if "unigram" in last else ""
    return f"{last['loss']:.3f} nats at step {last['step']:,}{unigram}"


def _origin(init: str | None) -> str:
    """Return the name of a model on the Hub, or only the last part of a path, because other folders are private."""
    return init if init and hub.is_name(init) else _plain(Path(init or "").name)


def _plain(text: str) -> str:
    """Escape untrusted text, so that Markdown shows it as it is."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"[\\`*_{}\[\]<>#+!|~$&:]|(?<=www)\.", r"\\\g<0>", printable, flags=re.IGNORECASE)


def _names(places: Sequence[str]) -> str:
    return ", ".join(_plain(describe(place)) for place in places)


_SCORING = """\
XLNet predicts a piece from its query stream, which `perm_mask` and `target_mapping` control. Without them, every piece
sees itself and all later ones. An evaluation harness that treats `XLNetLMHeadModel` as causal then prints meaningless
numbers, worse than a uniform distribution. With `trust_remote_code=True`, `AutoModelForCausalLM` is the class in
`{code}.py`, a file of this folder that transformers runs on your machine: read it first. It reads from left to right,
and `score` takes any order:

```python
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({name}, trust_remote_code=True)
ids = tokenizer("She opened the letter and", add_special_tokens=False, return_tensors="pt").input_ids
with torch.no_grad():
    print(model.score(ids))  # nats, each piece given those before it
    print(model.score(ids, order=list(range(ids.shape[1]))[::-1]))
```

In xlnet_jax: `xlnet_jax.score_texts(model, ["She opened the letter and"])`."""


_VECTORS = """\
```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer({name}).encode(["A text."])  # as xlnet_jax.load({name}).encode
```"""


def _loading(architecture: str, name: str, has_tokenizer: bool) -> str:
    quoted = json.dumps(name)
    classes, theirs, ours = architecture, "", ""
    if has_tokenizer:
        classes = ", ".join(sorted((architecture, "AutoTokenizer")))
        theirs = f"tokenizer = AutoTokenizer.from_pretrained({quoted})\n"
        ours = 'hidden = model.hidden_states(*model.tokenize(["A text."]))  # [texts, tokens, width]\n'
    return f"""\
```python
from transformers import {classes}

model = {architecture}.from_pretrained({quoted})
{theirs}```

```python
import xlnet_jax  # pip install 'xlnet_jax[hub] @ git+https://github.com/xlnet-jax/xlnet_jax'

model = xlnet_jax.load({quoted})
{ours}```"""
