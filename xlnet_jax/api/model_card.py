"""Model card of a folder for Hugging Face: README.md, with the header that the Hub reads."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xlnet_jax.storage.reading import read_json, read_versioned

if TYPE_CHECKING:
    from xlnet_jax.checkpoints.pretrained import Pretrained

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
_PLACES = ("init", "corpus", "validation", "train", "eval", "predict")  # names of files, which a card tells in words


def write_card(pretrained: "Pretrained", source: Path, folder: Path, name: str, notes: Sequence[str] = ()) -> None:
    """Write the card of a checkpoint into its Hugging Face folder.

    source: checkpoint that was converted; if it is a run's, the card has its text, settings and held-out numbers.
    folder: holds config.json already. name: model or folder that the card tells to load. notes: what transformers does
    otherwise. The licence and the language of the weights are not known here: the header leaves them out.
    """
    config = read_json(folder / "config.json")
    (architecture,), run = config["architectures"], _run_of(source)
    trained = _training(run) if run else ["How the weights were trained is not stored with them."]
    parts = [
        _header(architecture, config["model_type"], run),
        f"# {_plain(name.rpartition('/')[2])}",
        f"{_network(pretrained, architecture)}, made with xlnet_jax: pretraining XLNet and its relatives in JAX.",
        "## Training",
        *trained,
        "## Loading",
        _loading(architecture, name, pretrained.tokenizer is not None),
        *(["In transformers:", "\n".join(f"- {_escaped(note)}" for note in notes)] if notes else []),
        *(["## Scoring", _SCORING] if _can_score(pretrained, architecture) else []),
    ]
    (folder / FILE).write_text("\n\n".join(parts) + "\n")


def _header(architecture: str, model_type: str, run: "_Run | None") -> str:
    from xlnet_jax.storage import hub

    pipeline = next((tag for end, tag in _PIPELINES.items() if architecture.endswith(end)), None)
    init = str(run.settings.get("init") or "") if run else ""
    lines = [
        "library_name: transformers",
        *([f"pipeline_tag: {pipeline}"] if pipeline else []),
        *([f"base_model: {init.partition('@')[0]}"] if hub.is_name(init) else []),
        "tags:",
        *(f"- {tag}" for tag in dict.fromkeys((model_type, "xlnet_jax"))),
    ]
    return "\n".join(("---", *lines, "---"))


def _network(pretrained: "Pretrained", architecture: str) -> str:
    import jax

    model, head = pretrained.model, pretrained.head
    size = sum(weight.size for weight in jax.tree.leaves(pretrained.params))
    does = f"with a head for {head.task}" if head else "a language model"
    labels = f" ({', '.join(map(_plain, head.labels))})" if head and head.labels else ""
    return (
        f"{architecture} of {model.num_layers} layers x {model.d_model}, {size:,} parameters, {does}{labels}, "
        f"{model.vocab_size:,} pieces"
    )


class _Run(NamedTuple):
    settings: dict[str, Any]
    workdir: Path | None  # None for a checkpoint outside its workdir
    step: int | None


def _run_of(source: Path) -> _Run | None:
    """Return the run that wrote the checkpoint; None for a checkpoint that no run wrote."""
    from xlnet_jax.checkpoints import native

    found = native.find(source.absolute()) if source.is_dir() else None
    settings = native.read_settings(found) if found else {}
    if found is None or not {"preset", "task"} & settings.keys():
        return None
    at_home = found.parent.name == "checkpoints" and found.name.isdecimal()
    return _Run(settings, found.parents[1], int(found.name)) if at_home else _Run(settings, None, None)


def _training(run: _Run) -> list[str]:
    """Return the paragraphs that say how the weights were trained."""
    rows, changed, defaults = _finetuning(run) if "task" in run.settings else _pretraining(run)
    table = "\n".join(("| | |", "|---|---|", *(f"| {label} | {text} |" for label, text in rows if text)))
    settings = f"Settings that differ from those of {defaults}:"
    return [table, settings, f"```json\n{json.dumps(changed, indent=2)}\n```"]


def _pretraining(run: _Run) -> tuple[list[tuple[str, str]], dict[str, Any], str]:
    from xlnet_jax.objectives.registry import objective_named
    from xlnet_jax.settings.config import Config
    from xlnet_jax.settings.plain import from_dict
    from xlnet_jax.training.proposal import defaults_of

    config = from_dict(Config, run.settings)
    rows = [
        ("objective", f"{config.objective}: {objective_named(config.objective).summary}"),
        ("started from", _origin(config.init)),
        ("text", _names(config.corpus) or "novels of Jane Austen, which come with xlnet_jax"),
        ("held-out text", _names(config.validation)),
        ("steps", _steps(run, config.steps)),
        ("a step", f"{config.data.batch_size:,} rows of {config.data.seq_len:,} tokens"),
        ("held-out loss", _held_out_loss(run)),
    ]
    return rows, _changed(config, defaults_of(config)), f"the preset {config.preset}"


def _finetuning(run: _Run) -> tuple[list[tuple[str, str]], dict[str, Any], str]:
    from xlnet_jax.checkpoints.native import RESULTS, Results
    from xlnet_jax.settings.plain import from_dict
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.defaults import DEFAULTS

    config = from_dict(FinetuneConfig, run.settings)
    results = run.workdir / RESULTS if run.workdir else None
    metrics = read_versioned(results, "results", Results).metrics if results and results.is_file() else {}
    rows = [
        ("task", config.task),
        ("started from", "random weights" if config.reinitialize else _origin(config.init)),
        ("pretrained by", "" if config.reinitialize else config.objective),
        ("training examples", _names(config.train)),
        ("held-out examples", _names(config.eval)),
        ("steps", _steps(run, config.steps)),
        ("a step", f"{config.data.batch_size:,} examples"),
        *((f"held-out {name}", f"{value:.4g}") for name, value in metrics.items() if value is not None),
    ]
    return rows, _changed(config, DEFAULTS[config.task]()), f"the task {config.task}"


def _steps(run: _Run, steps: int) -> str:
    return f"{steps:,}" if run.step is None else f"{run.step:,} of {steps:,}"


def _held_out_loss(run: _Run) -> str:
    from etils import epath

    from xlnet_jax.training.watch.metrics import read_records

    if run.workdir is None or run.step is None:
        return ""
    records = read_records(epath.Path(run.workdir / "metrics.jsonl"))
    measured = [r for r in records if r["split"] == "validation" and r["step"] <= run.step]
    if not measured:
        return ""
    last = measured[-1]
    unigram = f"; by word frequencies alone {last['unigram']:.3f}" if "unigram" in last else ""
    return f"{last['loss']:.3f} nats at step {last['step']:,}{unigram}"


def _changed(config: Any, defaults: Any) -> dict[str, Any]:
    from xlnet_jax.settings.fields import differences

    return {
        setting.name: setting.value
        for setting, _ in differences(config, defaults)
        if not setting.has("operational") and setting.name not in _PLACES
    }


def _origin(init: str | None) -> str:
    """Return the name of a model on the Hub, or the last part of a path: the folders of a machine are its owner's."""
    from xlnet_jax.storage import hub

    return init if init and hub.is_name(init) else _plain(Path(init or "").name)


