"""Draw the kernel's logos (src/danlu/notebook/logos): a dan lu, an alchemist's furnace.

The SVG and the PNGs for Jupyter are rendered from one list of shapes; PNGs by supersampling.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PLACE = Path(__file__).resolve().parent.parent / "src/danlu/notebook/logos"
SIDE = 64
SAMPLES = 4

Point = tuple[float, float]


class EllipseShape(NamedTuple):
    cx: float
    cy: float
    rx: float
    ry: float
    colour: str

    def svg(self) -> str:
        return (
            f'<ellipse cx="{self.cx:g}" cy="{self.cy:g}" rx="{self.rx:g}" ry="{self.ry:g}" '
            f'fill="{self.colour}"/>'
        )

    def holds(self, x: float, y: float) -> bool:
        return ((x - self.cx) / self.rx) ** 2 + ((y - self.cy) / self.ry) ** 2 <= 1


class PolygonShape(NamedTuple):
    points: tuple[Point, ...]
    colour: str

    def svg(self) -> str:
        points = " ".join(f"{x:g},{y:g}" for x, y in self.points)
        return f'<polygon points="{points}" fill="{self.colour}"/>'

    def holds(self, x: float, y: float) -> bool:
        inside = False
        for (ax, ay), (bx, by) in zip(self.points, self.points[1:] + self.points[:1], strict=True):
            if (ay > y) != (by > y) and x < (bx - ax) * (y - ay) / (by - ay) + ax:
                inside = not inside
        return inside


BRONZE, DARK, FIRE, LIGHT = "#8a5a2b", "#5f3b1a", "#f0642b", "#ffd166"

SHAPES: tuple[EllipseShape | PolygonShape, ...] = (
    EllipseShape(32, 7, 4, 4, DARK),
    EllipseShape(32, 21, 17, 12, BRONZE),
    PolygonShape(((5, 9), (11, 9), (14, 22), (8, 22)), DARK),
    PolygonShape(((59, 9), (53, 9), (50, 22), (56, 22)), DARK),
    PolygonShape(((13, 44), (23, 50), (16, 63), (9, 63)), DARK),
    PolygonShape(((51, 44), (41, 50), (48, 63), (55, 63)), DARK),
    EllipseShape(32, 37, 24, 19, BRONZE),
    PolygonShape(((6, 20), (58, 20), (58, 26), (6, 26)), DARK),
    PolygonShape(((32, 25), (40.2, 38), (23.8, 38)), FIRE),
    EllipseShape(32, 42, 9, 9, FIRE),
    PolygonShape(((32, 34), (36.4, 42), (27.6, 42)), LIGHT),
    EllipseShape(32, 44.5, 5, 5, LIGHT),
)


def svg() -> str:
    shapes = "".join(f"{shape.svg()}\n" for shape in SHAPES)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">\n{shapes}</svg>\n'


def colour_at(x: float, y: float) -> tuple[int, int, int] | None:
    for shape in reversed(SHAPES):
        if shape.holds(x, y):
            value = int(shape.colour[1:], 16)
            return value >> 16, value >> 8 & 255, value & 255
    return None


def pixel(x: int, y: int, step: float) -> bytes:
    """Return the mean of the samples in one pixel: red, green, blue, alpha."""
    places = [(n + 0.5) / SAMPLES for n in range(SAMPLES)]
    found = [colour_at((x + dx) * step, (y + dy) * step) for dx in places for dy in places]
    seen = [colour for colour in found if colour is not None]
    if not seen:
        return bytes(4)
    mean = [sum(part) // len(seen) for part in zip(*seen, strict=True)]
    return bytes([*mean, 255 * len(seen) // len(found)])


def chunks(side: int) -> Iterator[tuple[bytes, bytes]]:
    step = SIDE / side
    rows = (b"\0" + b"".join(pixel(x, y, step) for x in range(side)) for y in range(side))
    yield b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    yield b"IDAT", zlib.compress(b"".join(rows), 9)
    yield b"IEND", b""


def png(side: int) -> bytes:
    """Return a PNG image (ISO/IEC 15948) of ``side`` by ``side`` pixels."""
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in chunks(side):
        check = struct.pack(">I", zlib.crc32(kind + data))
        parts.append(struct.pack(">I", len(data)) + kind + data + check)
    return b"".join(parts)


def main() -> int:
    PLACE.mkdir(exist_ok=True)
    (PLACE / "logo-svg.svg").write_text(svg())
    for side in (32, 64):
        (PLACE / f"logo-{side}x{side}.png").write_bytes(png(side))
    return 0


if __name__ == "__main__":
    sys.exit(main())
