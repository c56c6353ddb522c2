"""What `distlab run` has imported once, for all ranks of a program."""

import pytest

from distlab.scripts import options
from distlab.scripts.running import COMPILER, shared_modules

TRAINS = "from torch.optim import SGD\n"


@pytest.mark.parametrize(
    ("text", "words", "wanted"),
    [
        (TRAINS, "--nproc-per-node 2", (COMPILER,)),
        (TRAINS, "--nproc-per-node 1", ()),
        (TRAINS, "--nproc-per-node 2 --fresh", ()),
        (TRAINS, "--nproc-per-node 2 --check", ()),
        ("print('no training')\n", "--nproc-per-node 2", ()),
    ],
)
def test_an_optimizers_compiler_is_imported_once_for_several_forked_ranks(
    tmp_path, text, words, wanted
):
    program = tmp_path / "train.py"
    program.write_text(text)
    assert shared_modules(options.read([*words.split(), str(program)])) == wanted


def test_a_program_that_cannot_be_read_is_left_to_the_ranks(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAINS)
    chosen = options.read(["--nproc-per-node", "2", str(program)])
    program.unlink()
    assert shared_modules(chosen) == ()
