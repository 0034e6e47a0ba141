"""lm-evaluation-harness, by its own functions and command, gives the numbers of `score_texts`, on a task made here."""

import dataclasses
import functools
import json
import sys

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.tokenizer import EOD
from tests.xlnet_jax.random_models import HEADS, SMALL, random_model
from xlnet_jax import InputError, score_texts
from xlnet_jax.inference.log_probs import Query, causal_beside_likeliest, log_probs_PV

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra [lm-eval]: pip install -e '.[lm-eval]'")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from xlnet_jax.inference import lm_eval as harness  # noqa: E402

SAME = 1e-5  # nats per piece
CHOICES = [
    {"context": "She opened the letter and", "choices": ["read it aloud.", "the of it."], "gold": 0},
    {"context": "", "choices": ["happy It very.", "It was very happy."], "gold": 1},
    {"context": "It was a dark", "choices": ["night.", "and."], "gold": 1},
]
TEXTS = ["It was a dark night. She opened the letter.", "He said no more."]
PROMPTS = ["It was a dark night.", "The ____ was"]
TASKS = {
    "made_choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}", "metric_list": [{"metric": "acc"}],
    },
    "made_text": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "made_answer": {
        "output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "never",
        "metric_list": [{"metric": "exact_match"}], "generation_kwargs": {"until": ["."], "max_gen_toks": 12},
    },
}  # fmt: skip
DOCUMENTS = {
    "made_choice": CHOICES,
    "made_text": [{"text": text} for text in TEXTS],
    "made_answer": [{"prompt": prompt} for prompt in PROMPTS],
}


@pytest.fixture(scope="module")
def tiny():
    return xlnet_jax.load("tiny")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the tasks: a YAML file and a file of documents for each."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, task in TASKS.items():
        documents = folder / f"{name}.jsonl"
        documents.write_text("\n".join(map(json.dumps, DOCUMENTS[name])) + "\n")
        data = {"data_files": {"test": str(documents)}, "cache_dir": str(folder / "cache")}
        whole = {"task": name, "dataset_path": "json", "dataset_kwargs": data, "test_split": "test", **task}
        (folder / f"{name}.yaml").write_text(json.dumps(whole))  # JSON is YAML
    return folder


def evaluate(folder, tasks, model, **model_args):
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model, model_args=model_args, tasks=tasks, task_manager=manager, bootstrap_iters=0, log_samples=True
    )


@pytest.fixture(scope="module")
def done(folder):
    return evaluate(folder, list(TASKS), "xlnet_jax", pretrained="tiny")


def answers(done, task):
    """Return the answers to the requests of each document, in the order of the documents."""
    return [sample["resps"] for sample in sorted(done["samples"][task], key=lambda sample: sample["doc_id"])]


def test_choices_have_the_log_likelihoods_of_score_texts_and_the_accuracy_that_follows(done, tiny):
    right = []
    for document, of_choices in zip(CHOICES, answers(done, "made_choice"), strict=True):
        scores = score_texts(tiny, document["choices"], context=document["context"])
        found = [float(of_choice[0][0]) for of_choice in of_choices]
        lengths = [len(score.pieces) for score in scores]
        np.testing.assert_allclose(
            np.divide(found, lengths), np.divide([s.log_likelihood for s in scores], lengths), rtol=0, atol=SAME
        )
        right.append(np.argmax([score.log_likelihood for score in scores]) == document["gold"])
    assert 0 < np.mean(right) < 1
    assert done["results"]["made_choice"]["acc,none"] == pytest.approx(np.mean(right))


def test_documents_have_the_log_likelihoods_of_score_texts_and_the_perplexity_that_follows(done, tiny):
    scores = score_texts(tiny, TEXTS)
    for score, ((found,),) in zip(scores, answers(done, "made_text"), strict=True):
        assert float(found) / len(score.pieces) == pytest.approx(score.log_likelihood / len(score.pieces), abs=SAME)
    words = sum(len(text.split()) for text in TEXTS)
    perplexity = np.exp(-sum(score.log_likelihood for score in scores) / words)
    assert done["results"]["made_text"]["word_perplexity,none"] == pytest.approx(perplexity, rel=1e-4)


