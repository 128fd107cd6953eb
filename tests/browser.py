"""Debian's Chromium, driven by tests over a pipe in its own protocol (DevTools), without a library in between.

A test process starts one browser. Each page has cookies of its own, is as wide and as dark as it is told, and writes
down what a person would see in the console: messages, policy violations, errors, and every address that it asked for.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 30.0
"""Seconds after which what a test waits for has failed."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-features=Translate,OptimizationHints,MediaRouter,AutofillServerCommunication,BackForwardCache",
    "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)
KEYS = {
    "Tab": ("\t", 9),
    "Enter": ("\r", 13),
    "Escape": ("", 27),
    "ArrowDown": ("", 40),
    "ArrowRight": ("", 39),
    " ": (" ", 32),
}
NAVIGATED = ("Execution context was destroyed", "Inspected target navigated", "Cannot find context", "uniqueContextId")


def chromium() -> str | None:
    """The browser's program; None where there is none."""
    return shutil.which("chromium")


class BrowserError(Exception):
    """A command that the browser could not do, with its answer."""


class Browser:
    """One running browser."""

    def __init__(self, program: str, folder: Path) -> None:
        ours_out, theirs_in = os.pipe()[::-1]
        theirs_out, ours_in = os.pipe()[::-1]
        self._in, self._out = ours_in, ours_out
        arguments = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        ends = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        environment = {**os.environ, "HOME": str(folder)}
        self._process = os.posix_spawn(program, arguments, environment, file_actions=[*ends, quiet], setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self.pages: dict[str, Page] = {}

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """The browser's answer to a command; raises BrowserError."""
        self._number += 1
        number = self._number
        command = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while number not in self._answers:
            self._read(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read(self, deadline: float) -> None:
        """Take what the browser has said, waiting for it until the deadline."""
        ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError("the browser said nothing for too long")
        piece = os.read(self._in, 1 << 20)
        if not piece:
            raise BrowserError("the browser has ended")
        *whole, self._buffer = (self._buffer + piece).split(b"\0")
        for encoded in whole:
            message = json.loads(encoded)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].on_event(message["method"], message["params"])

    def listen(self, seconds: float) -> None:
        """Take what the browser says within so many seconds."""
        if select.select([self._in], [], [], seconds)[0]:
            self._read(time.monotonic())

    @contextmanager
    def page(self, origin: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
        """A page with cookies of its own, closed afterwards."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session, origin)
        try:
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            page.look(width=width, dark=dark)
            yield page
        finally:
            del self.pages[session]
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        """End it."""
        with suppress(BrowserError, OSError, TimeoutError):
            self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


class Page:
    """One page of a browser; `origin` is the server that it may talk to."""

    def __init__(self, browser: Browser, session: str, origin: str) -> None:
        self._browser = browser
        self._session = session
        self._origin = origin
        self.console_messages: list[str] = []
        """Messages of the console, errors of scripts, violations of the policy."""
        self.requested_urls: list[str] = []
        """Addresses that were asked for."""

    def call(self, method: str, **params: Any) -> Any:
        """The page's answer to a command."""
        return self._browser.call(method, self._session, **params)

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        """Something happened on the page."""
        if method == "Runtime.consoleAPICalled":
            self.console_messages.append(
                " ".join(str(argument.get("value", argument.get("description"))) for argument in params["args"])
            )
        elif method == "Runtime.exceptionThrown":
            self.console_messages.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console_messages.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested_urls.append(params["request"]["url"])

    @property
    def foreign(self) -> list[str]:
        """Addresses asked for that are not of the page's origin."""
        return [url for url in self.requested_urls if not url.startswith((f"{self._origin}/", "about:", "data:"))]

    def look(self, *, width: int = 1280, dark: bool = False) -> None:
        """Be so wide, and dark or light."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited where it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true, on whatever page there is by then; where it throws, it is not true yet."""
        holds = f"(() => {{ try {{ return !!({condition}) }} catch {{ return false }} }})()"
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if self.evaluate(holds):
                    return
            except BrowserError as error:
                if not any(message in str(error) for message in NAVIGATED):
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"not so within {PATIENCE} seconds: {condition}")
            self._browser.listen(0.02)

    def open(self, path: str) -> None:
        """Go to a page of the server, and wait until it is there with all that it loads."""
        self.evaluate("window.isLeft = true")
        if "errorText" in self.call("Page.navigate", url=self._origin + path):
            # The page that is left went elsewhere at that moment: a job's page loads itself again at its end.
            self.call("Page.navigate", url=self._origin + path)
        self.until("document.readyState === 'complete' && !window.isLeft")

    @property
    def path(self) -> str:
        """Where the page is."""
        return str(self.evaluate("location.pathname + location.search"))

    def text(self, selector: str = "body") -> str:
        """The text to be read there."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def fill(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def type(self, text: str) -> None:
        """Type into the field that the page itself focuses, which it does some time after it is complete."""
        self.until("document.activeElement.matches('input, textarea')")
        self.call("Input.insertText", text=text)

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        text, code = KEYS[key]
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        for _ in range(times):
            self.call(
                "Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text in {"\r", " "} else {})
            )
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of something, and let go."""
        lookup = f"const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{block: 'center'}});"
        middle = "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]"
        x, y = self.evaluate(f"(() => {{ {lookup} {middle} }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drop(self, selector: str, *paths: Path) -> None:
        """Drop files or folders of this machine onto something, as from a window beside it."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.evaluate(f"(() => {{ const box = {box}; return [box.x + 20, box.y + 20] }})()")
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, selector: str, *paths: Path) -> None:
        """Choose files, or a folder, in a field for them."""
        element = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        self.call("DOM.setFileInputFiles", files=[*map(str, paths)], objectId=element["result"]["objectId"])

    def picture(self, path: Path, *, top: str | None = None, high: int | None = None) -> None:
        """The page as a PNG: the whole of it, or from an element on, so many pixels of it."""
        clip = {}
        if high is not None:
            size = "document.querySelector({}).getBoundingClientRect().top + scrollY"
            y = 0 if top is None else self.evaluate(size.format(json.dumps(top)))
            clip = {"clip": {"x": 0, "y": y, "width": self.evaluate("innerWidth"), "height": high, "scale": 1}}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, **clip)["data"]
        path.write_bytes(base64.b64decode(data))
