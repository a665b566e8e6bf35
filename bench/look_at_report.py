"""Open pages of `lowtide report` in a headless Chromium: no complaint, no request, every chart drawn.

    python bench/look_at_report.py run/report.html --browser /usr/bin/chromium --out pictures

Takes a picture in light, in dark and 360 pixels wide, one with cursor and zoom set by keyboard, one as printed,
one without JavaScript, and a PDF. Exit code 1 when a page fails. Speaks DevTools over a pipe: needs no package.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent.parent)]  # tokenize.py here would hide a standard module

import argparse
import base64
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--force-color-profile=srgb",
)
DRAWN = """(() => {
  const charts = [...document.querySelectorAll(".chart")];
  const empty = charts.filter((one) => !one.querySelector("path.line")?.getAttribute("d")
    || !one.querySelector(".field").getBoundingClientRect().height);
  return {charts: charts.length, empty: empty.length, wide: document.scrollingElement.scrollWidth - innerWidth,
    scripts: document.scripts.length, images: document.images.length, title: document.title};
})()"""
MOVED = """(() => ({moment: document.getElementById("moment")?.textContent,
  view: document.querySelector(".field")?.getAttribute("viewBox"),
  ticks: [...document.querySelectorAll("svg.x text, svg.y text")].map((one) => one.textContent),
  cursors: [...document.querySelectorAll(".cursor")].filter((one) => !one.hidden).length}))()"""


@dataclass
class Browser:
    """A Chromium that is told what to do over a pipe, and what it said meanwhile."""

    command: list[str]
    said: list[str] = field(default_factory=list)
    asked_for: list[str] = field(default_factory=list)
    session: str | None = None
    _number: int = 0

    def __enter__(self) -> Browser:
        inward, self._write = os.pipe()
        self._read, outward = os.pipe()

        def connect() -> None:
            first, second = os.dup(inward), os.dup(outward)  # 3 or 4 may be one of ours
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            self.command, preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL
        )
        os.close(inward)
        os.close(outward)
        self._rest = b""
        return self

    def __exit__(self, *_: object) -> None:
        self.session = None
        self.call("Browser.close")
        self._process.wait(20)

    def call(self, method: str, **params: object) -> dict[str, object]:
        """The browser's answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._number:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                return heard["result"]  # type: ignore[return-value]

    def wait_for(self, method: str) -> None:
        while self._hear().get("method") != method:
            pass

    def value(self, script: str) -> dict[str, object]:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"]["value"]  # type: ignore[index,no-any-return,call-overload]

    def _hear(self) -> dict[str, object]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has gone")
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        heard = json.loads(line)
        params = heard.get("params", {})
        match heard.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.said.append(json.dumps(params)[:400])
            case "Network.requestWillBeSent":
                self.asked_for.append(params["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.said.append(f"dialog: {params['message']}")
        return heard  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--browser", required=True, help="a Chromium or chrome-headless-shell")
    parser.add_argument("--no-sandbox", action="store_true", help="inside a container, as root")
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        flags = [
            *FLAGS,
            f"--user-data-dir={profile}",
            *(["--no-sandbox"] if asked.no_sandbox else []),
        ]
        with Browser([asked.browser, *flags]) as browser:
            problems = [
                problem for page in asked.pages for problem in look(browser, page, asked.out)
            ]
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(asked.pages)} pages looked at, {len(problems)} problems; pictures in {asked.out}")
    return 1 if problems else 0


def look(browser: Browser, page: Path, out: Path) -> list[str]:
    """What is wrong with a page; its pictures lie in `out` afterwards."""
    name = "".join(
        c if c.isalnum() or c in "-_" else "_" for c in f"{page.resolve().parent.name}-{page.stem}"
    )
    browser.session = None
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = str(
        browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    )
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.call(f"{domain}.enable")
    browser.said.clear()
    browser.asked_for.clear()
    problems = []
    for kind, width, scheme in (
        ("light", 1180, "light"),
        ("dark", 1180, "dark"),
        ("narrow", 360, "light"),
    ):
        _open(browser, page, width, scheme)
        found = browser.value(DRAWN)
        _picture(browser, out / f"{name}-{kind}.png")
        if found["empty"] or not found["charts"]:
            problems.append(f"{kind}: charts not drawn: {found}")
        if int(str(found["wide"])) > 0 or found["scripts"] != 2 or found["images"]:
            problems.append(f"{kind}: {found}")
    problems += _use_keyboard(browser, page, out / f"{name}-zoomed.png")
    _print(browser, out / f"{name}.pdf")
    _open(browser, page, 760, "dark", media="print")
    _picture(browser, out / f"{name}-print.png")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    _open(browser, page, 1180, "light")
    _picture(browser, out / f"{name}-no-script.png")
    problems += [f"said: {one}" for one in browser.said]
    own = page.resolve().as_uri()
    left = {one for one in browser.asked_for if one != own and not one.startswith("data:")}
    problems += [f"asked for {one}" for one in sorted(left)]
    browser.session = None
    browser.call("Target.closeTarget", targetId=target)
    return [f"{page}: {problem}" for problem in problems]


def _open(browser: Browser, page: Path, width: int, scheme: str, *, media: str = "") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", media=media, features=features)
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=width < 500,
    )
    browser.call("Page.navigate", url=page.resolve().as_uri())
    browser.wait_for("Page.loadEventFired")


def _use_keyboard(browser: Browser, page: Path, picture: Path) -> list[str]:
    _open(browser, page, 1180, "light")
    before = browser.value(MOVED)
    browser.value('document.querySelector(".plot").focus(), {}')
    for key in ("ArrowRight", "ArrowRight", "+", "+", "ArrowLeft"):
        text = {"text": key} if len(key) == 1 else {}
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
    after = browser.value(MOVED)
    _picture(browser, picture)
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
    back = browser.value(MOVED)
    problems = []
    if not after["moment"] or not after["cursors"] or after["view"] == before["view"]:
        problems.append(f"the keyboard moved nothing: {before} {after}")
    if back["view"] != before["view"]:
        problems.append(f"0 did not show the whole run: {back}")
    if back["ticks"] != before["ticks"]:
        problems.append(f"ticks of the script are not those of the page: {before} {back}")
    return problems


def _picture(browser: Browser, path: Path) -> None:
    shot = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
    path.write_bytes(base64.b64decode(str(shot["data"])))


def _print(browser: Browser, path: Path) -> None:
    printed = browser.call(
        "Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69
    )
    path.write_bytes(base64.b64decode(str(printed["data"])))


if __name__ == "__main__":
    sys.exit(main())
