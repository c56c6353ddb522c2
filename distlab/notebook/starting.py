"""The start of one cluster's processes: here, on hosts, by mpiexec, or engines that run already.

Runs on the notebook's kernel, called by ahead.py and ranks.py. What takes longest begins first: a
fork server imports torch while the controller starts; then the engines are forked, and register.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from distlab import programs
from distlab.compat import ipyparallel as compat
from distlab.diagnosis.advice import on_limit_of_processes
from distlab.errors import ClusterError, HostError
from distlab.launch import fork_server, reaper
from distlab.notebook import hosts, interrupts, mpiexec, settings
from distlab.notebook.attaching import connect_to_attached
from distlab.notebook.direct import DirectClient
from distlab.notebook.launcher import Connected, Launcher
from distlab.notebook.plan import ControllerEndedError, Plan
from distlab.notebook.processes import Processes, surroundings
from distlab.notebook.start_methods import Mpi, Slurm
from distlab.wire.channel import ControlChannel
from distlab.wire.orders import ServerPlan
from distlab.wire.rendezvous import listen, loopback_interface, serve

LOOPBACK = "127.0.0.1"
CONTROLLER_MODULE = "distlab.launch.controller"
ENGINE = ["-m", "ipyparallel.engine"]


def start_processes(plan: Plan) -> Processes:
    """Start the processes of a plan, and connect to them.

    It tries once more if another program has taken one of the controller's ports first.

    Raises:
        ClusterError: a process has ended, or did not register in time: nothing is left running, and
            the error has the last lines of what the processes wrote.
        HostError: a host cannot be used.
    """
    try:
        return _start_once(plan)
    except ControllerEndedError:
        return _start_once(plan)


def _start_once(plan: Plan) -> Processes:
    """Start the processes of a plan; ControllerEndedError if a port was taken first."""
    began_with = surroundings()
    early = plan.early
    tag = settings.new_tag() if early is None else early.tag
    # What is added last is done first: the client is closed, the servers are asked to end, all that
    # has the tag is ended, the programs are waited for, and the folder is removed.
    with contextlib.ExitStack() as cleanup:
        folder = tempfile.mkdtemp(prefix="distlab-") if early is None else early.folder
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        when_all_ended = cleanup.enter_context(contextlib.ExitStack())
        cleanup.callback(_end_all, tag, plan.engines)
        environment = early.environment if early else _environment(plan, tag, folder)
        launcher = Launcher(plan, tag, folder, environment, when_all_ended)
        cleanup.callback(launcher.servers.close)
        try:
            if plan.attached is not None:
                connected = connect_to_attached(launcher, plan.attached.client, cleanup)
            else:
                connected = _launch(launcher, cleanup)
            channel = ControlChannel(connected.address)
            when_all_ended.callback(channel.close)
            if plan.engines == Mpi.name:
                shared = mpiexec.shared_files(reaper.processes_of(tag))
                when_all_ended.callback(mpiexec.remove, shared)
            store, store_here = _store(launcher, connected.address)
        except HostError:
            raise
        except Exception as error:
            raise _not_started(launcher, error) from error
        return Processes(
            launcher,
            client=connected.client,
            channel=channel,
            store=store,
            store_here=store_here,
            threads=connected.threads,
            host_of_rank=connected.host_of_rank,
            surroundings=began_with,
            cleanup=cleanup.pop_all(),
        )


def _environment(plan: Plan, tag: str, folder: str) -> dict[str, str]:
    """What each process of a cluster has in its environment in addition to this one's."""
    interface: str | None = loopback_interface()
    if plan.hosts is not None:
        interface = plan.hosts.start_method.interface
    variables = settings.environment(tag, interface)
    return variables | settings.variables_of_folder(folder)


def _store(launcher: Launcher, address: str) -> tuple[tuple[str, int], Any]:
    """The store in which the ranks meet: that of the first host's fork server, or one served here.

    Args:
        launcher: the cluster's.
        address: of this machine, as the ranks see it.

    Returns:
        address and port of the store, and the store itself where this process serves it.
    """
    if launcher.plan.forks:
        first_server = launcher.servers.to(0)
        return launcher.wait(lambda: first_server.store), None
    store = serve(listen(address))  # importing torch for it costs most
    return (address, store.port), store


