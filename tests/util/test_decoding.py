"""Structs are read for the first time by several threads at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading, types
import msgspec
from danlu.util.decoding import convert_value, decode_json

TEXT = '''
from __future__ import annotations
import msgspec
''' + "".join(
    f"class C{n}(msgspec.Struct):\\n"
    f"  below: C{n + 1} | None = None\\n"
    f"  names: tuple[str, ...] = ()\\n"
    for n in range(8)
) + "C8 = int"
VALUE = {"below": {"below": {"names": ["x"]}}}
sys.setswitchinterval(1e-6)
for number in range(20):
    module = types.ModuleType(f"structs_{number}")
    sys.modules[module.__name__] = module
    exec(TEXT, module.__dict__)
    ready, found = threading.Barrier(4), []

    def decode(convert):
        ready.wait()
        if convert:
            found.append(convert_value(VALUE, module.C0))
        else:
            found.append(decode_json(msgspec.json.encode(VALUE), module.C0))

    threads = [threading.Thread(target=decode, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(item.below.below.names == ("x",) for item in found)
"""


def test_threads_may_use_a_struct_for_the_first_time_together() -> None:
    """With ``msgspec.json.decode`` or ``msgspec.convert``, the program dies of a bad access."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", PROGRAM], check=True)
