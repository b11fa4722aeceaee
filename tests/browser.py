"""A headless Chromium, driven through its pipe by the DevTools protocol: opens pages, looks at them, takes
screenshots."""

import base64
import json
import os
import select
import shutil
import subprocess
import time


def find():
    """The browser's program, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
                None)


class Browser:
    def __init__(self, profile, size=(1500, 1200)):
        """profile: a folder of its own. chrome://tracing and the like are let in."""
        profile.mkdir(parents=True, exist_ok=True)
        (profile / "Local State").write_text('{"internal_only_uis_enabled": true}')
        to_child, self.out = os.pipe()
        self.input, from_child = os.pipe()

        def as_3_and_4():
            os.dup2(os.dup(to_child), 3, inheritable=True)
            os.dup2(os.dup(from_child), 4, inheritable=True)

        # Copies far from 3 and 4 first: the pipes themselves may lie there.
        to_child, from_child = (self._above(each) for each in (to_child, from_child))
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "--remote-debugging-pipe",
             "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=as_3_and_4,
            pass_fds=(3, 4, to_child, from_child))
        os.close(to_child)
        os.close(from_child)
        self.number, self.left = 0, b""
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

    def ask(self, method, session="mine", timeout=120, **parameters):
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
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]

    def open(self, url):
        self.ask("Page.navigate", url=url)

    def run(self, script, timeout=120):
        """The value of an expression in the page; promises are awaited."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, timeout=timeout)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self):
        """All words on the page, those in shadow trees too."""
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

    def wait_for_text(self, words, timeout=120):
        deadline = time.monotonic() + timeout
        while missing := [word for word in words if word not in self.text()]:
            assert time.monotonic() < deadline, f"{missing} are not on the page\n{self.text()}"
            time.sleep(0.3)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))
