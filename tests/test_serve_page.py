"""The page to try a model on, in a headless Chromium: a digit is drawn, columns are filled in, another model is chosen;
no other host is contacted, and there are no errors.

Skipped without a Chromium (Debian: apt install chromium). Screenshots are left in TRAINER_SCREENSHOTS, if that names
a folder.
"""

import csv
import json
import re
import shlex
import subprocess
import sys

import numpy
import pytest
from sklearn import datasets

import browser
from field import pictures
from runs import SMALL, run, train, wait_for
from served import Served

pytestmark = pytest.mark.xdist_group("browser")

STROKE = [(140, 40), (140, 90), (140, 140), (140, 190), (140, 240)]  # a one


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    yield from browser.watched(tmp_path_factory, (1100, 1000))


@pytest.fixture(scope="module")
def models(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    train(trainer, *SMALL, "--optimizer=adam", "--train_steps=300", "--train_dir=digits", cwd=folder)
    run(trainer, "data", "synth", "--out=data", "--synthetic_train=200", "--synthetic_test=20", cwd=folder)
    iris = datasets.load_iris()
    (folder / "plants").mkdir()
    with open(folder / "plants/train.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["length", "width", "petal", "stem", "soil <b>", "kind"])
        for i, (x, y) in enumerate(zip(iris.data, iris.target)):
            writer.writerow([*map(float, x), ["clay", "sand"][i % 2], iris.target_names[y]])
    train(trainer, "--data_dir=plants", "--target=kind", "--optimizer=adam", "--batch_size=32", "--epochs=30",
          "--validation_size=20", "--test_share=0.2", "--train_dir=kinds", cwd=folder)
    return folder


@pytest.fixture
def page(chromium, trainer, models):
    chromium.open("about:blank")
    chromium.heard("")
    chromium.events.clear()

    def open_page(server):
        server.before_it_stops = lambda: chromium.open("about:blank")  # nothing that the page asks for is cut off
        chromium.open(f"http://127.0.0.1:{server.port}/")
        chromium.wait_until("document.querySelector('#version') && "
                            "document.querySelector('#version').textContent.startsWith('version')")
        return chromium

    yield open_page
    assert chromium.complaints() == []
    assert all(url.startswith(("http://127.0.0.1:", "data:", "about:")) for url in chromium.requests())


def draw(chromium, places):
    left, top = chromium.run("(() => { const box = document.querySelector('#canvas').getBoundingClientRect();"
                             "return [box.left, box.top]; })()")
    for start, end in zip(places, places[1:]):
        chromium.drag(*((left + x, top + y) for x, y in (start, end)))


def shown(chromium, selector):
    return chromium.run(f"document.querySelector('{selector}').textContent")


def test_a_digit_is_drawn_and_seen(page, trainer, models, screenshots):
    with Served(trainer, "digits", "--reference=data", cwd=models) as server:
        chromium = page(server)
        assert not chromium.run("document.querySelector('#canvas').hidden")
        draw(chromium, STROKE)
        chromium.wait_until("document.querySelectorAll('#values tbody tr').length == 10")
        pixels = chromium.run("""(() => {
            const small = document.createElement('canvas');
            small.width = small.height = 28;
            const pen = small.getContext('2d');
            pen.drawImage(document.querySelector('#canvas'), 0, 0, 28, 28);
            return [...pen.getImageData(0, 0, 28, 28).data].filter((_, i) => i % 4 === 0);
        })()""")
        assert max(pixels) > 200 and 10 < numpy.count_nonzero(pixels) < 300
        said = server.post("/v1/models/model:predict", {"instances": [pixels]})["predictions"][0]

        def values_are_said():  # answers to earlier strokes may still be in flight
            values = chromium.run("[...document.querySelectorAll('#values tbody progress')].map(bar => bar.value)")
            return numpy.allclose(values, said, atol=1e-6)

        wait_for(values_are_said, "the values of the last stroke")
        assert shown(chromium, "#prediction") == str(numpy.argmax(said))
        chromium.wait_until("document.querySelectorAll('#drift-rows tr').length == 5")
        chromium.wait_until("document.querySelectorAll('#drift-classes tr').length == 10")
        chromium.wait_until("document.querySelector('#drift-note').textContent.match(/^[1-9]/)")
        chromium.screenshot(screenshots / "serve-digit.png")
        chromium.run("document.querySelector('#clear').click()")
        assert shown(chromium, "#prediction") == ""


def test_columns_are_filled_in(page, trainer, models, screenshots):
    with Served(trainer, "kinds=kinds", "digits=digits", cwd=models) as server:
        chromium = page(server)
        assert chromium.run("[...document.querySelectorAll('#fields label')].map(label => label.textContent)") == [
            "length", "width", "petal", "stem", "soil <b>"]
        for i, value in enumerate(["5.1", "3.5", "1.4", "0.2", "clay"]):
            chromium.run(f"document.querySelector('#field-{i}').focus()")
            chromium.ask("Input.insertText", text=value)
        chromium.press("Enter", "\r")
        chromium.wait_until("document.querySelector('#prediction').textContent == 'setosa'")
        wanted = server.post("/v1/models/kinds:predict", {"instances": [[5.1, 3.5, 1.4, 0.2, "clay"]]})["predictions"]
        values = chromium.run("[...document.querySelectorAll('#values tbody progress')].map(bar => bar.value)")
        numpy.testing.assert_allclose(values, wanted[0], atol=1e-6)
        known = "[...document.querySelectorAll('#known-4 option')].map(each => each.value)"
        assert chromium.run(known) == ["clay", "sand"]
        assert "usually" in chromium.run("document.querySelector('#fields span').textContent")
        cells = chromium.run("[...document.querySelectorAll('#values td:nth-child(2)')].map(cell => cell.textContent)")
        assert all(re.fullmatch(r"\d+\.\d%", cell) for cell in cells), cells
        chromium.screenshot(screenshots / "serve-columns.png")
        assert "its nets differ by" in shown(chromium, "#scaled")
        chromium.run("document.querySelector('#explain').click()")
        chromium.wait_until("document.querySelectorAll('#contributions tr').length == 5")
        assert re.match(r"probability of setosa: \d+\.\d%; mean over 4 rows: ", shown(chromium, "#explained"))
        assert re.fullmatch(r"(petal|stem|length|width|soil <b>)[+-]\d+\.\d%± \d+\.\d%",
                            shown(chromium, "#contributions tr"))
        chromium.screenshot(screenshots / "serve-explanation.png")
        # What there is to copy does the same, and counts as traffic, unlike what is tried.
        assert json.loads(server.get("/drift/kinds")[1])["rows"] == 1
        for line in (shown(chromium, "#curl"), f"{sys.executable} -c {shlex.quote(shown(chromium, '#python'))}"):
            said = subprocess.run(line, shell=True, capture_output=True, text=True, check=True, timeout=240).stdout
            numpy.testing.assert_allclose(eval(said)["predictions"][0], wanted[0], atol=1e-6)
        assert json.loads(server.get("/drift/kinds")[1])["rows"] == 3
        assert server.metric("trainer_serve_requests_total") == 3
        chromium.run("document.querySelector('#model').value = 'digits';"
                     "document.querySelector('#model').dispatchEvent(new Event('change'))")
        chromium.wait_until("!document.querySelector('#drawing').hidden && document.querySelector('#columns').hidden")


CHOOSE = """(() => {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [60, 40];
    const pen = canvas.getContext('2d');
    pen.fillRect(0, 0, 60, 40);
    pen.fillStyle = '#fff';
    pen.fillRect(45, 0, 15, 40);
    canvas.toBlob(blob => {
        const chosen = new DataTransfer(), field = document.querySelector('#file');
        chosen.items.add(new File([blob], 'pump.png'));
        field.files = chosen.files;
        field.dispatchEvent(new Event('change'));
    });
})()"""


def test_a_picture_of_another_size(page, trainer, tmp_path):
    """Pictures of any size can be chosen, whatever the size in training, and the answer says that they were scaled."""
    for path, content in pictures.of_sides(size=(24, 16)).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    train(trainer, "--data_dir=d", "--epochs=25", "--batch_size=10", "--optimizer=adam", "--train_dir=run",
          cwd=tmp_path)
    with Served(trainer, "run", cwd=tmp_path) as server:
        chromium = page(server)
        assert chromium.run("document.querySelector('#canvas').hidden && document.querySelector('#columns').hidden")
        assert shown(chromium, "#drawing-title") == "Choose a picture"
        chromium.run(CHOOSE)
        chromium.wait_until("document.querySelector('#scaled').textContent")
        assert shown(chromium, "#scaled") == "The picture, of 40x60 pixels, was scaled to 16x24, as in training."
        assert shown(chromium, "#prediction") == "right"


def test_a_faulty_value_is_told(page, trainer, models):
    with Served(trainer, "kinds=kinds", cwd=models) as server:
        chromium = page(server)
        chromium.run("document.querySelector('#field-2').value = 'tall';"
                     "document.querySelector('#columns button').click()")
        chromium.wait_until("document.querySelector('#problem').textContent.includes('is not a number')")
        assert chromium.run("[...document.querySelectorAll('[aria-invalid]')].map(field => field.name)") == ["petal"]
        # The answer before it would look like this one's.
        chromium.run("document.querySelector('#example').click()")
        chromium.wait_until("document.querySelector('#prediction').textContent")
        assert not chromium.run("document.querySelectorAll('[aria-invalid]').length")
        chromium.run("document.querySelector('#field-2').value = 'tall';"
                     "document.querySelector('#columns button').click()")
        chromium.wait_until("document.querySelector('#problem').textContent.includes('is not a number')")
        assert shown(chromium, "#prediction") == "" and chromium.run("document.querySelector('#values').hidden")
        chromium.events[:] = [each for each in chromium.events if "400 (Bad Request)" not in json.dumps(each)]
