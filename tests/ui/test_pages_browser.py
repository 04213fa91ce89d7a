"""The pages of sweeps, environments, images and the machine in a real Chromium."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.store import Store
from danlu.sweeps.options import create_point_source, execute_sweep, parse_sweep_options
from danlu.util.locks import file_lock
from tests.image.test_images import image, layer
from tests.jobs.containers.engine_rig import paths_of
from tests.jobs.local.support import spec, submission
from tests.notebook.browser.chromium import ChromiumBrowser
from tests.ui.browser_site import UiProgram
from tests.ui.test_browser import album, axe, browser, shared_browser, ui
from tests.ui.test_environments import write_environment
from tests.ui.test_sweeps import make_reporting_script

__all__ = ["album", "axe", "browser", "shared_browser", "ui"]

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.needs("chromium"),
    pytest.mark.timeout(300),
]


def put_images(home: Path) -> str:
    """Two images that share a layer; the digest of the first."""
    with Store.open(paths_of(home).store) as store:
        common = layer(store, a="1")
        first = image(store, common, layer(store, b="2"), names=("demo:1",))
        image(store, common, names=("demo:2",), user="ann")
        return first.digest


def run_sweep(jobs: LocalJobs, work: Path) -> None:
    options = parse_sweep_options(["lr=0.1,0.3"], metric="loss")
    base = submission(work, spec(make_reporting_script()), name="tune")
    points = create_point_source(options)
    anyio.run(partial(execute_sweep, options, points, base=base, jobs=jobs))


def test_checks_and_differences_are_shown_after_a_click(
    ui: UiProgram, browser: ChromiumBrowser, home: Path
) -> None:
    digest = put_images(home)
    page = ui.open(browser, f"/images/{digest}")
    page.evaluate("document.querySelector('input[name=new]').focus()")
    page.type_text("demo:2")
    page.click("document.querySelector('form button')")
    page.wait("location.pathname === '/image-diff' && document.querySelector('#common')")
    assert "1 layer in common" in page.evaluate("document.querySelector('#common').innerText")

    page = ui.open(browser, "/machine")
    page.wait("document.querySelector('#store').innerText.includes('not needed')")
    page.click("document.querySelector('[data-action$=check]')")
    page.wait("document.querySelector('#checks').innerText.includes('disk space')")


@pytest.mark.needs("npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_more_pages_have_no_serious_accessibility_fault(
    ui: UiProgram,
    browser: ChromiumBrowser,
    jobs: LocalJobs,
    home: Path,
    work: Path,
    axe: str,
    scheme: str,
) -> None:
    digest = put_images(home)
    run_sweep(jobs, work)
    environment = write_environment(home, "dev", token="secret")
    paths = ["/sweeps", "/sweeps/tune", "/environments", "/images", f"/images/{digest}"]
    with file_lock(environment.lock):
        for path in (*paths, "/image-diff?old=demo:1&new=demo:2", "/machine"):
            page = ui.open(browser, path)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.ask("Emulation.setEmulatedMedia", features=features)
            page.evaluate("document.querySelectorAll('details').forEach(more => more.open = true)")
            page.evaluate(axe)
            faults = page.evaluate(
                "axe.run().then(found => JSON.stringify(found.violations.filter(fault =>"
                " ['serious', 'critical'].includes(fault.impact)).map(fault =>"
                " [fault.id, fault.nodes.map(node => node.html)])))"
            )
            assert json.loads(faults) == [], path
            browser.close_pages()


@pytest.mark.parametrize("path", ["/sweeps/tune", "/environments", "/images", "/machine"])
def test_narrow_page_does_not_scroll_sideways(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, home: Path, work: Path, path: str
) -> None:
    put_images(home)
    write_environment(home, "dev")
    if "tune" in path:
        run_sweep(jobs, work)
    page = ui.open(browser, path, width=360)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
