#!/usr/bin/env python3
"""Federated averaging written plainly in PyTorch: the paper's 2NN, 100 clients in one process, a tenth in each round,
an epoch of batches of 10 on each (McMahan et al. 2017). Data in memory, one thread.

    torch_fedavg.py DIR iid|shards ROUNDS

One JSON line: seconds of the rounds alone, test accuracy after each, peak memory.
"""

import gzip
import json
import pathlib
import resource
import sys
import time

import numpy
import torch

FOLDER, KIND, ROUNDS = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
CLIENTS, SHARE, BATCH, RATE, TRAIN = 100, 0.1, 10, 0.1, 55000


def idx(name, offset):
    path = next(FOLDER.glob(f"{name}*"))
    content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    return numpy.frombuffer(content, numpy.uint8, offset=offset)


def pictures(name):
    pixels = torch.from_numpy(idx(f"{name}-images", 16).reshape(-1, 784).astype(numpy.float32) / 255)
    return pixels, torch.from_numpy(idx(f"{name}-labels", 8).astype(numpy.int64))


def parts(labels):
    if KIND == "iid":
        return torch.randperm(TRAIN).chunk(CLIENTS)
    shards = torch.argsort(labels[:TRAIN], stable=True).chunk(2 * CLIENTS)
    dealt = torch.randperm(2 * CLIENTS).tolist()
    return [torch.cat([shards[dealt[2 * i]], shards[dealt[2 * i + 1]]]) for i in range(CLIENTS)]


def network():
    return torch.nn.Sequential(torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 200), torch.nn.ReLU(),
                               torch.nn.Linear(200, 10))


def train(model, images, labels):
    """An epoch of a client."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in torch.randperm(len(images)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    (images, labels), (test_images, test_labels) = pictures("train"), pictures("t10k")
    own = parts(labels)
    model = network()
    shared = [parameter.detach().clone() for parameter in model.parameters()]
    accuracies, took_s = [], 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        chosen = torch.randperm(CLIENTS)[: int(SHARE * CLIENTS)].tolist()
        all_examples = sum(len(own[client]) for client in chosen)
        total = [torch.zeros_like(parameter) for parameter in shared]
        for client in chosen:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), shared):
                    parameter.copy_(value)
            train(model, images[own[client]], labels[own[client]])
            with torch.no_grad():
                for sum_of, parameter in zip(total, model.parameters()):
                    sum_of += parameter * (len(own[client]) / all_examples)
        shared = total
        took_s += time.perf_counter() - began
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), shared):
                parameter.copy_(value)
            accuracies.append(float((model(test_images).argmax(1) == test_labels).float().mean()))
    print(json.dumps({"seconds": took_s, "accuracies": accuracies,
                      "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


if __name__ == "__main__":
    main()
