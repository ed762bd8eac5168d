"""Chromium without a window, driven through its DevTools protocol over a pipe.

Messages are JSON ending in a NUL byte; the browser reads descriptor 3 and writes descriptor 4.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = (
    "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --no-first-run "
    "--disable-dev-shm-usage --disable-background-networking --hide-scrollbars"
).split()
PATIENCE = 60.0  # seconds for an answer


class Chromium:
    """A browser with one page. Ends with its context."""

    def __init__(self, folder: Path) -> None:
        """folder: for its profile, and what is downloaded. Raises OSError without a browser."""
        if PROGRAM is None:
            raise FileNotFoundError("no chromium on the PATH")
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        command = [PROGRAM, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        files = [
            (os.POSIX_SPAWN_DUP2, read, 3),
            (os.POSIX_SPAWN_DUP2, write, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        self._process = os.posix_spawn(PROGRAM, command, os.environ, file_actions=files)
        os.close(read)
        os.close(write)
        self._rest, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        self.downloads = folder / "downloads"
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        where = str(self.downloads)
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=where)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command. Raises RuntimeError where the browser refuses it."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda found: found.get("id") == self._count)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _until(self, wanted: Any) -> dict[str, Any]:
        """The first such message; events on the way are kept. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self._rest:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._from], [], [], left)[0]:
                    raise TimeoutError("chromium does not answer")
                read = os.read(self._from, 1 << 20)
                if not read:
                    raise RuntimeError("chromium has ended")
                self._rest += read
            text, _, self._rest = self._rest.partition(b"\0")
            message = json.loads(text)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def open(self, page: Path, width: int, height: int = 900, theme: str = "light") -> None:
        """A file, in a window of that size, under that colour scheme; forgets earlier events."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        feature = {"name": "prefers-color-scheme", "value": theme}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.events.clear()
        self.send("Page.navigate", url=page.as_uri())
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._until(lambda found: found.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression. Raises RuntimeError for an exception."""
        options = {"returnByValue": True, "awaitPromise": True, "userGesture": True}
        found = self.send("Runtime.evaluate", expression=script, **options)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, download: Path) -> None:
        """Until it is whole: chromium renames it then. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE
        while not download.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{download} did not come")
            time.sleep(0.05)
