#!/usr/bin/env python3
"""Circles of includes and of calls: circles.py FILE... prints each one and fails.

A module is x.c and x.h together: a file that includes x.h needs x.c. A header without a .c of its own (a table of
operations, a folder's internal header) is not a module; it belongs to those that include it, and so do its includes.

Files call each other in a circle if each uses a function that another one defines. Nothing is compiled: a use is the
name of a function that one file alone defines, in text without comments and literals.
"""

import collections
import re
import sys

from house import File, functions

USE = re.compile(r"(?<![\w.>])[A-Za-z_]\w*")  # of a name, but not of a member
INCLUDE = re.compile(r'^#[ \t]*include[ \t]*"([^"]+)"', re.M)


def module_of(path):
    return re.sub(r"\.\w+$", "", path)


def read(paths):
    includes = {}
    for path in paths:
        with open(path, encoding="utf-8") as source:
            includes[path] = INCLUDE.findall(source.read())
    return includes


def arrows_between_modules(includes):
    sources = {module_of(path) for path in includes if not path.endswith((".h", ".cuh"))}

    def reached(path, seen):
        for target in includes.get(path, ()):
            if target not in includes or target in seen:
                continue
            seen.add(target)
            if module_of(target) in sources:
                yield module_of(target)
            else:
                yield from reached(target, seen)

    arrows = {}
    for path in includes:
        if module_of(path) in sources:
            arrows.setdefault(module_of(path), set()).update(reached(path, {path}))
    return {module: sorted(targets - {module}) for module, targets in arrows.items()}


def circle_through(start, arrows):
    """The shortest path from a module back to itself; None if there is none."""
    before, queue = {}, [start]
    for module in queue:
        for target in arrows.get(module, ()):
            if target == start:
                way = [start]
                while module != start:
                    way.insert(0, module)
                    module = before[module]
                return [start, *way]
            if target not in before:
                before[target] = module
                queue.append(target)
    return None


def circles(arrows):
    found, seen = [], set()
    for module in sorted(arrows):
        way = None if module in seen else circle_through(module, arrows)
        if way:
            seen.update(way)
            found.append(way)
    return found


def calls_between(files):
    """{path: {path of a file that it calls}}"""
    defined, own = collections.defaultdict(set), collections.defaultdict(set)
    for file in files:
        for name, _, start, body in functions(file):
            if body is not None:
                is_own = re.search(r"\bstatic\b", file.bare[start:body])
                (own[file.path].add(name) if is_own else defined[name].add(file.path))
    only = {name: next(iter(paths)) for name, paths in defined.items() if len(paths) == 1}
    return {file.path: sorted({only[word] for word in set(USE.findall(file.bare)) - own[file.path] if word in only}
                               - {file.path})
            for file in files}


def main(paths):
    found = ["circle of includes: " + " -> ".join(way) for way in circles(arrows_between_modules(read(paths)))]
    sources = [File(path) for path in paths if path.endswith(".c") and not path.startswith("tests/")]
    found += ["circle of calls: " + " -> ".join(way) for way in circles(calls_between(sources))]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
