"""Makes the README's pictures, docs/pictures/live.png and try-out.png, from a real run and a real server:

    build/venv/bin/python tests/pictures.py [FOLDER]

Needs build/trainer and a Chromium; takes half a minute.
"""

import csv
import io
import pathlib
import sys
import tempfile
import time

from PIL import Image
from sklearn import datasets

import browser
from ports import free_ports
from runs import start, train
from served import Served

ROOT = pathlib.Path(__file__).parents[1]
TRAINER = str(ROOT / "build" / "trainer")
MOST_BYTES = 60_000
COLORS = 96


def keep(chromium, path):
    """Few colours make a page's picture small, and nobody sees it."""
    chromium.screenshot(path)
    picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    assert path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size} bytes"


def live(chromium, path, folder):
    (port,) = free_ports(1)
    process = start(TRAINER, "--data_source=synthetic", "--synthetic_train=20000", "--hidden=300", "--optimizer=adam",
                    "--epochs=12", "--max_steps_per_s=100", "--validate_steps=90", "--train_dir=digits",
                    f"--http=127.0.0.1:{port}", cwd=folder)
    try:
        time.sleep(18)  # of a run for its curves
        chromium.pretend("light", (1280, 720))
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait_until("typeof page !== 'undefined' && page.link === 'live' && charts.overview.charts.size > 3")
        chromium.wait_for_text(["Validation loss", "best.safetensors"])
        keep(chromium, path)
    finally:
        process.terminate()
        process.communicate()


def try_out(chromium, path, folder):
    iris = datasets.load_iris()
    (folder / "iris").mkdir()
    with open(folder / "iris" / "train.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sepal_length", "sepal_width", "petal_length", "petal_width", "species"])
        writer.writerows([*map(float, row), iris.target_names[kind]] for row, kind in zip(iris.data, iris.target))
    train(TRAINER, "--data_dir=iris", "--target=species", "--train_dir=species", cwd=folder)
    with Served(TRAINER, "iris=species", cwd=folder) as server:
        chromium.pretend("light", (1280, 640))
        chromium.open(f"http://127.0.0.1:{server.port}/")
        chromium.wait_until("typeof model !== 'undefined' && model")
        for i, value in enumerate(["6.1", "2.8", "4.9", "1.7"]):
            chromium.run(f"byId('field-{i}').value = '{value}'")
        chromium.run("byId('columns').requestSubmit()")
        chromium.wait_until("!byId('calls').hidden")
        keep(chromium, path)
        chromium.open("about:blank")


def main():
    to = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, browser.Browser(pathlib.Path(name) / "browser", (1280, 720)) as chromium:
        live(chromium, to / "live.png", pathlib.Path(name))
        try_out(chromium, to / "try-out.png", pathlib.Path(name))


if __name__ == "__main__":
    main()
