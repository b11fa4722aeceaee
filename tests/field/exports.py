"""Tables as spreadsheets, instruments and tools export them: units, marks, footers, line ends."""

import random

from field.case import TRAIN, Case, accuracy, fails, file_holds, learnable, lines_of, matches, never_says, r2, says

HEADER, *ROWS = learnable().splitlines()
SPELLINGS = {"on": ["TRUE", "true", "Yes", "yes", "1", "Y", "T", "True"],
             "off": ["FALSE", "false", "No", "no", "0", "N", "F", "False"]}


def numbers(name, source, write, *checks, **shape):
    """The class can only be learned if column a is read as numbers."""
    return Case(name, source, {"d/train.csv": learnable(write, **shape)}, [TRAIN],
                [accuracy(0.75), never_says("read as text"), *checks])


def file(*lines, end="\n"):
    return {"d/train.csv": end.join([*lines, ""])}


def quoted(write):
    return lambda value: f'"{write(value)}"'


def sales(names=("north", "south", "west"), rows=150):
    draw = random.Random(11)
    lines = [(names[i % 3], draw.randrange(10, 60)) for i in range(rows)]
    return "region;staff;y\n" + "".join(f"{name};{staff};{1000 * staff + 9000 * names.index(name)}\n"
                                        for name, staff in lines)


def spelt(rows=200):
    draw = random.Random(7)
    kinds = ["on" if i % 2 else "off" for i in range(rows)]
    return file("a,b,y", *[f"{draw.choice(SPELLINGS[kind])},{i % 7},{kind}" for i, kind in enumerate(kinds)])


