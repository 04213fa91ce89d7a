"""How long ``danlu serve`` lets a server of this machine answer when it is stopped."""

from __future__ import annotations

from danlu.packing.serve_options import ServeOptions, find_stop_seconds


def test_a_server_may_use_its_timeout_after_it_has_stopped_accepting_requests() -> None:
    assert find_stop_seconds(ServeOptions(timeout=0.5).command) >= 5.5
    assert find_stop_seconds(ServeOptions(timeout=90).command) >= 95
