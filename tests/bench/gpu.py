#!/usr/bin/env python3
"""The GPU engine on real MNIST, compared with PyTorch in the same minutes. Prints nothing without a GPU.

    tests/bench/gpu.py [--trainer=build/trainer] [--step=build/bench/gpu_bench] [--data=DIR] [--seconds=5] [PART ...]

PART: steps, worker, until; all of them by default. Prints one JSON line per figure, with its required minimum; the exit
status is 1 if a figure misses it. --python needs PyTorch with CUDA for the ratios; without it there are none.
"""

import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from figures import ROOT, arguments, beside, run_parts, show

sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports  # noqa: E402

LANES = {75: 64, 80: 64}  # float32 multiply-adds of a multiprocessor per cycle; 128 for all others here


class Bench:
    def __init__(self, options, device):
        self.options, self.device = options, device
        self.trainer = str(pathlib.Path(options.trainer).resolve())
        self.step = str(pathlib.Path(options.step).resolve())
        self.flags = ("--log_format=json", f"--data_dir={pathlib.Path(options.data).resolve()}", "--device=gpu",
                      "--noallow_soft_placement", f"--layers={options.layers}")
        self.folder = tempfile.TemporaryDirectory()
        self.about = {"gpu": device["name"], "driver": smi("driver_version")}

    def train(self, *flags):
        output = subprocess.run([self.trainer, *self.flags, *flags], cwd=self.folder.name, capture_output=True,
                                text=True)
        if output.returncode != 0:
            sys.exit(f"{' '.join(flags)}: status {output.returncode}\n{output.stdout}\n{output.stderr}")
        return [json.loads(line) for line in output.stdout.splitlines()]

    def rate(self, batch, *flags):
        """From a run of about that many seconds: a short run first determines the number of steps."""
        steps = self.options.steps
        for _ in range(2):
            events = self.train("--optimizer=sgd", "--learning_rate=0.05", f"--batch_size={batch}", "--train_dir=",
                                "--log_steps=0", "--validate_steps=1000000000", f"--train_steps={steps}", *flags)
            rate = events[-1]["steps_per_s"]
            steps = max(steps, int(rate * self.options.seconds))
        engine = next(event["engine"] for event in events if event["event"] == "start")
        return rate, engine

    def torch(self, batch):
        """Way -> steps/s; {} without a PyTorch that has CUDA."""
        script = pathlib.Path(__file__).resolve().parent / "peers/torch_gpu.py"
        output = subprocess.run([self.options.python, script, str(batch), str(self.options.seconds),
                                 *self.options.ways.split(",")], capture_output=True, text=True)
        found = [json.loads(line) for line in output.stdout.splitlines()]
        return {one["way"]: one["steps_per_s"] for one in found if "steps_per_s" in one}

    def roofline(self):
        """Steps per second for single images if all multipliers were busy; 0 if the clock rate is unknown."""
        major, minor = map(int, self.device["compute_capability"].split("."))
        clock = re.match(r"[\d.]+", smi("clocks.max.sm"))
        widths = [int(width) for width in self.options.layers.split(",")]
        products = [below * above for below, above in zip(widths, widths[1:])]
        flop = 2 * (3 * sum(products) - products[0])  # forward, weight gradients, and deltas except for the first layer
        return self.device["multiprocessors"] * LANES.get(10 * major + minor,
                                                          128) * 2e6 * float(clock[0] if clock else 0) / flop

    def steps(self):
        for batch, floor, ratio, aim in ((100, 50000, 2, 4), (1024, None, 1.5, None), (8192, None, None, None)):
            name = f"{self.options.layers.replace(',', '-')}, batch {batch:,}, SGD, float32"
            rates, peers = [], []
            for _ in range(self.options.rounds):
                rate, engine = self.rate(batch)
                rates.append(rate)
                peers.append(self.torch(batch))
            rate = statistics.median(rates)
            show(name, round(rate), floor, unit="steps/s", each=[round(one) for one in rates], engine=engine,
                 **self.about)
            ways = set.intersection(*(set(one) for one in peers))
            graphs = {way for way in ways if "graph" in way}
            if ways:
                theirs = [max(one[way] for way in graphs or ways) for one in peers]
                value, found = beside([own / peer for own, peer in zip(rates, theirs)], [])
                show(f"{name}, times PyTorch{' with CUDA graphs' * bool(graphs)}", value, ratio, aim=aim, peers=peers,
                     **found)
            has_tensor_cores = int(self.device["compute_capability"].split(".")[0]) >= 8
            for precision in ("tf32", "bfloat16") if batch > 100 and has_tensor_cores else ():
                faster = [self.rate(batch, f"--precision={precision}")[0] / rate for _ in range(self.options.rounds)]
                show(name.replace("float32", f"{precision}, times float32"), round(statistics.median(faster), 2),
                     each=[round(one, 2) for one in faster])
            if batch == 8192 and self.roofline() > 0:
                show(f"{name}, share of the float32 roofline", round(100 * rate * batch / self.roofline(), 1), 50,
                     unit="%")

    def worker(self):
        """The GPU's share of a worker's step, and a step's time with a ps on this machine."""
        output = subprocess.run([self.step, f"seconds={min(3, self.options.seconds)}"], capture_output=True, text=True,
                                check=True).stdout
        parts = {key: float(value) for key, value in re.findall(r"(\w+) ([\d.]+)", output)}
        show("as a worker, GPU's share of a step: parameters in, gradient out", parts["step_us"], most=70, unit="us",
             **self.about, **{key: value for key, value in parts.items() if key != "step_us"})
        rate = self.cluster()
        show("as a worker over loopback TLS with one ps", round(rate, 1), unit="steps/s",
             us_of_a_step=round(1e6 / rate), us_of_it_elsewhere=round(1e6 / rate - parts["step_us"]))

    def cluster(self):
        ports = free_ports(2)
        hosts = (f"--ps_hosts=127.0.0.1:{ports[0]}", f"--worker_hosts=127.0.0.1:{ports[1]}")
        subprocess.run([self.trainer, "keygen", "--out=fleet.key"], cwd=self.folder.name, check=True,
                       capture_output=True)
        job = (*hosts, f"--train_steps={5 * self.options.steps // 2}", "--log_steps=0", "--validate_steps=1000000000")
        ps = subprocess.Popen([self.trainer, "--job_name=ps", *job, *self.flags], cwd=self.folder.name,
                              stdout=subprocess.DEVNULL)
        try:
            done = self.train("--job_name=worker", *job)[-1]
        finally:
            ps.kill()
            ps.wait()
        return done["global_steps_per_s"]

    def until(self):
        """Adam from exec to a model with 98% on the test set; the time of each line shows where the time goes."""
        walls, accuracies, parts = [], [], []
        for seed in range(1, self.options.rounds + 1):
            begin = time.monotonic()
            came = {}
            with subprocess.Popen([self.trainer, *self.flags, "--optimizer=adam", "--batch_size=100",
                                   "--ema_decay=0.99", "--target_accuracy=0.983", "--validate_steps=500",
                                   "--train_dir=", f"--seed={seed}", f"--train_steps={5 * self.options.steps}"],
                                  cwd=self.folder.name, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout:
                    event = json.loads(line)
                    came.setdefault(event["event"], round(time.monotonic() - begin, 3))
            walls.append(time.monotonic() - begin)
            accuracies.append(event["test_accuracy"])
            parts.append({key: came.get(key) for key in ("start", "step", "validation", "done")})
        show("exec to 98% of the test set", round(statistics.median(walls), 3), aim=1, unit="s",
             each=[round(each, 3) for each in walls], first_line_of_each_kind_s=parts[0], **self.about)
        show("accuracy of that run", round(100 * min(accuracies), 2), 98.0, unit="%",
             each=[round(100 * each, 2) for each in accuracies])


def smi(field):
    if not shutil.which("nvidia-smi"):
        return "unknown"
    output = subprocess.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"], capture_output=True,
                            text=True)
    return output.stdout.splitlines()[0] if output.returncode == 0 and output.stdout else "unknown"


def begin(options):
    found = json.loads(subprocess.run([options.trainer, "devices", "--json"], capture_output=True, text=True,
                                      check=True).stdout)
    if not found["devices"]:
        print(f"gpu: nothing is measured, {found['no_gpu']}", file=sys.stderr)
        sys.exit()
    if not list(pathlib.Path(options.data).glob("train-images*")):
        sys.exit(f"gpu: there is no MNIST in {options.data}: make mnist, or TRAINER_MNIST=FOLDER")
    return Bench(options, found["devices"][0])


def main():
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--step", default=ROOT / "build/bench/gpu_bench")
    parser.add_argument("--layers", default="784,500,10", help="others try the bench out, where a GPU is only imitated")
    parser.add_argument("--steps", type=int, default=2000, help="of a first, short run; fewer do the same")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--python", default=sys.executable, help="runs PyTorch")
    parser.add_argument("--ways", default="eager,compiled,graph,compiled graph", help="PyTorch's, to compare with")
    run_parts(parser, {"steps": Bench.steps, "worker": Bench.worker, "until": Bench.until}, begin)


if __name__ == "__main__":
    main()
