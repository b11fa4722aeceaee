#!/usr/bin/env python3
"""Include cycles: circles.py FILE... prints each one and fails.

A module is x.c and x.h together: a file that includes x.h needs x.c. A header without a .c of its own (a table of
operations, a folder's internal header) is not a module; it belongs to those that include it, and so do its includes.
"""

import re
import sys

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
    found, told = [], set()
    for module in sorted(arrows):
        way = None if module in told else circle_through(module, arrows)
        if way:
            told.update(way)
            found.append(way)
    return found


def main(paths):
    found = circles(arrows_between_modules(read(paths)))
    for way in found:
        print("circle of includes:", " -> ".join(way))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
