"""The page of the running server in a real browser."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.notebook.browser.chromium import chromium
from tests.serving.servers import ServerDirectory

pytestmark = [pytest.mark.real, pytest.mark.needs("chromium"), pytest.mark.timeout(600)]

#: Says which of the figures is most like the image.
MODEL = """
from typing import Annotated
import numpy as np

SHAPES = np.array(SHAPES_HERE, np.float32)


class Model:
    def load(self, directory):
        pass

    def predict(self, images: Annotated[np.ndarray, "float32", (None, 1, 8, 8)]) -> dict:
        flat = images.reshape(len(images), 64)
        scores = flat @ (SHAPES / np.linalg.norm(SHAPES, axis=1, keepdims=True)).T
        return {"digits": scores.argmax(axis=1), "scores": scores.astype(float).round(2)}
"""
#: 0 and 1, each of 8 × 8 pixels.
ZERO = (0, 60, 66, 66, 66, 66, 60, 0)
ONE = (0, 8, 24, 8, 8, 8, 28, 0)
#: Draws the figure 1 in white on black, and chooses that picture.
CHOOSE = """(async () => {
    const canvas = new OffscreenCanvas(80, 80);
    const context = canvas.getContext("2d");
    context.fillRect(0, 0, 80, 80);
    context.fillStyle = "white";
    context.fillRect(40, 10, 10, 60);
    context.fillRect(30, 60, 30, 10);
    const files = new DataTransfer();
    files.items.add(new File([await canvas.convertToBlob()], "one.png", {type: "image/png"}));
    const input = document.getElementById("image");
    input.files = files.files;
    input.dispatchEvent(new Event("change"));
})()"""


def read_rows(rows: tuple[int, ...]) -> list[list[int]]:
    return [[(row >> (7 - bit)) & 1 for bit in range(8)] for row in rows]


def test_the_page_predicts_and_takes_a_picture(directory: ServerDirectory, tmp_path: Path) -> None:
    shapes = [np.array(read_rows(rows)).reshape(64).tolist() for rows in (ZERO, ONE)]
    directory.write(MODEL.replace("SHAPES_HERE", repr(shapes)), [[read_rows(ZERO)]])
    album = Path(os.environ.get("DANLU_SCREENSHOTS") or tmp_path)
    with directory.start(name="digits") as server, chromium(tmp_path) as browser:
        page = browser.open(f"http://127.0.0.1:{server.port}/", width=900, height=760)
        page.wait("document.getElementById('input').value.length > 10")
        assert page.evaluate("document.title") == "digits, version 1"
        output = "document.getElementById('output')"
        page.click("document.getElementById('predict')")
        page.wait(f"{output}.textContent.includes('digits')")
        assert json.loads(page.evaluate(f"{output}.textContent"))["digits"] == [0]

        page.evaluate(CHOOSE)
        page.wait("JSON.parse(document.getElementById('input').value).images[0][0][1][3] === 0")
        page.click("document.getElementById('predict')")
        page.wait(f"{output}.textContent.includes('[1]')")
        assert "/invocations" in page.evaluate("document.getElementById('curl').textContent")
        page.photograph(album / "serve.png")

        page.evaluate("document.getElementById('input').value = '[[1]]'")
        page.click("document.getElementById('predict')")
        page.wait(f"{output}.className === 'error'")
        assert "images" in page.evaluate(f"{output}.textContent")
        assert browser.complaints == []
