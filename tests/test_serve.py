"""trainer serve: KServe's protocol through Triton's own client, TensorFlow Serving's REST interface, plain posts;
swaps, faults and load. Its answers must equal those of `trainer predict` and of onnxruntime."""

import base64
import concurrent.futures
import csv
import gzip
import hashlib
import http.client
import io
import json
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib

import numpy
import onnxruntime
import pytest
import tritonclient.http as triton
from PIL import Image
from sklearn import datasets
from tritonclient.utils import InferenceServerException

from ports import free_ports
from runs import SMALL, newest, run, tensors, train, wait_for
from served import Served

QUICK = ("--optimizer=adam", "--batch_size=32", "--log_steps=0", "--num_threads=1", "--save_summaries_steps=0",
         "--validate_steps=1000000")


# --- pictures ---


@pytest.fixture(scope="module")
def digits(trainer, tmp_path_factory):
    """A model of digits, images of them, and predict's and onnxruntime's results."""
    folder = tmp_path_factory.mktemp("digits")
    train(trainer, *SMALL, "--train_steps=200", "--train_dir=run", cwd=folder)
    run(trainer, "data", "synth", "--out=data", "--synthetic_train=100", "--synthetic_test=40", cwd=folder)
    content = (folder / "data/t10k-images-idx3-ubyte").read_bytes()
    pictures = numpy.frombuffer(content, numpy.uint8, offset=16).reshape(-1, 28, 28)
    said = run(trainer, "predict", "--json", "--top_k=10", "run", "data/t10k-images-idx3-ubyte", cwd=folder)
    probabilities = numpy.zeros((len(pictures), 10))
    for line in said.stdout.splitlines():
        event = json.loads(line)
        for one in event["top"]:
            probabilities[event["index"], one["class"]] = one["probability"]
    run(trainer, "export", "--format=onnx", "--out=model.onnx", newest(folder / "run"), cwd=folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return folder, pictures, probabilities, session


@pytest.fixture(scope="module")
def served(trainer, digits):
    with Served(trainer, "digits=run", cwd=digits[0]) as server:
        yield server


@pytest.fixture
def client(served):
    with triton.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        yield client


def asked(client, values, type, binary, **options):
    tensor = triton.InferInput("images", values.shape, type)
    tensor.set_data_from_numpy(values, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("probabilities", "class", "label")]
    return client.infer("digits", [tensor], outputs=outputs, **options)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(-1, 784), (-1, 28, 28)])
@pytest.mark.parametrize("type", ["UINT8", "FP32"])
def test_tritons_client_gets_what_predict_says(client, digits, type, shape, binary):
    _, pictures, probabilities, _ = digits
    values = pictures.reshape(shape)
    values = (values / numpy.float32(255)).astype(numpy.float32) if type == "FP32" else values
    answer = asked(client, values, type, binary, request_id="seventeen")
    assert answer.get_response()["model_name"] == "digits" and answer.get_response()["id"] == "seventeen"
    assert answer.get_response()["model_version"] == "200"
    got = answer.as_numpy("probabilities").astype(numpy.float32)
    assert (got == probabilities.astype(numpy.float32)).all()  # to the bit
    assert (answer.as_numpy("class") == probabilities.argmax(1)).all()
    labels = answer.as_numpy("label")
    assert [int(label) for label in labels] == probabilities.argmax(1).tolist()


@pytest.mark.parametrize("type", ["UINT8", "FP32"])
def test_a_batch_of_its_own(client, digits, type):
    """This many rows are computed from the body in place, at whatever alignment their numbers begin."""
    _, pictures, probabilities, _ = digits
    values = numpy.tile(pictures.reshape(-1, 784), (7, 1))[:256]
    values = (values / numpy.float32(255)).astype(numpy.float32) if type == "FP32" else values
    for length in range(4):
        answer = asked(client, values, type, True, request_id="i" * (10 + length))
        got = answer.as_numpy("probabilities").astype(numpy.float32)
        assert (got == numpy.tile(probabilities, (7, 1))[:256].astype(numpy.float32)).all()
    values = values.copy()
    if type == "FP32":
        values[255, 783] = 1.5
        with pytest.raises(InferenceServerException, match="row 255: pixel 783 is 1.5"):
            asked(client, values, type, True)


@pytest.mark.parametrize("packed", ["gzip", "deflate"])
def test_tritons_client_packs_what_it_sends(client, digits, packed):
    _, pictures, probabilities, _ = digits
    answer = asked(client, pictures.reshape(-1, 784), "UINT8", True, request_compression_algorithm=packed,
                   response_compression_algorithm=packed)
    assert (answer.as_numpy("probabilities") == probabilities.astype(numpy.float32)).all()


def test_pixels_between_the_levels_of_grey(client, digits):
    """Numbers between the levels of a byte, in the same batch as bytes."""
    _, pictures, _, session = digits
    values = (pictures.reshape(-1, 784) / 255 * 0.9777 + 0.011).astype(numpy.float32)
    wanted = session.run(None, {session.get_inputs()[0].name: values.reshape(-1, *session.get_inputs()[0].shape[1:])})
    got = asked(client, values, "FP32", True).as_numpy("probabilities")
    numpy.testing.assert_allclose(got, wanted[-1], atol=1e-5)
    for length in range(4):  # a whole batch, of aligned and of unaligned numbers
        many = asked(client, numpy.tile(values, (3, 1)), "FP32", True, request_id="i" * (10 + length))
        numpy.testing.assert_array_equal(many.as_numpy("probabilities"), numpy.tile(got, (3, 1)))


