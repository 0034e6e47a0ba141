"""Preparation on Dataflow: data_pipelines.prepare accepts the command line."""

import pytest

import xlnet_jax
from data_pipelines.prepare.commands import PrepareSettings
from tests.launch.conftest import StandIns, printed
from xlnet_jax.settings import parser

VERSION = xlnet_jax.__version__
LINE = (
    "launch/dataflow.sh --dry-run --project mine --region europe-west4 --temp gs://mine/tmp {} -- "
    "--source 'gs://mine/*.txt' tfds:c4/en --beam-options no_use_public_ips --tokenizer gs://mine/t --out gs://mine/corpus"
)
OPTIONS = ["project=mine", "region=europe-west4", "job_name=xlnet-prepare", "temp_location=gs://mine/tmp"]


@pytest.mark.parametrize(
    ("settings", "package"),
    [
        ("", f"extra_package=dist/xlnet_jax-{VERSION}-py3-none-any.whl"),
        ("--image eu.gcr.io/mine/beam", "sdk_container_image=eu.gcr.io/mine/beam"),
    ],
)
def test_prepare_is_told_the_runner_the_workers_and_the_package(
    stand_ins: StandIns, settings: str, package: str
) -> None:
    prepare = printed(stand_ins.run(LINE.format(settings)).stdout)[-1]
    assert prepare[:3] == ["python3", "-m", "data_pipelines.prepare"]
    asked = parser.parse(PrepareSettings, prepare[3:], "prepare", "")
    assert asked.runner == "Dataflow"
    machines = ["machine_type=n2-standard-8", "max_num_workers=100"]
    assert list(asked.beam_options) == [*OPTIONS, *machines, package, "no_use_public_ips"]
    assert (asked.source, asked.out) == (("gs://mine/*.txt", "tfds:c4/en"), "gs://mine/corpus")


@pytest.mark.parametrize("settings", ["", "--image eu.gcr.io/mine/beam"])
def test_beam_knows_every_option(stand_ins: StandIns, settings: str, caplog: pytest.LogCaptureFixture) -> None:
    beam = pytest.importorskip("apache_beam.options.pipeline_options")
    prepare = printed(stand_ins.run(LINE.format(settings)).stdout)[-1]
    options = parser.parse(PrepareSettings, prepare[3:], "prepare", "").beam_options
    read = beam.PipelineOptions([f"--{option}" for option in options]).get_all_options(drop_default=True)
    assert len(read) == len(options)
    assert "unparseable" not in caplog.text
