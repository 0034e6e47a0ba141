"""Every gate fails on a tree that is broken on purpose, and names what is broken.

Gates are targets of the Makefile, and the tests of files that such a target runs. tests/test_ci.py has those of .ci.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from xlnet_jax.errors import InputError

ROOT = Path(__file__).parents[1]
NOT_COPIED = ".git .*_cache .venv* __pycache__ *.egg-info build dist site runs shared".split()
TOOLS = {"lint": ("ruff", "mypy"), "check": ("ruff", "mypy"), "test": (), "docs": ("mkdocs",), "package": ("build",)}
"""The modules that a gate runs, beside pytest"""
LIGHT = "Makefile setup.cfg pyproject.toml conftest.py .ci launch xlnet_jax/errors.py xlnet_jax/printing.py".split()
"""Of a tree, where mypy and pytest take seconds"""

ERRORS = "xlnet_jax/errors.py"
UNFORMATTED = "x = {  }\n"
FAILING = "def test_broken():\n    assert 1 == 2\n"
CONTRACT = f"import pytest\n\npytestmark = pytest.mark.contract\n\n\n{FAILING}"
WARNING = "import warnings\n\n\ndef test_broken():\n    warnings.warn('old', DeprecationWarning, stacklevel=1)\n"
TEARDOWN = """import pytest


@pytest.fixture
def late():
    yield
    raise OSError("late")


def test_broken(late):
    pass
