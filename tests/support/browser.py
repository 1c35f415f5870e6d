"""A headless Chromium that loads one page from a file, without any network."""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Loaded:
    """The document after its scripts have run, and what the console said."""

    html: str
    console: list[str]


def need_browser() -> str:
    """Its path; skips the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed (Debian: apt install chromium)")
    return found


def load(url: str, profile: Path, *more: str) -> Loaded:
    """Load a page, wait until its scripts have run, and give the document."""
    command = [
        need_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}",
        "--enable-logging=stderr", "--window-size=1300,2000", "--virtual-time-budget=20000", *more, "--dump-dom", url,
    ]  # fmt: skip
    browser = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        html, log = browser.communicate(timeout=300)
    finally:
        try:
            os.killpg(browser.pid, signal.SIGKILL)  # its helpers too
        except ProcessLookupError:
            pass
        browser.wait()
    assert browser.returncode == 0, f"the browser failed: {log[-2000:]}"
    return Loaded(html, [line for line in log.splitlines() if "CONSOLE" in line])
