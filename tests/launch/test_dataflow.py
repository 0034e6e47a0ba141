"""Preparation on Dataflow: data_pipelines.prepare and Beam accept the command line; test_dry_run.py compares it."""

import pytest

from data_pipelines.prepare.commands import PrepareSettings
from tests.launch.conftest import DIGEST, StandIns, printed
from xlnet_jax.settings import parser

LINE = (
    f"launch/dataflow.sh --dry-run --project mine --region europe-west4 --temp gs://mine/tmp --image m/b{DIGEST} "
    "-- --source 'gs://mine/*.txt' --beam-options no_use_public_ips --tokenizer gs://mine/t --out gs://mine/corpus"
)


def test_beam_knows_every_option(stand_ins: StandIns, caplog: pytest.LogCaptureFixture) -> None:
    asked = parser.parse(PrepareSettings, printed(stand_ins.run(LINE).stdout)[-1][3:], "prepare", "")
    assert (asked.runner, asked.out) == ("Dataflow", "gs://mine/corpus")
    assert {"no_use_public_ips", f"sdk_container_image=m/b{DIGEST}"} <= {*asked.beam_options}
    beam = pytest.importorskip("apache_beam.options.pipeline_options")
    read = beam.PipelineOptions([f"--{option}" for option in asked.beam_options]).get_all_options(drop_default=True)
    assert len(read) == len(asked.beam_options)
    assert "unparseable" not in caplog.text
