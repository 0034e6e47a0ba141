"""GKE: manifests that the API server accepts, for the requested slice; test_dry_run.py compares one whole."""

import shlex
from typing import Any

import pytest
import yaml

from tests.launch.conftest import DIGEST, ROOT, StandIns
from xlnet_jax.errors import USER_ERROR

CREATE = f"launch/gke/jobset.sh create --dry-run --image eu.gcr.io/mine/xlnet{DIGEST}"
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
    "value", ["true", "null", "1e3", "0x1f", "a: b", "a # b", "'a'", "[a", "&a", "*a", "!a", "{a", "a\\b", '"', "$HOME"]
)
def test_a_value_is_a_text_and_adds_nothing_to_the_manifest(stand_ins: StandIns, value: str) -> None:
    slices = "--accelerator tpu7x --topology 2x2"
    plain = manifest(stand_ins, slices)
    assert pod(plain)["serviceAccountName"] == "default"
    pod(plain)["serviceAccountName"] = value
    assert manifest(stand_ins, f"{slices} --service-account {shlex.quote(value)}") == plain


@pytest.mark.parametrize("name", ["true", "null", "y", "on"])
def test_the_name_of_a_run_and_its_image_are_texts(stand_ins: StandIns, name: str) -> None:
    ours = manifest(stand_ins, f"--accelerator tpu7x --topology 2x2 --name {name} --image 'a: &b #{DIGEST}'")
    assert ours["metadata"]["name"] == name
    assert pod(ours)["containers"][0]["image"] == f"a: &b #{DIGEST}"


def test_all_slices_restart_as_often_as_asked_for_but_not_after_a_mistake(stand_ins: StandIns) -> None:
    ours = manifest(stand_ins, "--accelerator tpu7x --topology 2x2 --max-restarts 7 --grace 60")
    policy = {"maxRestarts": 7, "rules": [{
        "name": "mistake", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"],
    }]}  # fmt: skip
    assert ours["spec"]["failurePolicy"] == policy
    assert job(ours)["backoffLimit"] == 0
    (rule,) = job(ours)["podFailurePolicy"]["rules"]
    mistake = {"containerName": "train", "operator": "In", "values": [USER_ERROR]}
    assert (rule["action"], rule["onExitCodes"]) == ("FailJob", mistake)
    assert pod(ours)["terminationGracePeriodSeconds"] == 60


def test_training_gives_up_root_after_it_is_allowed_to_lock_memory(stand_ins: StandIns) -> None:
    command = pod(manifest(stand_ins, "--accelerator tpu7x --topology 2x2"))["containers"][0]["command"]
    assert command == ["/entrypoint.sh", "python", "-m", "xlnet_jax.train", "--tpu"]
    (stand_ins.folder / "bin" / "id").unlink()  # a link to that of this machine
    line = "launch/gke/entrypoint.sh git --tpu 'a b'"
    for user, drop in (("0", ["setpriv", "--reuid=xlnet", "--regid=xlnet", "--init-groups"]), ("1000", [])):
        (stand_ins.folder / "calls").unlink(missing_ok=True)
        stand_ins.answer("id", f"echo {user}")
        assert stand_ins.run(line).returncode == 0
        assert stand_ins.calls() == [["id", "-u"], [*drop, "git", "--tpu", "a b"]]


def test_the_image_is_built_from_a_digest_and_hashes_without_the_environments(stand_ins: StandIns) -> None:
    lines = [line for line in (ROOT / "launch/gke/Dockerfile").read_text().splitlines() if line[:1] != "#"]
    assert [line for line in lines if line.startswith(("ARG BASE", "FROM"))] == ["ARG BASE", "FROM ${BASE}"]
    installs = [line for line in lines if "pip install" in line]
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs)
    assert len(installs) == 3
    assert lines[-1] == 'ENTRYPOINT ["/entrypoint.sh"]'
    ignored = (ROOT / ".dockerignore").read_text().split()
    for pattern in (ROOT / ".gitignore").read_text().split():
        plain = pattern.strip("/")
        at_any_depth = plain.startswith(("__", "*.", ".pytest", ".mypy", ".ruff"))
        assert (f"**/{plain}" if at_any_depth else plain) in ignored
    assert ".git" in ignored


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
