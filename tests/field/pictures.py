"""Pictures as people have them: photographs, colours, sizes, formats, damaged files."""

import io
import random

from PIL import Image

from field.case import Case, accuracy, fails, matches, never_says, says
from tfrecord_files import example, frame

TRAIN = ("trainer --data_dir=d --num_threads=1 --optimizer=adam --learning_rate=0.003 --epochs=25 --batch_size=10 "
         "--hidden=16 --log_steps=0 --train_dir=run")
INFO = "trainer data info --data_dir=d"


def encoded(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def sides(seed, kind, size=(16, 16)):
    """A bright bar on the left or on the right, of noise: centring it would hide which."""
    draw = random.Random(f"{seed} {kind}")
    width, height = size
    image = Image.new("L", size)
    for y in range(height):
        for x in range(width // 4):
            image.putpixel((x if kind == "left" else width - 1 - x, y), draw.randrange(120, 256))
    return image


def tiles(seed, kind):
    """Red or green of the same brightness, which in grey are the same."""
    draw = random.Random(f"{seed} {kind}")
    level = draw.randrange(60, 118)
    colour = (level, 0, 0) if kind == "red" else (0, round(level * 299 / 587), 0)
    return Image.new("RGB", (8, 8), colour)


def folders(make, kinds=("left", "right"), train=20, test=6, ending="png"):
    """make: of a number and a class the bytes of a picture."""
    return {f"d/{part}/{kind}/{part}{i}.{ending}": make(f"{part}{i}", kind)
            for part, count in (("train", train), ("test", test)) for kind in kinds for i in range(count)}


def of_sides(*arguments, **options):
    size = options.pop("size", (16, 16))
    return folders(lambda seed, kind: encoded(sides(seed, kind, size), *arguments, **options))


def turned(seed, kind, format="JPEG", size=(16, 16)):
    """Upright only by its EXIF orientation, of which each picture has another."""
    number = 1 + int(seed.strip("trainest")) % 8
    undo = [None, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM,
            Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_90, Image.Transpose.TRANSVERSE,
            Image.Transpose.ROTATE_270][number - 1]
    image = sides(seed, kind, size)
    exif = Image.Exif()
    exif[0x0112] = number
    return encoded(image.transpose(undo) if undo is not None else image, format, exif=exif)


def turned_behind_the_pixels(seed, kind):
    """The same with PNG's chunk of EXIF data moved to the end."""
    file = turned(seed, kind, "PNG", (24, 16))
    at = file.index(b"eXIf") - 4
    size = 12 + int.from_bytes(file[at:at + 4], "big")
    return file[:at] + file[at + size:-12] + file[at:at + size] + file[-12:]


def mixed(seed, kind):
    side = random.Random(seed).randrange(12, 40)
    return encoded(sides(seed, kind, (side, side + 5)))


def records(part, count):
    made = [(kind, i) for i in range(count) for kind in ("left", "right")]
    return b"".join(frame(example(image_raw=encoded(sides(f"{part}{i}", kind), "JPEG"), label=[int(kind == "right")]))
                    for kind, i in made)


SIDES, TILES = of_sides(), folders(lambda seed, kind: encoded(tiles(seed, kind)), ("red", "green"))
JPEG = folders(lambda seed, kind: encoded(sides(seed, kind), "JPEG", progressive=seed.endswith("1")), ending="jpg")
JPEG_LEFT = encoded(sides("left", "left"), "JPEG")
BROKEN = encoded(sides("broken", "left"), "JPEG")[:300]

CASES = [
    Case("own_size", "keras image_dataset_from_directory, torchvision ImageFolder: pictures stay what they are",
         of_sides(size=(32, 32)), [TRAIN], [accuracy(1), says("pictures of 32x32", "learnt in grey: 1024 inputs")]),
    Case("not_square", "fastai forums: pictures are wider than high", of_sides(size=(24, 10)), [TRAIN],
         [accuracy(1), says("10x24")]),
    Case("default_layers", "no --layers and no --hidden: both follow from the pictures", of_sides(size=(20, 20)),
         ["trainer --data_dir=d --num_threads=1 --epochs=40 --batch_size=10 --log_steps=0"],
         [accuracy(1), says("400 inputs")]),
    Case("colour", "pytorch-forums: ImageFolder opens every picture as RGB", TILES, [TRAIN],
         [accuracy(1), says("40 of 40 stored in colour", "learnt in colour: 192 inputs")]),
    Case("colour_as_grey", "keras: color_mode='grayscale' where asked", TILES, [f"{TRAIN} --color=gray"],
         [says("learnt in grey: 64 inputs"), matches(r"^test accuracy [0-6]\d\.")]),
    Case("jpeg", "the usual photograph, baseline and progressive", JPEG, [TRAIN], [accuracy(1)]),
    Case("exif_orientation", "pillow#4703, keras#9684: phones store photographs turned and say so in EXIF",
         folders(turned, ending="jpg"), [TRAIN], [accuracy(1), says("pictures of 16x16")]),
    Case("exif_orientation_of_png", "PNG third edition, eXIf; pillow#3043: screenshots of phones are turned, too",
         folders(lambda seed, kind: turned(seed, kind, "PNG", (24, 16))), [TRAIN],
         [accuracy(1), says("pictures of 16x24")]),
    Case("exif_orientation_behind_the_pixels", "w3c/png#310: eXIf before or behind IDAT; Pillow turns both",
         folders(turned_behind_the_pixels), [TRAIN], [accuracy(1), says("pictures of 16x24")]),
    Case("classes_alone", "torchvision ImageFolder, keras image_dataset_from_directory: no folder train",
         {path.replace("d/train/", "d/"): content for path, content in SIDES.items()
          if "/train/" in path}, [TRAIN], [accuracy(1), says("pictures in d: ", "class left", "class right")]),
    Case("run_beside_the_classes", "keras image_dataset_from_directory: a folder of logs beside those of the classes",
         {path.replace("d/train/", "d/"): content for path, content in SIDES.items() if "/train/" in path},
         [TRAIN.replace("--train_dir=run", "--train_dir=d/run"), "trainer eval d/run --data_dir=d"],
         [accuracy(1), never_says("holds no pictures")]),
    Case("parts_in_capitals", "Kaggle, intel-image-classification: Train and Test",
         {path.replace("/train/", "/Train/").replace("/test/", "/Test/"): content for path, content in SIDES.items()},
         [TRAIN], [accuracy(1), says("of 12)")]),
    Case("validation_folder", "keras, fastai: train, val and test, of which val is another's validation",
         {**SIDES, "d/val/left/1.png": encoded(sides("v", "left"))}, [TRAIN],
         [accuracy(1), says("d/val is not used: the pictures to validate with are held out of d/train")]),
    Case("class_without_pictures", "pytorch/vision#4925, #8297: a folder that is empty counts as a class",
         {**SIDES, "d/train/middle/.keep": b""}, [TRAIN],
         [accuracy(1), says("d/train/middle: holds no pictures, so this class is never learnt")]),
    Case("pictures_deeper", "fastai#1187, keras#4552: pictures in folders of a class's folder",
         {path.replace("/left/", "/left/2024/"): content for path, content in SIDES.items()}, [TRAIN],
         [fails("one class, right")]),
    Case("pictures_all_deeper", "the same everywhere", {path.replace("t/", "t/2024/"): content
                                                        for path, content in SIDES.items() if "/train/" in path},
         [TRAIN], [fails("d/train: holds no images directly in the folders of its classes"), says("left/2024/")]),
    Case("equal_pictures", "imagededup: a set of copies; none can be kept for the test alone",
         {f"d/train/{kind}/{i}.png": encoded(tiles("one", kind)) for kind in ("red", "green") for i in range(9)},
         [TRAIN], [fails("no picture can be held out for the test", "--test_share=0")]),
    Case("pictures_beside_a_table", "Kaggle: images, masks and labels.csv, which says what the pictures are",
         {**{path.replace("d/train/", "d/"): content for path, content in SIDES.items() if "/train/" in path},
          "d/labels.csv": "file,label\nleft/train0.png,a\n"}, [TRAIN], [fails("is a table; name the column to learn")]),
    Case("pictures_without_folders", "Kaggle, dogs-vs-cats: train/cat.0.jpg; the class is in the name",
         {f"d/train/{kind}.{i}.jpg": JPEG_LEFT for kind in ("cat", "dog") for i in range(3)}, [TRAIN],
         [fails("folders train and test of pictures by class")]),
    Case("cmyk", "pillow#1662: a JPEG from a print shop has four inks",
         folders(lambda seed, kind: encoded(sides(seed, kind).convert("RGB").convert("CMYK"), "JPEG"), ending="jpg"),
         [TRAIN], [accuracy(1)]),
    Case("grey_with_alpha", "keras#13558: PNG with transparency",
         folders(lambda seed, kind: encoded(sides(seed, kind).convert("LA"))), [TRAIN], [accuracy(1)]),
    Case("sixteen_bits", "torchvision#2218: microscopes write PNG of 16 bits",
         folders(lambda seed, kind: encoded(sides(seed, kind).convert("I").point(lambda v: v * 257).convert("I;16"))),
         [TRAIN], [accuracy(1)]),
    Case("palette", "pillow: GIF-like PNG with a palette",
         folders(lambda seed, kind: encoded(tiles(seed, kind).convert("P")),
                 ("red", "green")), [TRAIN], [accuracy(1)]),
    Case("truncated", "pillow 'image file is truncated': the file is named",
         {**JPEG, "d/train/left/broken.jpg": BROKEN}, [TRAIN],
         [fails("d/train/left/broken.jpg: is a JPEG", "--max_bad_records")]),
    Case("truncated_left_out", "the same, and one may be left out",
         {**JPEG, "d/train/left/broken.jpg": BROKEN}, [f"{TRAIN} --max_bad_records=1"],
         [accuracy(1), says("broken.jpg: is a JPEG", "left out")]),
    Case("wrong_extension", "tensorflow#14427: a JPEG that is called .png",
         folders(lambda seed, kind: encoded(sides(seed, kind), "JPEG")), [TRAIN], [accuracy(1)]),
    Case("upper_case_ending", "torchvision#1076: DSC0001.JPG",
         folders(lambda seed, kind: encoded(sides(seed, kind), "JPEG"), ending="JPG"), [TRAIN], [accuracy(1)]),
    Case("mixed_sizes", "torch 'stack expects each tensor to be equal size'", folders(mixed), [TRAIN],
         [accuracy(0.9), says("scaled to", "--image_size")]),
    Case("chosen_size", "keras: image_size=(180, 180)", folders(mixed), [f"{TRAIN} --image_size=12x16"],
         [accuracy(0.9), says("scaled to 12x16", "192 inputs")]),
    Case("size_misspelt", "a size that is none", SIDES, [f"{TRAIN} --image_size=12,16"],
         [fails("image_size", "12,16", "32x48")]),
    Case("size_for_idx", "MNIST as 32x32 for LeNet: torchvision's Resize; IDX files keep their size",
         SIDES, ["trainer convert --data_dir=d --to=idx --out=i", f"{TRAIN} --image_size=32".replace("=d ", "=i ")],
         [fails("image_size", "IDX files in i are 16x16", "--to=folders")]),
    Case("size_for_idx_as_it_is", "the size that the files have is no fault", SIDES,
         ["trainer convert --data_dir=d --to=idx --out=i", f"{TRAIN} --image_size=16".replace("=d ", "=i ")],
         [accuracy(1)]),
    Case("gif", "keras reads GIF, torchvision its first frame",
         {**SIDES, "d/train/left/moving.gif": encoded(sides("g", "left"), "GIF")}, [TRAIN],
         [fails("moving.gif: is a GIF picture", "convert it to PNG or JPEG")]),
    Case("webp_called_jpg", "browsers save WebP under the name that the page gave",
         {**SIDES, "d/train/left/photo.jpg": encoded(sides("w", "left"), "WEBP")}, [TRAIN],
         [fails("photo.jpg: is a WebP picture")]),
    Case("stray_files", "torchvision#663: Thumbs.db and a readme among the pictures",
         {**SIDES, "d/train/left/Thumbs.db": b"\xd0\xcf\x11\xe0", "d/train/right/readme.txt": "from the pump hall\n"},
         [TRAIN], [accuracy(1), says("left/Thumbs.db", "readme.txt")]),
    Case("predict_photograph", "a photograph of another size, and in JPEG, for a model of colours",
         {**TILES, "photo.jpg": encoded(tiles("photo", "green").resize((640, 480)), "JPEG")},
         [TRAIN, "trainer predict run photo.jpg"], [says("photo.jpg: green (9")]),
    Case("predict_grey_for_colour", "a grey picture for a model of colours is no error",
         {**TILES, "grey.png": encoded(sides("x", "left"))}, [TRAIN, "trainer predict run grey.png"],
         [matches(r"^grey.png: (red|green) \(")]),
    Case("predict_keeps_the_place", "what is left in training is left in a picture of another size",
         {**SIDES, "large.png": encoded(sides("large", "right", (64, 64)))},
         [TRAIN, "trainer predict run large.png"], [says("large.png: right (")]),
    Case("predict_gif", "a format that is not read is named, not taken for IDX",
         {**SIDES, "x.gif": encoded(sides("x", "left"), "GIF")}, [TRAIN, "trainer predict run x.gif"],
         [fails("x.gif: is a GIF picture"), never_says("IDX")]),
    Case("tfrecord_of_jpeg", "tf.io.encode_jpeg in TFRecord files",
         {"d/train.tfrecord": records("train", 20), "d/test.tfrecord": records("test", 6)}, [TRAIN], [accuracy(1)]),
    Case("info", "data info shows size and colours", TILES, [INFO],
         [says("training: 40 images of 8x8 in colour, 2 classes", "images per class  green: 20", "red: 20")]),
    Case("convert_keeps_colours", "to IDX files, and back", TILES,
         ["trainer convert --data_dir=d --to=idx --out=i", "trainer convert --data_dir=i --to=folders --out=f",
          "trainer data info --data_dir=f"], [says("test: 12 images of 8x8 in colour")]),
]
