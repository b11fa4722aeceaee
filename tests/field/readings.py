"""Numbers, dates, headers and text as spreadsheets, loggers, Fortran and databases write them."""

import datetime

from field.case import TRAIN, Case, accuracy, fails, file_holds, learnable, lines_of, matches, never_says, says

INFO = "trainer data info --data_dir=d --target=y"
NBSP, NARROW, THIN, MINUS, QUOTE = "\u00a0", "\u202f", "\u2009", "\u2212", "\u2019"


def grouped(value, group, decimal="."):
    """1,234.50 with other signs."""
    return f"{value:,.2f}".replace(",", "G").replace(".", decimal).replace("G", group)


def quoted(write):
    return lambda value: f'"{write(value)}"'


def numbers(name, source, write, *checks, header="a,b,y", flags="", **shape):
    """The class can only be learned if column a is read as numbers."""
    return Case(name, source, {"d/train.csv": learnable(write, header=header, **shape)},
                [f"{TRAIN} {flags}"], [accuracy(0.75), *checks])


def dated(write, rows=400):
    """The class follows from the month."""
    lines = ["when,b,y"]
    for i in range(rows):
        day = datetime.datetime(2022, 1, 1, 6, 30) + datetime.timedelta(days=2 * i, minutes=i)
        lines.append(f'"{write(day)}",{i % 7},{"summer" if 4 <= day.month <= 9 else "winter"}')
    return {"d/train.csv": "\n".join(lines) + "\n"}


def dates(name, source, write, *checks, flags=""):
    return Case(name, source, dated(write), [f"{TRAIN} {flags}"],
                [accuracy(0.7), never_says("different text"), *checks])


TABLE = learnable()
AMBIGUOUS = "when,y\n" + "".join(f"{1 + i % 12}/{1 + i % 11}/2024,{i % 2}\n" for i in range(150))
HEADER, *ROWS = TABLE.splitlines()
GERMAN = "Januar Februar M\u00e4rz April Mai Juni Juli August September Oktober November Dezember"
FRENCH = "janvier f\u00e9vrier mars avril mai juin juillet ao\u00fbt septembre octobre novembre d\u00e9cembre"
SPANISH = "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"


def table(*before, rows=None, header=HEADER, after=()):
    return {"d/train.csv": "\n".join([*before, header, *(rows or ROWS), *after]) + "\n"}