CASES = [
    numbers("unit_kilograms", "pint#484, OpenRefine: 12 kg in a column of weights", lambda v: f"{v} kg",
            says("column a: numbers with the unit kg")),
    numbers("unit_without_blank", "pandas: df['size'].str.replace('mm', '')", lambda v: f"{v}mm",
            says("with the unit mm")),
    numbers("unit_degrees", "BenchmarkDotNet#1485: a unit in every field",
            lambda v: f"{v} °C", says("with the unit °C")),
    numbers("unit_with_a_slash", "trackers write 120 km/h", lambda v: f"{v:.0f} km/h", says("with the unit km/h")),
    numbers("unit_with_a_power", "property lists write 85 m2", lambda v: f"{v} m2", says("with the unit m2")),
    numbers("unit_behind_an_exponent", "oscilloscopes write 1e3 Hz", lambda v: f"{v / 1000:.5f}e3 Hz",
            says("with the unit Hz")),
    numbers("unit_and_decimal_comma", "harvesttemplates#136: 2,4 kg",
            lambda v: f"{v} kg".replace(".", ","), delimiter=";"),
    numbers("unit_of_some", "skrub#1726: units in some texts of a column",
            lambda v: f"{v} kg" if int(v) % 3 else str(v),
            says("have the unit kg and", "have none")),
    numbers("unit_dollars", "amounts: $1,200", quoted(lambda v: f"${100 * v:,.0f}"), never_says("with the unit")),
    Case("units_mixed", "pint#484: kg beside g is one column of two scales",
         {"d/train.csv": learnable(lambda v: f"{v} kg" if int(v) % 3 else f"{1000 * v} g")}, [TRAIN],
         [says("column a: its values are numbers with different units")]),
    Case("unit_of_few_classes", "auto-mpg: 4 cyl, 6 cyl, 8 cyl as what is to be learned keep their names",
         file("a,b,y", *[f"{100 * (i % 3) + i % 9},{i % 5},{4 + 2 * (i % 3)} cyl" for i in range(150)]),
         [f"{TRAIN} --train_dir=run", "trainer inspect run"], [says("4 cyl")]),
    Case("codes_with_a_suffix", "UCI Gas Sensor forums, Kaggle: house numbers 1A to 150A as what is to be learned",
         file("a,b,y", *[f"{i % 9},{i % 5},{i % 150}A" for i in range(450)]), [TRAIN],
         [says("target y: its values are read as numbers with the unit A and learned as a quantity (regression)",
               "--categorical=y")]),
    Case("codes_with_zeros", "cartodb#5559, node-csv-parse#37: ZIP codes that begin with 0",
         file("a,zip,y", *[f"{i % 9},{i % 50:05},{'high' if i % 9 > 4 else 'low'}" for i in range(150)]), [TRAIN],
         [accuracy(0.9), says("column zip: some numbers have zeros in front", "--categorical=zip")]),
    Case("codes_with_zeros_as_target", "the same as what is to be learned",
         file("a,b,y", *[f"{i % 9},{i % 5},{i % 150:05}" for i in range(450)]), [TRAIN],
         [says("target y: its values are read as numbers, some with zeros in front,", "--categorical=y")]),
    Case("classes_that_are_fractions", "skll#436: --loss=softmax where the numbers are not whole",
         file("a,b,y", *[f"{100 * (i % 3) + i % 9},{i % 5},{i % 3 + 0.5}" for i in range(150)]),
         [f"{TRAIN} --loss=softmax"], [accuracy(0.9), says("class 0.5", "class 2.5")]),
    Case("unit_in_requests", "who asks writes the unit or leaves it out",
         {"d/train.csv": learnable(lambda v: f"{v} kg"), "new.csv": "a,b\n980.5 kg,1\n101,1\n980.5kg,1\n"},
         [f"{TRAIN} --train_dir=run", "trainer predict run new.csv --out=out.csv"],
         [file_holds("out.csv", "980.5 kg,1,high,", "101,1,low,", "980.5kg,1,high,")]),
    Case("unit_over_http", "a form on a page: 980.5 kg", {"d/train.csv": learnable(lambda v: f"{v} kg")},
         [f"{TRAIN} --train_dir=run", "trainer serve run",
          "curl URL/predict -H content-type:text/csv -d 'a,b\n980.5 kg,1\n'"], [says("high")]),
    Case("unit_in_info", "data info says what became of the column", {"d/train.csv": learnable(lambda v: f"{v} kg")},
         ["trainer data info --data_dir=d --target=y"], [matches(r"number: decimal point.* with kg")]),
    Case("uncertainties", "laboratories write 12.5±0.5", {"d/train.csv": learnable(lambda v: f"{v}±0.5")}, [TRAIN],
         [says("column a is read as text", "if they are numbers, write each as one number alone")]),
    numbers("accounting", "Excel's accounting format: (1,234.00) is negative",
            quoted(lambda v: f"({10 * v:,.2f})" if v < 500 else f"{10 * v:,.2f}")),
    numbers("accounting_nothing", "Excel's accounting format: $ - is nothing",
            quoted(lambda v: " $ -   " if int(v) % 9 == 0 else f" ${10 * v:,.2f} ")),
    numbers("kept_as_text", 'SAP, Google Ads: ="123.4" keeps a spreadsheet from changing it', lambda v: f'="{v}"'),
    numbers("kept_by_an_apostrophe", "Excel: a leading ' makes a text", lambda v: f"'{v}"),
    numbers("errors_of_formulas", "Excel writes #N/A, #NAME? and #VALUE!",
            lambda v: ["#N/A", "#NAME?", "#VALUE!"][int(v) % 3] if int(v) % 5 == 0 else str(v)),
    Case("separator_said", "Excel: sep=; as the first line", {"d/train.csv": "sep=;\n" + learnable(delimiter=";")},
         [TRAIN], [accuracy(0.75)]),
    Case("delimiter_behind_each_row", "SQL*Plus: each row ends with the delimiter",
         file(*[line + "," for line in (HEADER, *ROWS)]), [TRAIN], [accuracy(0.75)]),
    Case("mark_and_quotes", "pandas#4793: a byte order mark before quoted names",
         {"d/train.csv": b"\xef\xbb\xbf" + learnable(header='"a","b","y"').encode()}, [TRAIN], [accuracy(0.75)]),
    Case("names_twice", "pandas mangles them; here the second is named", {"d/train.csv": learnable(header="a,a,y")},
         [TRAIN], [fails("train.csv:1:3", "two columns called a")]),
    Case("names_of_blanks", "Excel: a header of blanks above two columns", {"d/train.csv": learnable(header=" , ,y")},
         [TRAIN], [accuracy(0.75)]),
    Case("units_under_the_names", "readr#179, pandas#10898: a row of units below the names",
         file(HEADER, "(kg),(m),()", *ROWS),
         [TRAIN], [accuracy(0.75), says("1 line between the column names and the data left out")]),
    Case("windows_1252", "read_csv: codec can't decode byte 0x80; a Euro sign of Windows",
         {"d/train.csv": learnable(lambda v: f"{v} €").encode("cp1252")}, [TRAIN],
         [fails("train.csv:2", "0x80", "iconv -f cp1252 -t utf-8")]),
    Case("times_of_day_in_minutes", "hh:mm alone",
         file("t,b,y", *[f"{i % 24:02}:{i % 60:02},{i % 7},{'day' if 6 <= i % 24 < 18 else 'night'}"
                         for i in range(200)]), [TRAIN], [accuracy(0.75)]),
    Case("truth_in_many_spellings", "readr: TRUE, T, yes and 1 in one column", spelt(), [TRAIN], [accuracy(0.9)]),
    Case("total_below", "xlconnect#29: spreadsheets end with a row of totals", file(HEADER, *ROWS, "Total,7011,"),
         [TRAIN], [accuracy(0.75), says('1 line of totals at the end left out, "Total,7011,"')]),
    Case("grand_total_of_a_report", "readr#88: a report ends with \"Grand Total: 6,634\"",
         {"d/train.csv": sales() + '"Grand Total: 6,634";;\n'}, [TRAIN], [r2(0.7), says("1 line of totals")]),
    Case("totals_of_a_report", "readr#88, the same with a sum and an average, after a blank line",
         {"d/train.csv": sales() + ";;\n\"Summe:\";4711;99999999\nDurchschnitt;31;666666\n"}, [TRAIN],
         [r2(0.7), says("2 lines of totals at the end left out")]),
    Case("total_without_a_name", "Excel: =SUM() below a column, and nothing else in the row",
         {"d/train.csv": sales() + ";;7654321\n"}, [TRAIN],
         [says("the last row, line 152, has far fewer values than those above; remove it if it is a total")]),
    Case("total_as_a_category", "Eurostat: sex is M, F or T; a row of a category called Total is one",
         {"d/train.csv": sales(names=("north", "south", "Total"))}, [TRAIN], [r2(0.7), never_says("of totals")]),
    Case("total_in_what_is_predicted", "Excel: what is exported to be predicted ends with a total, too",
         {"d/train.csv": sales(), "new.csv": sales() + "Total;4711;99999999\n"},
         [f"{TRAIN} --train_dir=run", "trainer predict run new.csv --out=out.csv"],
         [says("1 line of totals at the end left out"), lines_of("out.csv", 151)]),
    Case("total_is_a_name", "fuel prices: the last brand in a sorted file is called Total",
         {"d/train.csv": "brand,litres,y\n" + "".join(
             f"{brand},{i % 9},{'high' if i % 9 > 4 else 'low'}\n" for brand in ("BP", "Esso", "Shell", "Total")
             for i in range(40))},
         [TRAIN], [accuracy(0.75), never_says("totals")]),
    Case("footer", "pandas#4512: providers put metadata at the end of a file",
         file(HEADER, *ROWS, "", "Rows: 150"), [TRAIN], [fails("train.csv:153", "has 1 fields", "--max_bad_records")]),
    Case("names_again", "datapusher#74, s3-concat#3: each part brings its names",
         file(HEADER, *ROWS[:70], HEADER, *ROWS[70:]), [TRAIN],
         [accuracy(0.75), says("1 line that repeats the column names left out")]),
    Case("returns_alone", "Excel for Mac 2011: lines end with CR", file(HEADER, *ROWS, end="\r"), [TRAIN],
         [accuracy(0.75)]),
    Case("end_of_dos", "data.table#1612: Ctrl-Z ends a file of DOS", {"d/train.csv": learnable() + "\x1a"}, [TRAIN],
         [accuracy(0.75)]),
    Case("table_of_markdown", "a table copied from a page", file(*["| " + line.replace(",", " | ") + " |" for line in
                                                                  (HEADER, "---,---,---", *ROWS)]), [TRAIN],
         [accuracy(0.75)]),
    Case("stand_in_for_missing", "rwunderground#6, nasapower#36: -999 is no measurement",
         {"d/train.csv": learnable(lambda v: "-999" if int(v) % 9 == 0 else str(v))}, [TRAIN],
         [matches(r"column a: \d+ of its numbers are -999, far from all others.*--missing=-999")]),
    Case("stand_in_said", "the same, named",
         {"d/train.csv": learnable(lambda v: "-999" if int(v) % 9 == 0 else str(v))}, [f"{TRAIN} --missing=-999"],
         [accuracy(0.75), never_says("far from all others")]),
    Case("error_of_a_formula_first", "Excel: the first row of data begins with #N/A, which is no comment",
         file(HEADER, "#N/A,5,high", *ROWS), [f"{TRAIN} --test_share=0"],
         [never_says("left out"), matches(r"129 training, 22 validation rows")]),
    Case("hexadecimal", "pandas: codes in hexadecimal, some of which look like numbers (1e5)",
         {"d/train.csv": learnable(lambda v: f"{int(v * 100):05x}")}, [TRAIN],
         [matches(r"column a is read as text, 1\d\d different ones in")]),
    Case("invisible_spaces", "indexmenu#124: U+200B beside numbers that were copied from a page",
         {"d/train.csv": learnable(lambda v: f"\u200e{v}\u200b")}, [TRAIN], [accuracy(0.75), never_says("unit")]),
    Case("very_small_numbers", "scikit-learn#19726: the variance of tiny numbers is taken for 0",
         {"d/train.csv": learnable(lambda v: f"{v}e-300")}, [TRAIN], [accuracy(0.75), never_says("goes back")]),
    Case("classes_by_case", "turicreate#1528, automlbenchmark#208: sexy and Sexy",
         file(HEADER, *[row.upper() if i % 5 == 0 else row for i, row in enumerate(ROWS)]), [TRAIN],
         [says("classes that differ only by upper and lower case or blanks, such as")]),
    Case("classes_by_no_break_spaces", "turicreate#1531: a label with a blank behind it looks like one without",
         file(HEADER, *[row + "\u00a0" if i % 5 == 0 else row for i, row in enumerate(ROWS)]), [TRAIN],
         [says("classes that differ only by upper and lower case or blanks")]),
    Case("target_of_dates", "pandas: a date as what is to be learned is text, and each day a class",
         file("a,b,y", *[f"{i % 9},{i % 5},2024-{1 + i // 28 % 4:02}-{1 + i % 28:02}" for i in range(150)]),
         [f"{TRAIN} --test_share=0"],
         [matches(r"the target y has 112 different texts in 150 rows, .* each learned as a class")]),
    Case("target_in_another_case", "pandas KeyError: 'y', where the file has Y",
         {"d/train.csv": learnable(header="a,b,Y")}, [TRAIN],
         [fails("has no column y among its 3 (a, b, Y); did you mean Y?")]),
    Case("delimiter_unknown", "Hive, SAP: fields between ^", {"d/train.csv": learnable(delimiter="^")}, [TRAIN],
         [fails("fields are separated by , ; tab | or blanks")]),
    Case("lines_of_json", "BigQuery, Elasticsearch export lines of JSON, whatever the file is called",
         file(*[f'{{"a": {i}, "y": {i % 2}}}' for i in range(20)]), [TRAIN],
         [fails("train.csv: is JSON", "pandas.read_json")]),
    Case("table_to_validate_with", "Hugging Face, Kaggle: train.csv, val.csv and test.csv",
         {"d/train.csv": learnable(), "d/val.csv": learnable(seed=8), "d/test.csv": learnable(seed=9)}, [TRAIN],
         [accuracy(0.75), says("d: 1 other table is not used (val.csv)", "--validation_size")]),
    Case("arff", "OpenML, Weka: @relation in front",
         file("% made up", "@relation x", "@attribute a numeric", "@data", *ROWS), [TRAIN],
         [fails("train.csv: is an ARFF file", "save it as CSV")]),
]
