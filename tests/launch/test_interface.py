import pytest

from conveyor.errors import UserError
from conveyor.launch.interface import (
    address_of,
    addresses,
    chosen_interface,
    follow_mpi,
    interface_with,
    own_address,
)
from conveyor.launch.job import LaunchPlan, local_host_index


def test_an_interface_by_name_or_network() -> None:
    assert chosen_interface("lo") == chosen_interface("127.0.0.0/8") == chosen_interface("none9, 127.0.0.0/8") == "lo"


@pytest.mark.parametrize(
    ("text", "said"), [("none9", "choose from .*lo 127.0.0.1"), ("203.0.113.0/24", "no interface"), ("a/b", "neither")]
)
def test_none_that_fits_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        chosen_interface(text)


def test_every_machine_looks_for_itself() -> None:
    plan = LaunchPlan(instances=2, hosts=("a", "b"), this_host=0, interface="127.0.0.0/8")
    assert plan.worker_environment()["GLOO_SOCKET_IFNAME"] == "lo"


def test_workers_of_a_real_mpirun_follow_its_choice() -> None:
    environment = {"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"}
    follow_mpi(environment)
    assert environment["GLOO_SOCKET_IFNAME"] == environment["NCCL_SOCKET_IFNAME"] == "lo"
    named = {"OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8", "GLOO_SOCKET_IFNAME": "eth7"}
    follow_mpi(named)
    assert named["GLOO_SOCKET_IFNAME"] == "eth7"


def test_an_address_of_this_machine_is_this_machine() -> None:
    own = next(address for found in addresses().values() for address in found)
    assert local_host_index(["203.0.113.1", own]) == 1


def test_the_address_to_listen_at() -> None:
    assert own_address("10.1.2.3") == "10.1.2.3"
    assert address_of("lo") == "127.0.0.1"
    assert own_address("127.0.0.2") == "127.0.0.2"
    assert interface_with("127.0.0.2") == "lo"
    assert interface_with("192.0.2.77") is None
    with pytest.raises(UserError, match="no interface of this machine is nothing0"):
        address_of("nothing0")
    with pytest.raises(UserError, match="has no address"):
        own_address("no.such.host.invalid")
