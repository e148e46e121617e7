"""What a plan assumes about the devices: rates, memory, links."""

from dataclasses import dataclass

from conveyor.plan.network import Link, Network

CPU_LOOPBACK = Link(1.2e9, 1.5e-4)
"""Between worker processes of one machine: about what gloo moves per core, and the time of a small message."""

THREAD_GAIN = 0.55
"""What a second thread adds to a convolution in one process, against a second process with its own micro-batch: 1."""


TENSOR_SHARE = 0.8
"""Of a machine's memory: the rest is for the system, the programs themselves and what is not tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of device: operations per second sustained in convolutions, bytes per second to its memory, and its links.

    `cores` limits how many workers of a CPU really run at the same time (0: every device is a device of its own).
    """

    flops: float
    bandwidth: float
    network: Network
    memory: float | None = None
    """Bytes of one device; of a CPU, which its workers share, of all of them."""
    overhead: float = 1e-5
    cores: int = 0
    thread_gain: float = THREAD_GAIN

    def slowdown(self, workers: int) -> float:
        """Time of a pass in one of `workers` workers, against that measured with one thread on a free core.

        Spare cores become threads of the workers, each worth `thread_gain` of a core (0 when the times were measured
        with these threads); too many workers share the cores.
        """
        if not self.cores:
            return 1.0
        threads = max(1, self.cores // workers)
        return max(1.0, workers / self.cores) / (1 + self.thread_gain * (threads - 1))

    def memory_of_worker(self, workers: int) -> float | None:
        """What one of `workers` workers may take for tensors; those of a CPU share it."""
        if self.memory is None or not self.cores:
            return self.memory
        return TENSOR_SHARE * self.memory / workers

    @property
    def overlaps(self) -> bool:
        """Whether gradients are sent while the device computes; on a CPU the exchange occupies the computing core."""
        return self.cores == 0


def this_cpu(cores: int, flops: float, memory: float | None = None) -> Hardware:
    """A CPU whose workers have one thread each; a convolution reaches about two thirds of the matrix-product rate."""
    return Hardware(
        flops=0.65 * flops,
        bandwidth=6e9,
        network=Network(CPU_LOOPBACK, CPU_LOOPBACK, devices_per_host=max(1, cores)),
        memory=memory,
        overhead=1.5e-5,
        cores=cores,
    )


def accelerator(flops: float, memory: float) -> Hardware:
    """Accelerators of this machine: a convolution reaches about half of the matrix-product rate."""
    link = Link(2e10, 1e-5)
    return Hardware(
        flops=0.5 * flops,
        bandwidth=4e11,
        network=Network(link, link, devices_per_host=8),
        memory=memory,
        overhead=8e-6,
    )
