"""What is pure in a job's network: addresses, proxies."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from danlu.errors import MachineError
from danlu.jobs.local.containerforward import proxy_ports
from danlu.jobs.local.network import address


def test_every_replica_has_an_address_of_its_own_and_none_is_the_networks() -> None:
    network = ip_network("10.213.0.0/16")
    found = {address(number) for number in range(62_500)}
    assert len(found) == 62_500
    assert all(ip_address(one) in network for one in found)
    assert not found & {"10.213.0.2", "10.213.0.3", "10.213.255.255"}


def test_more_replicas_than_addresses_are_refused() -> None:
    with pytest.raises(MachineError, match="62500"):
        address(62_500)


@pytest.mark.parametrize(
    ("environment", "ports"),
    [
        ({}, ()),
        ({"http_proxy": "http://127.0.0.1:7890"}, (7890,)),
        ({"HTTPS_PROXY": "localhost:3128", "https_proxy": "localhost:3128"}, (3128,)),
        (
            {"ALL_PROXY": "socks5://localhost:1080", "http_proxy": "http://127.0.0.1:80/"},
            (80, 1080),
        ),
        ({"http_proxy": "http://proxy.example:3128", "no_proxy": "localhost:1"}, ()),
        ({"http_proxy": "http://127.0.0.1:port"}, ()),
    ],
)
def test_ports_of_proxies_on_this_machine_are_passed_on(
    environment: dict[str, str], ports: tuple[int, ...]
) -> None:
    assert proxy_ports(environment) == ports
