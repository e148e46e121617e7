"""Which network interface the workers of several machines use, by its name or by a network it belongs to."""

import ipaddress
from collections.abc import MutableMapping

from conveyor.errors import UserError

MPI_CHOICE = "OMPI_MCA_btl_tcp_if_include"
"""What `mpirun --mca btl_tcp_if_include X` leaves for its workers."""


def addresses() -> dict[str, list[str]]:
    """The IP addresses of this machine by interface."""
    import psutil

    return {
        name: [address for one in found if (address := one.address.partition("%")[0]) and is_address(address)]
        for name, found in psutil.net_if_addrs().items()
    }


def interface_of(text: str) -> str:
    """The interface that `text` means on this machine: names and networks (10.1.3.0/24) with commas between them.

    Every machine resolves it for itself: interfaces of one network may have different names.
    """
    here = addresses()
    for part in (part.strip() for part in text.split(",")):
        if part in here:
            return part
        if "/" not in part:
            continue
        try:
            network = ipaddress.ip_network(part, strict=False)
        except ValueError:
            raise UserError(f"{part} is neither an interface nor a network such as 10.1.3.0/24") from None
        for name, found in here.items():
            if any(ipaddress.ip_address(address) in network for address in found):
                return name
    known = ", ".join(f"{name} {' '.join(found)}".strip() for name, found in here.items())
    raise UserError(f"no interface of this machine is {text}: choose from {known}")


def follow_mpi(environment: MutableMapping[str, str]) -> None:
    """Let the workers of a real mpirun use the interface given to mpirun, unless one was named already."""
    text = environment.get(MPI_CHOICE, "")
    if text and "GLOO_SOCKET_IFNAME" not in environment:
        environment["GLOO_SOCKET_IFNAME"] = environment["NCCL_SOCKET_IFNAME"] = interface_of(text)


def is_address(text: str) -> bool:
    """Whether the text is an IP address, not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
