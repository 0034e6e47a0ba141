"""Print the statistics of texts that `--normalization auto` uses: python benchmarks/normalization.py FILE ...

For each text: the number of letters, the share in English passages, the share with accents that English rules would
drop, the share in other scripts, the most frequent words with such letters, and the rule that `auto` chooses. Files may
be compressed.
"""

import itertools
import sys
from collections import Counter
from pathlib import Path

from data_pipelines import sources
from data_pipelines.tokenizer import SAMPLE_LINES
from data_pipelines.tokenizer.normalization import WORD, Survey
from xlnet_jax.settings.common import TextSourceSettings

SHOWN_WORDS = 3


def row_of(name: str) -> str:
    """Return the row of the table for a text."""
    lines = filter(None, sources.read_lines(sources.find([name], TextSourceSettings(corpus_errors="replace"))))
    read = list(itertools.islice(lines, SAMPLE_LINES))
    survey = Survey.of(read)
    words = Counter(word for line in read if not line.isascii() for word in WORD.findall(line) if not word.isascii())
    cells = (
        Path(name).name.partition(".")[0],
        f"{survey.letters / 1e6:.2f} M",
        f"{survey.english / survey.letters:.1%}",
        f"{survey.accents / survey.letters:.3%}",
        f"{survey.other_scripts / survey.letters:.3%}",
        ", ".join(word for word, _ in words.most_common(SHOWN_WORDS)),
        survey.normalization,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("| text | letters | in English stretches | accents | other scripts | such words | rule |")
    print("|---|---|---|---|---|---|---|")
    for name in sys.argv[1:]:
        print(row_of(name), flush=True)
