"""A headless Chromium, controlled through a pipe by the DevTools protocol: opens pages, inspects them, takes
screenshots."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest


def find():
    """The browser's path, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
                None)


class Browser:
    def __init__(self, profile, size=(1500, 1200)):
        """profile: a separate folder. Permits chrome://tracing and the like."""
        profile.mkdir(parents=True, exist_ok=True)
        (profile / "Local State").write_text('{"internal_only_uis_enabled": true}')
        to_child, self.out = os.pipe()
        self.input, from_child = os.pipe()

        def as_3_and_4():
            os.dup2(os.dup(to_child), 3, inheritable=True)
            os.dup2(os.dup(from_child), 4, inheritable=True)

        # Copies far from 3 and 4 first: the pipes themselves may have these numbers.
        to_child, from_child = (self._above(each) for each in (to_child, from_child))
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "--remote-debugging-pipe",
             "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=as_3_and_4,
            pass_fds=(3, 4, to_child, from_child))
        os.close(to_child)
        os.close(from_child)
        self.number, self.left, self.events = 0, b"", []
        target = self.ask("Target.createTarget", session=None, url="about:blank")
        self.session = self.ask("Target.attachToTarget", session=None, targetId=target["targetId"],
                                flatten=True)["sessionId"]
        self.ask("Page.enable")

    @staticmethod
    def _above(descriptor):
        import fcntl

        copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 20)
        os.close(descriptor)
        return copy

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.input)

    def ask(self, method, session="mine", timeout=240, **parameters):
        """Sends one command, and waits for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            while b"\0" not in self.left:
                ready, _, _ = select.select([self.input], [], [], max(0, deadline - time.monotonic()))
                assert ready, f"the browser has not answered {method} within {timeout} s"
                piece = os.read(self.input, 1 << 20)
                assert piece, "the browser is gone"
                self.left += piece
            line, _, self.left = self.left.partition(b"\0")
            answer = json.loads(line)
            if "method" in answer:
                self.events.append((answer["method"], answer["params"]))
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]

    def watch(self):
        """From now on records the page's messages and requests: see complaints and requests."""
        for domain in ("Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def heard(self, method):
        self.run("0")  # everything before this answer has arrived
        return [parameters for name, parameters in self.events if name == method]

    def complaints(self):
        """Errors and warnings of the page and about it: scripts, its policy, its network, the browser's advice."""
        return ([each["exceptionDetails"].get("exception", {}).get("description", each["exceptionDetails"]["text"])
                 for each in self.heard("Runtime.exceptionThrown")] +
                [" ".join(str(part.get("value", part.get("description"))) for part in each["args"])
                 for each in self.heard("Runtime.consoleAPICalled") if each["type"] in ("error", "warning", "assert")] +
                [f"{each['entry']['text']} {each['entry'].get('url', '')}" for each in self.heard("Log.entryAdded")
                 if each["entry"]["level"] in ("error", "warning")])

    def requests(self):
        """Addresses requested by the page."""
        return [each["request"]["url"] for each in self.heard("Network.requestWillBeSent")]

    def pretend(self, theme="light", size=(1440, 900)):
        """Sets the system's colour scheme and the window's size; a narrow one is a phone's."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.ask("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1,
                 mobile=size[0] < 600)

    def press(self, key, text=None):
        code = {"Tab": 9, "Escape": 27, "Enter": 13}.get(key, 0)
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code,
                 **({"text": text} if text else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def drag(self, start, end):
        """Drags the mouse from one place to another."""
        for kind, (x, y) in (("mouseMoved", start), ("mousePressed", start), ("mouseMoved", end),
                             ("mouseReleased", end)):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1,
                     buttons=0 if kind == "mouseReleased" else 1)

    def wait_until(self, script, timeout=240):
        """Waits until an expression in the page is true."""
        deadline = time.monotonic() + timeout
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"never true within {timeout} s: {script}\n{self.text()}"
            time.sleep(0.05)

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def run(self, script, timeout=240):
        """The value of an expression in the page; promises are awaited."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, timeout=timeout)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self):
        """All text on the page, including shadow trees."""
        return self.run("""(() => {
            const words = [];
            const walk = node => {
                if (node.nodeType === Node.TEXT_NODE && node.textContent.trim()) words.push(node.textContent.trim());
                if (node.shadowRoot) walk(node.shadowRoot);
                if (!['STYLE', 'SCRIPT', 'TEMPLATE'].includes(node.nodeName)) node.childNodes.forEach(walk);
            };
            if (document.body) walk(document.body);
            return words.join('\\n');
        })()""")

    def wait_for_text(self, words, timeout=240):
        deadline = time.monotonic() + timeout
        while missing := [word for word in words if word not in self.text()]:
            assert time.monotonic() < deadline, f"{missing} are not on the page\n{self.text()}"
            time.sleep(0.3)

    def wait_until_gone(self, words, timeout=240):
        deadline = time.monotonic() + timeout
        while words in self.text():
            assert time.monotonic() < deadline, f"{words!r} is still on the page\n{self.text()}"
            time.sleep(0.3)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


def watched(tmp_path_factory, size):
    """For fixtures: a browser of this size that records its pages' requests and complaints."""
    if not find():
        pytest.skip("there is no Chromium (apt install chromium)")
    with Browser(tmp_path_factory.mktemp("browser") / "profile", size) as chromium:
        chromium.watch()
        yield chromium
