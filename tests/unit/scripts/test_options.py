"""The command line of `distlab run`: torchrun's names, its own, and what is wrong, in one line."""

import signal

import pytest

from distlab import machine
from distlab.scripts import options, values
from distlab.scripts.streams import Streams, by_rank


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A folder with a script, a module and packages, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "doctor").write_text("")
    for package in ("pkg", "pkg/sub", "bare"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "pkg" / "__main__.py").write_text("")
    (tmp_path / "pkg" / "sub" / "work.py").write_text("")
    return tmp_path


READMES = [
    "--nnodes=1 --nproc_per_node=2 --rdzv_id=101 --rdzv_endpoint=localhost:5972 train.py",
    "--nproc-per-node 2 --master_addr 10.0.0.1 --master-port=29501 --node_rank 0 train.py",
    "--standalone --nproc-per-node=2 --rdzv-backend c10d --rdzv-conf timeout=9 train.py",
    "--nproc_per_node 2 --monitor_interval 5 --start_method spawn --local-addr ::1 train.py",
    "--nproc-per-node 2 --nnodes 1:1 --run-path --event-log-handler null train.py",
]


@pytest.mark.parametrize("line", READMES)
def test_commands_of_others_readmes_work_word_for_word(script, line):
    chosen = options.read(line.split())
    assert (chosen.ranks, chosen.program, chosen.ignored) == (2, "train.py", ())


def test_what_follows_the_script_is_the_scripts(script):
    chosen = options.read(["--timeout", "9", "train.py", "--timeout", "3", "-m", "--", "--help"])
    assert chosen.arguments == ("--timeout", "3", "-m", "--", "--help")
    assert (chosen.timeout, chosen.is_module, chosen.ranks) == (9.0, False, 1)


def test_names_of_the_run_reach_the_program(script):
    chosen = options.read(["--rdzv-id", "mine", "--role", "worker", "train.py"])
    assert (chosen.run_id, chosen.role) == ("mine", "worker")
    chosen = options.read(["train.py"])
    assert (chosen.run_id, chosen.role, chosen.backend) == ("distlab", "default", "")


def test_numbers_of_ranks_by_name(script, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 7)
    monkeypatch.setattr(values, "_gpus", lambda: 0)
    for name in ("cpu", "auto"):
        assert options.read(["--nproc-per-node", name, "train.py"]).ranks == 7
    monkeypatch.setattr(values, "_gpus", lambda: 3)
    for name in ("gpu", "auto"):
        assert options.read(["--nproc-per-node", name, "train.py"]).ranks == 3


def test_how_long_ranks_have_to_end(script):
    assert options.read(["train.py"]).grace is None
    for name in ("--grace", "--shutdown-timeout", "--shutdown_timeout"):
        assert options.read([name, "5", "train.py"]).grace == 5
    chosen = options.read(["--signals-to-handle", "SIGTERM,sigusr1", "train.py"])
    assert chosen.signals == (signal.SIGTERM, signal.SIGUSR1)


def test_streams_as_torchrun_names_them(script):
    given = "--log-dir logs -r 0:1,1:2 --tee 3 --local-ranks-filter 0,2 --no-prefix train.py"
    assert options.read(given.split()).streams == Streams(
        prefix=False,
        folder="logs",
        redirected={0: 1, 1: 2},
        copied={-1: 3},
        shown=frozenset({0, 2}),
    )
    assert (script / "logs").is_dir()


def test_where_streams_go():
    streams = Streams(folder="x", redirected=by_rank("0:1,1:2"), copied=by_rank("2:3"))
    shown = {(rank, stream) for rank in range(3) for stream in (1, 2)}
    shown = {one for one in shown if streams.is_shown(*one)}
    assert shown == {(0, 2), (1, 1), (2, 1), (2, 2)}
    assert streams.file_of(0, 1) == "0/stdout.log"
    assert streams.file_of(0, 2) == ""
    assert streams.file_of(2, 2) == "2/stderr.log"


