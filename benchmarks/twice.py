"""Make text in which every sentence is repeated, so that a small network learns to copy from its context.

The second time can only be predicted by looking up the first. Comparing two sentences, or a question and a passage,
needs this. Running text repeats itself too little for a network of a few million parameters to learn it within hours
(benchmarks/said_twice.py measures it).
"""

import random
import re
from collections import Counter
from collections.abc import Sequence

WORDS = 6, 30
"""smallest and largest number of words of a sentence that is repeated"""


def sentences_twice(sentences: Sequence[str], documents: int, draw: random.Random) -> list[str]:
    """Return documents of 20 parts: one or two sentences, and the same again."""
    chosen = [sentence for sentence in sentences if WORDS[0] <= len(sentence.split()) <= WORDS[1]]
    return [
        "\n".join("\n".join(draw.choices(chosen, k=draw.randint(1, 2)) * 2) for _ in range(20))
        for _ in range(documents)
    ]


def words_twice(text: str, documents: int, draw: random.Random, at_least: int = 1) -> list[str]:
    """Return documents of 16 parts: 4 to 20 random words, and the same again, once or (in one part of three) twice.

    Half of the parts draw words as often as they occur in the text. The other half draw words uniformly from those of
    at least three letters that occur `at_least` times.
    """
    running = re.findall("[A-Za-z]+", text)
    known = sorted(word for word, count in Counter(running).items() if len(word) > 2 and count >= at_least)

    def part() -> str:
        words = " ".join(draw.choices(draw.choice((known, running)), k=draw.randint(4, 20)))
        return "\n".join([words] * draw.choice((2, 2, 3)))

    return ["\n".join(part() for _ in range(16)) for _ in range(documents)]
