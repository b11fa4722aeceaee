"""Requests as clients send them: values and their types, forms, hosts, paths, and what an error says."""

import json
import struct

from field.case import Case, answers, json_holds, learnable

TABLE = {"d/train.csv": learnable(rows=60)}
NEW = {"new.csv": "a,b\n720.5,3\n120.25,50\n"}
TRAINED = "trainer --data_dir=d --target=y --num_threads=1 --epochs=2 --log_steps=0 --train_dir=run"
DIGITS = ("trainer --data_source=synthetic --synthetic_train=60 --synthetic_test=10 --num_threads=1 --train_steps=3 "
          "--batch_size=20 --log_steps=0 --train_dir=run")
SERVE = "trainer serve run"
HALVES = [0, 1] * 392


def codes():
    """A table whose class follows from a code, which is a number only by its looks."""
    lines = [f"{5 + i % 6},{i % 7},{'odd' if i % 2 else 'even'}" for i in range(90)]
    return {"d/train.csv": "\n".join(["code,b,y", *lines]) + "\n"}


def columns(**types_and_values):
    """A request of Open Inference Protocol 2: a=("INT32", 7)."""
    return json.dumps({"inputs": [{"name": name, "datatype": type, "shape": [1], "data": [value]}
                                  for name, (type, value) in types_and_values.items()]})


def binary(type, packed, shape=(1,), name="a"):
    """A column's bytes behind their JSON; the second column is FP64. Returns the body and the length of its JSON."""
    b = struct.pack("<d", 3)
    head = json.dumps({"inputs": [
        {"name": name, "datatype": type, "shape": shape, "parameters": {"binary_data_size": len(packed)}},
        {"name": "b", "datatype": "FP64", "shape": shape, "parameters": {"binary_data_size": len(b)}}]}).encode()
    return head + packed + b, len(head)


def post(path, *options, file="body"):
    return f"curl --data-binary @{file} {' '.join(options)} URL{path}"


def infer(body):
    return {**TABLE, "body": body}, [TRAINED, SERVE, post("/v2/models/model/infer")]


def asked(*options, path="/v2", serve=SERVE):
    return [TRAINED, serve, f"curl {' '.join(options)} 'URL{path}'"]


HALF, HALF_SIZE = binary("FP16", struct.pack("<e", 720.5))
TRUTH, TRUTH_SIZE = binary("BOOL", b"\2")

