"""The package's public names, and what importing it costs."""

import pytest

import distlab
from tests.processes import python


def test_all_is_what_is_importable():
    """Every name in __all__ is there, and dir() shows nothing else but the version."""
    assert len(distlab.__all__) <= 30
    for name in distlab.__all__:
        assert getattr(distlab, name) is not None
    assert dir(distlab) == sorted([*distlab.__all__, "__version__"])


def test_an_unknown_name_lists_the_known_ones():
    """A misspelled name is an AttributeError that lists what there is."""
    with pytest.raises(
        AttributeError, match=r"module 'distlab' has no attribute 'Clutser'\. It has .*Cluster"
    ):
        distlab.Clutser  # noqa: B018


@pytest.mark.parametrize(
    ("light", "heavy"),
    [
        ("import distlab", {"torch", "ipyparallel", "matplotlib", "IPython"}),
        ("from distlab.measure import format_bytes", {"torch", "matplotlib"}),
        ("from distlab import compare", {"torch", "matplotlib"}),
        ("from distlab.plotting import rank_color; rank_color(0)", {"matplotlib"}),
    ],
)
def test_import_is_light(light, heavy):
    """A notebook that only makes a cluster, prints times or wants a colour begins at once."""
    code = f"import sys; {light}; print({heavy} & {{*sys.modules}})"
    assert python("-c", code).stdout == "set()\n"


def test_px_is_known_once_distlab_is_imported():
    """%%px after the import says how to make a cluster; the import alone stays light."""
    code = (
        "import sys\nfrom IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\nshell.run_cell('import distlab').raise_error()\n"
        "print('ipyparallel' in sys.modules)\n"
        "for cell in ('%%px\\n1', '%px 1'):\n    print(repr(shell.run_cell(cell).error_in_exec))\n"
    )
    told = (
        "ClusterError('No cluster is running here. Make one first: cluster = distlab.Cluster(4).')"
    )
    lines = python("-c", code).stdout.splitlines()
    assert [line for line in lines if line.startswith(("ClusterError(", "False"))] == [
        "False",
        told,
        told,
    ]


@pytest.mark.parametrize(
    "call",
    [lambda: distlab.run(print), lambda: distlab.trace()],
    ids=["run", "trace"],
)
def test_what_acts_on_the_current_cluster_says_how_to_make_one(call):
    """Without a cluster; tests/cluster has them with ranks."""
    with pytest.raises(
        distlab.ClusterError, match=r"^No cluster is running here\. Make one first: cluster = "
    ):
        call()


def test_the_error_tree():
    """Each error is also the built-in error that a program would expect."""
    kinds = {
        "ArgumentError": ValueError,
        "ArgumentTypeError": TypeError,
        "ClusterError": RuntimeError,
    }
    for name, kind in {**kinds, "RankTimeout": TimeoutError, "DataError": OSError}.items():
        assert issubclass(getattr(distlab.errors, name), kind)
