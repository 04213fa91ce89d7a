"""Run a command in another replica of the same job, as ``kubectl exec`` does on a cluster.

``agent.py SOCKET REPLICA COMMAND…``: the command is one for ``/bin/sh``; its standard streams are
ours, and so is its exit code. This file is copied to where a job's programs find it and run by the
Python that is there, so it needs nothing but the standard library.
"""

import json
import os
import socket
import sys

_PATIENCE = 30.0


def main(path: str, target: str, words: list) -> int:  # type: ignore[type-arg]  # any Python 3
    """Run ``words`` in the replica ``target``; gives the exit code."""
    order = {"do": "exec", "target": target, "args": ["/bin/sh", "-c", " ".join(words)]}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        # An address holds 107 bytes, a directory's name may be longer.
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        connection.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
        os.close(directory)
        line = json.dumps(order).encode() + b"\n"
        rights = b"".join(one.to_bytes(4, sys.byteorder) for one in (0, 1, 2))
        sent = connection.sendmsg([line], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        if line[sent:]:
            connection.sendall(line[sent:])
        connection.settimeout(None)
        with connection.makefile("rb") as answers:
            answer = json.loads(answers.readline() or b'{"error": "the supervisor has gone"}')
    if answer.get("error"):
        sys.stderr.write(f"{target}: {answer['error']}\n")
        return int(answer.get("code") or 1)
    return int(answer.get("code", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
