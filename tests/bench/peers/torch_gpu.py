#!/usr/bin/env python3
"""PyTorch on a GPU: steps per second of 784-500-10 with SGD, data on the device, batches drawn there.

    torch_gpu.py BATCH SECONDS [WAY ...]

One JSON line for each way to run it, or for those named: eager, compiled, graph (a CUDA graph of one step, as in
PyTorch's documentation), compiled graph (torch.compile's reduce-overhead). Float32 without TF32. Pixels are random,
because their values do not matter here.
"""

import json
import sys
import time

import torch

BATCH, SECONDS = int(sys.argv[1]), float(sys.argv[2])
EXAMPLES = 55000
WARM_UP = 200


class Net:
    def __init__(self):
        torch.manual_seed(1)
        self.pixels = torch.randint(0, 256, (EXAMPLES, 784), dtype=torch.uint8, device="cuda")
        self.labels = torch.randint(0, 10, (EXAMPLES,), device="cuda")
        self.model = torch.nn.Sequential(torch.nn.Linear(784, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, foreach=True)
        self.chosen = torch.zeros(BATCH, dtype=torch.long, device="cuda")

    def loss(self, images, labels):
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def step(self, loss):
        self.optimizer.zero_grad(set_to_none=True)
        images = self.pixels[self.chosen].float() / 255
        loss(images, self.labels[self.chosen]).backward()
        self.optimizer.step()


def rate(net, once):
    def draw():
        torch.randint(0, EXAMPLES, (BATCH,), device="cuda", out=net.chosen)

    for _ in range(WARM_UP):
        draw()
        once()
    torch.cuda.synchronize()
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        for _ in range(100):
            draw()
            once()
        torch.cuda.synchronize()
        steps += 100
    return steps / (time.perf_counter() - begin)


def eager():
    net = Net()
    return rate(net, lambda: net.step(net.loss))


def compiled(mode=None):
    net = Net()
    loss = torch.compile(net.loss, mode=mode)
    return rate(net, lambda: net.step(loss))


def graph():
    net = Net()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            net.step(net.loss)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    net.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        net.step(net.loss)
    return rate(net, captured.replay)


WAYS = {"eager": eager, "compiled": compiled, "graph": graph, "compiled graph": lambda: compiled("reduce-overhead")}

if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in sys.argv[3:] or WAYS:
        way = WAYS[name]
        try:
            found = {"steps_per_s": round(way(), 1)}
        except Exception as error:  # a missing compiler, say: the other ways count anyway
            found = {"failed": str(error).splitlines()[0][:200]}
        print(json.dumps({"way": name, "batch": BATCH, "torch": torch.__version__, **found}), flush=True)
