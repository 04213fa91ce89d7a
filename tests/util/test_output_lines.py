from __future__ import annotations

import pytest

from danlu.util.output_lines import OutputLines


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\r", b"\nb"], ["a", "b"]),
        ([b"10%\r20%\r"], ["10%", "20%"]),
        (["é".encode()[:1], "é\n".encode()[1:]], ["é"]),
        ([b"\xff\nx"], ["\ufffd", "x"]),
        ([b"\n", b"", b"end"], ["", "end"]),
    ],
)
def test_lines_do_not_depend_on_how_output_arrives(chunks: list[bytes], lines: list[str]) -> None:
    for parts in (chunks, [bytes([byte]) for byte in b"".join(chunks)]):
        seen: list[str] = []
        splitter = OutputLines(seen.append)
        for part in parts:
            splitter.feed(part)
        splitter.feed(b"", final=True)
        assert seen == lines


def test_a_line_without_end_is_reported_in_parts() -> None:
    seen: list[str] = []
    splitter = OutputLines(seen.append)
    for _ in range(4):
        splitter.feed(b"x" * 60_000)
    assert [len(line) for line in seen] == [120_000, 120_000]
