"""All of what public clients do: Triton's client method by method, the requests in TensorFlow Serving's documentation,
every path of /openapi.json as Schemathesis tries it, and a proxy set up as the documents say."""

import http.client
import io
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys

import ml_dtypes
import numpy
import pytest
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

from ports import free_ports
from runs import SMALL, train, wait_for
from served import Served

ROWS = 60


@pytest.fixture(scope="module")
def models(trainer, tmp_path_factory):
    """A model of digits; one of a table's classes, with a category and truth values; one of its numbers."""
    folder = tmp_path_factory.mktemp("models")
    train(trainer, *SMALL, "--train_steps=3", "--train_dir=digits", cwd=folder)
    (folder / "d").mkdir()
    (folder / "d/train.csv").write_text("size,code,open,kind,cost\n" + "".join(
        f"{i}.5,{i % 5},{['false', 'true'][i % 2]},{'big' if i > ROWS / 2 else 'small'},{3 * i}\n"
        for i in range(ROWS)))
    common = ("--data_dir=d", "--categorical=code", "--epochs=3", "--num_threads=1", "--log_steps=0")
    train(trainer, *common, "--target=kind", "--ignore=cost", "--train_dir=kinds", cwd=folder)
    train(trainer, *common, "--target=cost", "--ignore=kind", "--train_dir=costs", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def served(trainer, models):
    with Served(trainer, "digits=digits", "kinds=kinds", "costs=costs", cwd=models) as server:
        yield server


@pytest.fixture
def client(served):
    with triton.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        yield client


# --- Triton's client ---


def test_what_tritons_client_asks_about_servers_and_models(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("kinds") and not client.is_model_ready("nothing")
    assert client.get_server_metadata()["name"] == "trainer"
    assert {one["name"] for one in client.get_model_repository_index()} == {"digits", "kinds", "costs"}
    metadata = client.get_model_metadata("kinds")
    assert metadata["parameters"]["labels"] == ["big", "small"] and len(metadata["parameters"]["digest"]) == 64
    config = client.get_model_config("kinds")
    assert config["max_batch_size"] == 0
    assert [(one["name"], one["data_type"]) for one in config["input"]] == [
        ("size", "TYPE_FP64"), ("code", "TYPE_STRING"), ("open", "TYPE_STRING")]
    assert config["output"][0] == {"name": "probabilities", "data_type": "TYPE_FP32", "dims": [-1, 2]}


@pytest.mark.parametrize("name", ["load_model", "unload_model"])
def test_models_are_not_loaded_by_requests(client, name):
    with pytest.raises(InferenceServerException, match="are not loaded or unloaded by requests"):
        getattr(client, name)("kinds")


@pytest.mark.parametrize("call", [
    lambda c: c.get_inference_statistics(), lambda c: c.get_inference_statistics("kinds"),
    lambda c: c.get_trace_settings(), lambda c: c.update_trace_settings(settings={}), lambda c: c.get_log_settings(),
    lambda c: c.update_log_settings({}), lambda c: c.get_system_shared_memory_status(),
    lambda c: c.register_system_shared_memory("a", "/a", 1), lambda c: c.unregister_system_shared_memory(),
    lambda c: c.get_cuda_shared_memory_status(), lambda c: c.unregister_cuda_shared_memory(),
])
def test_extensions_that_are_not_there_are_refused_by_name(client, call):
    with pytest.raises(InferenceServerException) as refused:
        call(client)
    assert re.search("not found|takes|there is no model stats", str(refused.value)), refused.value


NUMBERS = {"INT8": numpy.int8, "INT16": numpy.int16, "INT32": numpy.int32, "INT64": numpy.int64, "UINT8": numpy.uint8,
           "UINT16": numpy.uint16, "UINT32": numpy.uint32, "UINT64": numpy.uint64, "FP16": numpy.float16,
           "FP32": numpy.float32, "FP64": numpy.float64}


def kinds(client, size, code, truth, outputs=None, **options):
    inputs = []
    for name, (type, values, binary) in (("size", size), ("code", code), ("open", truth)):
        inputs.append(triton.InferInput(name, values.shape, type))
        inputs[-1].set_data_from_numpy(values, binary_data=binary)
    return client.infer("kinds", inputs, outputs=outputs, **options).as_numpy("probabilities")


@pytest.mark.parametrize("type, binary", [(type, binary) for type in NUMBERS for binary in (False, True)
                                          if binary or type != "FP16"])  # Triton has no FP16 in JSON
def test_all_types_mean_the_same(client, type, binary):
    """A number is the same number in all types that hold it, and so is a category, in JSON and in bytes."""
    texts = numpy.array(["3", "4"], dtype=object)
    truths = numpy.array([True, False])
    wanted = kinds(client, ("FP64", numpy.array([40.0, 7.0]), True), ("BYTES", texts, True), ("BOOL", truths, True))
    got = kinds(client, (type, numpy.array([40, 7], NUMBERS[type]), binary),
                (type, numpy.array([3, 4], NUMBERS[type]), binary), ("BOOL", truths, binary))
    assert (got == wanted).all() and wanted[0, 0] != wanted[1, 0]
    words = numpy.array(["true", "false"], dtype=object)
    got = kinds(client, ("FP64", numpy.array([[40.0], [7.0]]), binary), ("BYTES", texts, binary),
                ("BYTES", words, binary))
    assert (got == wanted).all()


def test_bfloat16(client):
    values = numpy.array([[0.5] * 784, [0.25] * 784], numpy.float32)
    wanted = triton.InferInput("images", values.shape, "FP32")
    wanted.set_data_from_numpy(values)
    short = triton.InferInput("images", values.shape, "BF16")
    short.set_data_from_numpy(values.astype(ml_dtypes.bfloat16))
    assert (client.infer("digits", [short]).as_numpy("probabilities")
            == client.infer("digits", [wanted]).as_numpy("probabilities")).all()


def test_pictures_in_all_types(client):
    levels = numpy.tile(numpy.array([0, 1], numpy.uint8), (2, 392))
    levels[1] *= 100
    answers = {}
    for type, values in [(type, levels.astype(kind)) for type, kind in NUMBERS.items() if "INT" in type] + [
            (type, (levels / 255).astype(NUMBERS[type])) for type in ("FP32", "FP64")] + [("BOOL", levels > 0)]:
        for binary in (False, True):
            tensor = triton.InferInput("images", values.shape, type)
            tensor.set_data_from_numpy(values, binary_data=binary)
            answers[type, binary] = client.infer("digits", [tensor]).as_numpy("probabilities")
    truth = answers.pop(("BOOL", False)), answers.pop(("BOOL", True))
    assert (truth[0] == truth[1]).all() and (truth[0][0] == truth[0][1]).all()  # true is white, whatever the level was
    first = answers["UINT8", True]
    for which, answer in answers.items():
        assert (answer == first).all(), which


def test_async_compressed_and_chosen_outputs(client):
    tensor = triton.InferInput("images", (1, 784), "UINT8")
    tensor.set_data_from_numpy(numpy.zeros((1, 784), numpy.uint8))
    outputs = [triton.InferRequestedOutput("label", binary_data=False), triton.InferRequestedOutput("class")]
    wanted = client.infer("digits", [tensor])
    waiting = client.async_infer("digits", [tensor], outputs=outputs, request_id="r1",
                                 request_compression_algorithm="gzip", response_compression_algorithm="deflate",
                                 headers={"X-Trace": "1"}, query_params={"a": 1})
    answer = waiting.get_result()
    assert answer.get_response()["id"] == "r1" and answer.as_numpy("probabilities") is None
    assert answer.as_numpy("class") == wanted.as_numpy("class")
    with pytest.raises(InferenceServerException, match="there is no logits"):
        client.infer("digits", [tensor], outputs=[triton.InferRequestedOutput("logits")])


# --- TensorFlow Serving's documented requests (tensorflow.org/tfx/serving/api_rest) ---


def test_the_documented_requests_of_tensorflow_serving(served):
    state = json.loads(served.get("/v1/models/costs")[1])["model_version_status"][0]
    assert state["state"] == "AVAILABLE"
    version = state["version"]
    metadata = json.loads(served.get(f"/v1/models/costs/versions/{version}/metadata")[1])
    inputs = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert {name: one["dtype"] for name, one in inputs.items()} == {
        "size": "DT_DOUBLE", "code": "DT_STRING", "open": "DT_STRING"}
    rows = [{"size": 40.5, "code": "3", "open": True}, {"size": 7, "code": 4, "open": "false"}]
    lists = [[40.5, "3", "true"], [7.0, 4.0, False]]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    nested = {name: [[row[name]] for row in rows] for name in rows[0]}
    path = f"/v1/models/costs/versions/{version}:predict"
    wanted = served.post(path, {"signature_name": "serving_default", "instances": rows})["predictions"]
    assert wanted[0] != wanted[1]
    assert served.post(path, {"instances": lists})["predictions"] == wanted
    for inputs in (columns, nested):
        assert served.post(path, {"inputs": inputs})["outputs"] == wanted
    assert served.post("/v1/models/costs:regress", {"examples": rows})["results"] == wanted
    classes = served.post("/v1/models/kinds:classify", {"examples": rows})["results"]
    assert [[label for label, _ in row] for row in classes] == [["big", "small"]] * 2
    assert "predicts no numbers" in served.error("/v1/models/kinds:regress", {"examples": rows})
    assert "wants \"examples\"" in served.error("/v1/models/kinds:classify", {"instances": rows})
    assert "there is no model nothing here" in json.loads(served.get("/v1/models/nothing")[1])["error"]


# --- forms and files of NumPy ---


def saved(array):
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def archive(array):
    file = io.BytesIO()
    numpy.savez_compressed(file, x=array)
    return file.getvalue()


def test_arrays_of_pictures_by_their_type(served):
    """In a compressed archive, too, fractions are fractions, and not zeros."""
    fractions = numpy.linspace(0, 1, 784, dtype=numpy.float32).reshape(1, 784)
    answers = [served.post("/predict/digits", pack(fractions.astype(type)))["predictions"]
               for pack in (saved, archive) for type in (numpy.float32, numpy.float64)]
    dark = served.post("/predict/digits", saved(numpy.zeros((1, 784), numpy.uint8)))["predictions"]
    assert all(answer == answers[0] for answer in answers) and answers[0] != dark
    white = served.post("/predict/digits", saved(numpy.full((1, 784), 255, numpy.uint8)))["predictions"]
    assert served.post("/predict/digits", saved(numpy.ones((1, 784), bool)))["predictions"] == white
    assert "divide levels of grey by 255" in served.error("/predict/digits", saved(fractions * 255))


def form(*parts, boundary="b0undary", end="--"):
    body = b"".join(f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
                    for head, content in parts)
    return body + f"--{boundary}{end}\r\n".encode()


def test_forms(served):
    content = b"size,code,open\n40.5,3,true\n"
    wanted = served.ask("POST", "/predict/kinds", content)[1]
    file = 'name="file"; filename="new.csv"'
    for body, type in ((form((file, content)), "multipart/form-data; boundary=b0undary"),
                       (form((file, content)), 'MULTIPART/Form-Data; charset=utf-8; Boundary="b0undary"'),
                       (b"preamble\r\n" + form((file, content)), "multipart/form-data; boundary=b0undary"),
                       (form(('name="who"', b"me"), (file, content), ('name="x"', b"")),
                        "multipart/form-data; boundary=b0undary"),
                       (form(('name="data"', content)), "multipart/form-data; boundary=b0undary")):
        assert served.ask("POST", "/predict/kinds", body, {"Content-Type": type})[:2] == (200, wanted), type
    for body, type, said in (
            (form((file, content), (file, content)), "multipart/form-data; boundary=b0undary", "has 2 files"),
            (form(('name="a"', b"1"), ('name="b"', b"2")), "multipart/form-data; boundary=b0undary", "and no file"),
            (form((file, content))[:40], "multipart/form-data; boundary=b0undary", "is not complete"),
            (b"", "multipart/form-data; boundary=b0undary", "is not complete"),
            (content, "multipart/form-data", "has no boundary"),
            (form((file, b"")), "multipart/form-data; boundary=b0undary", "the body is empty")):
        status, answer, _ = served.ask("POST", "/predict/kinds", body, {"Content-Type": type})
        assert status == 400 and said in json.loads(answer)["error"], answer
    whole = form((file, content))
    for cut in range(len(whole)):  # no prefix of a form is read beyond its end
        status, _, _ = served.ask("POST", "/predict/kinds", whole[:cut],
                                  {"Content-Type": "multipart/form-data; boundary=b0undary"})
        assert status in (200, 400)
    status, answer, _ = served.ask("POST", "/v1/models/kinds:predict", form((file, b"{}")),
                                   {"Content-Type": "multipart/form-data; boundary=b0undary"})
    assert status == 415 and "send the JSON itself" in json.loads(answer)["error"]


def test_texts_of_bytes_are_utf8(served):
    head = json.dumps({"inputs": [{"name": "size", "datatype": "FP64", "shape": [1], "data": [1]},
                                  {"name": "code", "datatype": "BYTES", "shape": [1],
                                   "parameters": {"binary_data_size": 8}},
                                  {"name": "open", "datatype": "BOOL", "shape": [1], "data": [1]}]}).encode()
    error = served.error("/v2/models/kinds/infer", head + struct.pack("<I", 4) + b"gro\xdf",
                         Inference_Header_Content_Length=str(len(head)))
    assert "column code: is not UTF-8" in error


# --- paths and methods ---

PATHS = {"/": "GET, HEAD", "/try.js": "GET, HEAD", "/openapi.json": "GET, HEAD", "/drift/kinds": "GET, HEAD",
         "/healthz": "GET, HEAD", "/readyz": "GET, HEAD", "/metrics": "GET, HEAD", "/v2": "GET, HEAD",
         "/v2/health/live": "GET, HEAD", "/v2/health/ready": "GET, HEAD", "/v2/models/kinds": "GET, HEAD",
         "/v2/models/kinds/ready": "GET, HEAD", "/v2/models/kinds/config": "GET, HEAD",
         "/v2/models/kinds/infer": "POST", "/v2/repository/index": "GET, HEAD, POST",
         "/v2/repository/models/kinds/load": "POST", "/v1/models/kinds": "GET, HEAD",
         "/v1/models/kinds/metadata": "GET, HEAD", "/v1/models/kinds:predict": "POST",
         "/v1/models/kinds:classify": "POST", "/v1/models/costs:regress": "POST", "/v1/models/kinds:explain": "POST",
         "/predict/kinds": "POST"}


def test_every_path_says_which_methods_it_takes(served):
    for path, method in itertools.product(PATHS, ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE")):
        status, content, headers = served.ask(method, path, b"{}" if method == "POST" else None)
        if method in PATHS[path].split(", "):
            assert status != 405 and status < 500, (method, path)
            assert method != "HEAD" or content == b"", path
        else:
            assert (status, headers["Allow"]) == (405, PATHS[path]), (method, path, status)
            assert method == "HEAD" or json.loads(content)["error"].startswith(method), content


def test_the_description_names_the_paths_that_there_are(served):
    described = json.loads(served.get("/openapi.json")[1])["paths"]
    for path, operations in described.items():
        real = re.sub(r"\{version\}", "3", path.replace("{name}", "kinds").replace("{model}", "kinds"))
        status, _, headers = served.ask("DELETE", real)
        assert status == 405, real
        assert {method.upper() for method in operations if method != "parameters"} <= {
            *headers["Allow"].split(", ")}, path


@pytest.mark.full
def test_schemathesis_finds_nothing(served, models):
    """Requests made up from the description: no 5xx, answers as described, Allow right, no undocumented statuses."""
    description = json.loads(served.get("/openapi.json")[1])
    for operations in description["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", []):  # models that there are
                if parameter["in"] == "path":
                    parameter["schema"] = {"type": "string", "enum": ["digits", "kinds", "costs"] if
                                           parameter["name"] == "model" else ["3", "6"]}
    (models / "openapi.json").write_text(json.dumps(description))
    done = subprocess.run([pathlib.Path(sys.executable).with_name("schemathesis"), "run", "openapi.json",
                           f"--url=http://127.0.0.1:{served.port}", "--phases=examples,fuzzing", "--max-examples=8",
                           "--seed=1", "--generation-database=none", "--no-color", "--mode=all",
                           "--exclude-checks=positive_data_acceptance"],
                          cwd=models, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-6000:]


# --- the proxies of the documents ---


def test_nginx_as_the_documents_set_it_up(trainer, models, root, tmp_path):
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if not nginx:
        pytest.skip("there is no nginx (apt install nginx-light)")
    text = (root / "docs/serving.md").read_text()
    block = re.search(r"(?m)^    upstream models \{\n(?:    .*\n)+?    \}\n    server \{\n(?:    .*\n)+?    \}\n",
                      text)[0]
    (port,) = free_ports(1)
    servers = [Served(trainer, "kinds=kinds", "--http_hosts=models.example", cwd=models) for _ in range(2)]
    for name, server in zip((8501, 8502), servers):
        assert f"127.0.0.1:{name}" in block
        block = block.replace(f"127.0.0.1:{name}", f"127.0.0.1:{server.port}")
    assert "listen 80;" in block
    block = block.replace("listen 80;", f"listen 127.0.0.1:{port};")
    temporary = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n"
                        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;" if os.geteuid() == 0 else ""
    (tmp_path / "nginx.conf").write_text(f"{user} daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors;\n"
                                         f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{block}}}\n")
    process = subprocess.Popen([nginx, "-e", tmp_path / "errors", "-c", tmp_path / "nginx.conf"])

    def ask(host="models.example", body=b"size,code,open\n40.5,3,true\n", path="/predict"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", path, body, {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def is_up():
        try:
            return ask()[0] == 200
        except OSError:
            return False

    try:
        wait_for(is_up, "nginx")
        large = b"size,code,open\n" + b"40.5,3,true\n" * 300000  # more than nginx's own limit
        status, content = ask(body=large)
        assert status == 200 and content.count(b"\n") == 300001
        assert servers[0].stop() == 0
        assert [ask()[0] for _ in range(4)] == [200] * 4
        assert ask(host="evil.example")[0] in (421, 444)
    finally:
        process.terminate()
        process.wait()
        for server in servers:
            server.stop()


# --- the documents ---


def test_the_documented_requests_are_answered_as_documented(trainer, root, tmp_path):
    """Each curl of docs/serving.md, as it stands there, gives an answer of the form that is shown below it."""
    rows = [(i / 10, ["sand", "clay", ""][i % 3], "rye" if i > 40 else "clover") for i in range(80)]
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("length,soil,kind\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    train(trainer, "--data_dir=d", "--target=kind", "--epochs=2", "--num_threads=1", "--train_dir=run1", cwd=tmp_path)
    train(trainer, *SMALL, "--train_steps=2", "--train_dir=digits", cwd=tmp_path)
    (tmp_path / "new.csv").write_text("length,soil\n4.9,sand\n")
    Image.new("L", (28, 28)).save(tmp_path / "seven.png")
    text = (root / "docs/serving.md").read_text()
    shown = re.findall(r"(?m)^    (curl .*(?:\n    +.*)*)\n\n```(csv|json)\n((?:.*\n)+?)```", text)
    assert len(shown) == 5
    with Served(trainer, "model=run1", "digits=digits", cwd=tmp_path) as server:
        for command, kind, answer in shown:
            command = command.replace("127.0.0.1:8500", f"127.0.0.1:{server.port}")
            words = shlex.split(command)
            words[-1] += "/model" if words[-1].endswith("/predict") else ""  # of two models one must be named
            done = subprocess.run([*words, "-sS"], cwd=tmp_path, capture_output=True, text=True, check=True)
            if kind == "csv":
                assert done.stdout.splitlines()[0] == answer.splitlines()[0]
                assert done.stdout.count("\n") == answer.count("\n")
            else:
                assert form_of(json.loads(done.stdout)) == form_of(json.loads(answer)), command


def form_of(value):
    """Its names and types, without the numbers."""
    if isinstance(value, dict):
        return {name: form_of(one) for name, one in value.items()}
    if isinstance(value, list):
        return [form_of(one) for one in value]
    return "number" if isinstance(value, (int, float)) else type(value)


def test_metrics_as_of_every_member(served):
    served.post("/v1/models/costs:predict", {"instances": [[1, "1", True]]})
    text = served.get("/metrics")[1].decode()
    assert re.search(r'trainer_build_info\{version="[^"]+",role="serve"\} 1', text)
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds",
                 "process_open_fds", "trainer_http_requests_total"):
        assert re.search(rf"(?m)^{name} [0-9.e+]+$", text), name
    assert re.search(r'trainer_serve_requests_total\{model="costs",outcome="answered"\} [1-9]', text)
    assert re.search(r'trainer_serve_latency_seconds_count\{model="costs"\} [1-9]', text)
    families = re.findall(r"(?m)^# TYPE (\S+)", text)
    assert len(families) == len(set(families))
    promtool = shutil.which("promtool")
    if promtool:
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
