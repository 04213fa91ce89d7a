"""Connect every machine to every other, as LightGBM does before it trains."""

import os
import socket
import sys
import time

RANK = int(os.environ["LIGHTGBM_RANK"])
PORT = int(os.environ["LIGHTGBM_LOCAL_LISTEN_PORT"])
MACHINES = os.environ["LIGHTGBM_MACHINES"].split(",")


def call(machine: str) -> None:
    """Send this machine's rank to another one, which may not listen yet."""
    host, port = machine.rsplit(":", 1)
    deadline = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as line:
                line.sendall(bytes([RANK]))
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> int:
    with socket.create_server(("", PORT)) as server:
        server.settimeout(30)
        for machine in MACHINES:
            call(machine)
        heard: set[int] = set()
        while len(heard) < len(MACHINES):
            line, _ = server.accept()
            with line:
                heard |= set(line.recv(1))
    print(f"machine {RANK} heard of {len(heard)}", flush=True)
    return 0 if heard == set(range(len(MACHINES))) else 1


if __name__ == "__main__":
    sys.exit(main())
