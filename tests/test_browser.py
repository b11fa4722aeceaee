"""TensorBoard's pages of real runs, and a profile in Chrome's own trace viewer, as people see them, in a headless
Chromium.

Run by `make test-full`; skipped without a Chromium (Debian: apt install chromium). Screenshots are left in
TRAINER_SCREENSHOTS, if that names a folder.
"""

import functools
import http.server
import io
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.request

import pytest
from PIL import Image

import browser
from ports import free_ports
from runs import SMALL, run, train, wait_for

pytestmark = pytest.mark.xdist_group("browser")  # its fixtures are shared by all tests of the file

# What each page must show of the runs, and the minimum number of its pixels that differ from the background.
PAGES = {
    "scalars": (["cross_entropy", "cluster/staleness", "learning_rate", "validation", "global_step"], 0.02),
    "histograms": (["layer0/weights", "layer0/weights/gradient", "layer0/activations", "layer1"], 0.03),
    "distributions": (["layer0/weights", "layer0/biases/gradient"], 0.03),
    "images": (["input/image/0", "input/image/2"], 0.05),
    "graphs": (["layer0", "layer1", "loss", "train", "images", "softmax"], 0.005),
    "text": (["train.optimizer", "model.layers", "784,32,10"], 0.01),
    "hparams": (["learning_rate", "784,32,10", "validation/accuracy", "momentum"], 0.005),
}


@pytest.fixture(scope="module")
def shown(full):
    if not full:
        pytest.skip("`make test-full` starts a browser")
    if not browser.find():
        pytest.skip("there is no Chromium (apt install chromium)")


@pytest.fixture(scope="module")
def runs_folder(shown, trainer, tmp_path_factory):
    """A local run and a small cluster, with profiles."""
    folder = tmp_path_factory.mktemp("runs")
    flags = (*SMALL, "--save_summaries_steps=20", "--optimizer=momentum", "--learning_rate=0.05")
    train(trainer, *flags, "--train_steps=400", "--dropout=0.2", "--l2=1e-4", "--train_dir=board/local", cwd=folder)
    run(trainer, "cluster", "--ps=1", "--workers=2", *flags, "--train_steps=400", f"--train_dir={folder}/board/cluster",
        f"--profile={folder}/profile.json", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def tensorboard(runs_folder):
    (port,) = free_ports(1)
    server = subprocess.Popen([pathlib.Path(sys.executable).with_name("tensorboard"),
                               f"--logdir={runs_folder / 'board'}", f"--port={port}", "--host=127.0.0.1",
                               "--load_fast=false"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def loaded():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/scalars/tags", timeout=60) as answer:
                return len(json.loads(answer.read())) == 2
        except OSError:
            return False

    wait_for(loaded, "answer from TensorBoard")
    yield f"http://127.0.0.1:{port}/"
    server.terminate()
    server.wait(240)


def drawn(path):
    """The share of pixels, right of the controls and below the bar, that differ from the most common colour."""
    image = Image.open(io.BytesIO(path.read_bytes())).convert("RGB").crop((360, 160, 1500, 1000))
    colors = image.getcolors(image.width * image.height)
    return 1 - max(count for count, _ in colors) / (image.width * image.height)


def test_tensorboard_shows_the_runs(tensorboard, screenshots, tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        for page, (words, least) in PAGES.items():
            chromium.open(f"{tensorboard}#{page}")
            chromium.run("location.reload()")
            chromium.wait_for_text(words)
            path = screenshots / f"{page}.png"

            def is_drawn():
                chromium.screenshot(path)
                return drawn(path) > least

            wait_for(is_drawn, f"drawing on the page {page}")
            assert "No dashboards are active" not in chromium.text()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_chromes_trace_viewer_loads_a_profile(runs_folder, screenshots, tmp_path):
    """Its own importer, which reports errors. TRAINER_TRACE_VIEWER: the folder with trace_viewer_index.html, from the
    package tensorboard-plugin-profile, say."""
    viewer = os.environ.get("TRAINER_TRACE_VIEWER")
    if not viewer:
        pytest.skip("TRAINER_TRACE_VIEWER names no folder with trace_viewer_index.html")
    for path in pathlib.Path(viewer).glob("trace_viewer_index.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "all.json").write_bytes((runs_folder / "profile.json").read_bytes())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with browser.Browser(tmp_path / "profile", (1800, 1100)) as chromium:
            chromium.open(f"http://127.0.0.1:{server.server_port}/trace_viewer_index.html?trace_data_url=all.json")
            chromium.wait_for_text(["ps 0 (pid", "worker 0 (pid", "worker 1 (pid"])
            chromium.screenshot(screenshots / "trace.png")
            found = json.loads(chromium.run("""(async () => {
                const model = new tr.Model();
                await new tr.importer.Import(model).importTraces([await (await fetch('all.json')).text()]);
                return JSON.stringify({warnings: model.importWarnings, processes: model.getAllProcesses().length,
                                       flows: model.flowEvents.length,
                                       slices: model.getAllThreads().map(thread => thread.sliceGroup.length)});
            })()"""))
    finally:
        server.shutdown()
        server.server_close()
    assert found["warnings"] == [] and found["processes"] == 3 and found["flows"] > 100
    assert all(count > 0 for count in found["slices"]) and sum(found["slices"]) > 2000