"""
EMPTY = "import pytest\n\n\n@pytest.mark.parametrize('x', [])\ndef test_broken(x):\n    pass\n"
MARK = "import pytest\n\n\n@pytest.mark.contrakt\ndef test_broken():\n    pass\n"

# gate: rows (file, what is replaced or "" to append, what it becomes, what the gate says). All rows of a list are
# broken at once. A gate that stops at its first mistake has several lists; with --ignore-errors it goes on.
BROKEN = {
    "lint": [
        [(ERRORS, "", UNFORMATTED, "would be reformatted\n.*xlnet_jax/errors.py")],
        [(".ci/distributions.py", "import re\n", "import os\nimport re\n", "F401(.|\n)*.ci/distributions.py")],
        [(ERRORS, "", '\n\nnumber: int = "one"\n', "xlnet_jax/errors.py:.*Incompatible types")],
    ],
    "--ignore-errors lint": [
        [
            ("tests/test_new.py", "", UNFORMATTED, "would be reformatted\n(.|\n)*tests/test_new.py"),
            ("xlnet_jax/new.py", "", 'import json\n\njson.loads("1")\n', "TID251(.|\n)*storage/reading.py"),
            (ERRORS, "", "\n\nnumber = 1  # type: ignore\n", "xlnet_jax/errors.py:.*unused-ignore"),
            ("data_pipelines/new.py", "", "from xlnet_jax.errors import Nothing  # noqa: F401\n", "no attribute"),
            ("data_pipelines/other.py", "", "import xlnet_jax.nowhere  # noqa: F401\n", '"xlnet_jax.nowhere"'),
        ],
    ],
    "check": [
        [(ERRORS, "", UNFORMATTED, "would be reformatted\n.*xlnet_jax/errors.py")],
        [("tests/test_new.py", "", CONTRACT, "tests/test_new.py::test_broken - assert 1 == 2")],
    ],
    "test": [
        [
            ("tests/test_a.py", "", FAILING, "tests/test_a.py::test_broken - assert 1 == 2"),
            ("tests/test_b.py", "", WARNING, "test_broken - DeprecationWarning: old"),
            ("tests/test_c.py", "", TEARDOWN, "test_broken - OSError: late"),
        ],
        [
            ("tests/test_d.py", "", "import xlnet_jax.nowhere\n", "No module named 'xlnet_jax.nowhere'"),
            ("tests/test_e.py", "", EMPTY, "Empty parameter set in 'test_broken'"),
            ("tests/test_f.py", "", MARK, "'contrakt' not found"),
        ],
        [("setup.cfg", "testpaths = tests", "testpath = tests", "Unknown config option: testpath")],
    ],
    "docs": [
        [
            ("docs/model.md", "", "\n[dead](data.md#nowhere)\n", "model.md.*'data.md#nowhere'"),
            ("docs/evaluate.md", "", "\n[dead](#nowhere)\n", "evaluate.md.*'#nowhere'"),
            ("CONTRIBUTING.md", "", "\n[dead](docs/data.md#nowhere)\n", "contributing.md.*'data.md#nowhere'"),
            ("docs/nothing.md", "", "# Not in the list\n", 'not included in the "nav"(.|\n)*nothing.md'),
            ("mkdocs.yml", "      - data.md\n", "      - data.md\n      - absent.md\n", "absent.md.*not found"),
        ],
        [("docs/model.md", "", "\n![dead](nowhere.png)\n", "model.md links to nowhere.png")],
        [("launch/colab/library.ipynb", "docs/model.md", "docs/nowhere.md", "links to .*docs/nowhere.md")],
    ],
}
PACKAGE = (
    ("xlnet_jax/plots/new.css", "", "p {}\n", "lacks xlnet_jax/plots/new.css: .*package_data"),
    ("new.md", "", "# New\n", "lacks new.md: add them to MANIFEST.in"),
    ("setup.cfg", "    data_pipelines*\n", "    data_pipelines*\n    tests*\n", r"should not contain \['tests/"),
    ("README.md", "", "\n[a](docs/README.md)\n\n<img src='a.png'>\n", r"relative links.*\(docs/README.md\).*a.png"),
)
# (test, file, what is replaced or "" to append, what it becomes, what the test says)
HOUSE = "test_house.test_imports_run_down_only"
SITE = "docs.test_site"
LINKS = f"{SITE}.test_every_link_leads_to_a_file_and_its_heading"
NAMED = f"{SITE}.test_every_page_that_code_names_is_there"
NOTICED = (
    (HOUSE, "xlnet_jax/models/xlnet.py", "", "\nfrom xlnet_jax.training import loop\n", "models imports xlnet_jax.tr"),
    (HOUSE, "data_pipelines/batches.py", "", "\ndef f():\n    import xlnet_jax.models.xlnet\n", "imports xlnet_jax"),
    (HOUSE, "xlnet_jax/errors.py", "", "\nfrom xlnet_jax import settings\n", "errors imports xlnet_jax.settings"),
    (HOUSE, "xlnet_jax/errors.py", "", '\nimport_module("xlnet_jax.tasks.task")\n', "errors imports xlnet_jax.tasks"),
    (HOUSE, "xlnet_jax/errors.py", "", "\nfrom . import printing\n", "a relative import"),
    ("test_house.test_every_command_is_a_line_of_the_table_and_its_module_only_names_it",
     "xlnet_jax/new.py", "", "x = 1\n", "xlnet_jax.new"),
    ("test_house.test_no_objective_is_chosen_by_its_name", ERRORS, "", '\nx = "plm"\n', "errors.py:[0-9]+: plm"),
    ("test_house.test_contributing_draws_the_rooms_in_their_order",
     "CONTRIBUTING.md", "costs         F", "x         F", "costs"),
    (LINKS, "SECURITY.md", "", "\n[a](docs/no.md)\n", "docs/no.md"),
    (LINKS, "README.md", "measured.md#speed", "measured.md#no", "#no"),
    (LINKS, "docs/measured.md", "# Speed\n", "# Pace\n", "#speed"),
    (LINKS,
     "launch/colab/library.ipynb", "docs/model.md", "docs/no.md", "docs/no.md"),
    (NAMED, "setup.cfg", "kernels.md#gpus", "kernels.md#no", "kernels.md#no"),
    (NAMED, ERRORS, "", "# docs/no.md\n", "errors.py: docs/no.md"),
    (f"{SITE}.test_the_index_links_every_page_and_the_menu_lists_it_once", "docs/new.md", "", "# New\n", "new.md"),
    (f"{SITE}.test_the_reference_pages_are_those_of_the_code", "docs/settings.md", "", "\nmore\n", "make reference"),
    (f"{SITE}.test_the_reference_pages_are_those_of_the_code", "docs/api/text.md", "", "\nmore\n", "make reference"),
    (f"{SITE}.test_the_reference_pages_are_those_of_the_code", "docs/api/old.md", "", "# Old\n", "make reference"),
    (f"{SITE}.test_the_messages_among_the_symptoms_are_printed_somewhere",
     "docs/symptoms.md", "", "\n### `never printed by anything`\n", "never printed"),
    (f"{SITE}.test_commands_fit_the_code_blocks_of_the_site",
     "docs/data.md", "", f"\n```bash\necho {'x' * 80}\n```\n", "docs/data.md: echo x"),
    ("docs.test_commands.test_every_command_can_be_parsed",
     "docs/data.md", "", "\n```bash\npython -m xlnet_jax.train --no-such-flag\n```\n", "setting --no-such-flag"),
    ("docs.test_docs.test_the_table_of_short_names_is_that_of_the_code",
     "docs/weights.md", "xlnet/xlnet-base-cased", "xlnet/other", "xlnet/other"),
    ("launch.test_constraints.test_ci_the_image_and_the_workers_install_these_versions",
     ".ci/run", "constraints.txt", "other.txt", ".ci/run"),
    ("launch.test_constraints.test_every_package_has_one_version_that_suits_setup_cfg",
     "setup.cfg", "rich>=13", "rich>=99", "rich>=99"),
)  # fmt: skip


def copy_tree(folder, light=False):
    """Copy what a clone has; light: what `LIGHT` names, and one test."""
    # Ruff sorts what a notebook imports by the files that are there.
    not_copied = shutil.ignore_patterns(*NOT_COPIED, *(["colab"] if light else []))
    for name in LIGHT if light else ["."]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=not_copied)
        else:
            shutil.copy(ROOT / name, folder / name)
    if light:
        for name in ("xlnet_jax/__init__.py", "data_pipelines/__init__.py", "tests/test_sound.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(CONTRACT.replace("2", "1") if name.startswith("tests") else "")
    environment = folder / ".venv"
    environment.mkdir()
    for part in ("bin", "lib", "pyvenv.cfg"):
        if (there := Path(sys.prefix) / part).exists():
            (environment / part).symlink_to(there)
    # Later than any change of setup.cfg: nothing is installed.
    for extra in ("base", "test", "lint", "docs", "package"):
        (environment / f"stamp-{extra}").touch()
        os.utime(environment / f"stamp-{extra}", (time.time() + 10**6,) * 2)
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return copy_tree(tmp_path_factory.mktemp("whole") / "tree")


@pytest.fixture(scope="module")
def light_tree(tmp_path_factory):
    return copy_tree(tmp_path_factory.mktemp("light") / "tree", light=True)


@contextmanager
def broken(tree, name, old, new):
    """Change a file, or make it; undo that at the end."""
    file = tree / name
    before = file.read_text() if file.exists() else None
    assert before is None or old in before, f"{name} has no {old!r}: break something else"
    file.parent.mkdir(exist_ok=True)
    file.write_text(before.replace(old, new) if before and old else (before or "") + new)
    yield
    if before is None:
        file.unlink()
    else:
        file.write_text(before)


def run_make(tree, *words):
    """Return (exit code, output) of `make WORDS` in a tree."""
    ours = ("MAKE", "MFLAGS", "PYTHON", "PYTEST_")  # of the process that runs this test
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"MYPY_CACHE_DIR": str(tree.parent / "mypy"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["make", *words], cwd=tree, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def require_tools(gate):
    if missing := [tool for tool in TOOLS[gate] if find_spec(tool) is None]:
        pytest.skip(f"the extra of make {gate} is not installed: no {missing}")


@pytest.mark.parametrize("gate", ["check", "docs"])  # `check` runs lint, and the tests of the light tree
def test_a_sound_tree_passes(gate, request):
    require_tools(gate)
    code, said = run_make(request.getfixturevalue("tree" if gate == "docs" else "light_tree"), gate)
    assert code == 0, said


@pytest.mark.parametrize(("gate", "rows"), [(gate, rows) for gate, lists in BROKEN.items() for rows in lists])
def test_a_broken_tree_fails_and_names_all_that_is_broken(gate, rows, request):
    ends, _, target = gate.rpartition(" ")
    require_tools(target)
    tree = request.getfixturevalue("tree" if target == "docs" else "light_tree")
    with ExitStack() as stack:
        for row in rows:
            stack.enter_context(broken(tree, *row[:3]))
        code, said = run_make(tree, *gate.split())
    assert code == (0 if ends else 2), said
    for *_, message in rows:
        assert re.search(message, said), (message, said)


def test_every_shell_script_is_linted(light_tree):
    require_tools("lint")
    scripts = {
        file: file.read_text()
        for file in light_tree.rglob("*")
        if ".venv" not in file.parts and (file.suffix in (".sh", ".sbatch") or file.parent.name == ".ci")
        if file.suffix != ".py"
    }
    assert len(scripts) >= 10
    for number, (file, text) in enumerate(scripts.items()):
        file.write_text(f"{text}\necho $UNQUOTED_{number}_\n")
    code, said = run_make(light_tree, "lint")
    for file, text in scripts.items():
        file.write_text(text)
    assert code == 2
    assert [file for number, file in enumerate(scripts) if f"UNQUOTED_{number}_" not in said] == []


@pytest.mark.parametrize(("test", "file", "old", "new", "message"), NOTICED)
def test_a_test_of_the_tree_notices(test, file, old, new, message, tree, tmp_path, monkeypatch):
    module_name, _, name = f"tests.{test}".rpartition(".")
    module = import_module(module_name)
    monkeypatch.setattr(module, "ROOT", tree, raising=False)
    monkeypatch.setattr(module, "DOCS", tree / "docs", raising=False)
    function = getattr(module, name)
    given = {"page": tree / file, "tmp_path": tmp_path, "monkeypatch": monkeypatch}
    forget_files(module)
    with broken(tree, file, old, new), pytest.raises((AssertionError, InputError), match=message):
        function(**{name: given[name] for name in inspect.signature(function).parameters})
    forget_files(module)


def forget_files(module):
    for value in vars(module).values():
        if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
            value.cache_clear()


@pytest.mark.long
def test_what_a_package_lacks_is_named(tmp_path):
    require_tools("package")
    tree = copy_tree(tmp_path / "tree")
    subprocess.run(["git", "init", "--quiet"], cwd=tree, check=True)
    for breakage in (None, *PACKAGE):
        file, old, new, message = breakage or ("README.md", "", "", "files of the packages")
        with broken(tree, file, old, new):
            subprocess.run(["git", "add", "--all"], cwd=tree, check=True)
            code, said = run_make(tree, "package")
        assert code == (2 if breakage else 0), said
        assert re.search(message, said), said
