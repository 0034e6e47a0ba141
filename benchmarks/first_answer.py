"""Time a command from its start to its end, with nothing compiled and again, and the same with transformers, in turns:

    python benchmarks/first_answer.py

Each call is a new process. The first one of a turn has an empty folder of compiled programs, the later one finds them
there. transformers (PyTorch; `pip install -e '.[bench]'`) draws as many pieces with a GPT-2 of the width, layers and
vocabulary of tiny, with random weights. Wall seconds count only on a machine that does nothing else; CPU seconds are
those of all threads. Medians.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import xlnet_jax
from benchmarks.results import keep_table
from data_pipelines import sources
from xlnet_jax.settings.config import ModelConfig

PROMPT = "It is a truth"
COMMANDS = {
    "generate": ["generate", "tiny", PROMPT, "--max-new-tokens", "100"],
    "score": ["score", "tiny", "--sentences", PROMPT],
    "embed": ["embed", "tiny", "--text", "TEXT", "--out", "OUT.npy", "--overwrite"],
}
THEIRS = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = (kind.from_pretrained(sys.argv[1]) for kind in (AutoTokenizer, AutoModelForCausalLM))
ids = tokenizer(sys.argv[2], return_tensors="pt")
drawn = model.generate(**ids, min_new_tokens=100, max_new_tokens=100, do_sample=True, top_p=0.9, pad_token_id=0)
print(tokenizer.decode(drawn[0]))
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def write_gpt2(config: ModelConfig, folder: Path) -> None:
    """Write a GPT-2 of the same width, layers and vocabulary, with random weights, and a tokenizer for it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train(str(sources.embedded()[1]), config.vocab_size, show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer).save_pretrained(folder)
    sizes = {"n_embd": config.d_model, "n_layer": config.num_layers, "n_head": config.num_heads}
    GPT2LMHeadModel(GPT2Config(vocab_size=config.vocab_size, n_positions=512, **sizes)).save_pretrained(folder)


def seconds(words: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run Python with these words; return its wall and CPU seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def turn(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Yield the name, the wall and the CPU seconds of every call of a turn."""
    places = {"TEXT": str(folder / "text.txt"), "OUT.npy": str(folder / "vectors.npy")}
    for name, command in COMMANDS.items():
        words = ["-m", "xlnet_jax", *(places.get(word, word) for word in command)]
        with tempfile.TemporaryDirectory() as home:
            for call in ("first", "later"):
                yield f"{name}, {call} call", *seconds(words, {"XDG_CACHE_HOME": home, "JAX_PLATFORMS": "cpu"})
    yield "transformers, GPT-2", *seconds(["-c", THEIRS, str(folder / "gpt2"), PROMPT], OFFLINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text(f"{PROMPT}\n")
        write_gpt2(xlnet_jax.load("tiny").model, folder / "gpt2")
        turns = [list(turn(folder)) for _ in range(given.turns)]
    rows = []
    for calls in zip(*turns, strict=True):
        medians = (statistics.median(call[of] for call in calls) for of in (1, 2))
        rows.append([calls[0][0], *(f"{median:.1f}" for median in medians)])
    keep_table("first-answer", ["call", "seconds", "CPU seconds"], rows)


if __name__ == "__main__":
    main()
