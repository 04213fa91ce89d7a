"""The pages in a real Chromium."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.local.client import LocalJobs
from danlu.kube.kubeconfig import load_cluster_config
from tests.fakes.kubernetes.pod_script import PodScript
from tests.jobs.kubernetes.support import job, kubeconfig, open_site_in_threads
from tests.jobs.local.support import spec, submission
from tests.notebook.browser.chromium import BrowserPage, ChromiumBrowser
from tests.notebook.browser.conftest import album, browser, shared_browser
from tests.ui.browser_site import UiProgram, ui_program

__all__ = ["album", "browser", "shared_browser"]

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.needs("chromium"),
    pytest.mark.timeout(300),
]

LIVE = "['live', 'finished'].includes(document.querySelector('#connection').dataset.state)"
PANE = "document.querySelector('[data-log]').logPane"
#: Prints lines until the file ``end`` exists.
_TICKER = (
    'i=0; while [ ! -e end ]; do echo "tick $i"; i=$((i+1)); sleep 0.01; done; echo "last line"'
)


@pytest.fixture
def ui(home: Path, browser: ChromiumBrowser) -> Iterator[UiProgram]:
    """The program, in which no page complains or asks another server."""
    browser.complaints.clear()
    browser.requested.clear()
    with ui_program(home) as program:
        yield program
        assert browser.complaints == []
        assert {url.split("/")[2] for url in browser.requested} == {f"127.0.0.1:{program.port}"}


def submit(jobs: LocalJobs, work: Path, script: str, name: str = "job", replicas: int = 2) -> None:
    anyio.run(jobs.submit, submission(work, spec(script, replicas), name=name))


def read_rows(page: BrowserPage) -> str:
    return str(page.evaluate("document.querySelector('.rows').innerText"))


def test_job_is_seen_followed_and_stopped(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path, album: Path
) -> None:
    page = ui.open(browser)
    page.wait("document.querySelector('#table').innerText.includes('No jobs yet')")
    submit(jobs, work, _TICKER)
    page.wait("document.querySelector('tr[data-key=job] .state').textContent === 'Running'")
    page.photograph(album / "ui-jobs.png")
    page.click("document.querySelector('tr[data-key=job] a')")
    page.wait("document.querySelector('.rows').innerText.includes('worker-1 │ tick')")
    page.photograph(album / "ui-job.png")
    page.click("document.querySelector('[data-action$=stop]')")
    page.click("document.querySelector('dialog button[value=yes]')")
    page.wait("document.querySelector('#message').textContent.startsWith('stopped job')")
    page.wait("document.querySelector('[data-action$=remove]')")
    assert anyio.run(jobs.view, "job").finished


def test_filters_and_the_place_in_a_log_survive_a_reload(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    for name in ("one", "two"):
        submit(jobs, work, "seq 1 5000", name)
        anyio.run(jobs.result, name)
    page = ui.open(browser)
    page.evaluate("document.querySelector('input[name=q]').focus()")
    page.type_text("tw")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    assert page.evaluate("location.search") == "?q=tw"
    page.ask("Page.reload")
    page.wait(f"document.querySelectorAll('tbody tr').length === 1 && {LIVE}")

    page = ui.open(browser, "/jobs/one")
    page.wait("document.querySelector('[data-count]').textContent === '10,000 lines'")
    page.wait("document.querySelector('.rows').innerText.includes('│ 5000')")
    page.evaluate(f"{PANE}.pane.scrollTop = 40_000")
    page.wait("/^#L22\\d\\d$/.test(location.hash)")
    before = page.evaluate("location.hash")
    page.ask("Page.reload")
    page.wait(f"{PANE}.firstVisible === {int(before[2:])} && {PANE}.rows.innerText.includes('│')")
    assert not page.evaluate(f"{PANE}.follow.checked")


def test_restart_of_the_server_loses_and_repeats_no_line(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    submit(jobs, work, _TICKER)
    page = ui.open(browser, "/jobs/job")
    for ticks in (20, 60):
        page.wait(f"{PANE}.end > {ticks}")
        ui.kill()
        page.wait("document.querySelector('#connection').dataset.state === 'reconnecting'")
        before = page.evaluate(f"{PANE}.end")
        ui.start()
        page.wait(f"{LIVE} && {PANE}.end > {before}")
    (work / "end").touch()
    anyio.run(jobs.result, "job")
    page.wait(f"{PANE}.isOver")
    count = page.evaluate(f"{PANE}.end")
    shown = page.evaluate(f"[...Array({count}).keys()].map(index => {PANE}.lines.get(index))")
    written = anyio.run(partial(read_log, jobs))
    assert count == sum(map(len, written.values()))
    for replica, lines in written.items():
        texts = [text for source, _, _, text, _ in shown if source == replica]
        assert "\n".join(texts).encode() == b"\n".join(lines)
    browser.complaints.clear()  # that the server did not answer


def test_hidden_page_holds_no_connection_and_catches_up(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    submit(jobs, work, _TICKER)
    page = ui.open(browser, "/jobs/job")
    page.wait(f"{PANE}.end > 20")
    hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}),"
    hide += " document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide.format("true"))
    page.wait(f"{PANE}.stream.source.readyState === EventSource.CLOSED")
    (work / "end").touch()
    anyio.run(jobs.result, "job")
    page.evaluate(hide.format("false"))
    page.wait(f"{PANE}.isOver")
    assert read_rows(page).count("last line") == 2


async def read_log(jobs: LocalJobs) -> dict[str, list[bytes]]:
    lines: dict[str, list[bytes]] = {}
    async for line in jobs.logs("job"):
        lines.setdefault(str(line.replica), []).append(line.data)
    return lines


def test_marked_jobs_are_compared(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path, album: Path
) -> None:
    for name in ("one", "two"):
        submit(jobs, work, f"echo {name}", name)
        anyio.run(jobs.result, name)
    page = ui.open(browser)
    for name in ("one", "two"):
        page.click(f"document.querySelector('[data-compare={name}]')")
    page.click("document.querySelector('[data-comparison]')")
    page.wait("document.querySelector('h1').textContent === 'Compare'")
    assert page.evaluate("location.search") == "?jobs=one,two"
    page.wait("document.querySelector('#parameters').innerText.includes('echo one')")
    page.photograph(album / "ui-compare.png")


def press_until(page: BrowserPage, key: str, code: int, condition: str) -> None:
    """Press a key until a condition about the focused element is true."""
    for _ in range(60):
        if page.evaluate(f"(focused => Boolean({condition}))(document.activeElement)"):
            return
        press_key(page, key, code)
    raise AssertionError(f"the focus never came to {condition}")


def press_key(page: BrowserPage, key: str, code: int) -> None:
    text: dict[str, Any] = {"text": "\r"} if key == "Enter" else {}
    for kind, more in (("keyDown", text), ("keyUp", dict[str, Any]())):
        page.ask(
            "Input.dispatchKeyEvent",
            type=kind,
            key=key,
            code=key,
            windowsVirtualKeyCode=code,
            **more,
        )


def test_keyboard_alone_finds_and_stops_a_job(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    submit(jobs, work, "sleep 600")
    page = ui.open(browser)
    page.wait("document.querySelector('tr[data-key=job]')")
    press_key(page, "/", 191)
    page.wait("document.activeElement.name === 'q'")
    press_until(page, "Tab", 9, "focused.innerText === 'job'")
    press_key(page, "Enter", 13)
    page.wait(f"location.pathname === '/jobs/job' && {LIVE}")
    press_until(page, "Tab", 9, "focused.dataset.action?.endsWith('stop')")
    press_key(page, "Enter", 13)
    page.wait("document.querySelector('dialog')")
    press_until(page, "Tab", 9, "focused.value === 'yes'")
    press_key(page, "Enter", 13)
    page.wait("document.querySelector('[data-action$=remove]')")


def test_pages_fit_a_narrow_screen(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    long = "a-name-without-spaces-that-is-longer-than-a-narrow-screen"
    for name in (long, "other"):
        submit(jobs, work, "echo working; exit 1", name)
        anyio.run(jobs.result, name)
    paths = [f"/jobs/{long}", "/", f"/compare?jobs={long},other"]
    for path in paths:
        page = ui.open(browser, path, width=360)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path


def test_long_log_needs_little_memory_and_scrolls_anywhere(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    submit(
        jobs, work, "seq -f '%.0f of a line that is about as long as others' 1 50000", replicas=1
    )
    anyio.run(jobs.result, "job")
    page = ui.open(browser, "/jobs/job")
    page.wait("document.querySelector('.rows').innerText.includes('│ 50000 of')")
    for line in (25_000, 1, 49_000):
        page.evaluate(f"{PANE}.jumpTo({line - 1})")
        page.wait(f"document.querySelector('.line.hit').innerText.includes('│ {line} of')")
    page.evaluate(f"{PANE}.search.value = '31337 of', {PANE}.findNext()")
    page.wait("document.querySelector('.line.hit mark').innerText === '31337 of'")
    assert page.evaluate("document.querySelectorAll('.line').length") < 200
    page.ask("HeapProfiler.collectGarbage")
    assert page.ask("Runtime.getHeapUsage")["usedSize"] < 200 << 20


def test_markup_in_names_and_logs_stays_text(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path
) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    submit(jobs, work, f"echo '{hostile}'; exit 1", replicas=1)
    anyio.run(jobs.result, "job")
    page = ui.open(browser, "/jobs/job?replica=%3Cimg%20src%3Dx%3E")
    page.wait(f"document.querySelector('.rows').innerText.includes('{hostile}')")
    assert page.evaluate("document.images.length") == 0


def test_jobs_of_a_cluster_are_followed_and_stopped(
    home: Path,
    browser: ChromiumBrowser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser.complaints.clear()
    with open_site_in_threads(tmp_path) as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        site.behave(lambda pod: PodScript(log="begin\n<b>end</b>\n"))
        cluster = KubernetesJobs(load_cluster_config())
        with ui_program(home, "--on", "kubernetes") as program:
            page = program.open(browser)
            anyio.run(cluster.submit, job(workers=2))
            page.wait("document.querySelector('tr[data-key=job] .state').textContent === 'Running'")
            page.click("document.querySelector('tr[data-key=job] a')")
            page.wait("document.querySelector('.rows').innerText.includes('worker-1 │ <b>end</b>')")
            page.click("document.querySelector('[data-action$=stop]')")
            page.click("document.querySelector('dialog button[value=yes]')")
            page.wait("document.querySelector('#message').textContent === 'stopped job'")
    assert browser.complaints == []


@pytest.mark.needs("npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_accessibility_fault(
    ui: UiProgram, browser: ChromiumBrowser, jobs: LocalJobs, work: Path, axe: str, scheme: str
) -> None:
    submit(jobs, work, "echo working; sleep 600", "running")
    submit(jobs, work, "echo failing; exit 1", "failing")
    anyio.run(jobs.result, "failing")
    for path in ("/", "/jobs/running", "/jobs/failing", "/compare?jobs=running,failing"):
        page = ui.open(browser, path)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.ask("Emulation.setEmulatedMedia", features=features)
        page.wait(
            "!location.pathname.startsWith('/jobs') || document.querySelector('.line .source')"
        )
        page.evaluate(axe)
        faults = page.evaluate(
            "axe.run().then(found => found.violations.filter(fault =>"
            " ['serious', 'critical'].includes(fault.impact)).map(fault =>"
            " [fault.id, fault.nodes.map(node => node.html)]))"
        )
        assert faults == [], path


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core."""
    place = tmp_path_factory.mktemp("axe")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
    subprocess.run([*install, str(place), "axe-core@4.14.1"], check=True, capture_output=True)
    return (place / "node_modules" / "axe-core" / "axe.min.js").read_text()
