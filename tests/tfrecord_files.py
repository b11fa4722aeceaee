"""TFRecord files of tf.train.Example, as the protobuf library encodes them."""

import struct

import crc32c
import numpy
from tfrecord import example_pb2


def masked(data):
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(record):
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def feature(value):
    if isinstance(value, bytes):
        return example_pb2.Feature(bytes_list=example_pb2.BytesList(value=[value]))
    value = numpy.ravel(value)
    if value.dtype.kind == "f":
        return example_pb2.Feature(float_list=example_pb2.FloatList(value=value))
    return example_pb2.Feature(int64_list=example_pb2.Int64List(value=value))


def example(**features):
    """As the protobuf library encodes it."""
    values = {name: feature(value) for name, value in features.items()}
    return example_pb2.Example(features=example_pb2.Features(feature=values)).SerializeToString()


def write(folder, name, records):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(map(frame, records)))
