"""Real daemons on practice hosts, for tests of clusters on several machines: sshd, and Slurm.

Each runs in the namespace of its host, so that `PracticeHosts.close()` ends it with all that it has
started.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from distlab_course.practice import PracticeHosts, practice_hosts, processes_in
from tests.processes import wait_until_gone

PLACES = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin yes
PasswordAuthentication yes
UsePAM no
StrictModes no
PidFile none
Subsystem sftp internal-sftp
SetEnv "PYTHONPATH={path}"
"""
SSH_CONFIG = """
Host *
    User root
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
"""
# hosts that cannot be used, at the address of nodeA: one asks for a password, at one nobody listens
BAD_HOSTS = {
    "locked": "PubkeyAuthentication no",
    "closed": "Port 9",
}
SLURM_CONFIG = """
ClusterName=practice
SlurmctldHost=head({head})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
NodeName=nodeA NodeAddr={nodeA} CPUs=4
NodeName=nodeB NodeAddr={nodeB} CPUs=4
PartitionName=debug Nodes=nodeA,nodeB Default=YES
PartitionName=down Nodes=nodeA,nodeB State=DOWN
"""


@contextlib.contextmanager
def namespaces(*programs: str, **ranks: int) -> Iterator[PracticeHosts]:
    """Practice hosts in network namespaces; skipped where they, or a program, are missing."""
    missing = [program for program in programs if not shutil.which(program, path=PLACES)]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    with practice_hosts(ranks) as hosts:
        if hosts.kind != "network namespaces":
            pytest.skip(f"network namespaces cannot be made here: {hosts.why}")
        yield hosts


def start(hosts: PracticeHosts, name: str, folder: Path, *words: str, **options) -> None:
    """Start a daemon on a host, which writes into a file of the folder."""
    program, *rest = words
    command = [*hosts.command(name), shutil.which(program, path=PLACES), *rest]
    with open(folder / f"{name}.{program}.log", "a") as log:
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, **options
        )


def wait_for(folder: Path, *words: str) -> None:
    """Wait until a command succeeds; with what the daemons have written where it does not."""

    def failure() -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        return f"{' '.join(words)}: {done.stderr}" if done.returncode else ""

    if last := wait_until_gone(failure):
        pytest.fail(
            "\n".join(
                [last, *(f"{path.name}: {path.read_text()}" for path in folder.glob("*.log"))]
            )
        )


@dataclass(frozen=True)
class SshHosts:
    """Practice hosts with sshd, reached by `ssh -F config NAME`, or by ssh on PATH.

    So it is with BAD_HOSTS, each of which fails in its own way.
    """

    hosts: PracticeHosts
    folder: Path
    config: Path
    programs: Path

    def boot(self, name: str) -> None:
        """Start sshd on a host, as at first or after `kill`, and wait until it answers."""
        start(self.hosts, name, self.folder, "sshd", "-D", "-e", "-f", f"{self.folder}/sshd_config")
        wait_for(self.folder, "ssh", "-F", str(self.config), "-o", "BatchMode=yes", name, "true")

    def processes(self, name: str) -> list[psutil.Process]:
        """All that runs on a host, sshd too."""
        return processes_in(self.hosts.namespace(name))

    def kill(self, name: str) -> None:
        """Kill all that runs on a host; its connections close, unless `hosts.cut` cut them."""
        for process in self.processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        assert (
            wait_until_gone(
                lambda: [p for p in self.processes(name) if p.status() != psutil.STATUS_ZOMBIE]
            )
            == []
        )


@contextlib.contextmanager
def ssh_hosts(folder: Path) -> Iterator[SshHosts]:
    """Two hosts with sshd, nodeA and nodeB, with four ranks each."""
    with namespaces("sshd", "ssh", "ssh-keygen", nodeA=4, nodeB=4) as hosts:
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True
            )
        (folder / "sshd_config").write_text(
            SSHD_CONFIG.format(folder=folder, path=os.environ.get("PYTHONPATH", ""))
        )
        public = (folder / "host_key.pub").read_text()
        known = [hosts.address(name) for name in hosts]
        (folder / "known_hosts").write_text(f"{','.join(known)} {public}")
        sections = [f"Host {name}\n    HostName {hosts.address(name)}\n" for name in hosts]
        sections += [
            f"Host {name}\n    HostName {hosts.address('nodeA')}\n    {option}\n"
            for name, option in BAD_HOSTS.items()
        ]
        made = SshHosts(hosts, folder, folder / "ssh_config", folder / "bin")
        made.config.write_text("".join([*sections, SSH_CONFIG.format(folder=folder)]))
        made.programs.mkdir()
        script = made.programs / "ssh"
        script.write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {shlex.quote(str(made.config))} "$@"\n'
        )
        script.chmod(0o755)
        for name in hosts:
            made.boot(name)
        yield made


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[PracticeHosts]:
    """Slurm with its controller on the host head, and nodes nodeA and nodeB of 4 CPUs.

    Its programs find it by SLURM_CONF, which is `folder / "slurm.conf"`. No job of the partition
    down starts.
    """
    with namespaces("munged", "slurmctld", "slurmd", "srun", head=1, nodeA=4, nodeB=4) as hosts:
        addresses = {name: hosts.address(name) for name in hosts}
        (folder / "slurm.conf").write_text(SLURM_CONFIG.format(folder=folder, **addresses))
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        start(
            hosts,
            "head",
            folder,
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            *files,
        )
        variables = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        start(hosts, "head", folder, "slurmctld", "-D", env=variables)
        for name in ("nodeA", "nodeB"):
            (folder / name).mkdir()
            start(hosts, name, folder, "slurmd", "-D", env=variables)
        wait_for(folder, "env", f"SLURM_CONF={folder}/slurm.conf", "srun", "-N2", "hostname")
        yield hosts
