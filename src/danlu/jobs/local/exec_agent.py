"""Run a command in another replica of the same job, like ``kubectl exec`` on a cluster.

``exec_agent.py SOCKET [OPTION…] REPLICA COMMAND…``: options are those of ssh, which manifests pass
to it through MPI, and are ignored. COMMAND is passed to ``/bin/sh``, inherits our standard
streams, and its exit code becomes ours. The file is copied to where the job's programs find it and
runs with whatever Python is there, so it only uses the standard library.
"""

import json
import os
import socket
import sys

_CONNECT_TIMEOUT = 30.0
# Options of ssh(1) that are followed by a value.
_VALUE_OPTIONS = "BbcDEeFIiJLlmOoPpQRSWw"


def main(path: str, words: list) -> int:  # type: ignore[type-arg]  # any Python 3
    """Run a command in a replica, after options of ssh, and return the exit code."""
    while words[0].startswith("-"):
        value_follows = len(words[0]) == 2 and words[0][1] in _VALUE_OPTIONS
        words = words[2 if value_follows else 1 :]
    target, *words = words
    request = {"do": "exec", "target": target, "args": ["/bin/sh", "-c", " ".join(words)]}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_TIMEOUT)
        # A socket address holds 107 bytes; the directory's path may be longer.
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        connection.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        os.close(directory)
        line = json.dumps(request).encode() + b"\n"
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        sent = connection.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        if line[sent:]:
            connection.sendall(line[sent:])
        connection.settimeout(None)
        with connection.makefile("rb") as responses:
            line = responses.readline() or b'{"error": "the supervisor exited"}'
            response = json.loads(line)
    if response.get("error"):
        sys.stderr.write(f"{target}: {response['error']}\n")
        return int(response.get("code") or 1)
    return int(response.get("code", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
