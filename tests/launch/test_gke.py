"""GKE: manifests that the API server accepts, for the requested slice; test_dry_run.py compares one whole."""

from typing import Any

import pytest
import yaml

from tests.launch.conftest import StandIns

CREATE = "launch/gke/jobset.sh create --dry-run --image eu.gcr.io/mine/xlnet"
TRAIN = "-- --workdir gs://mine/run"


def manifest(stand_ins: StandIns, settings: str, train: str = TRAIN) -> dict[str, Any]:
    said = stand_ins.run(f"{CREATE} {settings} {train}")
    assert said.returncode == 0, said.stderr
    return yaml.safe_load(said.stdout.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0])


def pod(jobset: dict[str, Any]) -> dict[str, Any]:
    return job(jobset)["template"]["spec"]


def job(jobset: dict[str, Any]) -> dict[str, Any]:
    (slices,) = jobset["spec"]["replicatedJobs"]
    return slices["template"]["spec"]


def assert_known(ours: Any, read: Any, where: str = "") -> None:
    """Assert that the schema kept everything that we wrote: it drops unknown fields."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            assert key in read, f"the schema has no {where}.{key}"
            assert_known(value, read[key], f"{where}.{key}")
    elif isinstance(ours, list):
        for i, (value, kept) in enumerate(zip(ours, read, strict=True)):
            assert_known(value, kept, f"{where}[{i}]")
    else:
        assert ours == read, where


@pytest.mark.parametrize("spot", ["", "--spot"])
def test_the_manifest_follows_the_schema_of_jobset_and_kubernetes(stand_ins: StandIns, spot: str) -> None:
    """Load the models that Kubeflow makes from the OpenAPI of JobSet v1alpha2 and of Kubernetes."""
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet  # takes a second

    ours = manifest(
        stand_ins, f"--accelerator tpu-v6e-slice --topology 16x16 --slices 2 {spot}", f"{TRAIN} --mesh.dcn-data 2"
    )
    read = JobsetV1alpha2JobSet.from_dict(ours)
    assert read is not None
    assert_known(ours, read.to_dict())
    assert ("cloud.google.com/gke-spot" in pod(ours)["nodeSelector"]) == bool(spot)
    pod(ours)["terminationGraceSeconds"] = 3
    with pytest.raises(AssertionError, match=r"the schema has no .*terminationGraceSeconds"):
        assert_known(ours, read.to_dict())


@pytest.mark.parametrize(
    ("accelerator", "topology", "hosts", "chips"),
    [
        ("tpu-v4-podslice", "8x8x8", 128, 4),
        ("tpu-v5-lite-podslice", "1x1", 1, 1),
        ("tpu-v5-lite-podslice", "2x4 --chips-per-host 8", 1, 8),
        ("tpu-v5p-slice", "2x2x2", 2, 4),
        ("tpu7x", "4x4x4", 16, 4),
    ],
)
def test_a_slice_has_a_pod_on_every_host_with_all_its_chips(
    stand_ins: StandIns, accelerator: str, topology: str, hosts: int, chips: int
) -> None:
    """Hosts are those of the tables in cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus."""
    slices = f"--accelerator {accelerator} --topology {topology} --slices 3"
    ours = manifest(stand_ins, slices, f"{TRAIN} --mesh.dcn-data 3")
    assert ours["spec"]["replicatedJobs"][0]["replicas"] == 3
    assert (job(ours)["parallelism"], job(ours)["completions"]) == (hosts, hosts)
    assert pod(ours)["containers"][0]["resources"]["limits"] == {"google.com/tpu": chips}


def test_settings_reach_the_container_as_they_were_given(stand_ins: StandIns) -> None:
    train = r"""-- --workdir gs://m/run --corpus 'a "b" \c $HOME `d` ${name}' --log.wandb "it's: #1" ''"""
    ours = manifest(stand_ins, "--accelerator tpu-v6e-slice --topology 4x4", train)
    expected = ["--workdir", "gs://m/run", "--corpus", r'a "b" \c $HOME `d` ${name}', "--log.wandb", "it's: #1", ""]
    assert pod(ours)["containers"][0]["args"] == expected
