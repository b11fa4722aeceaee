#!/usr/bin/env python3
"""Rules of this project that no compiler checks: house.py [--libc=ARCHIVE] [--only=CHECK] FILE...

Names tell the kinds of files apart: sources of the product, tests, scripts, makefiles. Prints PATH:LINE: TEXT for each
violation and fails. Nothing is compiled: names are searched as words, in text without comments and literals.
"""

import collections
import os
import re
import subprocess
import sys

# Checks that are off until the whole tree passes them.
NOT_YET = ()

COLUMNS = 120
LINES = 70
PARAMETERS = 8

# Rooms and documents that use the field's words: names, comments and texts without the words below. The list grows.
WORDS_KEPT_OUT_OF = ("docs/security.md", "net/", "tests/lint/", "base/cli/", "base/encoding/", "base/kernels/",
                     "base/random/", "base/text/", "cuda/", "worker/clients/", "worker/cpu/", "worker/data/source",
                     "worker/data/streaming", "worker/data/tfrecord/", "worker/export/profile", "worker/gpu/",
                     "worker/remote/exchange/")

# A word of nobody else's -> what the field calls it.
WORDS = {
    "astray": "stale", "attendant": "worker thread", "blame": "error at", "breach": "protocol error", "bury": "free",
    "complain": "reject, log", "complaint": "rejection", "courier": "exchange thread", "deaf": "paused",
    "desk": "coordinator", "door": "accept queue", "farewell": "leave", "glance": "peek", "gives_way": "low priority",
    "goodbye": "close_notify", "guess": "estimate", "hears": "receives", "heard": "received", "introduce": "identify",
    "let_go": "release", "lets_go": "releases", "linger": "keep alive", "lobby": "handshake queue",
    "newcomer": "new connection", "news": "update", "objection": "verify error",
    "patience_s": "timeout", "recall": "load",
    "roster": "member list", "rouse": "wake", "somebody": "a peer", "spoil": "set error", "stand_by": "helper",
    "stirred": "readable", "stranger": "unauthenticated peer", "suffer": "tolerate", "takers": "participants",
    "tell": "send, publish", "told": "sent", "unsaid": "suppressed", "way_back": "fallback", "wish": "request",
}

# Interfaces of others that we implement or declare: mbedTLS calls them, or the CUDA driver or intel-ipsec-mb defines
# them.
FOREIGN = re.compile(r"mbedtls_|aes_gcm_|cu[A-Z]|__")

# Entry points that only tests need, and that they can't replace.
FOR_TESTS = {
    "tfrecord_open_bytes": "what a fuzzer makes is no file",
    "connection_cipher": "what TLS agreed on",
}

CODE = (".c", ".h", ".cu", ".cuh", ".cpp")
LITERAL = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
FUNCTION = re.compile(r"^(?!typedef|return|else)[A-Za-z_][\w \t\*]*?[\s\*](\w+)\(([^;{}]*?)\)\s*([;{])", re.M)
ATTRIBUTE = re.compile(r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)")
TAG = re.compile(r"^[ \t]*(?:typedef )?(?:struct|union|enum) (\w+) \{", re.M)
NULL_CHECK = re.compile(r"[!=]=\s*NULL\b|\bNULL\s*[!=]=")
WORD = re.compile(r"(?<![A-Za-z])(?<!SO_)(" + "|".join(WORDS) + r")(s|ed|ing)?(?![A-Za-z])", re.I)
LOCK = re.compile(r"\b(?:\w+_)?lock\(")
LOCKED_CALL = re.compile(r"\b(\w+_locked)\(")
SECTION = re.compile(r"^[ \t]*(?:/\*|#) ?-{2,}.*$", re.M)
RIGHT_SECTION = re.compile(r"[ \t]*(?:/\* --- \S.*\S --- \*/|# --- \S(?:.*\S)? ---)$")
WRITES = re.compile(r"\bO_(?:CREAT|TMPFILE)\b|\b(?:creat|mkstemps?|mkostemps?|tmpfile|freopen)\s*\(")
STREAM = re.compile(r"\bfopen\s*\([^;]*?,\s*\"(?:[wa]|r\w*\+)")
PATH = re.compile(r"\b(?:base|net|observe|ps|worker|serve|cuda|tests|deploy)/[A-Za-z0-9_/]+\.(?:c|h|cu|py|md)\b")
MEMORY = re.compile(r'"[^"\n]*\b(?:no|not enough|want of|without) memory\b')


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


