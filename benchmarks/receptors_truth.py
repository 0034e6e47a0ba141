"""Compute exact probabilities of receptors, or draw more of them, with olga (Sethna et al. 2019).

    python -m venv olga && olga/bin/pip install olga==1.3.0
    olga/bin/python benchmarks/receptors_truth.py DATA --truth
    olga/bin/python benchmarks/receptors_truth.py DATA --draw 1000000 --seed 1 --out more.tsv
    olga/bin/python benchmarks/receptors_truth.py DATA --score samples.tsv

olga is licensed under the GPL and needs an environment of its own, so this script imports nothing of the project. DATA
is the folder with train.tsv.xz (columns cdr3, v, j) and test_pgen.tsv (columns cdr3, pgen).

olga's pgen is the probability of a sequence among all rearrangements, of which three quarters are out of frame or have
a stop codon. Its generator draws until one is productive, so a sequence is drawn with the probability pgen / Z, where Z
is the sum of pgen over all sequences, computed for every length up to LONGEST.

--truth writes benchmarks/measured/receptors_truth.json: ln Z, ln p of the test sequences, how many of them occur in the
training file, and, for the first --rows test sequences, p(v | cdr3) of every gene and ln p(middle | ends), where the
middle is 3 to 5 symbols and the length is known. It first checks that olga gives the probabilities of the test file.
--score adds the column log_p, ln pgen of the column cdr3, to a table.
"""

import argparse
import csv
import json
import lzma
import math
import random
from pathlib import Path

import numpy as np
import olga
from olga import generation_probability, load_model, sequence_generation

OUT = Path(__file__).parent / "measured" / "receptors_truth.json"
LONGEST = 41  # symbols of a sequence
CHECKED = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--draw", type=int, help="number of sequences")
    parser.add_argument("--score", type=Path, help="table with a column cdr3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help=f"default of --truth: {OUT.name}")
    parser.add_argument("--chain", default="human_T_beta", help="one of olga's chains with D genes")
    given = parser.parse_args()
    folder = Path(olga.__file__).parent / "default_models" / given.chain
    genes = load_model.GenomicDataVDJ()
    anchors = (str(folder / f"{gene}_gene_CDR3_anchors.csv") for gene in "VJ")
    genes.load_igor_genomic_data(str(folder / "model_params.txt"), *anchors)
    model = load_model.GenerativeModelVDJ()
    model.load_and_process_igor_model(str(folder / "model_marginals.txt"))
    if given.draw:
        draw(model, genes, given.draw, given.seed, given.out)
    pgen = generation_probability.GenerationProbabilityVDJ(model, genes)
    if given.score:
        score(pgen, given.score)
    if given.truth:
        truth = compute_truth(pgen, given.data, given.rows)
        (given.out or OUT).write_text(json.dumps(truth) + "\n")


def draw(model, genes, count: int, seed: int, out: Path) -> None:
    """Write productive sequences that are drawn with olga."""
    np.random.seed(seed)
    source = sequence_generation.SequenceGenerationVDJ(model, genes)
    with out.open("w") as file:
        file.write("cdr3\tv\tj\n")
        for _ in range(count):
            _, cdr3, v, j = source.gen_rnd_prod_CDR3()
            file.write(f"{cdr3}\t{genes.genV[v][0].split('*')[0]}\t{genes.genJ[j][0].split('*')[0]}\n")


def score(pgen, table: Path) -> None:
    """Add ln pgen to each row of a table; a sequence that cannot occur has -inf."""
    with table.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        p = pgen.compute_aa_CDR3_pgen(row["cdr3"], print_warnings=False)
        row["log_p"] = f"{math.log(p):.5f}" if p else "-inf"
    with table.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def compute_truth(pgen, data: Path, count: int) -> dict[str, object]:
    """Return what --truth writes."""
    with lzma.open(data / "train.tsv.xz", "rt") as file:
        train = list(csv.DictReader(file, delimiter="\t"))
    with (data / "test_pgen.tsv").open() as file:
        test = [(row["cdr3"], float(row["pgen"])) for row in csv.DictReader(file, delimiter="\t")]
    for cdr3, expected in test[:CHECKED]:
        assert math.isclose(pgen.compute_aa_CDR3_pgen(cdr3), expected, rel_tol=1e-9), cdr3
    productive = sum(of_pattern(pgen, "C" + "X" * (length - 1)) for length in range(2, LONGEST + 1))
    names, seen = sorted({row["v"] for row in train}), {row["cdr3"] for row in train}
    rows = []
    for number, (cdr3, p) in enumerate(test[:count]):
        begin, end = middle_of(number, len(cdr3))
        pattern = cdr3[:begin] + "X" * (end - begin) + cdr3[end:]
        by_gene = {v: pgen.compute_aa_CDR3_pgen(cdr3, v, None, print_warnings=False) for v in names}
        total = sum(by_gene.values())
        assert math.isclose(total, p, rel_tol=1e-6), cdr3
        ln_p = math.log(p / of_pattern(pgen, pattern))
        rows.append({"middle": [begin, end, round(ln_p, 5)], "v": [round(x / total, 5) for x in by_gene.values()]})
    return {
        "log_productive": round(math.log(productive), 6),
        "mean_nats": round(-sum(math.log(p) for _, p in test) / len(test) + math.log(productive), 4),
        "test": len(test),
        "train": len(train),
        "in_train": sum(cdr3 in seen for cdr3, _ in test),
        "log_p": [round(math.log(p / productive), 3) for _, p in test],
        "genes": names,
        "rows": rows,
    }


def of_pattern(pgen, pattern: str) -> float:
    """Return the sum of pgen over all sequences of a pattern. X stands for any symbol."""
    return float(pgen.compute_regex_CDR3_template_pgen(pattern, print_warnings=False, raise_overload_warning=False))


def middle_of(number: int, length: int) -> tuple[int, int]:
    """Return begin and end of the hidden part of a test sequence."""
    size = min(random.Random(number).randint(3, 5), length - 4)
    begin = (length - size) // 2
    return begin, begin + size


if __name__ == "__main__":
    main()
