"""The documents compared with the program: the commands, flags, keys, make targets, paths and links that they name
exist.

Each documented command line goes to the program's own parser. It is followed by a word that no command accepts, so
that the program parses the whole line, reports that word and does none of the work.
"""

import functools
import json
import re
import shlex
import subprocess

import pytest

from conftest import ROOT

DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("net/*.md"), *ROOT.glob("tests/**/*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
MAP = "docs/ARCHITECTURE.md"
TOP = ("base", "net", "observe", "ps", "serve", "worker", "cuda", "deploy", "docs", "tests")
PROGRAM = re.compile(r"(\./|build/|build/aarch64/build/)?trainer")
SURPLUS = "surplus"
FILES = {"json", "key", "npz", "onnx", "safetensors"}  # endings of names that are not keys: fleet.key


@functools.cache
def text_of(name):
    return (ROOT / name).read_text()


@functools.cache
def parts(name):
    """Code blocks, fenced or indented, each a list of lines; and the prose around them."""
    fenced = re.compile(r"^```.*\n((?:.*\n)*?)```$", re.M)
    indented = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
    text = text_of(name)
    rest = fenced.sub("", text)
    blocks = [*fenced.findall(text), *(re.sub("^    ", "", block, flags=re.M) for block in indented.findall(rest))]
    return [block.splitlines() for block in blocks], indented.sub("", rest)


def spans(name):
    """What the prose has in backticks, possibly across lines."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", parts(name)[1])]


def shell_lines(block):
    """The commands of a block: after prompts if it has any, without the text of here-documents."""
    if any(line.startswith("$ ") for line in block):
        block = [line[2:] for line in block if line.startswith("$ ")]
    lines, end = [], None
    for line in block:
        if end is None:
            lines.append(line)
            found = re.search(r"<<'?(\w+)'?", line)
            end = found[1] if found else None
        elif line.strip() == end:
            end = None
    return lines


def commands(lines, variables=None):
    """Each simple command as its words, without comments, with variables that the block itself sets."""
    variables = {} if variables is None else variables
    for line in lines:
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        reader = shlex.shlex(line, posix=True, punctuation_chars=";&|(){}<>")
        reader.whitespace_split = True
        try:
            words = list(reader)
        except ValueError:  # quoted text over several lines: for other programs
            continue
        while words and re.fullmatch(r"[A-Z]\w*=.*", words[0]):
            name, value = words.pop(0).split("=", 1)
            variables[name] = value
        command = []
        for word in [*words, ";"]:
            if re.fullmatch(r"[;&|(){}<>]+", word):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


@functools.cache
def documented(program):
    """(document, words after the program's name), for every command line in a block or in the prose."""
    found = []
    for name in NAMES:
        lines = [commands(shell_lines(block)) for block in parts(name)[0]]
        lines += [commands([span]) for span in spans(name) if re.match(rf"{program.pattern} ", span)]
        found += [(name, tuple(words[1:])) for each in lines for words in each if program.fullmatch(words[0])]
    return sorted(set(found))


def ask(*arguments, cwd="/"):
    return subprocess.run([str(ROOT / "build/trainer"), *arguments], cwd=cwd, capture_output=True, text=True,
                          timeout=240)


@functools.cache
def command_table():
    """{name: (names of its operands, its own flags)}, from the program's help."""
    table = {}
    overview = ask("help").stdout
    for line in re.findall(r"^  (\S.*)$", overview[overview.index("Commands"):overview.index("\nMore")], re.M):
        words = re.split(r"\s{2,}", line)[0].split()
        for size in (2, 1):
            name = " ".join(words[:size])
            told = ask("help", *words[:size]).stdout
            if told.startswith(f"trainer {name}") and not (size == 2 and not re.fullmatch("[a-z]+", words[-1])):
                break
        operands = told.splitlines()[0].removeprefix(f"trainer {name}").split("[--flag")[0].strip()
        own = told.split("Flags of this command:")[1] if "Flags of this command:" in told else ""
        table[name] = operands, set(re.findall(r"^  --([\w-]+)", own.split("\n\n")[0], re.M))
    return table


@functools.cache
def schema():
    return json.loads(ask("config", "schema").stdout)["properties"]


def keys():
    return {key for section in schema().values() for key in section["properties"]}


def command_of(words):
    for size in (2, 1):
        if " ".join(words[:size]) in command_table():
            return " ".join(words[:size]), words[size:]
    return "train", words


def test_the_documents_have_something_to_check():
    lines = documented(PROGRAM)
    assert len(lines) > 50 and len({command_of(words)[0] for _, words in lines}) >= 15, lines
    assert set(command_table()) >= {"train", "data info", "rollout", "keygen"} and len(keys()) > 50


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_parse(name):
    for document, words in documented(PROGRAM):
        if document != name or not words:
            continue
        flags = ask(*words, f"--{SURPLUS}")
        assert flags.returncode == 2 and f"unknown flag --{SURPLUS}" in flags.stderr, (words, flags.stderr)
        command, rest = command_of(words)
        operands, own = command_table()[command]
        if "..." not in operands:
            many = ask(*words, *[SURPLUS] * 3)
            assert many.returncode == 2 and f"error: {SURPLUS}: " in many.stderr, (words, many.stderr)
        # The values of keys, as all commands with these keys read them.
        settings = [word for word in rest if word.startswith("--")
                    and re.split(r"=", word[2:])[0] not in own | {"config"}]
        values = ask("config", "show", *settings)
        assert not settings or values.returncode == 0, (words, values.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_help_that_is_pointed_to_is_there(name):
    for document, words in documented(PROGRAM):
        if document == name and words[:1] == ("help",) and not "".join(words[1:]).isupper():
            assert ask(*words).returncode == 0, words


@pytest.mark.parametrize("name", NAMES)
def test_flags_in_prose_exist(name):
    known = {flag for _, own in command_table().values() for flag in own} | keys() | {"config", "help", "trust_folder"}
    switches = {key for section in schema().values() for key, about in section["properties"].items()
                if about.get("type") == "boolean"}
    for span in spans(name):
        found = re.fullmatch(r"--(\w[\w-]*)(=.*)?", span)
        if found:
            assert found[1] in known or found[1].removeprefix("no") in switches, span


@pytest.mark.parametrize("name", NAMES)
def test_keys_exist(name):
    for span in spans(name) + [word for block in parts(name)[0] for line in block for word in line.split()]:
        found = re.fullmatch(r"([a-z]+)\.([a-z][a-z0-9_]*):?", span)
        if found and found[1] in schema() and found[2] not in FILES:
            assert found[2] in schema()[found[1]]["properties"], span


def test_the_table_of_change_classes_is_that_of_the_program():
    classes = {key: about["x-change"] for section in schema().values() for key, about in section["properties"].items()}
    rows = re.findall(r"^\| \*(\w+)\* \| (.*?) \|", text_of("docs/rollout.md"), re.M)
    assert [name for name, _ in rows] == ["live", "local", "job"]
    for name, named in rows:
        for key in re.findall(r"`(\w+)`", named):
            assert classes[key] == name, key


def test_mistakes_are_answered_as_documented(tmp_path):
    text = text_of("config.json").replace('"batch_size": "auto"', '"batch_size": 0')
    (tmp_path / "config.json").write_text(text)
    answers = [ask("config", "check", cwd=tmp_path), ask("--wroker_hosts=a", cwd=tmp_path)]
    for name in ("README.md", "docs/training.md"):
        for answer in answers:
            assert answer.returncode == 2 and answer.stderr.split("error: ")[1].strip() in text_of(name)


def test_the_program_is_as_small_as_the_readme_says():
    without, with_gpu = re.search(r"one file, ([\d.]+) MB, or ([\d.]+) MB with the GPU", text_of("README.md")).groups()
    has_gpu = "gpu" in json.loads(ask("version", "--json").stdout)["engines"]
    assert (ROOT / "build/trainer").stat().st_size / 1e6 < float(with_gpu if has_gpu else without) + 0.1


def test_what_troubleshooting_quotes_is_said_by_the_program():
    """Word by word, except what varies: numbers, names and shapes."""
    sources = [path for room in ("base", "net", "ps", "worker") for path in (ROOT / room).rglob("*.c")]
    said = re.sub(r'"\s*(?:PRI\w+\s*)?"', "", "".join(path.read_text() for path in sources))
    table = text_of("docs/operations.md").split("## Troubleshooting")[1]
    quoted = re.findall(r"^\|[^|]*?`([^`]+)`[^|]*\|", table, re.M)
    assert len(quoted) >= 8
    for quote in quoted:
        for words in re.findall(r"[a-z][a-z', ]{5,}[a-z]", re.sub(r"\S*_\S*|\bnan\b|\S*\d\S*", "#", quote)):
            assert words.strip(" ,") in said, quote


@pytest.fixture(scope="module")
def makefile():
    """make's own list of variables and rules."""
    return subprocess.run(["make", "-pq", "help"], cwd=ROOT, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.xdist_group("makefile")  # make is asked once for all of them
@pytest.mark.parametrize("name", NAMES)
def test_make_targets_exist(name, makefile):
    targets = set(re.findall(r"(?<!# Not a target:\n)^([\w./-]+):", makefile, re.M))
    variables = set(re.findall(r"^(?:export )?(\w+) (?:[:?]?=)", makefile,
                               re.M)) | set(re.findall(r"\$\{(\w+):-", text_of_scripts()))
    for document, words in documented(re.compile("make")):
        if document != name:
            continue
        for word in words:
            if "=" in word:
                assert word.split("=")[0] in variables, f"make {word}"
            else:
                assert word in targets, f"make {word}"


def text_of_scripts():
    return "".join(path.read_text() for path in (ROOT / "base/deps").iterdir() if path.is_file())


def anchors(name):
    """As GitHub derives them from headings."""
    headings = re.findall(r"^#+ (.*)$", parts(name)[1], re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", parts(name)[1]):
        path, _, anchor = target.partition("#")
        found = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(str(found.relative_to(ROOT))), target


def paths(text):
    return {path.rstrip("./") for path in re.findall(rf"(?<![\w./-])(?:{'|'.join(TOP)})/[\w@./*-]*", text)}


@pytest.mark.parametrize("name", NAMES)
def test_paths_exist(name):
    text = text_of(name) if name == MAP else "\n".join(span.split()[0] for span in spans(name))
    for path in paths(text):
        assert list(ROOT.glob(path)), path


TEST = re.compile(r"\b(tests/[\w/]+\.(?:py|c))::(\w+)")


@pytest.mark.parametrize("name", NAMES)
def test_named_tests_exist(name):
    for path, test in TEST.findall(text_of(name)):
        written = rf"^def {test}\(" if path.endswith(".py") else rf"^(static void |TEST\(|TEST_WITH\(){test}\b"
        assert re.search(written, text_of(path), re.M), f"{path}::{test}"


def test_every_boundary_names_a_test():
    """But for the operator's, who is trusted, each section says by which tests one sees it."""
    sections = re.split(r"^## ", text_of("docs/threat-model.md").split("\n## Unauthenticated peers")[0], flags=re.M)[1:]
    assert len(sections) == 11 and all(TEST.search(section) for section in sections)


def test_the_map_names_every_folder_of_code():
    named = paths(text_of(MAP))
    folders = {path.parent.relative_to(ROOT) for room in ("base", "net", "observe", "ps", "worker", "serve", "cuda")
               for path in (ROOT / room).rglob("*.[ch]*")}
    assert len(folders) > 30 and not {str(folder) for folder in folders} - named


def test_the_documents_are_short_enough_to_be_read():
    assert len(text_of("README.md").splitlines()) <= 200
    for name in NAMES:
        if name.startswith("tests/bench/"):  # generated by a tool
            continue
        for number, line in enumerate(text_of(name).splitlines(), 1):
            assert len(line) <= 120 or line.startswith("|"), f"{name}:{number}"
