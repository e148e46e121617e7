"""Addresses and interfaces of this machine: which ones the workers of several machines use, and who is reachable."""

import contextlib
import ipaddress
import socket
import time
from collections.abc import MutableMapping, Sequence

from conveyor.errors import UserError
from conveyor.launch.rank import Place

MPI_CHOICE = "OMPI_MCA_btl_tcp_if_include"
"""What `mpirun --mca btl_tcp_if_include X` leaves for its workers."""
RESOLVE_SECONDS = 10.0


def addresses() -> dict[str, list[str]]:
    """The IP addresses of this machine by interface."""
    import psutil

    return {
        name: [address for one in found if (address := one.address.partition("%")[0]) and is_address(address)]
        for name, found in psutil.net_if_addrs().items()
    }


def chosen_interface(text: str) -> str:
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


def use_interface(environment: MutableMapping[str, str], interface: str) -> None:
    """Let gloo and NCCL use it."""
    environment["GLOO_SOCKET_IFNAME"] = environment["NCCL_SOCKET_IFNAME"] = interface


def follow_mpi(environment: MutableMapping[str, str]) -> None:
    """Let the workers of a real mpirun use the interface given to mpirun, unless one was named already."""
    text = environment.get(MPI_CHOICE, "")
    if text and "GLOO_SOCKET_IFNAME" not in environment:
        use_interface(environment, chosen_interface(text))


def is_address(text: str) -> bool:
    """Whether the text is an IP address, not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def reachable(host: str) -> None:
    """Refuse a first host without an address, after a moment for name servers that learn of new machines late."""
    until = time.monotonic() + RESOLVE_SECONDS
    while True:
        try:
            _resolved(host)
            return
        except UserError:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)


def own_address(host: str, others: Sequence[str] = ()) -> str:
    """The address of this machine to listen at: that of `host`, the name that others know it by.

    Many systems give their own name the address 127.0.1.1, which no other machine can reach: then the address of the
    route to `others` is taken, or of the default route.
    """
    found = _resolved(host)
    if not _loopback(found) or is_address(host) or host == "localhost":
        return found
    outside = [one for one in map(_resolved, others) if not _loopback(one)]
    if others and not outside:
        # The others are on this machine as well.
        return found
    for target in outside or ["192.0.2.1"]:
        if routed := _route_to(target):
            return routed
    return found


def address_of(interface: str) -> str:
    """The IPv4 address of the interface that the text means (see `chosen_interface`)."""
    found = next((address for address in addresses()[chosen_interface(interface)] if ":" not in address), None)
    if found is None:
        raise UserError(f"--interface {interface} has no IPv4 address: choose another")
    return found


def interface_to(place: Place) -> str | None:
    """The interface through which this machine and the first host of the job reach each other."""
    reachable(place.address)
    if place.rank == 0:
        return interface_with(own_address(place.address, place.hosts[1:]))
    routed = _route_to(place.address)
    return interface_with(routed) if routed else None


def interface_with(address: str) -> str | None:
    """The interface that has `address`."""
    for name, found in addresses().items():
        if address in found or (_loopback(address) and any(map(_loopback, found))):
            return name
    return None


def _route_to(target: str) -> str | None:
    """This machine's address on the way to `target`; nothing is sent, the system only looks up the route."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return str(probe.getsockname()[0])
    return None


def _resolved(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UserError(
            f"the host {host} has no address here ({error.strerror or error}): name one that every machine resolves, by "
            "MASTER_ADDR or in the host list."
        ) from error


def _loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
