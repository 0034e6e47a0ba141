"""GKE: manifests that the API server accepts, for the requested slice; test_dry_run.py compares one whole."""

import shlex
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


def keep_known(read: Any, ours: Any) -> Any:
    """Return what the schema kept of what we wrote: it drops unknown fields."""
    if isinstance(ours, dict):
        return {key: keep_known(read[key], value) for key, value in ours.items() if key in read}
    if isinstance(ours, list):
        return [keep_known(kept, value) for kept, value in zip(read, ours, strict=True)]
    return read


def test_the_manifest_follows_the_schema_and_settings_reach_the_container(stand_ins: StandIns) -> None:
    """Load the models that Kubeflow makes from the OpenAPI of JobSet v1alpha2 and of Kubernetes."""
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet  # takes a second

    train = (
        r"""-- --workdir gs://m/run --corpus 'a "b" \c $HOME `d` ${name}' --log.wandb "it's: #1" '' --mesh.dcn-data 2"""
    )
    ours = manifest(stand_ins, "--accelerator tpu-v6e-slice --topology 16x16 --slices 2 --spot", train)
    read = JobsetV1alpha2JobSet.from_dict(ours)
    assert read is not None
    assert keep_known(read.to_dict(), ours) == ours
    assert "cloud.google.com/gke-spot" in pod(ours)["nodeSelector"]
    assert pod(ours)["containers"][0]["args"] == shlex.split(train)[1:]


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
