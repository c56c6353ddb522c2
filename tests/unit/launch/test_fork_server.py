"""What the fork server imports, and in which order."""

from tests.processes import python

CODE = """
import ctypes, sys
from distlab.compat.ipyparallel import defer_cluster_module
from distlab.compat.ipython import debugger_hidden
from distlab.launch import fork_server, preloading

def libraries():
    files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
    return {name for name, file in files.items() if file.endswith(".so")}

preloading.import_all((*preloading.COMPILED_FOR_ENGINE, *preloading.COMPILED))
before = libraries()
with debugger_hidden():
    with defer_cluster_module():
        from distlab.launch import engine
    preloading.import_all(preloading.PRELOADED)
engine.prepare()
# wcwidth's: IPython 8 alone imports it, and it takes longer than it waits
late = libraries() - before - {"wcwidth._wcwidth_c"}
print(sorted(late), "torch" in sys.modules)
"""


def test_nothing_that_is_imported_beside_torchs_library_waits_for_it(tmp_path):
    """The system loads one library at a time; those of other modules are there before."""
    assert python("-c", CODE, variables={"IPP_PROFILE_DIR": str(tmp_path)}).stdout == "[] False\n"


OF_LAUNCHER = """
import ctypes, sys
from distlab.launch import early_server, preloading

def libraries():
    files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
    return {name for name, file in files.items() if file.endswith(".so")}

preloading.import_all(preloading.COMPILED)
before = libraries()
*beside, last = preloading.PRELOADED_WITHOUT_ENGINE
preloading.import_all(beside)
# from Python 3.13 on, its own modules import readline
late = libraries() - before - {"readline"}
print(sorted(late), "torch" in sys.modules, last, "ipyparallel" in sys.modules)
"""


def test_a_launchers_server_imports_beside_torchs_library_too():
    """Its ranks are no engines; what waits for the library comes last."""
    assert python("-c", OF_LAUNCHER).stdout == "[] False numpy False\n"
