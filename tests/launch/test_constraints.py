"""One file names the versions that CI tests and that launchers install."""

import configparser
import contextlib
import itertools
import re
from importlib.metadata import PackageNotFoundError, distribution

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.launch.conftest import ROOT

EXTRAS = "tpu gpu gcs hub s3 https hf notebook test tuners docs package lint".split()
LAUNCHED = (ROOT / "launch" / "requirements.txt").read_text().splitlines(keepends=True)
TEXT = "".join(line for line in LAUNCHED if line[0] != "#")
INSTALLERS = ("launch/gke/Dockerfile", "launch/gke/jobset.sh", "launch/tpu_vm.sh", "launch/tpu_worker.sh")
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
    assert "constraints.txt" in (ROOT / ".ci/run").read_text(), ".ci/run"
    for file in INSTALLERS:
        assert "requirements.txt" in (ROOT / file).read_text(), file
    python = {**default_environment(), "python_version": "3.12", "python_full_version": "3.12.1"} | LINUX
    tested = {canonicalize_name(pin.name): pin for pin in requirements((ROOT / "constraints.txt").read_text(), python)}
    launched = re.findall(r"^([a-z]\S*)==(\S+) \\\n((?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", TEXT, re.M)
    assert "".join(f"{name}=={version} \\\n{hashes}" for name, version, hashes in launched) == TEXT
    for name, version, _ in launched:
        assert str(tested[name].specifier) == f"=={version}", name


def test_the_hashes_cover_all_that_a_launched_run_needs() -> None:
    """Each requirement of setup.cfg, and of what it requires in turn, as far as it is installed here."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    extras = settings["options.extras_require"]
    python = {**default_environment(), "python_version": "3.12", "python_full_version": "3.12.1"} | LINUX
    there = {canonicalize_name(name) for name in re.findall(r"^([a-z]\S*)==", TEXT, re.M)}
    todo = requirements("\n".join([settings["options"]["install_requires"], extras["tpu"], extras["gcs"]]), python)
    seen = set()
    while todo:
        needed = todo.pop()
        name = canonicalize_name(needed.name)
        assert name in there, needed
        for extra in ("", *needed.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            with contextlib.suppress(PackageNotFoundError):
                for line in distribution(name).requires or ():
                    further = Requirement(line)
                    if not further.marker or further.marker.evaluate(python | {"extra": extra}):
                        todo.append(further)
    assert len(seen) > 50
