"""No module of the packages imports itself by way of others, inside of functions either."""

import graphlib

import grimp
import pytest


@pytest.mark.parametrize("package", ["distlab", "distlab_predict", "distlab_course"])
def test_no_circle_of_imports(package):
    """Imports for type checkers do not count, nor a package imported with its modules."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    sorter = graphlib.TopologicalSorter(
        {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    )
    sorter.prepare()
