"""`distlab run` with real processes: what a program finds, what is shown, and how it ends."""

import json
import signal
import time

import pytest

from tests.cluster.scripts.launched import Folder


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path)
    yield made
    made.temporary.rmdir()


def test_a_program_finds_what_torchrun_gives(folder):
    """Also what needs a `__main__` of its own: pickles, workers, and what runs at the end."""
    folder.write("""
    import asyncio, atexit, ctypes, json, multiprocessing, pickle, threading, warnings
    from concurrent.futures import ThreadPoolExecutor
    from torch.utils.data import DataLoader

    class Mine:
        pass

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return index

    def double(x):
        return 2 * x

    async def later():
        await asyncio.sleep(0)
        return "ran"

    if __name__ == "__main__":
        dist.init_process_group("gloo")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            doubled = pool.map(double, [rank])
        found = {
            "variables": {
                name: os.environ.get(name)
                for name in (
                    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                    "ROLE_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS",
                    "IPP_PROFILE_DIR", "RES_OPTIONS", "MKL_NUM_THREADS",
                )
            },
            "argv": sys.argv,
            "path": sys.path[0],
            "file": __file__,
            "folder": os.getcwd(),
            "pickled": type(pickle.loads(pickle.dumps(Mine()))).__name__,
            "doubled": doubled,
            "loaded": [int(x) for x in DataLoader(Numbers(), num_workers=2)],
            "async": asyncio.run(later()),
            "read": sys.stdin.read(),
            "IPython": "IPython" in sys.modules,
        }
        if rank == 0:
            print(json.dumps(found), flush=True)
            atexit.register(print, "at exit")
            thread = threading.Thread(target=lambda: (time.sleep(0.3), print("thread")))
            thread.start()
            ThreadPoolExecutor(1).submit(int)  # nobody shuts it down
            ctypes.CDLL(None).puts(b"from C")
            warnings.warn("careful")
    """)
    done = folder.run("train.py", "a", "--check", typed="typed", ranks=1)
    assert (done.returncode, done.stderr.count("UserWarning: careful")) == (0, 1)
    found, *others = done.stdout.splitlines()
    assert sorted(others) == ["at exit", "from C", "thread"]
    assert others.index("thread") < others.index("at exit")
    variables = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "0", "ROLE_RANK": "0", "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "distlab", "OMP_NUM_THREADS": None, "IPP_PROFILE_DIR": None,
        "RES_OPTIONS": None, "MKL_NUM_THREADS": None,
    }  # fmt: skip
    assert json.loads(found) == {
        "variables": variables,
        "argv": ["train.py", "a", "--check"],
        "path": str(folder.path),
        "file": str(folder.path / "train.py"),
        "folder": str(folder.path),
        "pickled": "Mine",
        "doubled": [0],
        "loaded": [0, 1, 2, 3],
        "async": "ran",
        "read": "typed",
        "IPython": False,
    }


def test_what_an_optimizer_imports_is_there_before_the_ranks_are(folder):
    """Forked ranks share it; a fresh one imports it at its first step, as under torchrun."""
    # it makes a folder among the temporary files otherwise
    folder.environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder.path / "cache")
    folder.write("""
    from torch.optim import SGD
    print("torch._dynamo" in sys.modules, flush=True)
    """)
    assert folder.run().stdout == "True\nTrue\n"
    assert folder.run("--fresh", "train.py").stdout == "False\nFalse\n"


def test_a_module_runs_with_the_working_folder_first(folder):
    folder.write("from .other import word\nprint(word, sys.argv[1:], sys.path[0], __spec__.name)",
                 "pkg/train.py")  # fmt: skip
    folder.write("word = 'relative'", "pkg/other.py", header="")
    folder.write("", "pkg/__init__.py", header="")
    done = folder.run("-m", "pkg.train", "x", ranks=1)
    assert done.stdout == f"relative ['x'] {folder.path} pkg.train\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_deadlock_ends_with_the_report(folder):
    """stdout has what the script has written, stderr the report, without words of a notebook."""
    folder.write("""
    dist.init_process_group("gloo")
    print("begin", flush=True)
    if rank == 0:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(1))
    """)
    done = folder.run()
    assert (done.returncode, done.stdout) == (1, "begin\nbegin\n")
    assert done.stderr == (
        "DeadlockError: The ranks do not call the same collective: rank 0 calls barrier, rank 1 "
        "calls all_reduce.\n"
        "  rank 0  barrier()                 train.py:9   dist.barrier()\n"
        "  rank 1  all_reduce()  float32[1]  train.py:11  dist.all_reduce(torch.ones(1))\n"
    )


def test_the_rank_at_fault_comes_first_and_one_that_computes_is_ended(folder):
    """Its traceback is Python's, without distlab's frames; nobody waits for a loop to end."""
    folder.write("""
    dist.init_process_group("gloo")
    if rank == 1:
        raise ValueError("no data")
    if rank == 0:
        dist.barrier()
    time.sleep(600)
    """)
    done = folder.run(ranks=3)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{folder.path}/train.py", line 8, in <module>',
        '    raise ValueError("no data")',
        "ValueError: no data",
        "Rank 1 raised ValueError: no data at train.py:8.",
        "Rank 0 waited in barrier at train.py:10.",
    ]


