"""What the benchmarks share: figures with what they owe, and ports for the clusters that they start."""

import json
import os
import pathlib
import socket

missed = []


def mnist_folder(root):
    """What TRAINER_MNIST names, or where `make mnist` puts it, or a folder that several checkouts share."""
    own = root / "data"
    found = own if list(own.glob("train-images*")) else root.parent / "shared/data/mnist"
    return pathlib.Path(os.environ.get("TRAINER_MNIST", found))


def show(name, value, floor=None, most=None, **more):
    """Prints a figure as tests/bench/run reads it; notes its name in `missed` if it owes more, or less."""
    good = (floor is None or value >= floor) and (most is None or value <= most)
    bound = {"floor": floor} if floor is not None else {"most": most} if most is not None else {}
    print(json.dumps({"figure": name, "value": value, **bound, **({} if good else {"missed": True}), **more}), flush=True)
    if not good:
        missed.append(name)


def free_ports(count):
    """Ports that nobody listens on; all are held at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