class File:
    def __init__(self, path):
        self.path = path
        with open(path, encoding="utf-8") as source:
            self.text = source.read()
        self.is_code = path.endswith(CODE)
        self.is_test = path.startswith("tests/")
        self.bare = ATTRIBUTE.sub(blank, LITERAL.sub(blank, self.text)) if self.is_code else self.text

    def line_of(self, offset):
        return self.text.count("\n", 0, offset) + 1


def columns(files):
    for file in files:
        for number, line in enumerate(file.text.split("\n"), 1):
            if len(line) > COLUMNS:
                yield file, number, f"{len(line)} columns; at most {COLUMNS}"


def null(files):
    for file in files:
        for found in NULL_CHECK.finditer(file.bare if file.is_code else ""):
            yield file, file.line_of(found.start()), "a pointer is tested as `p` or `!p`, not against NULL"


def sections(files):
    for file in files:
        for found in SECTION.finditer(file.text):
            if not RIGHT_SECTION.match(found.group()):
                text = "a section begins with `--- Title ---` in a comment of one line"
                yield file, file.line_of(found.start()), text


def memory(files):
    for file in files:
        for found in MEMORY.finditer(file.text if file.is_code and not file.is_test else ""):
            yield file, file.line_of(found.start()), "the user is told \"out of memory\""


def words(files):
    for file in files:
        if file.path.startswith(WORDS_KEPT_OUT_OF) and file.path != "tests/lint/house.py":
            for found in WORD.finditer(file.text):
                usual = WORDS[found.group(1).lower()]
                yield file, file.line_of(found.start()), f"\"{found.group()}\": the field says {usual}"


def writes(files):
    """Files are created by base/file.c alone, which lets nobody redirect what is written."""
    for file in files:
        if not file.is_code or file.is_test or file.path == "base/file.c":
            continue
        found = list(WRITES.finditer(file.bare)) + list(STREAM.finditer(file.text))
        for match in found:
            yield file, file.line_of(match.start()), "files are created by base/file.h alone"


def purpose(files):
    for file in files:
        if file.path.endswith((".c", ".cu")) and not file.text.startswith(("/*", "//")):
            yield file, 1, "a file opens with what it is for, in a comment"


def paths(files):
    """A comment leads to files that exist, and not to its own."""
    for file in files:
        for comment in LITERAL.finditer(file.text if file.is_code and not file.is_test else ""):
            for found in PATH.finditer(comment.group() if comment.group().startswith("/") else ""):
                line = file.line_of(comment.start() + found.start())
                if found.group() == file.path:
                    yield file, line, "the comment names its own file"
                elif not os.path.exists(found.group()):
                    yield file, line, f"there is no {found.group()}"


def parameters_of(text):
    depth, count = 0, 1 if text.strip() not in ("", "void") else 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        count += character == "," and depth == 0
    return count


def functions(file):
    """Functions that begin in the first column, as name, parameters, offset, and the offset of the body or None."""
    for found in FUNCTION.finditer(file.bare):
        yield found.group(1), found.group(2), found.start(), found.end() - 1 if found.group(3) == "{" else None


