"""pyproject.toml, constraints.txt and environment.yml name the same packages and versions."""

from importlib.metadata import version as installed_version

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rattler import MatchSpec

from tests.tool import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings tomli
    import tomli as tomllib

# PyPI's name -> conda-forge's, where they differ.
CONDA_NAMES = {
    # pytorch would bring CUDA where a GPU is found; the course runs on gloo and CPU
    "torch": "pytorch-cpu",
    "matplotlib": "matplotlib-base",
    "playwright": "playwright-python",
    "build": "python-build",
}
CONDA_ONLY = {"python", "pip"}  # an environment of pip has them already


def named(lines):
    """{PyPI name: requirement} of some lines."""
    requirements = [Requirement(line) for line in lines if line]
    found = {canonicalize_name(requirement.name): requirement for requirement in requirements}
    assert len(found) == len(requirements), "a package is named twice"
    return found


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
SECTIONS = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
WANTED = {name: requirement for lines in SECTIONS for name, requirement in named(lines).items()}
PINS = named(
    line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()
)
# pinned though another brings it: constraints.txt says why
BROUGHT = {"jsonschema", "alembic", "mako", "rapidfuzz"}
# beside the environment: JupyterLab would load its extensions
APART = {"nbgrader", "alembic", "mako", "rapidfuzz"}
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA_LINES = [line for line in CONDA["dependencies"] if isinstance(line, str)]
SPECS = {
    spec.name.normalized: spec for spec in (MatchSpec(line, strict=True) for line in CONDA_LINES)
}


def pinned_version(requirement):
    (specifier,) = requirement.specifier
    assert (specifier.operator, "*" in specifier.version) == ("==", False), requirement
    return specifier.version


def test_the_three_files_name_the_same_packages():
    """environment.yml takes all but distlab itself from conda-forge."""
    assert {
        "name": "distlab",
        "channels": ["conda-forge"],
        "dependencies": [*CONDA_LINES, {"pip": ["-e ."]}],
    } == CONDA
    assert set(PINS) == {*WANTED, *BROUGHT}
    assert set(SPECS) - CONDA_ONLY == {CONDA_NAMES.get(name, name) for name in {*WANTED} - APART}
    assert len(SPECS) == len(CONDA_LINES)
    assert str(SPECS["python"].version) == PROJECT["requires-python"]


def test_the_pins_lie_in_the_range_that_both_files_give():
    """The tested version lies in the range, which is the same in both."""
    for name, requirement in WANTED.items():
        assert requirement.specifier.contains(pinned_version(PINS[name])), name
        if name in APART:
            continue
        given = str(SPECS[CONDA_NAMES.get(name, name)].version)
        assert set(given.split(",")) == set(str(requirement.specifier).split(",")), name


def test_an_editable_install_puts_the_clone_on_the_path():
    """Else Python, run above a clone called distlab, takes it for the package."""
    assert PYPROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"] == ["."]


def test_packages_whose_private_parts_are_used_have_a_bound():
    """A next major version may change private parts; the newest torch is to work."""
    for name in ("ipyparallel", "ipykernel", "nbval"):
        assert "<" in {specifier.operator for specifier in WANTED[name].specifier}
    assert {specifier.operator for specifier in WANTED["torch"].specifier} == {">="}


def test_the_pins_are_what_is_installed():
    """The tests run with constraints.txt, but for torch, of which several are tried.

    make bench installs the peers that it adds.
    """
    of_bench = named(PROJECT["optional-dependencies"]["bench"])
    for name, requirement in PINS.items():
        here = requirement.marker is None or requirement.marker.evaluate()
        if here and name != "torch" and name not in {*of_bench, *APART}:
            assert installed_version(name).split("+")[0] == pinned_version(requirement), name
