"""One file names the versions that CI tests and that launchers install."""

import configparser
import itertools
import re

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.launch.conftest import ROOT

EXTRAS = "tpu gpu gcs hub s3 https hf notebook test docs package lint".split()
INSTALLERS = (".ci/run", "launch/gke/Dockerfile", "launch/gke/jobset.sh", "launch/tpu_vm.sh", "launch/tpu_worker.sh")
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"}
MAC = {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin"}


def requirements(text: str, machine: dict[str, str]) -> list[Requirement]:
    found = [Requirement(line) for line in text.splitlines() if line and line[0] != "#"]
    return [requirement for requirement in found if not requirement.marker or requirement.marker.evaluate(machine)]


def test_every_package_has_one_version_that_suits_setup_cfg() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = settings["options.extras_require"]
    wanted = "\n".join([settings["options"]["install_requires"], *(extras[extra] for extra in EXTRAS)])
    for version, machine in itertools.product(("3.11", "3.12", "3.13"), (LINUX, MAC)):
        environment = {
            **default_environment(),
            "python_version": version,
            "python_full_version": f"{version}.1",
        } | machine
        found = requirements((ROOT / "constraints.txt").read_text(), environment)
        assert all(re.fullmatch(r"==[^,*]+", str(pin.specifier)) for pin in found)
        assert not any(pin.extras for pin in found), "pip takes no extras in constraints"
        pins = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in found}
        assert len(pins) == len(found), "two versions of a package"
        for requirement in requirements(wanted, environment):
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_ci_the_image_and_the_workers_install_these_versions() -> None:
    for file in INSTALLERS:
        assert "constraints.txt" in (ROOT / file).read_text(), file
