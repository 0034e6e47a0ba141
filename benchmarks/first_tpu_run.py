"""Times and costs of a first run on accelerators (docs/first_tpu_run.md), from FLOPs and from kept results.

    python -m benchmarks.first_tpu_run

Nothing is compiled or trained: `python -m xlnet_jax.plan` compiles a step for one of these machines.

The text is 50 GB of English. Each run reads the tokens that 200,000 steps of the preset base read. Hours are FLOPs
(xlnet_jax/costs.py) over the peak of the chips and the share of the peak that is reached: on TPUs it is assumed, as by
`plan`; on GPUs it is the best that benchmarks/gpu.py measured on an H200, with XLNet-Large.
"""

from benchmarks import results
from benchmarks.results import Result
from data_pipelines.tokenizer.training import SAMPLE_BYTES
from xlnet_jax.costs import chip_named, layer_parameters
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.planning.scaling_law import read_fits, recipe_of
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_values
from xlnet_jax.training import dial

TEXT = 50e9
"""bytes"""
STEPS = 200_000
"""of the preset base, which the other runs read the tokens of"""
RUNS = ("small", "modern-small", "base", "modern-base", "large", "modern-large")
MACHINES = {"v5e-8": ("v5e", 8), "v5p-8": ("v5p", 4), "v6e-8": ("v6e", 8), "8 H100": ("H100", 8)}
"""machines: the name of a chip, and the number of chips; the 8 of v5p-8 are cores"""
OF_TPUS = 0.4
"""share of the peak FLOPs, assumed: the default of `plan --utilization`"""


def report(kept: dict[str, Result]) -> None:
    """Print and keep the tables. kept: results by name."""
    on_gpus = max(float(row[3].removesuffix("%")) for row in kept["gpu-h200"]["rows"]) / 100
    costs, laws = [], []
    for run in RUNS:
        config, tokens = sized(run)
        laws.append([run, f"{layer_parameters(config.model) / 1e6:,.1f}", *expected(config, tokens)])
        for machine, (name, count) in MACHINES.items():
            chip = chip_named(name)
            share = OF_TPUS if chip.clock else on_gpus
            hours = config.steps * dial.step_cost(config) / (share * count * chip.flops) / 3600
            numbers = (
                f"{share:.1%}",
                f"{tokens / hours / 3600:,.0f}",
                f"{hours:,.1f}",
                f"{hours * count:,.1f} x $rate",
            )
            costs.append([f"{run}, {machine}", *numbers])
    head = ["run", "share of the peak", "tokens/s", "hours", "price"]
    results.keep_table("first-tpu-run-costs", head, costs)
    head = ["run", "million weights in layers", "extrapolated loss", "times the law's weights", "times its tokens"]
    results.keep_table("first-tpu-run-law", head, laws)
    results.keep_table("first-tpu-run-times", ["what", "number"], times(kept))


def sized(preset: str) -> tuple[Config, int]:
    """Return the settings of a run that reads the tokens of STEPS steps of base, and the number of these tokens."""
    base, start = PRESETS["base"](), PRESETS[preset]()
    tokens = STEPS * base.data.batch_size * base.data.seq_len
    return with_values(start, {"steps": tokens // (start.data.batch_size * start.data.seq_len)}), tokens


def expected(config: Config, tokens: int) -> list[str]:
    """Return the loss by the scaling law of the recipe; weights and tokens over the most of the law's runs."""
    recipe = recipe_of(config)
    assert recipe, config.preset
    fit, weights = read_fits()[recipe], layer_parameters(config.model)
    beyond = (weights / fit.parameters[1], tokens / fit.tokens[1])
    return [f"{fit.law.loss(weights, tokens):.2f}", *(f"{times:,.0f}" for times in beyond)]


def times(kept: dict[str, Result]) -> list[list[str]]:
    """Return numbers of the story: sizes of the text and hours on CPUs, by speeds that were measured on novels."""

    def measured(name: str, row: str, column: int) -> float:
        return float(results.look_up(kept, name, row, str(column)).replace(",", ""))

    megabytes, one_core = measured("tokenizer", "training on", 1), measured("prepare", "prepare, cores: 1", 2)
    pieces = TEXT / (1e6 * megabytes) * measured("prepare", "prepare, cores: 1", 1) * one_core
    training = measured("tokenizer", "training on", 2) * SAMPLE_BYTES / (1e6 * megabytes)
    preparing = [pieces / speed / 3600 for speed in (one_core, measured("prepare", "prepare, cores: 2", 2))]
    base, tokens = sized("base")
    rows = base.steps * base.data.batch_size
    seconds = base.steps * dial.step_cost(base) / (OF_TPUS * 8 * chip_named("v5e").flops)
    windows = rows / seconds
    numbers = {
        "bytes per piece": f"{TEXT / pieces:.1f}",
        "billion pieces": f"{pieces / 1e9:.1f}",
        "minutes to train a tokenizer": f"{training / 60:.1f}",
        "hours to prepare on one core": f"{preparing[0]:.1f}",
        "hours to prepare on two cores": f"{preparing[1]:.1f}",
        "billion tokens of windows": f"{tokens / 1e9:.1f}",
        "passes in the paper's windows": f"{tokens / 2 / pieces:.2f}",
        "passes in modern windows": f"{tokens / pieces:.2f}",
        "minutes between checkpoints": f"{base.checkpoint.every_steps * seconds / base.steps / 60:.0f}",
        "windows per second that base reads": f"{windows:,.0f}",
        "times as many that the pipeline makes": f"{measured('pipeline', 'xlnet_jax, compact', 1) / windows:.0f}",
    }
    return [[what, number] for what, number in numbers.items()]


if __name__ == "__main__":
    report(results.read())
