#!/usr/bin/env python3
"""Federated averaging with Flower (flwr) and PyTorch: the model, clients and steps of torch_fedavg.py, in Flower's
simulation, which has a Ray process for each processor.

    flwr_fedavg.py DIR iid|shards ROUNDS

One JSON line: seconds of the rounds alone, test accuracy at the end, peak memory of all its processes (shared memory
counts once).
"""

import json
import os
import pathlib
import sys
import threading
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
HERE = str(pathlib.Path(__file__).resolve().parent)

import torch  # noqa: E402
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

FOLDER, KIND, ROUNDS = sys.argv[1:]
LOOK_S = 0.2


def prepared():
    """Per process: the images, and which client has which. Ray copies this function into its processes, so the cache is
    kept in a module."""
    sys.argv[1:] = [FOLDER, KIND, ROUNDS]  # of torch_fedavg
    sys.path.insert(0, HERE)
    import torch_fedavg
    if not hasattr(torch_fedavg, "held"):
        torch.manual_seed(1)
        torch.set_num_threads(1)
        images, labels = torch_fedavg.pictures("train")
        torch_fedavg.held = torch_fedavg, images, labels, torch_fedavg.parts(labels)
    return torch_fedavg.held


def client_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        fedavg, images, labels, own = prepared()
        mine = own[context.node_config["partition-id"]]
        model = fedavg.network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fedavg.train(model, images[mine], labels[mine])
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()),
                                   "metrics": MetricRecord({"num-examples": len(mine)})}), reply_to=message)

    return app


def server_app(times, found):
    app = ServerApp()

    @app.main()
    def main(grid, context):
        fedavg, *_ = prepared()
        strategy = FedAvg(fraction_train=fedavg.SHARE, fraction_evaluate=0, min_train_nodes=1, min_evaluate_nodes=0,
                          min_available_nodes=fedavg.CLIENTS)
        result = strategy.start(grid, ArrayRecord(fedavg.network().state_dict()), num_rounds=int(ROUNDS) + 1,
                                evaluate_fn=lambda number, arrays: times.append(time.perf_counter()))
        model = fedavg.network()
        model.load_state_dict(result.arrays.to_torch_state_dict())
        images, labels = fedavg.pictures("t10k")
        with torch.no_grad():
            found["accuracy"] = float((model(images).argmax(1) == labels).float().mean())

    return app


def memory_kib():
    """Of this process and its descendants."""
    parents, total = {}, 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    ours, before = {os.getpid()}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    for pid in ours:
        try:
            total += int(pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().partition("Pss:")[2].split()[0])
        except (OSError, IndexError):
            continue
    return total


def main():
    times, found, peak, over = [], {}, [0], threading.Event()

    def watch():
        while not over.wait(LOOK_S):
            peak[0] = max(peak[0], memory_kib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run_simulation(server_app(times, found), client_app(), num_supernodes=100,
                       backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}})
    finally:
        over.set()
        watcher.join()
    # In the first round processes start, and read the data.
    print(json.dumps({"seconds": times[-1] - times[1], "accuracies": [found["accuracy"]], "peak_kib": peak[0]}))


if __name__ == "__main__":
    main()
