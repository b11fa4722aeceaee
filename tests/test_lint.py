"""The project's own lint: each check passes what is right and reports what is wrong."""

import subprocess
import sys

import pytest


@pytest.fixture
def lint(root, tmp_path):
    def check(script, files, *options):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        result = subprocess.run([sys.executable, root / "tests/lint" / script, *options, *files], cwd=tmp_path,
                                capture_output=True, text=True)
        assert result.stderr == ""
        assert result.returncode == (1 if result.stdout else 0)
        return result.stdout.splitlines()

    return check


def body(lines):
    return "{\n" + "    step();\n" * (lines - 1) + "}\n"


@pytest.mark.parametrize("check, path, good, bad", [
    ("columns", "a.mk", "#" * 120, "#" * 121),
    ("null", "base/a.c", "/* p == NULL */\nif (!p || text == \"== NULL\") {\n    q = NULL;\n", "if (p == NULL) {"),
    ("null", "base/a.c", "while (p && q) {", "while (p\n       != NULL) {"),
    ("sections", "base/a.c", "/* --- In --- */", "/* ---- In ---- */"),
    ("sections", "a.mk", "# --- In ---", "# --- In -----------------"),
    ("memory", "base/a.c", '"out of memory for a key"', '"no memory for a key"'),
    ("memory", "base/a.c", "/* no memory */", '"not enough memory"'),
    ("words", "net/a.c", "/* By the indoor accept queue; SO_LINGER */", "/* At the door */"),
    ("words", "net/a.c", "int retold, foretells;", "int is_told;"),
    ("words", "net/a.h", "enum { PEER_GONE };", "enum { DOOR_GONE };"),
    ("writes", "base/a.c", "int fd = open(path, O_RDONLY | O_NOFOLLOW);\n", "open(path, O_WRONLY | O_CREAT, 0666);\n"),
    ("writes", "base/a.c", 'FILE *in = fopen(path, "re"); /* O_CREAT */\n', 'FILE *out = fopen(path, "ae");\n'),
    ("writes", "base/a.c", "fdopen(fd, \"w\");\n", "int fd = mkstemp(path);\n"),
    ("purpose", "base/a.c", "/* Why. */\n#include <a.h>\n", "#include <a.h>\n"),
    ("paths", "base/a.c", "/* See net/. */\n", "/* See net/gone.c. */\n"),
    ("paths", "base/a.c", 'const char *a = "base/a.c";\n', "/* As base/a.c says. */\n"),
    ("size", "base/a.c", "int f(void)\n" + body(70), "int f(void)\n" + body(72)),
    ("size", "base/a.c",
     "int f(int a, int b, int c, int d, int e, int f, int g, int (*h)(int, int))\n{\n}\n",
     "int f(int a, int b, int c, int d, int e, int f, int g, int h, int i)\n{\n}\n"),
    ("size", "base/a.c", "int mbedtls_f(int a, int b, int c, int d, int e, int f, int g, int h, int i)\n{\n}\n",
     "static inline __attribute__((always_inline)) void\n"
     "f(int a, int b, int c, int d, int e, int f, int g, int h, int i)\n{\n}\n"),
    ("tags", "base/a.c", "struct a {\n};\nstruct a one;\n", "struct a {\n};\nstruct a {\n};\n"),
    ("locked", "base/a.c", "static void f(void)\n{\n    my_lock(a);\n    g_locked(a);\n}\n",
     "static void f(void)\n{\n    g_locked(a);\n    my_lock(a);\n}\n"),
    ("locked", "base/a.c", "static void f_locked(void)\n{\n    g_locked(a);\n}\n",
     "static void f(void)\n{\n    unlock(a);\n    g_locked(a);\n}\n"),
    ("unused", "base/a.c", "static int f(void)\n{\n}\n", "int f(void)\n{\n}\n"),
    ("unused", "base/a.c", "static int f(void)\n{\n}\nint g = f();\n", "int f(void)\n{\n}\nint g = f();\n"),
])
def test_house_rules(lint, check, path, good, bad):
    assert lint("house.py", {path: good}, f"--only={check}") == []
    assert len(lint("house.py", {path: bad}, f"--only={check}")) == 1


def test_words_count_where_they_were_removed(lint):
    assert lint("house.py", {"observe/a.c": "/* At the door */"}, "--only=words") == []
    (line,) = lint("house.py", {"net/a.c": "/* At the door. */"}, "--only=words")
    assert line == 'net/a.c:1: "door": the field says accept queue'


def test_tests_are_no_users(lint):
    files = {"base/a.h": "int f(void);\n", "base/a.c": "int f(void)\n{\n}\n", "tests/base/test_a.c": "int g = f();\n"}
    (line,) = lint("house.py", files, "--only=unused")
    assert line == "base/a.c:1: f is called by nobody in the product"
    assert lint("house.py", {**files, "base/b.c": "int g = f();\n"}, "--only=unused") == []


def test_names_of_libc_are_taken(lint, root):
    libc = f"--libc={root}/build/deps/musl/lib/libc.a"
    assert lint("house.py", {"base/a.c": "int send_all(void)\n{\n}\n"}, "--only=libc", libc) == []
    (line,) = lint("house.py", {"base/a.c": "static int send(void)\n{\n}\n"}, "--only=libc", libc)
    assert line == "base/a.c:1: send is a function of libc"


def test_circles_are_found(lint):
    files = {"base/a.h": "", "base/a.c": '#include "base/a.h"\n#include "base/b.h"\n', "base/b.h": "", "base/b.c": ""}
    assert lint("circles.py", files) == []
    files["base/b.c"] = '#include "base/b.h"\n#include "base/internal.h"\n'
    files["base/internal.h"] = '#include "base/a.h"\n'
    assert lint("circles.py", files) == ["circle of includes: base/a -> base/b -> base/a"]


def test_circles_of_calls_are_found(lint):
    files = {"base/a.h": "int a(void);\n", "base/b.h": "int b(void);\n",
             "base/a.c": "int a(void)\n{\n    return b();\n}\n",
             "base/b.c": "/* as a() does */\nstatic int one(void)\n{\n}\nint b(void)\n{\n    one();\n}\n"}
    assert lint("circles.py", files) == []
    files["base/c.c"] = "int c(void)\n{\n    return a();\n}\n"
    assert lint("circles.py", files) == []
    files["base/b.c"] = "int b(void)\n{\n    return c();\n}\n"
    assert lint("circles.py", files) == ["circle of calls: base/a.c -> base/b.c -> base/c.c -> base/a.c"]


def test_what_a_tool_found_out_is_kept_for_the_next_clone(root, tmp_path):
    """Only successes; LINT_CACHE=none keeps nothing."""
    def run(clone, command, cache=str(tmp_path / "cache")):
        return subprocess.run([root / "tests/lint/kept", tmp_path / clone / "work", "sh", "-c",
                               f"cd {tmp_path / clone / 'work'} && {command}"], env={"LINT_CACHE": cache,
                                                                                     "PATH": "/usr/bin:/bin"},
                              capture_output=True, text=True)

    for clone in ("one", "two", "three"):
        (tmp_path / clone).mkdir()
    assert run("one", "test ! -e found && echo first >found").returncode == 0
    assert run("two", "cat found").stdout == "first\n"
    assert run("two", "echo second >found; exit 3").returncode == 3
    assert run("three", "test -e found", cache="none").returncode == 1
    (tmp_path / "three/work").rmdir()
    assert run("three", "cat found").stdout == "first\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["work"]
