"""Run by a Python with TensorFlow: it reads the TFRecord files that the trainer wrote, and writes some of its own.

    tensorflow_records.py FOLDER

FOLDER/set has the digits as IDX files, FOLDER/none, gzip and zlib the same as TFRecord files. TensorFlow writes them,
with a different kind of image or label each, into FOLDER/by-none and so on.
"""

import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy
import tensorflow as tf

PACKINGS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}
FIELDS = {"image_raw": tf.io.FixedLenFeature([], tf.string),
          **{name: tf.io.FixedLenFeature([], tf.int64) for name in ("label", "height", "width")}}


def read_idx(folder, part):
    images = numpy.frombuffer((folder / f"{part}-images-idx3-ubyte").read_bytes()[16:], numpy.uint8).reshape(-1, 784)
    return images, numpy.frombuffer((folder / f"{part}-labels-idx1-ubyte").read_bytes()[8:], numpy.uint8)


def example(packing, image, label):
    image = (tf.train.Feature(float_list=tf.train.FloatList(value=image / 255.0)) if packing == "gzip" else
             tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])))
    numbers = [int(k == label) for k in range(10)] if packing == "zlib" else [int(label)]
    label = tf.train.Feature(int64_list=tf.train.Int64List(value=numbers))
    return tf.train.Example(
        features=tf.train.Features(feature={"image_raw": image, "label": label})).SerializeToString()


def main(folder):
    for packing, name in PACKINGS.items():
        (folder / f"by-{packing}").mkdir()
        for part, ours in (("train", "train"), ("test", "t10k")):
            images, labels = read_idx(folder / "set", ours)
            records = list(tf.data.TFRecordDataset(str(folder / packing / f"{part}.tfrecord"), compression_type=name))
            assert len(records) == len(images)
            for record, image, label in zip(records, images, labels):
                found = tf.io.parse_single_example(record, FIELDS)
                assert (tf.io.decode_raw(found["image_raw"], tf.uint8).numpy() == image).all()
                assert [found[name].numpy() for name in ("label", "height", "width")] == [label, 28, 28]
            with tf.io.TFRecordWriter(str(folder / f"by-{packing}" / f"{part}.tfrecord"), name or None) as writer:
                for image, label in zip(images, labels):
                    writer.write(example(packing, image, label))


main(pathlib.Path(sys.argv[1]))