def test_a_long_document_is_read_with_the_memory_of_score(tiny, tmp_path):
    """The paper's, for a checkpoint that names none."""
    without = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, mem_len=0))
    xlnet_jax.save(without, tmp_path / "hf", "hf")
    request = Instance("loglikelihood_rolling", {}, (TEXTS[0],), 0)
    (found,) = harness.XLNetJax(str(tmp_path / "hf"), max_len=4).loglikelihood_rolling([request])
    (expected,), (alone,) = (score_texts(tiny, TEXTS[0], max_len=4, mem_len=mem_len) for mem_len in (384, 0))
    assert found == pytest.approx(expected.log_likelihood, abs=SAME * len(expected.pieces))
    assert abs(found - alone.log_likelihood) > 0.1


def test_answers_end_before_their_stop_and_three_underscores_are_no_gap(done, tiny):
    drawn, with_line = (answer[0][0] for answer in answers(done, "made_answer"))
    (expected,) = xlnet_jax.generate(tiny, PROMPTS[:1], max_new_tokens=12, temperature=0)
    assert drawn == expected.text.removeprefix(PROMPTS[0]).split(".")[0].strip()
    assert with_line
    assert "." not in with_line


def test_the_exported_folder_gives_the_left_to_right_numbers_in_the_model_of_the_harness(folder, tiny, monkeypatch):
    """`hf` reads context and continuation from left to right, as `context=left-to-right` does here."""
    transformers = pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")
    pytest.importorskip("accelerate", reason="needs the extra [bench]: pip install -e '.[bench]'")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
    pytest.importorskip("torch").set_num_threads(1)
    exported, tasks = folder / "exported", ["made_choice", "made_text"]
    xlnet_jax.save(tiny, exported, "hf")
    settings = {"pretrained": str(exported), "trust_remote_code": True, "max_length": 512, "device": "cpu"}
    theirs = evaluate(folder, tasks, "hf", **settings, add_bos_token=False, batch_size=4)
    with pytest.raises(ValueError, match=r"a text has no <cls>: .* add_bos_token=False to lm-evaluation-harness"):
        evaluate(folder, tasks, "hf", **settings)
    ours = evaluate(folder, tasks, "xlnet_jax", pretrained="tiny", context="left-to-right")
    for task in tasks:
        found, expected = (
            np.array([float(np.ravel(a)[0]) for of_document in answers(done, task) for a in of_document])
            for done in (theirs, ours)
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=10 * SAME)  # sums over up to ten pieces
    (whole,) = score_texts(tiny, f"{CHOICES[0]['context']} {CHOICES[0]['choices'][0]}")
    pieces = len(tiny.tokenizer.encode_lines([CHOICES[0]["choices"][0]])[0])
    expected = whole.log_probs_OP[0, -pieces:].sum()
    assert float(answers(theirs, "made_choice")[0][0][0][0]) == pytest.approx(expected, abs=pieces * SAME)


def test_its_command_prints_the_same_accuracy_and_ends_in_one_line_for_a_mistake(folder, done, monkeypatch, capsys):
    # The 14,000 files of its own tasks take 17 seconds to read.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", functools.partial(TaskManager, include_defaults=False))
    words = ["lm_eval", "--model", "xlnet_jax", "--tasks", "made_choice", "--include_path", str(folder)]
    monkeypatch.setattr(sys, "argv", [*words, "--model_args", "pretrained=tiny"])
    assert harness.main() == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|made_choice")]
    assert f"{done['results']['made_choice']['acc,none']:.4f}" in row
    monkeypatch.setattr(sys, "argv", [*words, "--model_args", "pretrained=tiny,order=backwards"])
    assert harness.main() == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: `order` backwards: give left-to-right, right-to-left or random:8 (any number)"
    )


def saved(model, folder):
    xlnet_jax.save(model, folder / "saved")
    return str(folder / "saved")