def test_metadata_and_health(client, served):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits")
    assert client.is_model_ready("digits", "200") and not client.is_model_ready("digits", "7")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_repository"]
    metadata = client.get_model_metadata("digits")
    assert metadata["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 784]}]
    assert [output["name"] for output in metadata["outputs"]] == ["probabilities", "class", "label"]
    assert client.get_model_repository_index() == [
        {"name": "digits", "version": "200", "state": "READY", "reason": ""}]
    assert served.get("/healthz")[:2] == (200, b"ok\n")


def test_tensorflow_servings_interface(served, digits):
    _, pictures, probabilities, _ = digits
    path = "/v1/models/digits:predict"
    for rows in (pictures.reshape(-1, 784), pictures, pictures[..., None], pictures.reshape(-1, 784) / 255):
        answer = served.post(path, {"signature_name": "serving_default", "instances": rows.tolist()})
        numpy.testing.assert_allclose(answer["predictions"], probabilities, atol=1e-6)
    answer = served.post("/v1/models/digits/versions/200:predict", {"inputs": pictures.tolist()})
    numpy.testing.assert_allclose(answer["outputs"], probabilities, atol=1e-6)
    answer = served.post("/v1/models/digits:classify", {"examples": pictures[:2].tolist()})
    assert answer["results"][1][3] == ["3", pytest.approx(probabilities[1][3], abs=1e-6)]
    named = [{"images": picture.tolist()} for picture in pictures]
    for verb, rows, key in (("predict", "instances", "predictions"), ("classify", "examples", "results")):
        assert served.post(f"/v1/models/digits:{verb}", {rows: named}) == served.post(
            f"/v1/models/digits:{verb}", {rows: pictures.tolist()}), key
    status = json.loads(served.get("/v1/models/digits")[1])["model_version_status"]
    assert status == [{"version": "200", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}]
    assert json.loads(served.get("/v1/models/digits/metadata")[1])["model_spec"]["name"] == "digits"


def test_a_picture_as_it_is(trainer, served, digits):
    folder, pictures, _, _ = digits
    Image.fromarray(255 - pictures[5]).resize((57, 57)).save(folder / "five.png")
    said = json.loads(run(trainer, "predict", "--json", "run", "five.png", cwd=folder).stdout)
    answer = served.post("/predict", (folder / "five.png").read_bytes(), content_type="image/png")
    assert answer["class"] == said["class"] and (answer["model"], answer["version"]) == ("digits", 200)
    best = answer["probabilities"][said["class"]]
    assert numpy.float32(best) == numpy.float32(said["top"][0]["probability"])


def test_encoded_pictures_on_every_route(served, client, digits):
    """A JPEG of another size is fitted as in training, whichever way it comes."""
    _, pictures, _, _ = digits
    file = io.BytesIO()
    Image.fromarray(pictures[5]).resize((57, 57)).save(file, "JPEG")
    jpeg = file.getvalue()
    text = {"b64": base64.b64encode(jpeg).decode()}
    wanted = served.post("/predict", jpeg, content_type="image/jpeg")["probabilities"]
    answer = served.post("/v1/models/digits:predict", {"instances": [text, {"images": text}]})
    assert answer["predictions"] == [wanted, wanted]
    tensor = {"name": "images", "datatype": "BYTES", "shape": [1], "data": [text["b64"]]}
    answer = served.post("/v2/models/digits/infer", {"inputs": [tensor]})
    assert answer["outputs"][0]["data"] == wanted
    got = asked(client, numpy.array([[jpeg]], object), "BYTES", True).as_numpy("probabilities")
    numpy.testing.assert_array_equal(got[0], numpy.array(wanted, numpy.float32))
    for wrong, said in (({"b64": "!"}, "b64 is not base64"), ({"b64": 7}, "number"),
                        ({"b64": "R0lGODlhAAAAAAAA"}, "is a GIF picture, which is not read")):
        assert said in served.post("/v1/models/digits:predict", {"instances": [wrong]}, status=400)["error"]
    cut = base64.b64encode(jpeg[:200]).decode()
    assert "is a JPEG" in served.post("/v1/models/digits:predict", {"instances": [{"b64": cut}]}, status=400)["error"]
    parameters = client.get_model_metadata("digits")["parameters"]
    assert (parameters["image_shape"], parameters["image_fit"]) == ([28, 28, 1], "digits")


@pytest.mark.parametrize("floating", [False, True])
def test_pictures_as_an_array_of_numpy(served, digits, floating):
    _, pictures, probabilities, _ = digits
    array = pictures.reshape(-1, 784)
    file = io.BytesIO()
    numpy.save(file, (array / numpy.float32(255)).astype(numpy.float32) if floating else array)
    answer = served.post("/predict/digits", file.getvalue())
    got = numpy.array([one["probabilities"] for one in answer["predictions"]])
    assert (got.astype(numpy.float32) == probabilities.astype(numpy.float32)).all()
    file = io.BytesIO()
    numpy.save(file, array[:, :700])
    assert "row 0: has 700 values, the model's pictures have 784" in served.error("/predict", file.getvalue())
    file = io.BytesIO()
    numpy.save(file, array[:2].astype(numpy.int64) + 99)
    assert "as integers pixels are 0 to 255" in served.error("/predict", file.getvalue())


def test_the_page_and_the_description_ask_nobody_else(served):
    status, content, headers = served.ask("GET", "/", headers={"Accept-Encoding": "gzip"})
    page = gzip.decompress(content).decode()
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    for name in re.findall(r'(?:src|href)="([^"#:]+)"', page):
        assert served.ask("GET", f"/{name}", headers={"Accept-Encoding": "gzip"})[0] == 200, name
    described = json.loads(served.get("/openapi.json")[1])
    for path, methods in described["paths"].items():
        path = path.format(model="digits", version=200)
        for method in methods:
            body = b"{}" if method == "post" else None
            status, content, _ = served.ask(method.upper(), path, body)
            assert status != 404 and status != 405, (method, path, content)


def test_a_client_may_ask_before_it_sends(served, digits):
    """Expect: 100-continue; a body over the limit is refused before a byte of it is sent."""
    body = json.dumps({"instances": [[0] * 784]}).encode()
    for size, first in ((len(body), b"HTTP/1.1 100"), (1 << 30, b"HTTP/1.1 413")):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as peer:
            peer.sendall(b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: localhost\r\n"
                         b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % size)
            assert peer.recv(12) == first
            if size == len(body):
                peer.sendall(body)
                text = b""
                while b"predictions" not in text:
                    text += peer.recv(4096)


def test_a_body_in_gzip(served, digits):
    _, pictures, probabilities, _ = digits
    body = gzip.compress(json.dumps({"instances": pictures.tolist()}).encode())
    answer = served.post("/v1/models/digits:predict", body, content_encoding="gzip")
    numpy.testing.assert_allclose(answer["predictions"], probabilities, atol=1e-6)
    body = zlib.compress(gzip.decompress(body))
    assert served.post("/v1/models/digits:predict", body, content_encoding="deflate") == answer
    assert "not complete deflate" in served.error("/v1/models/digits:predict", body[:50], content_encoding="deflate")
    bomb = gzip.compress(b" " * (64 << 20))
    error = served.post("/v1/models/digits:predict", bomb, status=413, content_encoding="gzip")["error"]
    assert "unpacked; send fewer rows" in error and "--max_body_mb" in error
    assert "not complete gzip" in served.error("/v1/models/digits:predict", bomb[:50], content_encoding="gzip")
    error = served.post("/v1/models/digits:predict", body, status=415, content_encoding="br")["error"]
    assert "br is not known" in error


@pytest.mark.parametrize("packing, unpack", [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_answers_are_packed_for_who_asks(served, client, digits, packing, unpack):
    _, pictures, probabilities, _ = digits
    body = json.dumps({"instances": pictures.tolist()}).encode()

    def ask(accepted):
        _, content, headers = served.ask("POST", "/v1/models/digits:predict", body, {"Accept-Encoding": accepted})
        assert headers["Vary"] == "Accept-Encoding"
        return content, headers["Content-Encoding"]

    plain, encoding = ask("identity")
    assert encoding is None
    for accepted in (packing, f"br, {packing};q=0.5"):
        packed, encoding = ask(accepted)
        assert encoding == packing and unpack(packed) == plain and len(packed) < len(plain) * 0.6
    assert ask(f"{packing};q=0")[1] is None
    one = json.dumps({"instances": pictures[:1].tolist()}).encode()
    _, _, headers = served.ask("POST", "/v1/models/digits:predict", one, {"Accept-Encoding": packing})
    assert headers["Content-Encoding"] is None  # too short to pay off
    metrics = served.ask("GET", "/metrics", None, {"Accept-Encoding": packing})
    assert metrics[2]["Content-Encoding"] == packing and b"trainer_serve_requests_total" in unpack(metrics[1])
    answer = asked(client, pictures.reshape(-1, 784), "UINT8", False, response_compression_algorithm=packing)
    assert (answer.as_numpy("probabilities").astype(numpy.float32) == probabilities.astype(numpy.float32)).all()


def test_the_description_in_gzip(served):
    _, plain, _ = served.get("/openapi.json")
    _, packed, headers = served.ask("GET", "/openapi.json", None, {"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip" and gzip.decompress(packed) == plain


# --- client errors ---


def infer(**changes):
    tensor = {"name": "images", "datatype": "UINT8", "shape": [1, 784], "data": [0] * 784}
    return {"inputs": [{**tensor, **changes}]}


@pytest.mark.parametrize("body, message", [
    (b"", "the body is empty"),
    (b"{", "not JSON"),
    (b"[" * 100000, "not JSON"),
    (b'{"inputs": [{"name": "\xff"}]}', "not JSON"),
    ({}, "inputs: is missing"),
    ({"inputs": [{}]}, "datatype"),
    (infer(datatype="FP8"), "datatype: FP8; it is BOOL"),
    (infer(shape=[1, 700]), "rows of 700 values of UINT8; the model's pictures have 784"),
    (infer(shape=[2, 784]), "has 784 values, its shape has 1568"),
    (infer(shape=[-1, 784]), "dimension 0 is -1; it is a whole number"),
    (infer(shape=[1 << 40, 784]), "dimension 0 is 1099511627776; it is"),
    (infer(shape=[1 << 29, 784]), "has 784 values, its shape has 420906795008"),
    (infer(shape=None), "shape: is null; it is an array"),
    (infer(shape="1,784"), "shape: is a text; it is an array"),
    (infer(shape=[]), "shape: is empty"),
    (infer(data=[0] * 783 + [256]), "value 783: is 256, which UINT8 cannot hold"),
    (infer(datatype="INT32", data=[0] * 783 + [256]), "row 0: pixel 783 is 256; as integers pixels are 0 to 255"),
    (infer(data=[0] * 783 + ["x"]), "value 783: is a text, not a number"),
    (infer(datatype="FP32", data=[0.0] * 783 + [1.5]), "row 0: pixel 783 is 1.5"),
    (infer(data=None, parameters={"binary_data_size": 784}), "is 784, and 0 bytes are left of the body"),
    ({**infer(), "outputs": [{"name": "logits"}]}, "there is no logits"),
])
def test_faulty_requests_are_told_what_is_wrong(served, body, message):
    assert message in served.error("/v2/models/digits/infer", body)
    assert served.get("/readyz")[0] == 200


@pytest.mark.parametrize("length, message", [("9999", "the body has"), ("x", "Inference-Header-Content-Length: x")])
def test_faulty_lengths_of_the_binary_extension(served, length, message):
    error = served.error("/v2/models/digits/infer", infer(), Inference_Header_Content_Length=length)
    assert message in error


@pytest.mark.parametrize("body, message", [
    ({"instances": [[0] * 784, [0] * 3]}, "row 1: has 3 values, the model's pictures have 784"),
    ({"instances": 5}, "the rows are"),
    ({"instances": [[0] * 784, {}]}, 'row 1: a picture is an array of numbers, {"images": [...]} or {"b64": "..."}'),
    ({"instances": [{"images": [0] * 784, "more": 1}]}, "row 0: a picture is an array"),
    ({"instances": [{"images": {"images": [0] * 784}}]}, "row 0: value 0: is an object"),
    ({"instances": [], "inputs": []}, 'wants "instances"'),
    ({"signature_name": "nope", "instances": []}, "only serving_default exists"),
])
def test_faulty_requests_by_tensorflows_interface(served, body, message):
    assert message in served.error("/v1/models/digits:predict", body)


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/v2/models/letters", 404), ("POST", "/v2/models/digits/versions/3/infer", 404),
    ("POST", "/v2/models/digits/explain", 405), ("GET", "/v1/models/digits:predict", 405),
    ("DELETE", "/v2/models/digits", 405), ("POST", "/predict/letters", 404), ("GET", "/nothing", 404),
])
def test_paths_that_are_not_there(served, method, path, status):
    got, content, _ = served.ask(method, path, b"{}" if method == "POST" else None)
    assert got == status and json.loads(content)["error"]


# --- tables ---


def write(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


@pytest.fixture(scope="module")
def plants(trainer, tmp_path_factory):
    """A classification with numbers, categories and missing values; and a regression."""
    folder = tmp_path_factory.mktemp("plants")
    iris = datasets.load_iris()
    names = ["length", "width", "petal", "stem", "soil"]
    rows = [[*map(float, x), ["clay", "sand", "loam"][(i * 7) % 3], iris.target_names[y]]
            for i, (x, y) in enumerate(zip(iris.data, iris.target))]
    for i in range(0, len(rows), 11):
        rows[i][1] = ""
    write(folder / "data/train.csv", [*names, "kind"], rows)
    write(folder / "data/test.csv", [*names, "kind"], rows[::5])
    train(trainer, "--data_dir=data", "--target=kind", *QUICK, "--epochs=20", "--train_dir=kinds", cwd=folder)
    train(trainer, "--data_dir=data", "--target=length", "--ignore=kind", *QUICK, "--epochs=20", "--train_dir=lengths",
          cwd=folder)
    rows = [row[:-1] for row in rows[::7]] + [[9.9, "", 1, 0.1, "peat"]]
    write(folder / "new.csv", names, rows)
    return folder, names, rows


@pytest.fixture(scope="module")
def tables(trainer, plants):
    with Served(trainer, "kinds=kinds", "lengths=lengths", cwd=plants[0]) as server:
        yield server


def predicted(trainer, model, folder):
    return run(trainer, "predict", model, "new.csv", cwd=folder).stdout


@pytest.mark.parametrize("model", ["kinds", "lengths"])
def test_rows_as_csv_are_answered_as_predict_answers(trainer, tables, plants, model):
    status, content, headers = tables.ask("POST", f"/predict/{model}", (plants[0] / "new.csv").read_bytes(),
                                          {"Content-Type": "text/csv"})
    assert status == 200 and headers["Content-Type"].startswith("text/csv") and headers["Model-Name"] == model
    assert content.decode() == predicted(trainer, model, plants[0])


def test_rows_by_every_protocol(trainer, tables, plants):
    folder, names, rows = plants
    wanted = list(csv.DictReader(io.StringIO(predicted(trainer, "kinds", folder))))
    classes = [name.removeprefix("probability_") for name in wanted[0] if name.startswith("probability_")]
    probabilities = numpy.array([[float(row[f"probability_{name}"]) for name in classes] for row in wanted])
    values = [[None if value == "" else value for value in row] for row in rows]
    objects = [dict(zip(names, row)) for row in values]
    columns = {name: [row[i] for row in values] for i, name in enumerate(names)}
    for body, key in (({"instances": objects}, "predictions"), ({"instances": values}, "predictions"),
                      ({"inputs": columns}, "outputs")):
        answer = tables.post("/v1/models/kinds:predict", body)
        numpy.testing.assert_allclose(answer[key], probabilities, atol=1e-6)
    inputs = []
    for i, name in enumerate(names):
        text = name == "soil"
        column = [row[i] for row in rows]
        array = numpy.array(column if text else [float("nan") if v == "" else float(v) for v in column],
                            dtype=object if text else numpy.float64)
        inputs.append(triton.InferInput(name, [len(rows)], "BYTES" if text else "FP64"))
        inputs[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(f"127.0.0.1:{tables.port}") as client:
        answer = client.infer("kinds", inputs)
        numpy.testing.assert_allclose(answer.as_numpy("probabilities"), probabilities, atol=1e-6)
        assert [label.decode() for label in answer.as_numpy("label").astype("S")] == [r["prediction"] for r in wanted]
        metadata = client.get_model_metadata("kinds")
    assert [(one["name"], one["datatype"]) for one in metadata["inputs"]] == [
        (name, "BYTES" if name == "soil" else "FP64") for name in names]


def test_numbers_in_one_tensor_and_numbers_out(trainer, tables, plants):
    folder, names, rows = plants
    wanted = [float(row["prediction"]) for row in csv.DictReader(io.StringIO(predicted(trainer, "lengths", folder)))]
    objects = [{name: None if value == "" else value for name, value in zip(names, row)} for row in rows]
    answer = tables.post("/v1/models/lengths:predict", {"instances": objects})
    numpy.testing.assert_allclose(answer["predictions"], wanted, rtol=1e-7)


MANY_NAMES = '{"instances": [{' + "".join(f'"x{i}": 0, ' for i in range(130))  # more than the JSON checker compares


@pytest.mark.parametrize("body, message", [
    ({"instances": [{"length": 1}]}, "row 0: has no column width"),
    ({"instances": [[1, 2, 3]]}, "row 0: has 3 values, the model has 5 columns"),
    ({"instances": [[1, 2, "tall", 4, "clay"]]}, 'row 0: column petal: "tall" is not a number'),
    ({"instances": [[1, 2, 3, {}, "clay"]]}, "row 0: column stem: is an object"),
    ({"inputs": {"length": [1]}}, "column width is not there"),
    ({"inputs": {"length": [1, 2], "width": [1], "petal": [1], "stem": [1], "soil": [1]}},
     "column width: has 1 values"),
    ('{"instances": [{"length": 1, "width": 2, "length": 3}]}', 'line 1, column 42: duplicate name "length"'),
    (MANY_NAMES + '"length": 1, "length": 3}]}', "row 0: column length is there twice"),
    ('{"instances": [[1, 2]], "instances": [[1, 3]]}', 'duplicate name "instances"'),
])
def test_faulty_rows_are_named_by_row_and_column(tables, body, message):
    body = body.encode() if isinstance(body, str) else body
    assert message in tables.error("/v1/models/kinds:predict", body)


def test_a_faulty_csv_is_named_by_line_and_column(tables):
    error = tables.error("/predict/kinds", b"length,width,petal,stem,soil\n1,2,3,4,clay\n1,2,tall,4,clay\n")
    assert "body:3:5: column petal" in error
    assert "has no column soil" in tables.error("/predict/kinds", b"length,width,petal,stem\n1,2,3,4\n")


# --- drift ---


def drifted(server, model="kinds"):
    return json.loads(server.get(f"/drift/{model}")[1])


def test_drift_is_told_from_the_reference(trainer, plants):
    """Training's own rows have none; that of others is shown by column, in familiar units."""
    folder, names, _ = plants
    with Served(trainer, "kinds=kinds", "--reference=data/train.csv", cwd=folder) as server:
        assert drifted(server)["rows"] == 0 and drifted(server)["columns"][0]["psi"] is None
        train = (folder / "data/train.csv").read_bytes()
        for _ in range(2):
            server.ask("POST", "/predict", train)
        same = drifted(server)
        assert same["rows"] == 300 and same["has_reference"]
        assert all(column["psi"] < 0.01 and column["unknown"] == column["out_of_range"] == 0
                   for column in same["columns"]) and same["prediction_psi"] < 0.01
        rows = [[7.7, 3, 99, 1, "peat"]] * 400
        server.post("/v1/models/kinds:predict", {"instances": rows})
        other = {column["name"]: column for column in drifted(server)["columns"]}
        assert list(other) == names
        assert other["petal"]["out_of_range"] == 400 == other["soil"]["unknown"]
        assert other["length"]["out_of_range"] == 0 and other["petal"]["psi"] > 0.2 < other["soil"]["psi"]
        text = server.get("/metrics")[1].decode()
        assert 'trainer_serve_unknown_values_total{model="kinds",column="soil"} 400' in text
        psi = float(re.search(r'trainer_serve_psi\{model="kinds",column="petal"\} (\S+)', text)[1])
        expected = population_stability(plants, "petal", 2, 300, 99, 400)
        assert psi == pytest.approx(expected, rel=1e-4)


def population_stability(plants, name, copies, same, value, count):
    """The textbook formula, with numpy: `same` rows like the reference's, and `count` of one value."""
    folder, names, _ = plants
    with open(folder / "data/train.csv") as file:
        there = numpy.sort([float(row[name]) for row in csv.DictReader(file)])
    edges = [there[len(there) * i // 10] for i in range(1, 10)]
    here = numpy.concatenate([there] * copies + [[value] * count])
    assert len(here) == same + count
    return stability(there, here, edges)


def stability(there, here, edges):
    def shares(values):
        counts = numpy.bincount(numpy.searchsorted(edges, values, side="right"), minlength=10)
        return numpy.where(counts > 0, counts, 0.5) / len(values), counts

    (p, a), (q, b) = shares(there), shares(here)
    return float((((q - p) * numpy.log(q / p))[(a > 0) | (b > 0)]).sum())


def measures(pictures):
    """What is measured of images, with numpy."""
    pixels = pictures.reshape(-1, 28, 28) / 255
    light = pixels.sum((1, 2))
    places = numpy.arange(28) / 28
    return {"brightness": pixels.mean((1, 2)), "contrast": pixels.std((1, 2)),
            "centre_x": (pixels.sum(1) * places).sum(1) / light, "centre_y": (pixels.sum(2) * places).sum(1) / light}


def test_drift_of_pictures(trainer, digits):
    """Brightness, contrast and centre of the light compared with a data set; and predictions by class."""
    folder, pictures, probabilities, _ = digits
    content = (folder / "data/train-images-idx3-ubyte").read_bytes()
    there = numpy.frombuffer(content, numpy.uint8, offset=16).reshape(-1, 784)
    path = "/v1/models/digits:predict"
    with Served(trainer, "digits=run", "--reference=data", cwd=folder) as server:
        server.post(path, {"instances": there.tolist()})
        same = drifted(server, "digits")
        assert same["has_reference"] and same["rows"] == len(there) and same["prediction_psi"] == 0
        assert [(column["name"], column["psi"]) for column in same["columns"]] == [
            (name, 0) for name in ("brightness", "contrast", "centre_x", "centre_y")]
        server.post(path, {"instances": numpy.roll(pictures, 5, 2).reshape(-1, 784).tolist()})
        moved = {column["name"]: column["psi"] for column in drifted(server, "digits")["columns"]}
        here = numpy.concatenate([there, numpy.roll(pictures, 5, 2).reshape(-1, 784)])
        for name, values in measures(there).items():
            edges = [numpy.sort(values)[len(values) * i // 10] for i in range(1, 10)]
            assert moved[name] == pytest.approx(stability(values, measures(here)[name], edges), rel=1e-4), name
        assert moved["centre_x"] > 0.2 > moved["brightness"]
        before = drifted(server, "digits")["predictions"]
        server.post(path, {"instances": pictures.reshape(-1, 784).tolist()})
        after = drifted(server, "digits")["predictions"]
        counts = [two["count"] - one["count"] for one, two in zip(before, after)]
        assert counts == numpy.bincount(probabilities.argmax(1), minlength=10).tolist()
        assert sum(one["expected_share"] for one in after) == pytest.approx(1)
        text = server.get("/metrics")[1].decode()
        assert 'trainer_serve_psi{model="digits",column="centre_x"}' in text
        assert f'trainer_serve_predictions_total{{model="digits",class="3"}} {after[3]["count"]}' in text
        server.post(path, {"instances": [[0] * 784]})  # without light there is no centre


def test_a_reference_of_other_pictures_is_said(trainer, digits):
    folder, _, _, _ = digits
    run(trainer, "convert", "--data_dir=data", "--to=folders", "--out=folders", cwd=folder)
    with Served(trainer, "run", "--reference=folders", cwd=folder):
        pass
    (folder / "empty").mkdir(exist_ok=True)
    for reference, message in (("nowhere", "nowhere: is not there"), ("empty", "empty")):
        where = f"--http=127.0.0.1:{free_ports(1)[0]}"
        error = run(trainer, "serve", "run", f"--reference={reference}", where, cwd=folder, status=1).stderr
        assert message in error and len(error.splitlines()) == 1


def test_each_model_has_a_reference_of_its_own(trainer, plants, digits):
    """By the model's name, also in paths with commas and equals signs; an unnamed model has none."""
    folder, names, _ = plants
    with open(folder / "data/train.csv") as file:
        lines = file.readlines()
    table = folder / "a=b, c"
    table.mkdir(exist_ok=True)
    low = [line for line in lines[1:] if float(line.split(",")[0]) < 6]
    (table / "low,high.csv").write_text("".join([lines[0], *low]))
    pictures = digits[0] / "data"
    models = ("kinds=kinds", "lengths=lengths", "bare=kinds", f"digits={digits[0]}/run")
    reference = f"--reference=kinds=a=b, c/low,high.csv,digits={pictures},lengths=data/train.csv"
    with Served(trainer, *models, reference, cwd=folder) as server:
        found = {name: drifted(server, name)["has_reference"] for name in ("kinds", "lengths", "bare", "digits")}
        assert found == {"kinds": True, "lengths": True, "bare": False, "digits": True}
        row = {"instances": [dict(zip(names, [7.5, 3, 4, 1, "clay"]))]}
        for name in ("kinds", "lengths", "bare"):
            server.post(f"/v1/models/{name}:predict", row)
        outside = {name: {column["name"]: column["out_of_range"] for column in drifted(server, name)["columns"]}
                   for name in ("kinds", "bare")}
        assert outside["kinds"]["length"] == 1 and outside["bare"]["length"] == 0
    for reference, message in (("kinds=data/train.csv,kinds=data/test.csv", "names kinds twice"),
                               ("roses=data/train.csv", "roses=data/train.csv"),
                               ("kinds=,lengths=data/train.csv", "has no data for kinds"),
                               ("", "has no data for kinds")):
        where = f"--http=127.0.0.1:{free_ports(1)[0]}"
        error = run(trainer, "serve", *models[:2], f"--reference={reference}", where, cwd=folder, status=1).stderr
        assert message in error and len(error.splitlines()) == 1, error


def test_without_a_reference_unknown_categories_are_counted(tables):
    before = {column["name"]: column["unknown"] for column in drifted(tables)["columns"]}
    tables.post("/v1/models/kinds:predict", {"instances": [[5, 3, 1, 1, "moss"]]})
    after = drifted(tables)
    assert not after["has_reference"] and after["columns"][4]["unknown"] == before["soil"] + 1


def test_a_reference_that_does_not_fit_is_said(trainer, plants):
    folder, _, _ = plants
    (folder / "other.csv").write_text("a,b\n1,2\n")
    for reference, message in (("other.csv", "has no column"), ("nothing.csv", "nothing.csv")):
        where = f"--http=127.0.0.1:{free_ports(1)[0]}"
        error = run(trainer, "serve", "kinds", f"--reference={reference}", where, cwd=folder, status=1).stderr
        assert message in error and len(error.splitlines()) == 1


# --- versions ---


def test_newer_checkpoints_take_over_and_no_request_fails(trainer, tmp_path):
    """Training continues in the folder; meanwhile clients send requests."""
    flags = (*SMALL, "--train_dir=run", "--save_steps=20", "--max_to_keep=3")
    train(trainer, *flags, "--train_steps=20", cwd=tmp_path)
    body = json.dumps({"instances": [[0] * 784]})
    over, versions, failures = threading.Event(), set(), []
    with Served(trainer, "run", "--checkpoint=newest", "--interval_secs=0.05", cwd=tmp_path) as server:
        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            while not over.is_set():
                connection.request("POST", "/v1/models/model:predict", body)
                answer = connection.getresponse()
                content = answer.read()
                versions.add(int(answer.headers["Model-Version"] or -1))
                if answer.status != 200:
                    failures.append(content)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            clients = [pool.submit(ask) for _ in range(3)]
            wait_for(lambda: 20 in versions, "the first answer")
            for steps in (40, 60, 200):
                train(trainer, *flags, f"--train_steps={steps}", cwd=tmp_path)
                wait_for(lambda: steps in versions, f"step {steps} in service")
            over.set()
            for one in clients:
                one.result()
        assert server.metric("trainer_serve_model_swaps_total") >= 3
    assert failures == [] and {20, 40, 60, 200} <= versions


def test_a_damaged_checkpoint_is_named_and_the_old_one_stays(trainer, tmp_path):
    train(trainer, *SMALL, "--train_dir=run", "--train_steps=20", cwd=tmp_path)
    one = tmp_path / "model.safetensors"
    shutil.copy(newest(tmp_path / "run"), one)
    with Served(trainer, str(one), "--interval_secs=0.05", cwd=tmp_path) as server:
        damaged = bytearray(one.read_bytes())
        damaged[-5] ^= 1
        (tmp_path / "new").write_bytes(damaged)
        (tmp_path / "new").rename(one)
        wait_for(lambda: "the one in service stays" in server.text(), "the warning")
        assert "model.safetensors" in server.text()
        _, _, headers = server.ask("POST", "/v1/models/model:predict", json.dumps({"instances": [[0] * 784]}))
        assert headers["Model-Version"] == "20" and server.get("/readyz")[0] == 200
        assert server.metric("trainer_serve_model_failures_total") == 1
        train(trainer, *SMALL, "--train_dir=run", "--train_steps=40", cwd=tmp_path)
        shutil.copy(newest(tmp_path / "run"), tmp_path / "new")
        (tmp_path / "new").rename(one)
        wait_for(lambda: server.metric("trainer_serve_model_version") == 40, "the mended one")


def rewritten(content, change):
    """A checkpoint with other metadata, and a matching digest."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    change(header["__metadata__"])
    header["__metadata__"]["digest"] = "0" * 64
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + content[8 + size:]
    return whole.replace(b"0" * 64, hashlib.blake2b(whole, digest_size=32).hexdigest().encode(), 1)


def test_a_checkpoint_is_checked_on_the_rows_kept_with_it(trainer, digits, tmp_path):
    """Its digest matches, but its answers differ from those at the time it was saved."""
    content = newest(digits[0] / "run").read_bytes()
    one = tmp_path / "model.safetensors"

    def replace(change):
        (tmp_path / "new").write_bytes(rewritten(content, change))
        (tmp_path / "new").rename(one)

    def alter(metadata):
        kept = json.loads(metadata["kept_rows"])
        assert len(kept) == 5 and [len(part) for part in kept[1]] == [784, 0, 10]
        kept[3][2][7] += 0.25
        metadata["kept_rows"] = json.dumps(kept)

    one.write_bytes(content)
    with Served(trainer, str(one), "--interval_secs=0.05", cwd=tmp_path) as server:
        assert "step 200, is in service; checked on 4 rows kept with it" in server.text()
        replace(alter)
        wait_for(lambda: "the one in service stays" in server.text(), "the warning")
        assert re.search("model.safetensors: stored row 2 gives .* for output 7", server.text())
        assert server.metric("trainer_serve_model_failures_total") == 1 and server.get("/readyz")[0] == 200
        replace(lambda metadata: metadata.pop("kept_rows"))  # as trained with --kept_rows=0
        wait_for(lambda: server.metric("trainer_serve_model_swaps_total") == 1, "one without rows")


def test_tables_keep_rows_and_some_runs_none(trainer, tables, plants, tmp_path):
    assert tables.text().count("checked on 4 rows kept with it") == 2
    kept = json.loads(tensors(newest(plants[0] / "kinds"))[1]["kept_rows"])
    assert all(len(numbers) >= 4 and 0 < len(places) and len(outputs) == 3 for numbers, places, outputs in kept[1:])
    train(trainer, *SMALL, "--train_dir=run", "--train_steps=10", "--kept_rows=0", cwd=tmp_path)
    assert "kept_rows" not in tensors(newest(tmp_path / "run"))[1]


@pytest.mark.parametrize("which, operand", [("newest", "run"), ("best", "run"), ("best", "run/NEWEST")])
def test_a_run_trained_anew_to_the_same_step_takes_over(trainer, tmp_path, which, operand):
    """A checkpoint is its digest: last night's training ends at the same step, in a file of the same name."""
    def retrain(seed, folder):
        train(trainer, *SMALL, "--train_steps=40", f"--seed={seed}", f"--train_dir={folder}", cwd=tmp_path)
        return newest(tmp_path / folder)

    name = retrain(1, "run").name
    operand = operand.replace("NEWEST", name)
    body = {"instances": [[i % 256 for i in range(784)]]}
    with Served(trainer, operand, f"--checkpoint={which}", "--interval_secs=0.05", cwd=tmp_path) as server:
        def answer():
            return server.post("/v1/models/model:predict", body)

        def digest():
            return json.loads(server.get("/v2/models/model")[1])["parameters"]["digest"]

        first, before = answer(), digest()
        for file in (tmp_path / "run").glob("*.safetensors"):  # copies and touched files are the same model
            shutil.copy(file, tmp_path / "copy")
            (tmp_path / "copy").rename(file)
        time.sleep(0.3)
        assert server.metric("trainer_serve_model_swaps_total") == 0 and digest() == before
        retrain(2, "other")
        for file in (tmp_path / "other").glob("*.safetensors"):
            shutil.copy(file, tmp_path / "run" / file.name)  # in place: the folder does not change
        wait_for(lambda: digest() != before, "the other model")
        assert answer() != first and server.metric("trainer_serve_model_version") == 40
        assert server.metric("trainer_serve_model_swaps_total") == 1
        wait_for(lambda: "another model than the one before, of the same step" in server.text(), "the log")
        retrain(1, "third")
        for file in (tmp_path / "run").glob("*.safetensors"):
            file.unlink()
        for file in (tmp_path / "third").glob("*.safetensors"):
            file.rename(tmp_path / "run" / file.name)
        wait_for(lambda: digest() == before, "the first model again")
        assert answer() == first


def test_the_best_by_validation_is_served_where_that_is_wanted(trainer, tmp_path):
    """However new others are; a better one is put into service."""
    kept, best = [], tmp_path / "run/best.safetensors"
    for steps in (20, 40, 60):
        train(trainer, *SMALL, "--train_dir=run", f"--train_steps={steps}", cwd=tmp_path)
        kept.append(newest(tmp_path / "run").read_bytes())
    best.write_bytes(kept[0])
    with Served(trainer, "run", "--checkpoint=best", "--interval_secs=0.05", cwd=tmp_path) as server:
        assert server.metric("trainer_serve_model_version") == 20
        (tmp_path / "new").write_bytes(kept[1])
        (tmp_path / "new").rename(best)
        wait_for(lambda: server.metric("trainer_serve_model_version") == 40, "the better one")
    with Served(trainer, "run", cwd=tmp_path) as server:
        assert server.metric("trainer_serve_model_version") == 40
    with Served(trainer, "run", "--checkpoint=newest", cwd=tmp_path) as server:
        assert server.metric("trainer_serve_model_version") == 60


def test_without_memory_for_a_new_model_the_old_one_stays(trainer, tmp_path):
    """Given 2 MiB more each time, the server refuses the larger model until it loads, and never ends."""
    train(trainer, *SMALL, "--train_dir=small", "--train_steps=20", cwd=tmp_path)
    train(trainer, *SMALL, "--layers=784,1500,10", "--train_dir=large", "--train_steps=40", cwd=tmp_path)
    one = tmp_path / "model.safetensors"
    shutil.copy(newest(tmp_path / "small"), one)
    flags = ("--workers=2", "--interval_secs=0.05", "--max_body_mb=4", "--max_memory_mb=16")
    with Served(trainer, str(one), *flags, cwd=tmp_path) as server:
        pid = server.process.pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        size = int(re.search(r"VmSize:\s*(\d+) kB", status)[1]) << 10
        _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        refused = lambda: server.text().count("out of memory")
        is_loaded = lambda: "step 40, is in service" in server.text()
        tried = 0
        while not is_loaded():
            resource.prlimit(pid, resource.RLIMIT_AS, (size + (tried << 21), hard))
            shutil.copy(newest(tmp_path / "large"), tmp_path / "new")
            (tmp_path / "new").rename(one)
            tried += 1
            wait_for(lambda: refused() == tried or is_loaded(), "an attempt")
            assert server.process.poll() is None and tried < 60, server.text()
        assert tried > 10 and server.text().count("model.safetensors: out of memory") == tried - 1
        assert server.metric("trainer_serve_model_version") == 40


def test_a_folder_may_be_empty_at_first(trainer, tmp_path):
    (tmp_path / "run").mkdir()
    with Served(trainer, "run", "--interval_secs=0.05", cwd=tmp_path, ready=False) as server:
        status, content, _ = server.get("/readyz")
        assert status == 503 and "no intact checkpoint" in json.loads(content)["error"]
        status, _, headers = server.ask("POST", "/predict", b"x")
        assert status == 503 and headers["Retry-After"] == "1"
        train(trainer, *SMALL, "--train_dir=run", "--train_steps=20", cwd=tmp_path)
        wait_for(lambda: server.get("/readyz")[0] == 200, "the first checkpoint")


def test_models_beyond_their_memory_are_refused(trainer, tmp_path):
    train(trainer, *SMALL, "--layers=784,400,10", "--train_dir=run", "--train_steps=20", cwd=tmp_path)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    flags = ("--workers=1", "--max_models_mb=4")
    with Served(trainer, "one=run", *flags, cwd=tmp_path):
        pass
    error = run(trainer, "serve", "one=run", "two=other/" + newest(tmp_path / "other").name, *flags,
                f"--http=127.0.0.1:{free_ports(1)[0]}", cwd=tmp_path, status=1).stderr
    assert "raise --max_models_mb" in error


@pytest.mark.parametrize("arguments, message", [
    (["nothing"], "nothing"),
    (["run", "--checkpoint=oldest"], "--checkpoint: must be best or newest"),
    (["run", "--max_queue=0"], "--max_queue: must be a number from 1"),
    (["x", "y"], "two models are called model"),
    (["a/b=x"], "not a model's name"),
    ([], "no model given"),
])
def test_misuse(trainer, tmp_path, arguments, message):
    (port,) = free_ports(1)
    error = run(trainer, "serve", *arguments, f"--http=127.0.0.1:{port}", cwd=tmp_path, status=1).stderr
    assert message in error and len(error.splitlines()) == 1


def test_where_must_be_said(trainer, tmp_path):
    assert "Give --http=" in run(trainer, "serve", "run", cwd=tmp_path, status=2).stderr


# --- log output ---


def test_each_answer_is_a_line_of_the_access_log(trainer, digits):
    folder, pictures, _, _ = digits
    with Served(trainer, "run", "--access_log=access.log", cwd=folder) as server:
        server.post("/v1/models/model:predict", {"instances": pictures[:1].tolist()})
        server.get("/no\"body")
        path = folder / "access.log"
        wait_for(lambda: path.exists() and path.read_text().count("\n") >= 3, "lines")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["method"], line["path"], line["status"]) for line in lines] == [
            ("GET", "/readyz", 200), ("POST", "/v1/models/model:predict", 200), ("GET", "/no\"body", 404)]
        assert all(line["client"] == "127.0.0.1" and line["bytes"] > 0 and line["ms"] >= 0 for line in lines)
        path.rename(folder / "access.log.1")
        server.get("/healthz")
        wait_for(lambda: path.exists() and "healthz" in path.read_text(), "a new file")
    assert (folder / "access.log.1").read_text().count("\n") == 3


# --- the log of requests ---


def kept(folder):
    """Rows of all files of a model's log, by columns."""
    rows = []
    for path in sorted(folder.glob("train-*.csv")):
        with open(path, newline="") as file:
            rows += csv.DictReader(file)
    return rows


def test_rows_are_kept_as_they_came_and_training_reads_them(trainer, plants):
    """By every interface, in the model's order of columns, with the model's answers; then a model is trained on it."""
    folder, names, rows = plants
    shutil.rmtree(folder / "log", ignore_errors=True)
    values = [[None if value == "" else value for value in row] for row in rows]
    inputs = []
    for i, name in enumerate(names):
        inputs.append(triton.InferInput(name, [1], "BYTES" if name == "soil" else "FP64"))
        inputs[-1].set_data_from_numpy(numpy.array([rows[1][i]], object if name == "soil" else numpy.float64))
    turned = [names[::-1] + ["kind"], ['a "b",\nc', 0.5, 1, "", 3, "unknown"]]
    with Served(trainer, "kinds=kinds", "--request_log=log", cwd=folder) as server:
        text = server.ask("POST", "/predict", (folder / "new.csv").read_bytes())[1].decode()
        server.post("/v1/models/kinds:predict", {"instances": values})
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            client.infer("kinds", inputs)
        file = io.StringIO()
        csv.writer(file).writerows(turned)
        assert server.ask("POST", "/predict", file.getvalue().encode())[0] == 200
        assert "row 0" in server.error("/v1/models/kinds:predict", {"instances": [[1, 2, "tall", 4, "clay"]]})
        assert server.metric("trainer_serve_logged_rows_total") == 2 * len(rows) + 2
        assert not list((folder / "log/kinds").glob("train-*"))  # an unfinished file is not visible yet
    found, wanted = kept(folder / "log/kinds"), list(csv.DictReader(io.StringIO(text)))
    columns = list(wanted[0])
    assert [list(row) for row in found] == [columns] * (2 * len(rows) + 2)
    assert [float(row["petal"]) for row in found[len(rows):]] == [
        *(float(row["petal"]) for row in wanted), rows[1][2], 1]
    for row, other in zip(found, wanted + wanted + wanted[1:2]):
        assert [row[name] for name in columns[len(names) - 1:]] == [other[name] for name in columns[len(names) - 1:]]
    assert found[-1]["soil"] == 'a "b",\nc' and (found[-1]["width"], found[-1]["length"]) == ("", "3")
    with open(folder / "data/train.csv", newline="") as file:
        body = "".join(",".join(line.split(",")[:-1]) + "\n" for line in file)
    with Served(trainer, "kinds=kinds", "--request_log=log", cwd=folder) as server:
        server.ask("POST", "/predict", body.encode())
    assert len(kept(folder / "log/kinds")) == 2 * len(rows) + 152
    said = train(trainer, "--data_dir=log/kinds", "--target=prediction", "--ignore=" + ",".join(columns[6:]), *QUICK,
                 "--epochs=20", "--validation_size=20", "--test_share=0.2", "--train_dir=pupil", cwd=folder)
    assert said.done["test_accuracy"] > 0.8


def test_pictures_are_kept_by_class_and_training_reads_them(trainer, digits):
    folder, pictures, probabilities, _ = digits
    shutil.rmtree(folder / "log", ignore_errors=True)
    with Served(trainer, "digits=run", "--request_log=log", "--workers=1", cwd=folder) as server:
        server.post("/v1/models/digits:predict", {"instances": pictures.tolist()})
        values = (pictures[:1].reshape(1, -1) / 255 * 0.9777 + 0.011).tolist()  # between the levels of grey
        server.post("/v1/models/digits:predict", {"instances": values})
    files = sorted((folder / "log/digits").glob("*/*/*.png"), key=lambda path: path.name)
    assert len(files) == len(pictures) + 1 and len(list((folder / "log/digits/test").glob("*/*"))) == 4
    for path, picture, row in zip(files, pictures, probabilities):
        assert (numpy.asarray(Image.open(path)) == picture).all()
        assert int(path.parent.name) == row.argmax() and path.stem.endswith(f"-p{row.max():.3f}")
    said = train(trainer, "--data_dir=log/digits", "--data_source=folders", "--layers=784,16,10", *QUICK,
                 "--train_steps=5", "--validation_size=5", "--train_dir=pupil", cwd=folder)
    assert said.done["test_images"] == 4
    said = run(trainer, "eval", "run", "--data_dir=log/digits", "--data_source=folders", cwd=folder).stdout
    assert "100.00%" in said  # compared with its own answers


@pytest.mark.parametrize("floating", [False, True])
def test_a_batch_of_its_own_is_kept_and_counted(trainer, digits, floating):
    """Like rows that are copied, although nothing extracted these from the body."""
    folder, pictures, probabilities, _ = digits
    shutil.rmtree(folder / "log", ignore_errors=True)
    values = pictures.reshape(-1, 784) * numpy.float32(0.9) / 255 if floating else pictures.reshape(-1, 784)
    values = numpy.tile(values, (2, 1)).astype(numpy.float32 if floating else numpy.uint8)
    with Served(trainer, "digits=run", "--request_log=log", "--workers=1", cwd=folder) as server:
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            asked(client, values, "FP32" if floating else "UINT8", True)
        assert server.metric("trainer_serve_predictions_total") == 80
        assert server.metric("trainer_serve_batch_rows_sum") == 80
        assert server.metric("trainer_serve_batch_rows_count") == 1
    files = sorted((folder / "log/digits").glob("*/*/*.png"), key=lambda path: path.name)
    assert len(files) == 80
    for path, picture in zip(files, numpy.tile(pictures, (2, 1, 1))):
        difference = numpy.asarray(Image.open(path)).astype(int) - (picture * 0.9 if floating else picture)
        assert abs(difference).max() <= (0.51 if floating else 0)


def test_the_log_of_requests_stays_within_its_space(trainer, plants):
    """The oldest files are removed, including an earlier process's; what a killed process left is reused."""
    folder, names, _ = plants
    shutil.rmtree(folder / "log", ignore_errors=True)
    line = "5.1,3.5,{:.6f},0.2,clay\n"
    flags = ("kinds=kinds", "--request_log=log", "--request_log_mb=1", "--workers=1")

    def send(server, first, count):
        for start in range(first, first + count, 2000):
            rows = "".join(line.format(i) for i in range(start, start + 2000))
            assert server.ask("POST", "/predict", f"{','.join(names)}\n{rows}".encode())[0] == 200
            time.sleep(0.15)  # so that the writing thread runs in between

    def size():
        return sum(path.stat().st_size for path in (folder / "log/kinds").iterdir())

    with Served(trainer, *flags, cwd=folder) as server:
        send(server, 0, 20000)
        assert server.metric("trainer_serve_lost_rows_total") == 0
        wait_for(lambda: server.metric("trainer_serve_logged_rows_total") == 20000, "all rows")
    assert size() <= 1 << 20 and 2 < len(list((folder / "log/kinds").glob("train-*.csv")))
    rows = [float(row["petal"]) for row in kept(folder / "log/kinds")]
    assert rows == [float(i) for i in range(20000 - len(rows), 20000)] and len(rows) > 2000
    half = folder / "log/kinds/.under-way.csv"
    header = next((folder / "log/kinds").glob("train-*.csv")).read_text().splitlines()[0]
    half.write_text(f"{header}\n{line.format(20000).strip()},setosa,1,0,0\n5.1,3.5,20")
    with Served(trainer, *flags, cwd=folder) as server:
        assert kept(folder / "log/kinds")[-1]["petal"] == "20000.000000"
        send(server, 20001, 4000)
    again = [float(row["petal"]) for row in kept(folder / "log/kinds")]
    assert again == [float(i) for i in range(24001 - len(again), 24001)] and size() <= 1 << 20


def test_a_share_of_the_requests_is_kept(trainer, plants):
    folder, _, _ = plants
    shutil.rmtree(folder / "log", ignore_errors=True)
    body = {"instances": [[5, 3, 1, 1, "clay"]] * 3}
    with Served(trainer, "kinds=kinds", "--request_log=log", "--request_log_share=0.5", cwd=folder) as server:
        for _ in range(300):
            server.post("/v1/models/kinds:predict", body)
    count = len(kept(folder / "log/kinds"))
    assert count % 3 == 0 and 75 < count / 3 < 225  # all rows of a request or none; outside this range 1 in 10^17


def test_a_log_that_cannot_be_written_is_said_and_requests_are_answered(trainer, plants):
    folder, _, _ = plants
    shutil.rmtree(folder / "log", ignore_errors=True)
    (folder / "file").write_text("")
    where = f"--http=127.0.0.1:{free_ports(1)[0]}"
    assert "file" in run(trainer, "serve", "kinds", "--request_log=file", where, cwd=folder, status=1).stderr
    with Served(trainer, "kinds=kinds", "--request_log=log", cwd=folder) as server:
        shutil.rmtree(folder / "log")
        for _ in range(2):
            server.post("/v1/models/kinds:predict", {"instances": [[5, 3, 1, 1, "clay"]]})
            wait_for(lambda: "requests are not recorded" in server.text(), "the warning")
        wait_for(lambda: server.metric("trainer_serve_lost_rows_total") == 2, "the count")
        assert server.text().count("requests are not recorded") == 1


# --- permissions, and whose socket it is ---


def test_a_token_is_wanted_but_for_health(trainer, digits):
    folder, pictures, probabilities, _ = digits
    token = "s3cret" * 8
    (folder / "token").write_text(token + "\n")
    (folder / "token").chmod(0o600)
    body = json.dumps({"instances": pictures[:1].tolist()})
    with Served(trainer, "run", "--http_token_file=token", cwd=folder) as server:
        for path in ("/healthz", "/v2/health/ready", "/openapi.json"):
            assert server.get(path)[0] == 200
        for path in ("/metrics", "/v2", "/v2/models/model", "/drift/model"):
            assert server.get(path)[0] == 401
        assert server.ask("POST", "/v1/models/model:predict", body)[0] == 401
        answer = server.post("/v1/models/model:predict", body.encode(), Authorization=f"Bearer {token}")
        numpy.testing.assert_allclose(answer["predictions"], probabilities[:1], atol=1e-6)


AS_SYSTEMD = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.execve(sys.argv[2], sys.argv[2:], {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})"""


def test_a_socket_of_systemd_outlives_restarts(trainer, digits):
    """A client that connects while nothing serves is answered by the next process."""
    folder, _, _, _ = digits
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno()), trainer, "serve", "run",
                   f"--http=127.0.0.1:{port}"]
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                peer.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                process = subprocess.Popen(command, cwd=folder, pass_fds=[listener.fileno()],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                assert peer.recv(64).startswith(b"HTTP/1.1 200")
                process.terminate()
                assert process.wait(240) == 0


# --- load ---


def test_a_full_queue_says_so_and_loses_nothing(trainer, digits):
    folder, pictures, _, _ = digits
    body = json.dumps({"instances": numpy.repeat(pictures, 20, axis=0).tolist()})
    with Served(trainer, "run", "--workers=1", "--max_queue=1", "--max_batch=1", cwd=folder) as server:
        def ask(_):
            status, _, headers = server.ask("POST", "/v1/models/model:predict", body)
            return status, headers["Retry-After"]

        answers = []
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            while (503, "1") not in answers and len(answers) < 1000:  # until they happen to come together
                answers += pool.map(ask, range(36))
        assert set(answers) == {(200, None), (503, "1")}
        assert server.metric("trainer_serve_requests_total") == len(answers)


def test_requests_that_come_together_are_computed_together(trainer, digits):
    folder, pictures, probabilities, _ = digits
    with Served(trainer, "run", "--workers=1", "--max_wait_us=1000000", "--max_batch=8", cwd=folder) as server:
        def ask(i):
            return server.post("/v1/models/model:predict", {"instances": [pictures[i].tolist()]})["predictions"][0]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(40)))
        numpy.testing.assert_allclose(answers, probabilities[:40], atol=1e-6)
        assert server.metric("trainer_serve_batch_rows_count") < 40 == server.metric("trainer_serve_batch_rows_sum")


def test_what_has_come_is_answered_before_it_leaves(trainer, digits):
    folder, pictures, _, _ = digits
    body = json.dumps({"instances": numpy.repeat(pictures, 60, axis=0).tolist()}).encode()
    server = Served(trainer, "run", "--workers=1", "--max_body_mb=64", cwd=folder)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/models/model:predict", body)
    wait_for(lambda: server.metric("trainer_serve_queue_requests") + server.metric("trainer_serve_requests_total") > 0
             or server.process.poll() is not None, "the request")
    server.process.send_signal(signal.SIGTERM)
    answer = connection.getresponse()
    assert answer.status == 200 and len(json.loads(answer.read())["predictions"]) == 60 * len(pictures)
    assert server.process.wait(240) == 0
