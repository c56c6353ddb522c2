"""`probe`: what every function of torch.distributed does here, tried out instead of looked up.

Called by the notebook; notebook 06 shows the result. The cases of probe_cases.py run on a cluster of their own, each in
a `run` of its own: one that hangs is freed, one that ends a rank is healed, and the learner's ranks know nothing of it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from importlib import metadata

from IPython.utils.capture import capture_output

from distlab.client.cluster import Cluster
from distlab.errors import DeadlockError, RankDied, RankError, RankTimeout
from distlab.measure.probe_cases import CALL_SECONDS, CASES, Case, missing, try_case
from distlab.measure.probe_result import BACKENDS, DEVICES, Column, Outcome, Probe
from distlab.measure.progress import progress
from distlab.text import refuse

MOST_RANKS = 4  # more would be told the same
SECONDS = 30.0  # that a case has: long, because a busy machine can stop a process for a while
# torch before 2.15 asks for a GPU before it looks whether the backend can split a group, as gloo can
UNBOUND = "No device associated with the default pg"
WANTS_A_DEVICE = "split_group of this torch wants a GPU that init_process_group(device_id=...) has bound: not tried"
EXAMPLE = "Call distlab.probe(cluster)."


def probe(cluster: Cluster, backends: str | Sequence[str] = BACKENDS) -> Probe:
    """Try every function that communicates, and every ReduceOp with every dtype, on each backend and device.

    Each case runs on as many ranks as the cluster has, but at most 4, with small tensors, and its result is compared
    with the right one. These ranks are started for the probe: those of the cluster are not used, and keep what they
    have.

    Runs on: the notebook's kernel.

    Args:
        cluster: a running one of 2 ranks or more. backends: a name or several.

    Returns:
        The `Probe`, which shows itself: each case works, is refused with torch's message, gives a wrong result, hangs,
        ends its process, or its backend is not built or its device not there.

    Raises:
        ArgumentError: the cluster has one rank, or there is no backend to try.
        ClusterError: the cluster is not running, or the probe's ranks do not start.
    """
    if not isinstance(cluster, Cluster):
        refuse("cluster", "a Cluster", cluster, EXAMPLE, wrong_type=True)
    if cluster.n < 2:
        refuse("cluster", "of 2 ranks or more, to have somebody to talk to", cluster.n, "Make one: Cluster(2).")
    names = [backends] if isinstance(backends, str) else backends
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        refuse("backends", 'a list of names of backends, such as ["gloo"]', backends, EXAMPLE, wrong_type=True)
    columns = [Column(name, device) for name in dict.fromkeys(map(str.lower, names)) for device in DEVICES]
    cluster.check_ranks(None)  # raises after stop
    size = min(cluster.n, MOST_RANKS)
    current, Cluster.current = Cluster.current, None  # %%px stays the learner's, and the probe's ranks replace none
    outcomes: dict[Column, dict[str, Outcome]] = {column: {} for column in columns}
    try:
        with capture_output():
            own = Cluster(size, engines=cluster.engines, timeout=CALL_SECONDS)
        with own, tempfile.TemporaryDirectory() as meetings, progress(len(columns) * len(CASES)) as bar:
            absent = own.run(missing, columns)[0]
            for column, (name, case) in itertools.product(columns, CASES.items()):
                bar.set_postfix_str(name)
                meeting = f"{meetings}/{column.title} {name}"
                outcomes[column][name] = absent.get(column) or attempt(own, column, case, meeting)
                bar.update()
    finally:
        Cluster.current = current
    return Probe(metadata.version("torch"), size, outcomes)


def attempt(cluster: Cluster, column: Column, case: Case, meeting: str) -> Outcome:
    """What comes of one case; the cluster is whole again afterwards, and nothing of what it says is shown.

    Args:
        meeting: path of a new file, where ranks meet.
    """
    with capture_output():
        try:
            right = cluster.run(try_case, column, case, meeting, timeout=SECONDS)
            return Outcome("works" if all(right) else "wrong result")
        except RankError as error:
            message = first_line(error.failures[0].message) or error.failures[0].kind
            refused = Outcome("refused", message)
            return Outcome("no device", WANTS_A_DEVICE) if message.startswith(UNBOUND) else refused
        except (RankDied, DeadlockError, RankTimeout) as error:
            cluster.restart()  # under mpiexec a rank that dies takes the others with it
            if isinstance(error, RankDied):
                return Outcome("ends the process", f"the process {error.failures[0].message}")
            return Outcome("hangs", first_line(str(error)))


def first_line(message: str) -> str:
    """A message without what differs from run to run: the first line, without the place in torch's sources."""
    line = message.strip().partition("\n")[0].strip()
    if line.startswith("[") and "]" in line:
        line = line.partition("]")[2].lstrip(" :.")
    return line if len(line) <= 160 else f"{line[:157]}..."