CASES = [
    numbers("thousands_by_points", "pandas#14124: 1.234,50 of a German spreadsheet; decimal and thousands",
            quoted(lambda v: grouped(100 * v, ".", ","))),
    numbers("thousands_by_blanks", "readr#111: grouping by blanks, as in French and SI style",
            lambda v: grouped(100 * v, " ")),
    numbers("thousands_by_no_break_spaces", "pandas#27515: U+00A0 between groups",
            quoted(lambda v: grouped(100 * v, NBSP, ","))),
    numbers("thousands_by_narrow_spaces", "CSV.jl#217: U+202F, which Excel writes in France",
            quoted(lambda v: grouped(100 * v, NARROW, ","))),
    numbers("thousands_by_thin_spaces", "SI brochure 5.3.4: digits in groups of three with thin spaces",
            lambda v: grouped(100 * v, THIN)),
    numbers("thousands_by_apostrophes", "tablesaw#204: 1'234.50 of Switzerland",
            lambda v: grouped(100 * v, "'")),
    numbers("thousands_by_typographic_apostrophes", "CLDR: de-CH groups by U+2019",
            lambda v: grouped(100 * v, QUOTE)),
    numbers("thousands_of_india", "pandas#55105: 12,34,567",
            quoted(lambda v: f"{v / 10:.0f},{10 + int(v) % 90},{100 + int(v) % 900}")),
    numbers("decimal_commas", "pandas#10647: decimal=','", lambda v: f"{v:.2f}".replace(".", ","), delimiter=";",
            header="a,b,y"),
    numbers("euros_behind", "deephaven-core#1800: amounts with a currency behind them",
            quoted(lambda v: grouped(v, ".", ",") + " €")),
    numbers("currency_code", "banks export EUR 12.50", lambda v: f"EUR {v:.2f}"),
    numbers("minus_before_currency", "Excel's accounting format: -$12.50", lambda v: f"-${v:.2f}"),
    numbers("brackets_are_negative", "QuickBooks: (12.50) is -12.50",
            lambda v: f"({v:.2f})" if v < 500 else f"{v:.2f}"),
    numbers("trailing_minus", "SAP writes 12.50-", lambda v: f"{v:.2f}-" if v < 500 else f"{v:.2f}"),
    numbers("minus_of_unicode", "pandas#61788: U+2212 as a minus", lambda v: f"{MINUS}{v:.2f}"),
    numbers("leading_plus_and_blanks", "loggers pad numbers: ' +12.5 '", lambda v: f"  +{v:.2f} "),
    numbers("fortran_lower_case", "HiGHS#1618: 0.17d+02", lambda v: f"{v / 1000:.5f}d3"),
    numbers("missing_by_error_texts", "Excel writes #DIV/0! where a formula fails",
            lambda v: "#DIV/0!" if int(v) % 6 == 0 else str(v)),
    numbers("missing_declared", "LightGBM#4014: -999 stands for missing",
            lambda v: "-999" if int(v) % 9 == 0 else str(v), flags="--missing=-999"),
    Case("percent_and_fractions", "spreadsheets: 5% beside 0.05 in one column",
         {"d/train.csv": learnable(lambda v: f"{v}%" if int(v) % 2 else f"{v / 100}")}, [TRAIN],
         [fails("column a", "percent sign", "--ignore=a")]),
    Case("markers_of_a_laboratory", "explorer#781: texts for values below the limit",
         {"d/train.csv": learnable(lambda v: ["<LOD", "trace", "lost"][int(v) % 3] if int(v) % 4 == 0 else str(v))},
         [TRAIN], [fails("column a", '"trace"', '"<LOD"', "--missing")]),
    Case("tickets_are_categories", "titanic's Ticket: mostly numbers, and names among them",
         {"d/train.csv": learnable(lambda v: f"PC {v:.0f}" if int(v) % 5 == 0 else f"{v:.0f}")}, [TRAIN],
         [says("column a:", "are numbers", "categories", "--categorical=a")]),
    Case("one_convention_serves", "pandas#14124: the model reads a request as its training data",
         {"d/train.csv": learnable(quoted(lambda v: grouped(100 * v, ".", ","))),
          "new.csv": 'a,b\n"98.000,50",1\n"9.001,50",1\n'},
         [f"{TRAIN} --train_dir=run", "trainer predict run new.csv --out=out.csv"],
         [lines_of("out.csv", 3), file_holds("out.csv", ',high,', ',low,')]),
    Case("logger_titles_and_units", "scopehal#408: title lines, names, units; the target tells which has the names",
         table("My logger,7", header="a,b,y\nV,%,\nAvg,Avg,Smp"), [TRAIN],
         [accuracy(0.75), says("1 line before the column names", "2 lines between")]),
    Case("names_in_a_comment", "numpy.savetxt writes the header as '# a,b,y'", table(header="# a,b,y"), [TRAIN],
         [accuracy(0.75)]),
    Case("names_that_are_years", "xgboost#6043: some names are numbers",
         {"d/train.csv": learnable(header="2019,b,y")}, [TRAIN], [accuracy(0.75)]),
    Case("header_unknown", "xsv#22: the error shows the line, the delimiter and the key",
         table(header="1.5,2.5,3.5"), ["trainer --data_dir=d --target=z"],
         [fails("no column z", "1.5,2.5,3.5", "--header=yes")]),
    Case("names_of_r", "R's write.table names rows but not their column",
         table(rows=[f'"{i}",{row}' for i, row in enumerate(ROWS, 1)]), [TRAIN],
         [accuracy(0.75), says("column 0 only identifies the rows")]),
    Case("index_of_pandas", "pandas#16078: to_csv writes the index without a name",
         table(header="," + HEADER, rows=[f"{i},{row}" for i, row in enumerate(ROWS)]), [TRAIN],
         [accuracy(0.75), says("column 0 only identifies the rows")]),
    Case("index_read_back", "pandas: 'Unnamed: 0' after two rounds",
         table(header="Unnamed: 0," + HEADER, rows=[f"{i},{row}" for i, row in enumerate(ROWS)]), [TRAIN],
         [accuracy(0.75), says("column Unnamed: 0 only identifies the rows")]),
    Case("identifier_in_order", "Kaggle's Titanic: PassengerId counts the rows",
         table(header="PassengerId," + HEADER, rows=[f"{i},{row}" for i, row in enumerate(ROWS, 1)]), [TRAIN],
         [accuracy(0.75), says("column PassengerId only identifies the rows")]),
    Case("identifier_at_random", "Kaggle's Churn Modelling: CustomerId is another number in each row",
         table(header=HEADER + ",customer_id",
               rows=[f"{row},{15_600_000 + i * 7919 % 100_003}" for i, row in enumerate(ROWS)]), [TRAIN],
         [accuracy(0.75), says("column customer_id only identifies the rows")]),
    Case("identifier_of_a_panel", "retail panels, a file a day: the number of a store repeats in the next file",
         {f"d/train{day}.csv": "store_id,y\n" + "".join(f"{store},{'high' if store > 20 else 'low'}\n"
                                                        for store in range(40)) for day in range(6)},
         [TRAIN], [accuracy(0.75), never_says("identifies the rows")]),
    Case("amount_called_paid", "an amount in capitals that ends in ID",
         {"d/train.csv": "PAID,y\n" + "".join(f"{i * 7},{'high' if i > 200 else 'low'}\n" for i in range(400))},
         [TRAIN], [accuracy(0.75), never_says("identifies the rows")]),
    Case("times_first", "a log without names: its first fields look like a label and index:value of LIBSVM",
         {"d/train.csv": "".join(f"2024-01-{1 + i % 28:02} 12:{i % 60:02}:45,{i % 7},{'high' if i % 7 > 3 else 'low'},"
                                 + ",".join(["1.5"] * 200) + "\n" for i in range(200))},
         ["trainer --data_dir=d --target=2"], [accuracy(0.75)]),
    Case("identifier_that_repeats", "several rows a customer: the number is a feature like any",
         table(header="customer_id," + HEADER, rows=[f"{i // 2},{row}" for i, row in enumerate(ROWS)]), [TRAIN],
         [accuracy(0.75), never_says("identifies the rows")]),
    Case("empty_fields_behind", "Excel saves columns that were once used: ,,, behind names and rows",
         table(header=HEADER + ",,,", rows=[row + ",,," for row in ROWS]), [f"{TRAIN}"], [accuracy(0.75)]),
    Case("empty_rows_below", "Excel saves rows that were once used: ,, below the last",
         table(after=[",,", ",,"]), [TRAIN], [accuracy(0.75)]),
    Case("tabs_below", "Calc: a last line of tabs and blanks", table(after=["  \t "]), [TRAIN], [accuracy(0.75)]),
    Case("fixed_width", "UCI auto-mpg: columns padded with blanks",
         {"d/train.csv": "".join("".join(f"{field:>12}" for field in line.split(",")) + "\n"
                                 for line in TABLE.splitlines())}, [TRAIN], [accuracy(0.75)]),
    Case("blanks_and_tabs", "gnuplot: blanks and tabs mixed, comments first",
         {"d/train.csv": "# run 7\n# t [s]\n" + TABLE.replace(",", " \t ")}, [TRAIN], [accuracy(0.75)]),
    Case("utf16", "Excel's 'Unicode text' is UTF-16", {"d/train.csv": TABLE.encode("utf-16")}, [TRAIN],
         [fails("UTF-16", "iconv -f utf-16 -t utf-8")]),
    Case("latin1_in_a_row", "keras#12511: text in Latin-1", {"d/train.csv": TABLE.replace("high", "größer")
                                                             .encode("latin-1")}, [TRAIN],
         [fails("train.csv:", "not UTF-8", "iconv -f latin1 -t utf-8")]),
    Case("bom_in_front", "Excel's 'CSV UTF-8' begins with a mark", {"d/train.csv": b"\xef\xbb\xbf" + TABLE.encode()},
         [TRAIN], [accuracy(0.75)]),
    dates("zone_of_the_pacific", "logs of California: 2024-03-16 11:00:00 PST",
          lambda when: f"{when:%Y-%m-%d %H:%M:%S} PST"),
    dates("dates_iso", "scikit-learn#5670: dates as features", lambda d: d.isoformat()),
    dates("dates_with_zone", "ISO 8601 with a fraction and a zone",
          lambda d: d.strftime("%Y-%m-%d %H:%M:%S.250+01:00")),
    dates("dates_german", "pandas, dayfirst: d.m.y of Germany", lambda d: d.strftime("%d.%m.%Y %H:%M")),
    dates("dates_american", "m/d/y with AM and PM", lambda d: d.strftime("%m/%d/%Y %I:%M %p")),
    dates("dates_british", "pandas, dayfirst: d/m/y of Britain", lambda d: d.strftime("%d/%m/%y")),
    dates("dates_japanese", "pandas, yearfirst: y/m/d of Japan", lambda d: d.strftime("%Y/%m/%d")),
    dates("dates_named", "12 Mar 2024, as SAS and Oracle write", lambda d: d.strftime("%d-%b-%Y")),
    dates("dates_in_words", "March 12, 2024", lambda d: d.strftime("%B %d, %Y")),
    dates("dates_of_c", "asctime of C, git log: Sun Mar 27 06:30:00 2022",
          lambda d: d.strftime("%a %b %e %H:%M:%S %Y")),
    dates("dates_of_unix", "date(1) of coreutils: Sun Mar 27 06:30:00 CET 2022",
          lambda d: d.strftime("%a %b %e %H:%M:%S CET %Y")),
    dates("dates_of_web_server", "Apache's mod_log_config, %t: [10/Oct/2000:13:55:36 -0700]",
          lambda d: d.strftime("[%d/%b/%Y:%H:%M:%S -0700]")),
    dates("dates_of_digits", "ISO 8601, basic format; RFC 5545: 20220327T063000Z",
          lambda d: d.strftime("%Y%m%dT%H%M%SZ")),
    dates("dates_with_zone_name", "Flexget#3658: tzname CET identified but not understood",
          lambda d: d.strftime("%Y-%m-%d %H:%M:%S CET")),
    dates("months_alone", "pandas.Period, invoices: March 2022", lambda d: d.strftime("%B %Y")),
    dates("dates_in_german_words", "lubridate#496, dateparser#395: 27. M\u00e4rz 2022",
          lambda d: f"{d.day}. {GERMAN.split()[d.month - 1]} {d.year}"),
    dates("dates_in_french_words", "moment#675: 21 d\u00e9cembre 2012",
          lambda d: f"{d.day} {FRENCH.split()[d.month - 1]} {d.year}"),
    dates("dates_in_spanish_words", "dateparser's README: Martes 21 de Octubre de 2014",
          lambda d: f"{d.day} de {SPANISH.split()[d.month - 1]} de {d.year}"),
    dates("dates_of_none", "aiomysql#607: MySQL's zero date, 0000-00-00",
          lambda d: "0000-00-00" if d.day % 9 == 0 else d.strftime("%Y-%m-%d"), flags="--seed=2"),
    dates("dates_without_end", "swissparlpy#64: 9999-12-31 is no date, but the end of what has none",
          lambda d: "9999-12-31" if d.day % 9 == 0 else d.strftime("%Y-%m-%d"),
          never_says("stands for none"), flags="--missing=9999-12-31"),
    Case("dates_far_away", "the same where nobody says so", dated(lambda d: "9999-12-31" if d.day % 9 == 0 else
                                                                   d.strftime("%Y-%m-%d")), [TRAIN],
         [says("column when: has dates up to the year 9999", "--missing=9999-12-31")]),
    Case("dates_ambiguous", "pandas: 3/4/2024 may be March or April",
         {"d/train.csv": AMBIGUOUS}, [TRAIN],
         [says("day/month or month/day", "--dates=dmy")]),
    Case("dates_set", "pandas: dayfirst=True",
         {"d/train.csv": AMBIGUOUS},
         [f"{TRAIN} --dates=dmy"], [never_says("day/month or month/day")]),
    Case("times_of_day", "loggers: hh:mm:ss alone",
         {"d/train.csv": "t,y\n" + "".join(f"{i % 24:02}:{i % 60:02}:00,{'day' if 6 <= i % 24 < 18 else 'night'}\n"
                                           for i in range(200))}, [TRAIN], [accuracy(0.75)]),
    Case("info_tells_readings", "users ask what became of a column",
         {"d/train.csv": learnable(quoted(lambda v: grouped(100 * v, ".", ",")))}, [INFO],
         [says("number: decimal comma, thousands by points", " target "), matches(r"\d+\.\d+,\d\d \| ")]),
]