def _end_all(tag: str, engines: str) -> None:
    """End every process that has this tag.

    Args:
        tag: the cluster's.
        engines: the name of its launcher; two need a while to give back what outlives processes
            that are killed, the others are not asked politely for long.
    """
    patience = 0.2
    if engines == Mpi.name:
        patience = mpiexec.MPI_END_SECONDS
    elif engines == Slurm.name:
        patience = hosts.SLURM_END_SECONDS
    reaper.end_processes(reaper.processes_of(tag), patience)


def _not_started(launcher: Launcher, error: Exception) -> ClusterError:
    """Why the ranks did not start, with the last lines that their processes wrote."""
    logs = launcher.last_lines()
    kind = ControllerEndedError if launcher.controller_ended else ClusterError
    words = f"The ranks did not start: {error}"
    advice = on_limit_of_processes(f"{type(error).__name__}: {error}\n{logs}")
    if advice:  # the logs repeat what was refused in other words: they are left out
        return kind(f"{words.rstrip('.')}. {advice}")
    if logs:
        return kind(f"{words}\n{logs}")
    return kind(words)


def _launch(launcher: Launcher, cleanup: contextlib.ExitStack) -> Connected:
    """Start servers, guard, controller and engines, and connect a client.

    Args:
        launcher: the cluster's.
        cleanup: what to do when the cluster ends.
    """
    plan = launcher.plan
    if plan.direct:
        return _launch_directly(launcher, cleanup)
    address = LOOPBACK
    threads = plan.threads or 1
    host_of_rank: tuple[int, ...] = ()
    if plan.forks and plan.hosts is None:
        # One server forks controller and engines. It starts before all else: importing torch takes
        # longest.
        _start_server_here(launcher)
        _start_guard(launcher)
    else:
        _start_guard(launcher)
        if plan.hosts is not None:
            address, cores = _use_hosts(launcher, plan.hosts)
            threads = plan.threads or max(1, cores)
            host_of_rank = plan.hosts.host_of_rank
        _start_controller(launcher, address)
    connections = _connections(launcher)
    launcher.engine_variables = {"IPP_CONNECTION_INFO": json.dumps(connections["engine"])}
    if plan.forks:
        launcher.fork(range(plan.n), threads, plan.fresh)
    else:
        _start_engines(launcher, address, threads)
    client = _connect_client(launcher, connections["client"], cleanup)
    return Connected(client, address, threads, host_of_rank)


def _launch_directly(launcher: Launcher, cleanup: contextlib.ExitStack) -> Connected:
    """Start a server and ranks that are no engines of ipyparallel, so that there is no controller.

    Args:
        launcher: the cluster's.
        cleanup: what to do when the cluster ends.
    """
    plan = launcher.plan
    server_plan = ServerPlan(launcher.environment, plan.preload, fresh=plan.fresh, direct=True)
    if plan.early is None:
        launcher.start_server(fork_server.server_command(), server_plan)
    else:
        launcher.connect_server(plan.early.process, plan.early.talks_over, [0], server_plan)
        launcher.end_with(plan.early.process, waits=False)
    _start_guard(launcher)
    client = DirectClient()
    cleanup.callback(client.close)
    client.start()
    launcher.when_engine_ended = client.forget
    launcher.engine_variables = client.variables
    threads = plan.threads or 1
    launcher.fork(range(plan.n), threads, plan.fresh)
    everyone = list(range(plan.n))
    with interrupts.allowed():
        launcher.wait(lambda: client.ids == everyone and launcher.servers.to(0).store is not None)
    return Connected(client, LOOPBACK, threads, ())


def _start_server_here(launcher: Launcher) -> None:
    """Start the only fork server, on this machine, which forks the controller, too."""
    controller = settings.controller_arguments(LOOPBACK, launcher.folder)
    plan = launcher.plan
    server_plan = ServerPlan(launcher.environment, plan.preload, controller, fresh=plan.fresh)
    launcher.start_server(fork_server.server_command(), server_plan)


def _start_guard(launcher: Launcher) -> None:
    """Start the program that ends what is left of the cluster when this process has ended."""
    guard = [sys.executable, reaper.__file__, str(os.getpid()), launcher.tag, launcher.folder]
    launcher.start_program(guard, {}, "guard")


def _start_controller(launcher: Launcher, address: str) -> None:
    """Start a controller that no fork server forks, which listens at this address."""
    arguments = settings.controller_arguments(address, launcher.folder)
    command = [*programs.command(CONTROLLER_MODULE), *arguments]
    launcher.controller = launcher.start_program(command, launcher.environment, "controller")


