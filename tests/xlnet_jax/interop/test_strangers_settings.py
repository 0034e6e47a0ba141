"""What the author of a foreign folder adds to it does not go out again: we write what we would have without it.

transformers and sentence-transformers take from such files which code to run, which kernels, files and repositories to
load. The values that are planted here all contain MARK, so that it is found wherever it ends up.
"""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.random_models import BERT, SMALL, random_model
from xlnet_jax.interop.hf_settings import keep_settings
from xlnet_jax.interop.sentence_transformers import write_modules
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.convert import ConvertSettings, convert

MARK = "stranger"
CODE = {"AutoConfig": f"{MARK}/code--config.C", "AutoModel": f"{MARK}.M", "AutoTokenizer": [f"{MARK}.T", None]}
PATH, NAME = f"../../{MARK}", f"{MARK}/repository"
PLANTED = {
    # code
    "auto_map": CODE,
    "custom_pipelines": {"any": {"impl": f"{MARK}.P", "pt": ["AutoModel"]}},
    "custom_generate": NAME,
    "trust_remote_code": MARK,
    "tokenizer_class": f"{MARK}Tokenizer",
    "chat_template": f"{{{{ {MARK} }}}}",
    "modules": [{"type": f"{MARK}.models.Module", "path": PATH}],
    # kernels
    "_attn_implementation": NAME,
    "kernel_config": {"kernel_mapping": {"RMSNorm": f"{NAME}:norm"}},
    "quantization_config": {"quant_method": MARK, "modules_to_not_convert": [NAME]},
    # files and repositories
    "transformers_weights": PATH,
    "_name_or_path": NAME,
    "configuration_files": [f"config.99.{MARK}.json"],
    "fast_tokenizer_files": [f"tokenizer.99.{MARK}.json"],
    "tokenizer_file": PATH,
    "text_config": {"auto_map": CODE, "_attn_implementation": NAME},
    "adapter_config": {"base_model_name_or_path": NAME, "auto_mapping": {"parent_library": MARK}},
    "model_args": {"trust_remote_code": True, "attn_implementation": NAME},
    # and what nobody knows yet
    "a_key_of_tomorrow": {"deep": [{"auto_map": CODE}]},
    f"\n\x1b[31m{MARK}": MARK,
    "xlnet_jax_of_tomorrow": {"auto_map": CODE},
}
"""Some of these keys; none is in the list of those that are kept"""
BESIDE = ("special_tokens_map", "generation_config", "adapter_config", "preprocessor_config", "processor_config")
MODULES = ("config_sentence_transformers", "sentence_bert_config", "1_Pooling/config", "2_Normalize/config")