@pytest.mark.parametrize("kind", ["model", "masked", "causal"])
def test_a_continuation_is_greedy_if_each_piece_is_the_likeliest(kind, request, tmp_path):
    """By each kind of network: any order, masked diffusion, left to right."""
    model = request.getfixturevalue("causal" if kind == "causal" else "model")
    model = dataclasses.replace(model, objective="mdlm") if kind == "masked" else model
    given, likeliest = [20, 30, 40], []
    for place in range(3):
        if kind != "causal":
            row = np.array([*given, *likeliest, *[0] * (3 - place)], np.int32)  # what follows is hidden
            log_probs = log_probs_PV(model, Query(row, np.arange(3, 6), np.arange(3)))[place]
        else:
            each = [np.array([EOD, *given, *likeliest, piece]) for piece in range(model.model.vocab_size)]
            log_probs = [scores[-1, 0] for scores in causal_beside_likeliest(model, each, 2**16)]
        likeliest.append(int(np.argmax(log_probs)))
    other = [*likeliest[:2], (likeliest[2] + 1) % 800]
    lm = harness.XLNetJax(saved(model, tmp_path))
    asked = Instance("generate_until", {}, ("The list", {"until": [" "], "max_gen_toks": 2}), 0)
    (expected,) = xlnet_jax.generate(model, "The list", max_new_tokens=2, temperature=0)
    assert lm.generate_until([asked]) == [expected.text.removeprefix("The list").strip().split(" ")[0]]
    (_, greedy), (_, not_greedy) = lm._loglikelihood_tokens(
        [(("a", "b"), given, likeliest), (("a", "b"), given, other)]
    )
    assert (greedy, not_greedy) == (True, False)


def test_orders_are_averaged_and_of_a_long_context_the_newest_pieces_are_read(model, tmp_path):
    path, context, text = saved(model, tmp_path), "The names of the list are", "old and new"
    (expected,) = score_texts(model, text, "random:3", context=context)
    lm = harness.XLNetJax(path, order="random:3")
    request = (context, text), *(lm.tok_encode(part) for part in (context, text))
    ((found, _),) = lm._loglikelihood_tokens([request])
    assert found == pytest.approx(expected.log_likelihood, abs=len(expected.pieces) * SAME)
    short = harness.XLNetJax(path, max_len=len(request[2]) + 2)
    kept = request[0], request[1][-2:], request[2]
    assert short._loglikelihood_tokens([request]) == short._loglikelihood_tokens([kept])
    assert short._loglikelihood_tokens([request]) != harness.XLNetJax(path)._loglikelihood_tokens([request])


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("masked", {}, "the checkpoint was trained .*mlm"),
        ("head", {}, "the checkpoint has a head for classification and no vocabulary scores"),
        ("causal", {"order": "random:2"}, r"`orders` random:2: the checkpoint reads from left to right \(clm\)"),
        ("any", {"order": "random:2", "context": "left-to-right"}, "`context` left-to-right is only for `order` left"),
        ("any", {"ordre": "random:2"}, "`ordre`.* order"),
        ("any", {"order": "random:0"}, "`order` random:0: give left-to-right, right-to-left or random:8"),
        ("any", {"order": "8"}, "`order` 8: give left-to-right, right-to-left or random:8"),
    ],
)
def test_what_the_harness_cannot_use_is_refused_in_one_line(kind, settings, message, tmp_path, tokenizer, causal):
    config = dataclasses.replace(SMALL, vocab_size=800)
    head = HEADS["classification" if kind == "head" else "lm"]
    model = causal if kind == "causal" else random_model(config, head, tokenizer)
    if kind == "masked":
        model = dataclasses.replace(model, objective="mlm")
    with pytest.raises(InputError, match=message) as refused:
        harness.XLNetJax(saved(model, tmp_path), **settings)
    assert "\n" not in str(refused.value)
    assert kind != "any" or "order" in str(refused.value)


def test_a_continuation_without_pieces_is_refused(model, tmp_path):
    lm = harness.XLNetJax(saved(model, tmp_path))
    with pytest.raises(InputError, match="the continuation ' ' tokenizes to nothing"):
        lm._loglikelihood_tokens([(("a", " "), [20], [])])
