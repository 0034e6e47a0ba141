"""Every objective: what its record says is what its batches and its checkpoints are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipelines.objectives import DENSE, DOCUMENTS, HELD_OUT, PAIRS, ROWS, batch_spec, shapes_of
from tests.xlnet_jax.tiny_text import batches_of
from tests.xlnet_jax.training.tiny import CONFIG
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import demo, with_objective
from xlnet_jax.objectives.records import OBJECTIVES
from xlnet_jax.objectives.registry import objective_named, validate

ROOT = Path(__file__).parents[3]
each = pytest.mark.parametrize("record", OBJECTIVES, ids=lambda record: record.name)


@each
def test_batches_have_the_arrays_that_the_objective_names(record):
    config = with_objective(CONFIG, record.name)
    forms = [{}, {"num_predict": 4 if config.data.num_predict else None, "masking": "static"}]
    if config.data.window == "pairs":
        forms += [{"pair_loss": "next"}]
    if record.filling.stream == "query":
        forms += [{"emit": "dense"}, {"emit": "dense", "num_predict": None, "pair_loss": "order"}]
    for form in forms:
        data = replace(config.data, windows_per_block=4, **form)
        source = batches_of(replace(config, data=data))
        spec = batch_spec(record.filling.fields, data)
        for batch in (source.batch_at(5), next(source.iterate(5, 6))):
            found = {name: (array.shape, array.dtype) for name, array in batch.items()}
            shapes = shapes_of(spec, data.batch_size, data)
            expected = {name: (shape, np.dtype(spec[name].dtype)) for name, shape in shapes.items()}
            assert found == expected


@each
def test_the_settings_that_an_objective_starts_from_can_be_learned(record):
    config = with_objective(demo(), record.name)
    assert config.objective == record.filling.objective == record.name
    assert config.model.positions in record.positions
    validate(config)


def test_the_table_of_arrays_in_the_docs_is_that_of_the_objectives():
    fields = {}
    for record in OBJECTIVES:
        fields |= record.filling.fields
    rows = [
        f"| `{name}` | [{', '.join(field.shape)}] | {field.dtype} | {field.meaning} |"
        for name, field in (fields | ROWS | PAIRS | DOCUMENTS | HELD_OUT | DENSE).items()
    ]
    assert (
        "\n".join(["| array | shape | dtype | meaning |", "|---|---|---|---|", *rows, ""])
        in (ROOT / "docs" / "windows.md").read_text()
    )


def test_a_name_that_is_no_objectives_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"`objective` mml must be one of plm, mlm, .*: did you mean mlm\?"):
        objective_named("mml")
