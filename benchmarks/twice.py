"""Text that says everything twice, from which a small network learns to look words up in its context.

The second time is predicted by nothing but looking up the first. Comparing two sentences, or a question and a passage,
needs that; running text repeats itself too little for a network of a few million parameters to learn it within hours
(benchmarks/said_twice.py measures it).
"""

import random
import re
from collections import Counter
from collections.abc import Sequence

WORDS = 6, 30
"""of a sentence that is said twice, at least and at most"""


def sentences_twice(sentences: Sequence[str], documents: int, draw: random.Random) -> list[str]:
    """Return documents of 20 parts: a sentence, or two, and the same again."""
    chosen = [sentence for sentence in sentences if WORDS[0] <= len(sentence.split()) <= WORDS[1]]
    return [
        "\n".join("\n".join(draw.choices(chosen, k=draw.randint(1, 2)) * 2) for _ in range(20))
        for _ in range(documents)
    ]


def words_twice(text: str, documents: int, draw: random.Random, at_least: int = 1) -> list[str]:
    """Return documents of 16 parts: 4 to 20 words in a random order, and the same again, once or, of one part in three,
    twice.

    Half of the parts draw words as often as the text has them, half of them all words of three letters and more that
    occur `at_least` times, equally often.
    """
    running = re.findall("[A-Za-z]+", text)
    known = sorted(word for word, count in Counter(running).items() if len(word) > 2 and count >= at_least)

    def part() -> str:
        words = " ".join(draw.choices(draw.choice((known, running)), k=draw.randint(4, 20)))
        return "\n".join([words] * draw.choice((2, 2, 3)))

    return ["\n".join(part() for _ in range(16)) for _ in range(documents)]
