"""The pure part of a job's network: addresses, proxies."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from danlu.engine.loopback_forwarder import proxy_ports
from danlu.errors import MachineError
from danlu.jobs.local.job_network import replica_address


def test_replica_addresses_are_unique_and_not_reserved() -> None:
    network = ip_network("10.213.0.0/16")
    results = {replica_address(number) for number in range(62_500)}
    assert len(results) == 62_500
    assert all(ip_address(address) in network for address in results)
    assert not results & {"10.213.0.2", "10.213.0.3", "10.213.255.255"}


def test_too_many_replicas_are_rejected() -> None:
    with pytest.raises(MachineError, match="62500"):
        replica_address(62_500)


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
def test_ports_of_local_proxies_are_forwarded(
    environment: dict[str, str], ports: tuple[int, ...]
) -> None:
    assert proxy_ports(environment) == ports