def test_ranks_that_fail_alike_write_one_traceback(folder):
    folder.write("dist.init_process_group('nccl')")
    done = folder.run()
    assert done.stderr.count("Traceback") == 1
    assert "Ranks 0-1 raised RuntimeError: Distributed package doesn't have NCCL" in done.stderr
    assert "`distlab run --backend gloo` runs it on CPUs." in done.stderr


def test_backend_overrides_what_the_program_asks_for(folder):
    folder.write("dist.init_process_group('nccl'); dist.barrier(); print(dist.get_backend())")
    done = folder.run("--backend", "gloo", "train.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "gloo\ngloo\n", "")


ENDS = {
    "sys.exit(3)": (3, "Rank 1 ended with exit status 3 at train.py:7."),
    "sys.exit('no room')": (1, "no room\nRank 1 ended with exit status 1"),
    "os._exit(7)": (7, "RankDied: rank 1 ended with exit status 7."),
    "os.kill(os.getpid(), signal.SIGKILL)": (137, "RankDied: rank 1 was killed by SIGKILL"),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_exit_status_is_that_of_the_rank_that_failed(folder, end):
    folder.write(f"""
    dist.init_process_group("gloo")
    if rank == 1: {end}
    dist.barrier()
    """)
    done = folder.run()
    status, words = ENDS[end]
    assert done.returncode == status
    assert words in done.stderr


def test_sigterm_goes_to_the_ranks_which_may_save(folder):
    """The second script does not listen: it is killed after the grace time."""
    folder.write("""
    def save(*_):
        if "stays" in sys.argv:
            return
        time.sleep(0.3)
        print("saved", rank)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True: time.sleep(0.01)
    """)
    saved = ended_by(folder, signal.SIGTERM, "train.py")
    assert (saved.returncode, sorted(saved.stdout.split())) == (0, ["0", "1", "saved", "saved"])
    assert saved.stderr == "Ended by SIGTERM, after which ranks 0-1 ended by themselves.\n"
    stays = ended_by(folder, signal.SIGHUP, "--grace", "0.5", "train.py", "stays")
    assert stays.returncode == 128 + signal.SIGHUP
    assert stays.stderr == "Ended by SIGHUP.\n"
    stays = ended_by(folder, signal.SIGTERM, "--grace", "0.5", "train.py", "stays")
    assert stays.returncode == 128 + signal.SIGTERM
    assert stays.stderr == "Ended by SIGTERM; ranks 0-1 had to be killed.\n"


def ended_by(folder, number, *words):
    launcher = folder.start(*words)
    for _ in range(2):
        assert launcher.stdout.readline() == "ready\n"
    launcher.send_signal(number)
    return folder.ended(launcher)


def test_a_launcher_that_is_killed_leaves_nothing(folder):
    folder.write("print('ready', flush=True); time.sleep(600)")
    killed = ended_by(folder, signal.SIGKILL, "train.py")
    assert killed.returncode == -signal.SIGKILL


def test_a_timeout_says_where_ranks_are(folder):
    folder.write("time.sleep(600)")
    done = folder.run("--timeout", "0.5", "train.py")
    assert done.returncode == 1
    assert "RankTimeout: ranks 0-1 did not come back within 0.5 s." in done.stderr
    assert "train.py:5" in done.stderr


def test_output_that_nobody_reads_ends_the_run_quietly(folder):
    """As with `| head -2`."""
    folder.write("while True: print('x' * 1000)")
    launcher = folder.start("train.py")
    for _ in range(2):
        launcher.stdout.readline()
    launcher.stdout.close()
    words = launcher.stderr.read()
    assert launcher.wait(60) == 128 + signal.SIGPIPE
    assert words == ""
    folder.assert_nothing_left(launcher.pid)


def test_streams_go_into_files(folder):
    folder.write("print('out', rank); print('err', rank, file=sys.stderr)")
    done = folder.run("--log-dir", "logs", "--redirects", "1", "--tee", "0:2", "train.py")
    assert done.stdout == ""
    assert sorted(done.stderr.splitlines()) == ["err 0", "err 1"]
    files = {str(p.relative_to(folder.path)): p.read_text() for p in folder.path.rglob("*.log")}
    assert files == {
        "logs/0/stdout.log": "out 0\n",
        "logs/0/stderr.log": "err 0\n",
        "logs/1/stdout.log": "out 1\n",
    }


def test_many_lines_arrive_whole_and_none_is_lost(folder):
    folder.write("for i in range(30000): print(rank, i, 'x' * (i % 90))")
    began = time.monotonic()
    done = folder.run()
    lines = done.stdout.splitlines()
    for rank in "01":
        own = [line for line in lines if line.startswith(rank)]
        assert own == [f"{rank} {i} {'x' * (i % 90)}" for i in range(30000)]
    assert len(lines) == 60000
    assert time.monotonic() - began < 120
