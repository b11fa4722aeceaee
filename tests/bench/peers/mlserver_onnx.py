"""A model of onnxruntime for mlserver, as its documentation shows custom ones. MODEL names the .onnx file."""

import os

import mlserver
import numpy
import onnxruntime
from mlserver.codecs import NumpyCodec


class Model(mlserver.MLModel):

    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
        (self.image,) = self.session.get_inputs()
        return True

    async def predict(self, payload):
        rows = NumpyCodec.decode_input(payload.inputs[0]).astype(numpy.float32) / 255
        outputs = self.session.run(None, {self.image.name: rows.reshape(len(rows), *self.image.shape[1:])})
        return mlserver.types.InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", outputs[-1])])
