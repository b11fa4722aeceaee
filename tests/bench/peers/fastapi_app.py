"""The usual way to serve a model: FastAPI and onnxruntime, for uvicorn. MODEL names the .onnx file."""

import os

import fastapi
import numpy
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
(image,) = session.get_inputs()
app = fastapi.FastAPI()


@app.post("/predict")
def predict(body: dict):
    rows = numpy.asarray(body["instances"], numpy.float32) / 255
    outputs = session.run(None, {image.name: rows.reshape(len(rows), *image.shape[1:])})
    return {"predictions": outputs[-1].tolist()}


@app.get("/readyz")
def ready():
    return "ok"
