"""A headless Chromium, driven by its own protocol: opens pages of servers on this machine, and hears their consoles."""

import base64
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from support.browser import need_browser
from websockets.sync.client import ClientConnection, connect

_PATIENCE = 90.0
_LOUD = {"error", "assert"}
_TEXT = "document.body ? document.body.innerText : ''"


@dataclass
class Page:
    """A tab. `errors` is what its console complained of since the last `open`; `requests` the addresses it asked."""

    socket: ClientConnection
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Do something and wait for its result."""
        number = next(self._numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=_PATIENCE))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])
            self._hear(message)

    def open(self, url: str) -> None:
        """Go to a page. What was heard before is forgotten."""
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, script: str, what: str = "") -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.3)
        shown = self.run(f"({_TEXT}).slice(0, 1500)")
        raise AssertionError(f"never came: {what or script}\nconsole: {self.errors}\npage: {shown}")

    def wait_for_text(self, *texts: str) -> None:
        """Wait until all of these can be read on the page, whatever their case."""
        for text in texts:
            self.wait(f"({_TEXT}).toLowerCase().includes({json.dumps(text.lower())})", f"the text {text!r}")

    def click(self, text: str, selector: str = "button, a, [role=tab], [role=tablist] > *, [role=button]") -> None:
        """Click on what bears a text."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find(e => e.offsetParent !== null && "
            f"e.innerText.trim().toLowerCase() === {json.dumps(text.lower())})"
        )
        self.wait(f"!!{find}", f"something to click on that says {text!r}")
        self.run(f"{find}.click()")

    def fill(self, label: str, text: str) -> None:
        """Type into the field below a label, in the place of what is there."""
        find = (
            f"(() => {{ const named = [...document.querySelectorAll('label, label *')].find(e => "
            f"e.innerText?.trim().toLowerCase() === {json.dumps(label.lower())}); "
            "for (let around = named; around; around = around.parentElement) { "
            "const field = around.querySelector('input, textarea'); if (field) return field } return null })()"
        )
        self.wait(f"!!{find}", f"a field with the label {label!r}")
        self.run(f"(field => {{ field.focus(); field.select() }})({find})")
        self.call("Input.insertText", text=text)
        self.wait(f"{find}.value === {json.dumps(text)}", f"{text!r} in the field {label!r}")

    def screenshot(self, path: Path) -> None:
        """What is seen, as a PNG file."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def settle(self, seconds: float = 1.0) -> None:
        """Let the page go on, and hear what it says."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.run("1")
            time.sleep(0.1)

    def _hear(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and params["type"] in _LOUD:
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@contextmanager
def chrome(profile: Path, width: int = 1400, height: int = 1000) -> Iterator[Page]:
    """A tab of a browser that finds no host but this machine. Skips where no browser is installed."""
    command = [
        need_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost", "--no-proxy-server",
        f"--user-data-dir={profile}", "--remote-debugging-port=0", f"--window-size={width},{height}", "about:blank",
    ]  # fmt: skip
    browser = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with connect(_address(profile, browser), max_size=None, proxy=None, ping_interval=None) as socket:
            page = Page(socket)
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            page.call("Emulation.setDeviceMetricsOverride", **size)
            yield page
    finally:
        try:
            os.killpg(browser.pid, signal.SIGKILL)  # its helpers too
        except ProcessLookupError:
            pass
        browser.wait()


def _address(profile: Path, browser: "subprocess.Popen[bytes]") -> str:
    """Of the first tab, for the protocol."""
    port_file, deadline = profile / "DevToolsActivePort", time.monotonic() + _PATIENCE
    with httpx.Client(trust_env=False, timeout=30) as client:
        while time.monotonic() < deadline:
            assert browser.poll() is None, f"the browser ended with status {browser.returncode}"
            if port_file.is_file() and (lines := port_file.read_text().splitlines()):
                targets = client.get(f"http://127.0.0.1:{lines[0]}/json/list").json()
                for target in targets:
                    if target["type"] == "page":
                        return str(target["webSocketDebuggerUrl"])
            time.sleep(0.1)
    raise AssertionError("the browser did not open its port")