def _use_hosts(launcher: Launcher, wanted: hosts.Hosts) -> tuple[str, int]:
    """Start a fork server on each host, and have what is sent to and from the hosts encrypted.

    Returns:
        the same as `_reach_all`.
    """
    address, cores = _reach_all(launcher, wanted)
    settings.encrypt(launcher.folder)
    if not launcher.plan.forks:
        # mpiexec starts the engines. The servers have only looked at the hosts, because mpiexec
        # does not say what is wrong with one.
        for connection in launcher.servers.connections:
            connection.process.kill()
    return address, cores


def _reach_all(launcher: Launcher, wanted: hosts.Hosts) -> tuple[str, int]:
    """Start a fork server on each host.

    Returns:
        the address of this machine that the hosts reach, and the cores of a rank on the host where
        a rank has fewest.
    """
    others = [number for number in range(len(wanted.hosts)) if number not in wanted.local]
    hellos = launcher.reach(wanted, others, wanted.here)
    here = LOOPBACK
    if hellos:
        here = next(iter(hellos.values())).notebook
    hellos |= launcher.reach(wanted, wanted.local, here)
    names = []
    cores = []
    for number, host in enumerate(wanted.hosts):
        hello = hellos[number]
        names.append(host.name if wanted.job is None else hello.name)  # Slurm's have none before
        cores.append(hello.cores // host.ranks)
    launcher.host_names = tuple(names)
    return here, min(cores)


def _connections(launcher: Launcher) -> dict[str, Any]:
    """How an engine and a client reach the controller.

    The controller writes it into files once it listens.
    """
    folder = Path(launcher.folder, "security")

    def read() -> dict[str, Any] | None:
        found = {}
        with contextlib.suppress(OSError, json.JSONDecodeError):  # they are being written
            for kind in ("engine", "client"):
                found[kind] = json.loads((folder / f"ipcontroller-{kind}.json").read_text())
            return found
        return None

    with interrupts.allowed():
        return launcher.wait(read)


def _start_engines(launcher: Launcher, address: str, threads: int) -> None:
    """Start the engines that no fork server forks: by mpiexec, or a program for each.

    Args:
        launcher: the cluster's.
        address: of this machine, as the engines see it.
        threads: OpenMP threads of each engine.
    """
    plan = launcher.plan
    variables = launcher.environment | launcher.engine_variables
    variables |= settings.thread_variables(threads)
    if plan.engines == Mpi.name:
        commands = [_mpiexec_command(plan, address, variables)]
    else:
        commands = [[sys.executable, *ENGINE]] * plan.n
    for number, command in enumerate(commands):
        program = launcher.start_program(command, variables, f"engine-{number}")
        launcher.programs.append(program)


def _mpiexec_command(plan: Plan, address: str, variables: Iterable[str]) -> list[str]:
    """The command line with which mpiexec starts all engines.

    Args:
        plan: of the cluster.
        address: of this machine, as the hosts see it.
        variables: names of the environment variables that the engines need.
    """
    ranks = None
    python = sys.executable
    if plan.hosts is not None:
        ranks = {host.name: host.ranks for host in plan.hosts.hosts}
        python = plan.hosts.python
    mpiexec_here = mpiexec.find_mpiexec() or "mpiexec"  # it is there, as the plan has made sure
    options = mpiexec.arguments(ranks, address, variables)
    return [mpiexec_here, *options, "-n", str(plan.n), python, *ENGINE, "--mpi"]


def _connect_client(
    launcher: Launcher, connection: dict[str, Any], cleanup: contextlib.ExitStack
) -> Any:
    """Connect a client to the controller, and wait until all engines have registered.

    Args:
        launcher: the cluster's.
        connection: how a client reaches the controller.
        cleanup: what to do when the cluster ends.
    """
    # Imported as late as this: it would slow a server that imports torch, and by now nobody waits
    # for it.
    import ipyparallel

    client = ipyparallel.Client(connection)
    cleanup.callback(client.close)
    launcher.when_engine_ended = lambda engine: compat.forget_engine(client, engine)
    compat.drop_late_replies(client)
    # This imports numpy while the engines start; later, the ranks would wait for it.
    ipyparallel.serialize.serialize_object(None)
    everyone = list(range(launcher.plan.n))

    def all_registered() -> bool:
        if client.ids != everyone:
            return False
        return not launcher.plan.forks or launcher.servers.to(0).store is not None

    with interrupts.allowed():
        launcher.wait(all_registered, client)
    return client
