"""Record the README's terminal session as an animated SVG: ``scripts/record_demo.py OUTPUT``.

It needs the tools of the site: run it with ``.venv-docs/bin/python``. The commands are real: they
run in a pseudo-terminal with the ``danlu`` of .venv. Point DANLU_HOME at a new directory in which
another project was built, so that the base is present and the packages of this one are not, and
leave the machine idle: the picture shows seconds. Waits are shortened to a second.
"""

from __future__ import annotations

import html
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 92, 24
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18, 14

PROGRAM = """\
import os
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

x, y = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=1000).fit(x[::2] / 16, y[::2])
accuracy = model.score(x[1::2] / 16, y[1::2])
print(f"worker {os.environ.get('RANK', 0)}: accuracy {accuracy:.3f}")
"""

COMMANDS = (
    "cat train.py",
    "danlu init",
    "danlu run -- python train.py",
    """sed -i 's/"scikit-learn"/"scikit-learn", "requests"/' build.envd && danlu build""",
    "danlu run -- python train.py",
    "danlu train train.py --framework pytorch --worker 2 --name digits",
)

TITLE = "danlu init, a first build and run, one more package, and training with two workers"

#: Between two typed characters.
TYPING_SECONDS = 0.03
#: Waits longer than this are cut, and shorter pictures are merged with the next one.
MAX_WAIT_SECONDS, MIN_FRAME_SECONDS = 1.0, 0.15
END_SECONDS = 4.0

COLORS = {
    "default": "#d8dee9",
    "black": "#3b4252",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "yellow": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#e5e9f0",
    "brightblack": "#7b8394",
}


def record(directory: Path) -> list[tuple[float, str]]:
    """Run the commands one after the other; return screens as SVG text with their seconds."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    frames: list[tuple[float, str]] = []

    def add_frame(seconds: float) -> None:
        picture = draw_screen(screen)
        if frames and (frames[-1][1] == picture or frames[-1][0] < MIN_FRAME_SECONDS):
            frames[-1] = (frames[-1][0] + seconds, picture)
        else:
            frames.append((seconds, picture))

    for command in COMMANDS:
        stream.feed(b"\x1b[32m$\x1b[0m ")
        for start in range(0, len(command), 4):
            stream.feed(command[start : start + 4].encode())
            add_frame(4 * TYPING_SECONDS)
        stream.feed(b"\r\n")
        for seconds, data in run_in_terminal(command, directory):
            add_frame(min(seconds, MAX_WAIT_SECONDS))
            stream.feed(data)
        add_frame(MAX_WAIT_SECONDS)
    frames[-1] = (END_SECONDS, frames[-1][1])
    return frames


def run_in_terminal(command: str, directory: Path) -> Iterator[tuple[float, bytes]]:
    """Yield what a command writes, with the seconds waited for it."""
    parent, child = pty.openpty()
    ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=directory,
        env=environment,
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    last = time.monotonic()
    while True:
        ready, _, _ = select.select([parent], [], [], 0.1)
        try:
            data = os.read(parent, 65536) if ready else b""
        except OSError:  # EIO: nobody has the other end open
            break
        if data:
            now = time.monotonic()
            yield now - last, data
            last = now
    os.close(parent)
    if process.wait():
        raise SystemExit(f"{command}: exit code {process.returncode}")


def draw_screen(screen: pyte.Screen) -> str:
    """Draw the lines of the screen, a span for each run of one color."""
    lines = []
    for row in range(ROWS):
        spans: list[tuple[int, str, str]] = []
        for column in range(COLUMNS):
            cell: Any = screen.buffer[row][column]
            style = COLORS.get(cell.fg, f"#{cell.fg}") + (" bold" if cell.bold else "")
            if spans and spans[-1][1] == style:
                spans[-1] = (spans[-1][0], style, spans[-1][2] + cell.data)
            else:
                spans.append((column, style, cell.data))
        drawn = "".join(draw_span(*span) for span in spans if span[2].strip())
        if drawn:
            y = MARGIN + (row + 1) * LINE_HEIGHT
            lines.append(f'<text y="{y}">{drawn}</text>')
    return "".join(lines)


def draw_span(column: int, style: str, text: str) -> str:
    color, _, bold = style.partition(" ")
    weight = ' font-weight="bold"' if bold else ""
    # Browsers collapse spaces: each column of a table gets a place of its own.
    return "".join(
        f'<tspan x="{MARGIN + (column + part.start()) * CHARACTER_WIDTH:.1f}"'
        f' fill="{color}"{weight}>{html.escape(part[0])}</tspan>'
        for part in re.finditer(r"\S+(?: \S+)*", text)
    )


def animate(frames: list[tuple[float, str]]) -> str:
    """Show one picture after the other, in a loop, with CSS alone."""
    total = sum(seconds for seconds, _ in frames)
    width = round(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN)
    height = ROWS * LINE_HEIGHT + 2 * MARGIN
    styles, groups, start = [], [], 0.0
    for number, (seconds, picture) in enumerate(frames):
        begin, end = 100 * start / total, 100 * (start + seconds) / total
        start += seconds
        styles.append(
            f"@keyframes f{number}{{0%{{visibility:{'visible' if number == 0 else 'hidden'}}}"
            f"{begin:.3f}%{{visibility:visible}}{end:.3f}%{{visibility:hidden}}}}"
            f"#f{number}{{animation:f{number} {total:.2f}s step-end infinite}}"
        )
        groups.append(f'<g id="f{number}" visibility="hidden">{picture}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        ' font-family="ui-monospace,DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="14"'
        ' xml:space="preserve">'
        f"<title>{TITLE}</title>"
        f"<style>{''.join(styles)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#1f2430"/>{"".join(groups)}</svg>\n'
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "digits"
        directory.mkdir()
        (directory / "train.py").write_text(PROGRAM)
        Path(sys.argv[1]).write_text(animate(record(directory)))


if __name__ == "__main__":
    main()