def size(files):
    for file in files:
        for name, parameters, start, body in functions(file) if file.is_code else ():
            end = file.bare.find("\n}", body) if body is not None else -1
            lines = file.bare.count("\n", body, end) if end > 0 else 0
            if lines > LINES:
                yield file, file.line_of(start), f"{name} has {lines} lines; at most {LINES}"
            count = parameters_of(parameters)
            if body is not None and count > PARAMETERS and not FOREIGN.match(name):
                yield file, file.line_of(start), f"{name} has {count} parameters; at most {PARAMETERS}"


def tags(files):
    """A tag means one thing in the whole product."""
    first = {}
    for file in files:
        for found in TAG.finditer("" if file.is_test or not file.is_code else file.bare):
            here = f"{file.path}:{file.line_of(found.start())}"
            other = first.setdefault(found.group(1), here)
            if other != here:
                yield file, file.line_of(found.start()), f"{found.group(1)} is defined in {other} too"


def libc(files, taken):
    for file in files:
        for name, _, start, body in functions(file) if file.is_code and not file.is_test else ():
            if body is not None and name in taken and not FOREIGN.match(name):
                yield file, file.line_of(start), f"{name} is a function of libc"


def unused(files):
    """A function that is not static must be called by another file of the product, or by tests of a folder's internals.
    """
    tested = {word for file in files if file.is_code and file.is_test for word in re.findall(r"\w+", file.bare)}
    product = [file for file in files if file.is_code and not file.is_test]
    users = collections.defaultdict(set)
    for file in product:
        for word in set(re.findall(r"\w+", file.bare)):
            users[word].add(file.path)
    defined = {}
    for file in product:
        for name, _, start, body in functions(file):
            is_static = re.search(r"\b(static|inline|VEC)\b", file.bare[start:file.bare.index("(", start)])
            if body is not None and not is_static and name != "main" and name not in FOR_TESTS and not FOREIGN.match(
                name):
                defined.setdefault(name, (file, start))
    headers = {file.path for file in product if file.path.endswith((".h", ".cuh"))}
    for name, (file, start) in defined.items():
        others = users[name] - headers - {file.path}
        in_headers = any(len(re.findall(rf"\b{name}\b", other.bare)) > 1 for other in product
                         if other.path in headers and other.path in users[name])
        if others or in_headers:
            continue
        if len(re.findall(rf"\b{name}\b", file.bare)) == 1:
            yield file, file.line_of(start), f"{name} is called by nobody in the product"
        elif name not in tested:
            yield file, file.line_of(start), f"{name} is called in its own file alone: make it static"


def locked(files):
    """What ends in _locked is called by what does, or after a lock was taken; checked for static callers."""
    for file in files:
        for name, _, start, body in functions(file) if file.is_code else ():
            if body is None or name.endswith("_locked") or not file.bare.startswith("static", start):
                continue
            text = file.bare[body:file.bare.find("\n}", body)]
            lock = LOCK.search(text)
            for call in LOCKED_CALL.finditer(text):
                if not lock or lock.start() > call.start():
                    yield file, file.line_of(body + call.start()), f"{name} calls {call.group(1)} without the lock"


def names_in(archive):
    listed = subprocess.run(["nm", "-g", "--defined-only", "--format=posix", archive], capture_output=True, text=True)
    return {line.split()[0] for line in listed.stdout.splitlines() if len(line.split()) > 1 and line.split()[1] in "TW"}


def main(arguments):
    options = dict(argument[2:].split("=", 1) for argument in arguments if argument.startswith("--"))
    files = [File(path) for path in arguments if not path.startswith("--")]
    taken = names_in(options["libc"]) if "libc" in options else set()
    checks = {"columns": columns, "null": null, "sections": sections, "memory": memory, "words": words,
              "writes": writes, "purpose": purpose, "paths": paths, "size": size, "tags": tags, "unused": unused,
              "locked": locked, "libc": lambda files: libc(files, taken)}
    only = options.get("only")
    failed = False
    for name, check in checks.items():
        if only == name or (not only and name not in NOT_YET):
            for file, number, text in check(files):
                print(f"{file.path}:{number}: {text}")
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