def _escaped(note: str) -> str:
    return note.replace("<", r"\<")  # a page would take <sep> for a tag


def _plain(text: str) -> str:
    """Return the words of a stranger as Markdown that shows them and does nothing else."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"[\\`*_{}\[\]<>#+!|~$&:]|(?<=www)\.", r"\\\g<0>", printable, flags=re.IGNORECASE)


def _names(places: Sequence[str]) -> str:
    from data_pipelines.sources import describe

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


def _can_score(pretrained: "Pretrained", architecture: str) -> bool:
    """Return whether the pieces of a text can be asked for in the order of the text."""
    from xlnet_jax.objectives.registry import objective_named

    is_any = objective_named(pretrained.objective).order == "any" and pretrained.model.attn_type == "bi"
    return architecture == "XLNetLMHeadModel" and is_any and pretrained.tokenizer is not None


def _loading(architecture: str, name: str, has_tokenizer: bool) -> str:
    quoted = json.dumps(name)
    theirs = [f"model = {architecture}.from_pretrained({quoted})"]
    ours = [f"model = xlnet_jax.load({quoted})"]
    if has_tokenizer:
        theirs.append(f"tokenizer = AutoTokenizer.from_pretrained({quoted})")
        ours.append('hidden = model.hidden_states(*model.encode(["A text."]))  # [texts, tokens, width]')
    classes = ", ".join(sorted([architecture, *(["AutoTokenizer"] if has_tokenizer else [])]))
    return "\n".join(
        (
            "```python",
            f"from transformers import {classes}",
            "",
            *theirs,
            "```",
            "",
            "```python",
            "import xlnet_jax  # pip install 'xlnet_jax[hub]'",
            "",
            *ours,
            "```",
        )
    )
