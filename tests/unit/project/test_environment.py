"""pyproject.toml, constraints.txt and environment.yml name the same packages, and agree on their versions."""

from importlib.metadata import version as installed_version

import pytest
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
    "torch": "pytorch-cpu",  # pytorch would bring CUDA where a GPU is found; the course runs on gloo and CPU
    "matplotlib": "matplotlib-base",
    "playwright": "playwright-python",
    "build": "python-build",
}
CONDA_ONLY = {"python", "pip"}  # an environment of pip has them already


def wanted():
    """{section: {PyPI name: requirement}} of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sections = {"base": project["dependencies"], **project["optional-dependencies"]}
    return {
        section: {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
        for section, lines in sections.items()
    }


def wanted_flat():
    return {name: requirement for section in wanted().values() for name, requirement in section.items()}


def pins():
    """{PyPI name: requirement} of constraints.txt."""
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    requirements = [Requirement(line) for line in lines if line]
    assert len({canonicalize_name(r.name) for r in requirements}) == len(requirements), "a package is pinned twice"
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def pinned_version(requirement):
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", requirement
    assert "*" not in specifier.version, requirement
    return specifier.version


def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def conda_lines():
    return [line for line in conda()["dependencies"] if isinstance(line, str)]


def conda_specs():
    """{conda name: match spec}, read as strictly as conda's own parser does."""
    return {MatchSpec(line, strict=True).name.normalized: MatchSpec(line, strict=True) for line in conda_lines()}


def test_environment_file_has_condas_frame():
    """environment.yml is a name, conda-forge alone, and one list of packages that ends with pip's own."""
    dependencies = [*conda_lines(), {"pip": ["-e ."]}]
    assert conda() == {"name": "distlab", "channels": ["conda-forge"], "dependencies": dependencies}


def test_the_three_files_name_the_same_packages():
    """A package that one file names is in the other two."""
    names = set(wanted_flat())
    assert set(pins()) == names
    assert set(conda_specs()) - CONDA_ONLY == {CONDA_NAMES.get(name, name) for name in names}
    assert len(conda_specs()) == len(conda_lines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert str(conda_specs()["python"].version) == project["requires-python"]


@pytest.mark.parametrize("name", sorted(wanted_flat()))
def test_the_pin_lies_in_the_range_that_both_files_give(name):
    """pyproject.toml and environment.yml give a package the same range, and the tested version lies in it."""
    specifier, spec = wanted_flat()[name].specifier, conda_specs()[CONDA_NAMES.get(name, name)]
    assert specifier.contains(pinned_version(pins()[name]))
    assert set(str(spec.version).split(",")) == set(str(specifier).split(","))


@pytest.mark.parametrize("name", ["ipyparallel", "ipykernel", "nbval"])
def test_packages_whose_private_parts_are_used_have_a_bound(name):
    """A next major version may change what is not public; torch has no bound, because the newest one is to work."""
    assert "<" in {specifier.operator for specifier in wanted_flat()[name].specifier}
    assert {specifier.operator for specifier in wanted_flat()["torch"].specifier} == {">="}


def test_the_pins_are_what_is_installed():
    """The tests run with the versions of constraints.txt, but for torch, of which make matrix tries several.

    make bench installs the peers that it adds.
    """
    for name, requirement in pins().items():
        if name in wanted()["bench"] or name == "torch":
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            assert installed_version(name).split("+")[0] == pinned_version(requirement), name