def plant(folder: Path) -> None:
    """Add to every JSON file of a folder all that code, kernels, files and repositories are loaded by."""
    for file in folder.rglob("*.json"):
        content = json.loads(file.read_text())
        if file.name == "tokenizer.json":  # the library refuses more keys on the first level, and ignores them below
            content["model"] = PLANTED | content["model"]
        elif isinstance(content, list):  # modules.json
            content = [module | PLANTED for module in content] + [{"idx": 9, "name": "9", "path": PATH, **PLANTED}]
        else:
            content |= PLANTED
        file.write_text(json.dumps(content))
    for name in (*BESIDE, *MODULES):
        (folder / name).parent.mkdir(exist_ok=True)
        if not (file := folder / f"{name}.json").exists():
            file.write_text(json.dumps(PLANTED))
    for name in ("modeling_any_order.py", f"{MARK}.py", "chat_template.jinja", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(MARK)


OF_ORBAX = ("params", "_CHECKPOINT_METADATA", "commit_success.txt", "checksums.json")  # times and paths, so never equal


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of every file that is the same whenever it is written."""
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name: content for name, content in files.items() if not name.startswith(OF_ORBAX)}


def bert_tokenizer(folder: Path) -> Tokenizer:
    tokenizers = pytest.importorskip("tokenizers", reason="needs Hugging Face's tokenizers: pip install -e '.[hf]'")
    made = tokenizers.BertWordPieceTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(["the sea was calm"], special_tokens=names, show_progress=False)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


@pytest.fixture(params=["xlnet", "xlnet head", "xlnet vectors", "bert", "bert head", "bert vectors", "bert pieces"])
def clean(request, tmp_path) -> Path:
    """A folder of Hugging Face, or of sentence-transformers, without anything of a stranger."""
    family, _, kind = request.param.partition(" ")
    tokenizer = Tokenizer.train(["the cat sat on a mat"], 40, "none", token_level="character")
    if kind == "pieces":
        tokenizer = bert_tokenizer(tmp_path / "tokenizer")
    head = None
    if kind == "head":
        head = HeadConfig("classification", 3, "first" if family == "bert" else "last", labels=("a", "b", "c"))
    elif kind == "vectors":
        head = HeadConfig("embedding", summary="mean", use_projection=False)
    config = dataclasses.replace(BERT if family == "bert" else SMALL, vocab_size=tokenizer.vocab_size)
    model = random_model(config, head, tokenizer)
    folder = tmp_path / "clean"
    xlnet_jax.save(model, folder, "hf")
    if kind == "vectors":
        write_modules(folder, config, head, 16, normalize=True)
    return folder


@pytest.mark.parametrize("to", ["hf", "sentence-transformers", "native"])
def test_what_a_stranger_added_changes_nothing_that_is_written(clean, to, tmp_path):
    planted = tmp_path / "planted"
    shutil.copytree(clean, planted)
    plant(planted)
    written, said = {}, {}
    for source in (clean, planted):
        target = tmp_path / "out" / source.name / "same_name"
        said[source.name] = convert(ConvertSettings(str(source), str(target), to))
        written[source.name] = files_in(target)
        if to == "native":  # what is carried on in a checkpoint of ours goes out later
            later = tmp_path / "later" / source.name / "same_name"
            convert(ConvertSettings(str(target), str(later), "hf"))
            written[source.name] |= files_in(later)
            written[source.name].pop("tokenizer/tokenizer.json", None)  # as it was read: only this project reads it
    assert written["planted"] == written["clean"]
    assert not any(MARK in content.decode("latin1") for content in written["planted"].values())
    (note,) = (line for line in said["planted"] if "nothing here reads" in line)
    assert f"note: {len(PLANTED)} of " in note
    assert note.isprintable()
    assert not any("nothing here reads" in line for line in said["clean"])


@pytest.mark.parametrize("clean", ["xlnet head", "bert head"], indirect=True)
@pytest.mark.parametrize("value", [NAME, {"auto_map": CODE}, [CODE], {"0": CODE, "1": "b", "2": "c"}])
def test_a_known_setting_holds_no_more_than_its_type(clean, value, tmp_path):
    """Each is refused in one line, or dropped."""
    config = json.loads((clean / "config.json").read_text())
    refused = []
    for number, name in enumerate([*config, "tf1_scope"]):
        planted, target = tmp_path / f"planted{number}", tmp_path / f"out{number}"
        shutil.copytree(clean, planted)
        (planted / "config.json").write_text(json.dumps(config | {name: value}))
        try:
            convert(ConvertSettings(str(planted), str(target), "hf"))
        except xlnet_jax.InputError as mistake:
            refused.append(str(mistake))
        else:
            assert MARK not in (target / "config.json").read_text(), name
    assert not any("\n" in message for message in refused)


def test_only_values_of_their_type_and_range_are_kept():
    good = {"classifier_dropout": 0.25, "eos_token_id": [2, 3], "pad_token_id": None, "use_cache": False}
    assert keep_settings(good) == good
    bad = {"classifier_dropout": 1.5, "eos_token_id": ["2"], "pad_token_id": -2, "use_cache": 0, "start_n_top": 0}
    assert keep_settings(bad | {"summary_type": MARK, "problem_type": MARK, "summary_last_dropout": math.nan}) == {}


def test_what_a_stranger_wrote_into_a_checkpoint_of_ours_stays_there(tmp_path):
    xlnet_jax.save(random_model(BERT), tmp_path / "native")
    settings = tmp_path / "native" / "config" / "metadata"
    content = json.loads(settings.read_text())
    content["hugging_face"] = PLANTED | {"pad_token_id": 3, "classifier_dropout": 0.25}
    settings.write_text(json.dumps(content | PLANTED))
    (tmp_path / "native" / "checksums.json").unlink()
    for step, to in enumerate(("native", "hf")):
        xlnet_jax.save(xlnet_jax.load(tmp_path / "native"), tmp_path / f"{step}", to)
        assert not any(MARK in content.decode("latin1") for content in files_in(tmp_path / f"{step}").values())
    assert {"pad_token_id": 3, "classifier_dropout": 0.25}.items() <= json.loads(
        (tmp_path / "1" / "config.json").read_text()
    ).items()
