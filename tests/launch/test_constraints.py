"""One file names the versions that CI tests and that launchers install."""

import configparser
import itertools
import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from tests.launch.conftest import ROOT

LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
PINS = [Requirement(line) for line in LINES]
EXTRAS = "tpu gpu gcs hub s3 https hf notebook test docs package lint".split()
INSTALLERS = (".ci/run", "launch/gke/Dockerfile", "launch/gke/jobset.sh", "launch/tpu_vm.sh", "launch/tpu_worker.sh")


def wanted() -> list[Requirement]:
    """Return what setup.cfg asks for, with the extras that launchers and CI install."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = settings["options.extras_require"]
    lines = [settings["options"]["install_requires"], *(extras[extra] for extra in EXTRAS)]
    return [Requirement(line) for line in itertools.chain(*(of.split("\n") for of in lines)) if line]


def machines() -> list[dict[str, str]]:
    """Return the environments of the Pythons and platforms that setup.cfg names."""
    found = []
    for version, (system, machine) in itertools.product(
        ("3.11", "3.12", "3.13"), (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
    ):
        own = {"python_version": version, "python_full_version": f"{version}.1", "sys_platform": system}
        name = {"linux": "Linux", "darwin": "Darwin"}[system]
        found.append({**default_environment(), **own, "platform_machine": machine, "platform_system": name})
    return found


@pytest.mark.parametrize("machine", machines(), ids=lambda m: f"{m['python_version']}-{m['platform_machine']}")
def test_every_package_has_one_version_that_suits_setup_cfg(machine: dict[str, str]) -> None:
    pins: dict[str, str] = {}
    for pin in PINS:
        assert re.fullmatch(r"==[^,*]+", str(pin.specifier)), pin
        assert not pin.extras, f"pip takes no extras in constraints: {pin}"
        if pin.marker is None or pin.marker.evaluate(machine):
            name = canonical(pin.name)
            assert name not in pins, f"two versions of {name}"
            pins[name] = str(pin.specifier)[2:]
    for requirement in wanted():
        if requirement.marker is None or requirement.marker.evaluate(machine):
            assert pins[canonical(requirement.name)] in requirement.specifier, requirement


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_ci_the_image_and_the_workers_install_these_versions() -> None:
    for file in INSTALLERS:
        assert "constraints.txt" in (ROOT / file).read_text(), file