CASES = [
    # Values.
    Case("fraction_in_an_integer", "triton-inference-server/server#8821: values that a type cannot hold are narrowed",
         *infer(columns(a=("INT32", 29.9), b=("FP64", 3))),
         [answers(400, "column a: is 29.9, which INT32 cannot hold")]),
    Case("value_beyond_a_byte", "triton-inference-server/server#8821: 256 in UINT8 becomes another value",
         *infer(columns(a=("UINT8", 256), b=("FP64", 3))), [answers(400, "is 256, which UINT8 cannot hold")]),
    Case("negative_in_unsigned", "triton-inference-server/server#8821: -1 in UINT32 becomes 4294967295",
         *infer(columns(a=("UINT32", -1), b=("FP64", 3))), [answers(400, "is -1, which UINT32 cannot hold")]),
    Case("whole_float_in_an_integer", "RFC 8259: JSON has one kind of number, and 7.0 is 7",
         *infer(columns(a=("INT32", 7.0), b=("FP64", 3))), [answers(200, '"class"')]),
    Case("missing_in_an_integer", "pandas: missing values turn a column of integers into floats",
         *infer(columns(a=("INT64", None), b=("FP64", 3))),
         [answers(400, "is null, which INT64 cannot hold; declare FP64")]),
    Case("text_in_a_float", "tensorflow/serving#927: expects float but string is provided",
         *infer(columns(a=("FP32", "720.5"), b=("FP64", 3))), [answers(400, "is a text, which FP32 cannot hold")]),
    Case("two_is_no_truth", "tensorflow/serving#1199: bool by REST; a byte of 2 is neither",
         {**TABLE, "body": TRUTH},
         [TRAINED, SERVE, post("/v2/models/model/infer", f"-H 'Inference-Header-Content-Length: {TRUTH_SIZE}'")],
         [answers(400, "is 2, which BOOL cannot hold")]),
    Case("half_precision", "Triton's binary extension: FP16 has no form in JSON, so clients send its bytes",
         {**TABLE, "body": HALF},
         [TRAINED, SERVE, post("/v2/models/model/infer", f"-H 'Inference-Header-Content-Length: {HALF_SIZE}'")],
         [answers(200, '"probabilities"')]),
    Case("nan_in_json", "tensorflow/serving#4071: NaN, as Python's json writes it",
         {"d/train.csv": learnable(lambda a: "" if int(a) % 9 == 0 else str(a), rows=60),
          "body": '{"instances": [[NaN, 3], [null, 3], ["", 3]]}'},
         [TRAINED, SERVE, post("/v1/models/model:predict")],
         [answers(200), json_holds(lambda answer: len({str(row) for row in answer["predictions"]}) == 1)]),
    Case("nan_in_a_picture", "triton-inference-server/server#3870: NaN and Infinity in requests",
         {"body": json.dumps({"instances": [[float("nan")] * 784]})}, [DIGITS, SERVE, post("/v1/models/model:predict")],
         [answers(400, "row 0: pixel 0 is missing (null or NaN); a picture needs all its pixels")]),
    Case("category_as_javascript_writes_it", "tensorflow/serving#1136: 7.0 is written as 7, or the other way round",
         {**codes(), "body": '{"instances": [[7, 3], [7.0, 3], ["7", 3], ["7.0", 3], [7.00, 3]]}'},
         [f"{TRAINED} --categorical=code", SERVE, post("/v1/models/model:predict")],
         [answers(200), json_holds(lambda answer: len({str(row) for row in answer["predictions"]}) == 1)]),
    Case("pixels_as_javascript_writes_them", "tensorflow/serving#1136: JSON.stringify(1.0) is 1, not a level of grey",
         {"body": json.dumps({"instances": [HALVES, [float(p) for p in HALVES], [p / 2 for p in HALVES]]})},
         [DIGITS, SERVE, post("/v1/models/model:predict")],
         [answers(200), json_holds(lambda answer: answer["predictions"][0] == answer["predictions"][1])]),
    Case("levels_and_fractions_mixed", "keras: a batch of which half was divided by 255",
         {"body": json.dumps({"instances": [[200] * 784, [0.5] * 784]})},
         [DIGITS, SERVE, post("/v1/models/model:predict")], [answers(400, "row 1: pixel 783 is 0.5, and others are")]),
    Case("float_levels", "pytorch's ToTensor divides by 255, others do not",
         {"body": json.dumps({"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 784],
                                          "data": [1.0000001] + [0.0] * 783}]})},
         [DIGITS, SERVE, post("/v2/models/model/infer")], [answers(400, "pixel 0 is 1.00000012; ", "by 255")]),
    Case("shape_as_text", "numpy.shape printed into JSON",
         *infer('{"inputs": [{"name": "a", "datatype": "FP64", "shape": "(1,)", "data": [7]}]}'),
         [answers(400, "input a: shape: is a text; it is an array")]),
    # Bodies.
    Case("form_of_curl", "curl -F file=@new.csv: multipart/form-data of RFC 7578",
         {**TABLE, **NEW}, [TRAINED, SERVE, "curl -F file=@new.csv URL/predict"],
         [answers(200, "a,b,prediction,", "720.5,3,")]),
    Case("form_with_fields", "a page's form has other fields beside its file",
         {**TABLE, **NEW}, [TRAINED, SERVE, "curl -F user=me -F 'up=@new.csv;type=text/csv' URL/predict"],
         [answers(200, "120.25,50,")]),
    Case("line_breaks_lost", "curl/curl#3859: -d @file drops line breaks",
         {**TABLE, **NEW}, [TRAINED, SERVE, "curl -d @new.csv URL/predict"],
         [answers(415, "curl -d drops them", "--data-binary")]),
    Case("json_as_a_form", "triton-inference-server/server#2643: curl --data says it is a form, and it is JSON",
         {**TABLE, "body": '{\n"instances": [[720.5, 3]]\n}'},
         [TRAINED, SERVE, "curl -d @body URL/v1/models/model:predict"], [answers(200, "predictions")]),
    Case("json_to_the_route_of_files", "ultralytics, bentoml: one route takes all there, here files have theirs",
         {**TABLE, "body": '[{"a": 720.5, "b": 3}]'}, [TRAINED, SERVE, post("/predict")],
         [answers(415, "/v1/models/model:predict")]),
    Case("content_type_in_capitals", "RFC 9110 8.3.1: types and parameters are case-insensitive",
         {**TABLE, **NEW}, [TRAINED, SERVE, post("/predict", "-H 'Content-Type: TEXT/CSV; Charset=\"UTF-8\"'",
                                                 file="new.csv")], [answers(200, "prediction")]),
    Case("another_charset", "pandas: read_csv needs encoding=latin-1 for what spreadsheets of the west write",
         {**TABLE, **NEW}, [TRAINED, SERVE, post("/predict", "-H 'Content-Type: text/csv; charset=iso-8859-1'",
                                                 file="new.csv")], [answers(415, "charset=iso-8859-1", "UTF-8")]),
    Case("body_beyond_the_limit", "nginx: client_max_body_size, 413 without the number",
         {**TABLE, "body": b"a,b\n" + b"1,2\n" * 500000},
         [TRAINED, f"{SERVE} --max_body_mb=1", post("/predict", "-H 'Expect:'")],
         [answers(413, "the body has 2000004 bytes; at most 1048576 are accepted here", "--max_body_mb")]),
    Case("picture_to_a_table", "a model's name mistyped: another model's body",
         {**TABLE, "body": b"\x89PNG\r\n\x1a\n" + bytes(20)}, [TRAINED, SERVE, post("/predict")],
         [answers(400, "the body is a picture, and the model was trained on a table")]),
    # Paths and methods.
    Case("page_without_gzip", "curl http://host/ accepts no encoding: RFC 9110 12.5.3",
         TABLE, asked("-i", path="/"), [answers(200, "<!doctype html>")]),
    Case("method_of_the_path", "RFC 9110 15.5.6: Allow lists what this path takes",
         TABLE, asked("-i", path="/v2/models/model/infer"), [answers(405, "Allow: POST\n", "takes POST")]),
    Case("trailing_slash", "clients whose base address ends with a slash",
         TABLE, asked(path="/v2/health/ready/"), [answers(404, "write /v2/health/ready, without")]),
    Case("doubled_slash", "a base address with a slash, joined to a path with one",
         TABLE, asked(path="//v2/health/ready"), [answers(404, "write /v2/health/ready, without")]),
    Case("colon_encoded", "clients that encode the colon of :predict",
         {**TABLE, "body": '{"instances": [[720.5, 3]]}'},
         [TRAINED, SERVE, post("/v1/models/model%3Apredict")], [answers(200, "predictions")]),
    Case("load_a_model", "Triton's load_model, where models are not loaded by requests",
         TABLE, asked("-d '{}'", path="/v2/repository/models/other/load"),
         [answers(400, "are not loaded or unloaded by requests")]),
    # Hosts and pages.
    Case("host_in_capitals_with_a_dot", "mgedmin/restview#51: names may end with a dot, and have a port",
         TABLE, asked("-H 'Host: LocalHost.:8500'"), [answers(200)]),
    Case("host_in_brackets", "mgedmin/restview#51: do browsers send ::1 or [::1]?",
         TABLE, asked("-H 'Host: [::1]:8500'"), [answers(200)]),
    Case("host_behind_brackets", "brave/brave-search-mcp-server#317: [::1]evil.example is not ::1",
         TABLE, asked("-H 'Host: [::1]evil.example'"), [answers(421, "--http_hosts")]),
    Case("host_of_a_proxy", "ollama, vite: 403 behind a proxy until its name is allowed",
         TABLE, asked("-H 'Host: Models.Example:443'", serve=f"{SERVE} --http_hosts=models.example.,[fd00::7]"),
         [answers(200)]),
    Case("host_as_a_proxy_says", "X-Forwarded-Host is anybody's to set",
         TABLE, asked("-H 'Host: evil.example'", "-H 'X-Forwarded-Host: localhost'"), [answers(421)]),
    Case("page_of_another_site", "modelcontextprotocol/java-sdk#775: pages reach servers of this machine",
         {**TABLE, **NEW}, [TRAINED, SERVE, post("/predict", "-H 'Sec-Fetch-Site: cross-site'", file="new.csv")],
         [answers(403, "--http_cors")]),
    # Names.
    Case("columns_called_as_answers", "sklearn-onnx#402: names of inputs that are the converter's own",
         {"d/train.csv": learnable(rows=60, header="flag,prediction,y"), "new.csv": "flag,prediction\n720.5,3\n"},
         [TRAINED, "trainer export run --out=m.onnx", SERVE, post("/predict", file="new.csv")],
         [answers(200, "720.5,3,")]),
    Case("names_beyond_ascii", "prometheus/prometheus#4803: a label that is not UTF-8 loses all metrics of a target",
         {"d/train.csv": learnable(rows=60).replace("high", 'gro\xdf "x"'), **NEW},
         [TRAINED, SERVE, post("/predict", file="new.csv"), "curl URL/metrics"],
         [answers(200, 'class="gro\xdf \\"x\\""')]),
]
