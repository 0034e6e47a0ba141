"""python -m xlnet_jax.generate: text that continues a prompt, or that fills its gaps (___)."""

import itertools
import json
from collections.abc import Sequence

from xlnet_jax.api import command
from xlnet_jax.api.generation import GenerateSettings, drawn_texts, grow


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Print the texts; return the exit code."""
    settings = command.parse(GenerateSettings, argv, __doc__)
    if len(settings.prompts()) == settings.num_samples == 1 and not settings.json:
        for part in itertools.chain(grow(settings), ["\n"]):
            print(part, end="", flush=True)
        return 0
    for i, text in enumerate(drawn_texts(settings)):
        if settings.json:
            record = {
                "prompt": text.prompt,
                "text": text.text,
                "pieces": text.pieces,
                "log_probs": [round(float(p), 4) for p in text.log_probs],
                "ended": text.ended,
            }
            print(json.dumps(record, ensure_ascii=False), flush=True)
        else:
            print(f"---\n{text.text}" if i else text.text, flush=True)
    return 0


if __name__ == "__main__":
    command.run(main, "give a smaller --batch-size, or a shorter prompt")
