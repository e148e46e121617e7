"""A SLURM cluster of two nodes on this machine: Debian's own daemons, on loopback, in a folder of the test."""

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "unshare")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=1
ReturnToService=2
SlurmdTimeout=15
KillWait=20
CompleteWait=0
GresTypes=gpu
NodeName=n1 NodeAddr=127.0.0.2 Port={ports[1]} CPUs=2 RealMemory=500 Gres=gpu:2
NodeName=n2 NodeAddr=127.0.0.3 Port={ports[2]} CPUs=2 RealMemory=500 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Cluster:
    """The daemons and the commands of one cluster; everything lives in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        (folder / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n127.0.0.2 n1\n127.0.0.3 n2\n")
        # GPUs as far as SLURM is concerned: devices (here those of /dev/null) that it deals out by number.
        for number in range(2):
            os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={folder}/gpu[0-1]\n")
        (folder / "slurm.conf").write_text(
            CONFIG.format(folder=folder, host=socket.gethostname(), ports=_free_ports(3))
        )

    def start(self) -> None:
        options = [
            "key-file=munge.key",
            "socket=munge.socket",
            "pid-file=munge.pid",
            "log-file=munge.log",
            "seed-file=seed",
        ]
        paths = [f"--{name}={self.folder / file}" for name, _, file in (one.partition("=") for one in options)]
        self._begin("munged", ["munged", "--foreground", "--force", *paths])
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._begin("slurmctld", ["slurmctld", "-D"])
        self._until(lambda: self.answers("scontrol", "ping"), "slurmctld")
        for node in ("n1", "n2"):
            self.start_node(node)
        self._until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "two idle nodes")

    def start_node(self, name: str) -> None:
        self._begin(name, ["slurmd", "-D", "-N", name])

    def kill_node(self, name: str) -> None:
        """The machine loses its power: its daemon and all that runs there are gone at once."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def stop(self) -> None:
        if self.answers("scancel", "--user=root"):
            with contextlib.suppress(AssertionError):
                self._until(lambda: not self.run("squeue", "-h").strip(), "the end of all jobs")
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command: str) -> str:
        """The output of a command of SLURM."""
        done = subprocess.run(
            self.here(command), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def answers(self, *command: str) -> bool:
        """Whether a command of SLURM succeeds."""
        done = subprocess.run(self.here(command), env=self.environment, capture_output=True, text=True, timeout=60)
        return done.returncode == 0

    def here(self, command: "tuple[str, ...] | list[str]") -> list[str]:
        """`command` where the names of the nodes have addresses."""
        bound = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", bound, "sh", *command]

    def submit(self, script: str, *options: str) -> str:
        """The number of the job."""
        path = self.folder / f"job-{time.monotonic_ns()}.sh"
        path.write_text(script)
        return self.run("sbatch", "--parsable", *options, str(path)).strip()

    def state(self, job: str) -> str:
        """RUNNING, PENDING, COMPLETED, ..."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        words = self.run("scontrol", "-o", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def wait(self, job: str, *states: str, seconds: float = 400) -> None:
        self._until(lambda: self.state(job) in states, f"job {job}: {' or '.join(states)}", seconds)

    def _until(self, done: Callable[[], bool], what: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not done():
            for name, daemon in self._daemons.items():
                assert daemon.poll() is None, f"{name} has ended: {self.said(name)}"
            assert time.monotonic() < until, (
                f"waited in vain for {what}: {self.run('squeue', '-l')}{self.run('sinfo', '-R')}"
            )
            time.sleep(0.2)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()[-3000:]

    def _begin(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.out", "ab") as said:
            self._daemons[name] = subprocess.Popen(
                self.here(command),
                env=self.environment,
                cwd=self.folder,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )


def available() -> str:
    """Why no cluster can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "starting the daemons of SLURM needs root"
    if not all(map(shutil.which, PROGRAMS)) and shutil.which("apt-get") is not None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        wanted = ["slurmctld", "slurmd", "slurm-client", "munge"]
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted]
        subprocess.run(["apt-get", "update", "-qq"], check=False, timeout=300, **quiet)
        subprocess.run(
            command, check=False, timeout=600, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, **quiet
        )
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return (
            f"SLURM is not installed and could not be: no {', '.join(missing)} (apt-get install slurmctld slurmd munge)"
        )
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "mounting is not permitted here, so the nodes' names would have no addresses"
    return ""


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