def test_restarts_are_said_to_be_ignored(script):
    assert options.read(["--max-restarts=0", "train.py"]).ignored == ()
    (words,) = options.read(["--max_restarts", "3", "train.py"]).ignored
    assert words == "--max-restarts 3: ranks are not restarted"


MISTAKES = {
    "no.py": "there is no file 'no.py' in FOLDER",
    "pkg": "'pkg' is a folder: name the script in it, or a package with -m",
    "pkg.sub.work": "there is no file 'pkg.sub.work' in FOLDER; for the module write "
    "`-m pkg.sub.work`",
    "-m nothing": "there is no module 'nothing' in FOLDER or where Python looks for modules",
    "-m pkg.nothing": "there is no module 'pkg.nothing' in FOLDER or where Python looks for "
    "modules",
    "-m bare": "'bare' is a package without a __main__.py: name a module in it",
    "-m train.py": "-m takes a module's name, but 'train.py' is a file, so leave out -m",
    "--nproc-per-node 0 train.py": "argument --nproc-per-node: must be a number "
    "of ranks from 1, or auto, cpu or gpu, got '0'",
    "--nproc-per-node two train.py": "argument --nproc-per-node: must be a "
    "number of ranks from 1, or auto, cpu or gpu, got 'two'",
    "--nnodes 2 train.py": "argument --nnodes: must be 1, got '2': on several machines use "
    "torchrun, or in Python distlab.Cluster(hosts={'nodeA': 4, 'nodeB': 4})",
    "--node-rank 1 train.py": "argument --node-rank: must be 0, got '1': there is one machine",
    "--timeout -1 train.py": "argument --timeout: must be a number of seconds above 0, got '-1'",
    "--trace no/out.json train.py": "argument --trace: there is no folder 'FOLDER/no'",
    "--redirects 4 train.py": "argument -r/--redirects: must be 0, 1, 2 or 3, or such numbers by "
    "rank as in 0:3,1:2, got '4'",
    "--no-python train.py": "--no-python is not for distlab run: the ranks run Python; start "
    "another program with torchrun --no-python",
    "--virtual_local_rank train.py": "--virtual-local-rank is not for distlab run: use torchrun, "
    "or set CUDA_VISIBLE_DEVICES in the script",
    "--numa-binding node train.py": "--numa-binding is not for distlab run: use numactl or "
    "taskset before distlab run, or torchrun",
    "--signals-to-handle SIGX train.py": "argument --signals-to-handle: must "
    "be names of signals such as SIGTERM,SIGUSR1, got 'SIGX'",
    "--check": "which program? Write `distlab run --nproc-per-node 4 train.py`",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_what_is_wrong_is_said_in_one_line_with_status_2(script, capsys, line):
    with pytest.raises(SystemExit, match=r"^2$"):
        options.read(line.split())
    said = capsys.readouterr().err
    usage, _, words = said.partition("distlab run: error: ")
    assert words == MISTAKES[line].replace("FOLDER", str(script)) + "\n"
    assert usage.startswith("usage: distlab run [options] train.py")


def test_a_module_is_found_without_importing_its_package(script):
    for name in ("pkg", "pkg.sub.work"):
        chosen = options.read(["-m", name, "x"])
        assert (chosen.program, chosen.is_module, chosen.arguments) == (name, True, ("x",))


def test_a_script_may_have_a_commands_name(script):
    assert options.read(["doctor"]).program == "doctor"


def test_help_shows_what_a_person_needs(capsys):
    """The options that do something, in groups, and examples; torchrun's others in one line."""
    with pytest.raises(SystemExit, match=r"^0$"):
        options.read(["--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 88
    assert len(said.splitlines()) < 80
    # Python 3.13 writes the metavar once for all spellings of an option
    for word in ("--check", "--grace", "SECONDS", "examples:", "exit status:", "--master-port"):
        assert word in said
    assert "--local-addr LOCAL" not in said
    assert "==SUPPRESS==" not in said


def test_without_arguments_there_is_help_and_status_2(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        options.read([])
    said = capsys.readouterr()
    assert "examples:" in said.err
    assert said.out == ""
