"""A member of a made-up run: serves the page as a real one does and answers its requests, for a fleet of any size and
with any texts. Tests use it for what a real run can't do on demand."""

import base64
import gzip
import http.server
import json
import math
import pathlib
import random
import threading
import time
import urllib.parse

from ports import free_ports

FILES = {"": ("index.html", "text/html; charset=utf-8"), "app.js": ("app.js", "text/javascript; charset=utf-8"),
         "app.css": ("app.css", "text/css; charset=utf-8"),
         "dygraph.js": ("dygraph.js", "text/javascript; charset=utf-8")}
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


class Run:
    """One run and its data. Tests change its fields."""

    def __init__(self, name="digits", workers=2, ps=1, steps=5000, seed=1, length=600, noise=0.1):
        self.random = random.Random(seed)
        self.name, self.steps = name, steps
        self.started = time.time() - length
        self.state, self.waiting_for, self.rollout, self.drift, self.role = "training", None, None, [], "ps"
        self.extras, self.events, self.best, self.test = {}, [], {"step": 1000, "value": 0.9731}, {}
        self.about = {"command": f"trainer train --data_dir=mnist --optimizer=adam --train_dir={name}",
                      "data": "IDX files in mnist: 55,000 training, 5,000 validation images, 28x28, 10 classes",
                      "settings": {"layers": "784,500,10", "optimizer": "adam", "learning_rate": "0.001",
                                   "batch_size": "100", "epochs": "10", "seed": str(seed), "data_dir": "mnist"}}
        self.steps_per_s = 900 / (1 + 0.2 * seed)
        self.noise, self.length = noise, length
        self.members = [self.member("ps", i) for i in range(ps)] + [self.member("worker", i) for i in range(workers)]
        self.checkpoints = {"last_step": None, "last_time": None, "last_path": "", "duration_s": None, "written": 0,
                            "failed": 0, "best_step": None, "best_path": None}
        self.samples = [self.sample(self.started + i) for i in range(length)]

    def member(self, role, task):
        draw = self.random
        return {"role": role, "task": task, "address": f"10.0.{task // 250}.{task % 250}:2222", "host": f"node-{task}",
                "state": "ready" if role == "ps" else "training", "missing": False, "silent_ms": draw.randrange(900),
                "generation": 1, "global_step": draw.randrange(4000, 4100),
                "local_step": None if role == "ps" else draw.randrange(2000, 2100),
                "steps_per_s": draw.uniform(300, 500),
                "loss": None if role == "ps" else draw.uniform(0.05, 0.2), "staleness": draw.randrange(4), "dropped": 0,
                "retries": 0, "bytes_in": draw.randrange(1 << 32), "bytes_out": draw.randrange(1 << 32),
                "device": "CPU, avx512, 8 threads", "program": "trainer 0.1.0", "config_version": 3,
                "config_digest": "5f0c1e9ab2d4", "message": "", "memory_bytes": draw.randrange(60 << 20, 90 << 20),
                "cpu_percent": draw.uniform(150, 790),
                "gpu_percent": draw.uniform(20, 99) if role == "worker" else None,
                "link": "TLS" if role == "worker" else ""}

    def sample(self, at):
        age = at - self.started
        step = int(min(self.steps, age * self.steps / max(1, self.length * 1.5)))
        wave = self.noise * self.random.gauss(0, 1)
        validates = int(age) % 30 == 0
        accuracy = 0.985 - 0.6 * math.exp(-age / 60) + 0.004 * wave if validates else None
        if validates and accuracy > self.best["value"]:
            self.best = {"step": step, "value": accuracy}
        return {"time": at, "global_step": step, "loss": max(0.01, 2.3 * math.exp(-age / 90) + 0.06 + 0.3 * wave *
                                                             math.exp(-age / 200)),
                "learning_rate": 0.1 * 0.95**(step // 200), "steps_per_s": self.steps_per_s * (1 + 0.2 * wave),
                "examples_per_s": self.steps_per_s * 100 * (1 + 0.2 * wave), "metric:accuracy": accuracy,
                "metric:loss": 2.3 * math.exp(-age / 90) + 0.09 + 0.01 * wave if validates else None,
                "metric:f1": accuracy - 0.003 if validates else None,
                "memory_bytes": 65e6 + age * 2e3, "cpu_percent": 180 + 100 * wave, "bytes_in_per_s": 3e8,
                "bytes_out_per_s": 2.8e8}

    def advance(self):
        """Adds a second of data for each that has passed."""
        while self.state == "training" and self.samples[-1]["time"] + 1 <= time.time():
            self.samples.append(self.sample(self.samples[-1]["time"] + 1))

    def say(self, kind, text, member=None, step=None, at=None):
        self.events.append({"id": len(self.events) + 1, "time": at or time.time(), "kind": kind, "member": member,
                            "step": step, "text": text})

    def status(self):
        last = self.samples[-1]
        return {"version": "0.1.0", "build": "trainer 0.1.0, musl 1.2.5", "time": time.time(), "started": self.started,
                "run": {"name": self.name, "train_dir": f"/var/lib/trainer/{self.name}", "role": self.role, "task": 0,
                        "state": self.state, "waiting_for": self.waiting_for, "config_version": 3,
                        "config_digest": "5f0c1e9ab2d4", "engine": "CPU, avx512 kernels, 8 threads",
                        "layers": [784, 500, 10], "metric": "accuracy", "metric_goal": "max", "generation": 1,
                        "extras": list(self.extras)},
                "progress": {"global_step": last["global_step"], "last_step": self.steps,
                             "epoch": last["global_step"] / 550, "examples": last["global_step"] * 100,
                             "eta_s": (self.steps - last["global_step"]) / 5 if self.state == "training" else None,
                             "steps_per_s": last["steps_per_s"], "examples_per_s": last["examples_per_s"],
                             "learning_rate": last["learning_rate"], "loss": last["loss"],
                             "metrics": {"accuracy": 0.9712, "loss": 0.0934}, "test": self.test, "best": self.best},
                "members": self.members, "missing": sum(each["missing"] for each in self.members),
                "checkpoints": self.checkpoints, "rollout": self.rollout, "drift": self.drift,
                "event_id": len(self.events)}

    def history(self, since):
        new = [each for each in self.samples if each["time"] > since]
        recent, whole = new[-3600:], new[:-3600]
        names = [name for name in self.samples[0] if name not in ("time", "global_step")]

        def table(samples):
            return {"time": [each["time"] for each in samples],
                    "global_step": [each["global_step"] for each in samples],
                    "values": {name: [each.get(name) for each in samples] for name in names}}

        return {"name": self.name, "time": time.time(), "step_s": 1, "series": names, "recent": table(recent),
                "whole": table(whole[::max(1, len(whole) // 2048)])}


def eventful(run):
    """A fleet's events, for the timeline and the marks in charts."""
    start, steps = run.started, run.steps
    run.say("started", "training 784-500-10 on 2 workers, 1 ps", step=0, at=start)
    for i, member in enumerate(run.members[:12]):
        run.say("joined", f"{member['role']} {member['task']} ({member['address']}) joined", at=start + 1 + i * 0.4)
    for i in range(1, 6):
        step = int(steps * i / 9)
        run.say("validation", f"accuracy 97.{10 + i}% at step {step}", step=step, at=start + 90 * i)
        run.say("checkpoint", f"model-{step}.safetensors, 0.08 s", step=step, at=start + 90 * i + 1)
    run.say("lost", "worker 1 (10.0.0.1:2222): no word for 10 s", "worker 1", int(steps * 0.4), start + 380)
    run.say("waiting", "for worker 1 (10.0.0.1:2222)", "worker 1", int(steps * 0.4), start + 381)
    run.say("restored", "generation 2 from model-1666.safetensors", step=int(steps * 0.4), at=start + 402)
    run.say("joined", "worker 1 (10.0.0.1:2222) is back", "worker 1", int(steps * 0.4), start + 403)
    run.say("rollout", "version 4: watching the canary, worker 1", step=int(steps * 0.6), at=start + 560)
    run.events.sort(key=lambda event: event["time"])
    for i, event in enumerate(run.events):
        event["id"] = i + 1
    run.checkpoints.update(last_step=int(steps * 5 / 9), last_time=start + 451, duration_s=0.083, written=5,
                           best_step=1000, best_path=f"/var/lib/trainer/{run.name}/best.safetensors",
                           last_path=f"/var/lib/trainer/{run.name}/model-{int(steps * 5 / 9)}.safetensors")


def picture_extras(seed=3):
    """First-layer weights and mistakes of a model for 28x28 images, and columns of a table."""
    draw = random.Random(seed)

    def unit():
        x, y, size = draw.uniform(8, 20), draw.uniform(8, 20), draw.uniform(3, 7)
        turn, wave = draw.uniform(0, 3), draw.uniform(0.5, 1.2)
        across, down = wave * math.cos(turn), wave * math.sin(turn)
        return [round(0.3 * math.exp(-((i % 28 - x)**2 + (i // 28 - y)**2) / size**2) *
                      math.cos(i % 28 * across + i // 28 * down) + draw.gauss(0, 0.01), 3) for i in range(784)]

    def digit():
        x, y, size = draw.uniform(11, 16), draw.uniform(11, 16), draw.uniform(5, 8)
        ring = [abs(math.hypot((i % 28 - x) * 1.3, i // 28 - y) - size) for i in range(784)]
        return base64.b64encode(bytes(int(255 * max(0, 1 - each / 2)) for each in ring)).decode()

    return {
        "weights": {"height": 28, "width": 28, "units": [{"values": unit()} for _ in range(64)]},
        "mistakes": {"height": 28, "width": 28, "mistakes": [
            {"label": str(draw.randrange(10)), "predicted": str(draw.randrange(10)), "confidence": draw.uniform(0.7, 1),
             "pixels": digit()} for _ in range(24)]},
        "classes": {"step": 2750, "classes": [
            {"name": str(i), "examples": 100, "correct": 90 + i % 9,
             "predicted": [90 + i % 9 if i == k else (10 - i % 9) if k == (i + 3) % 10 else 0 for k in range(10)]}
            for i in range(10)]},
        "columns": {"columns": [{"name": f"column {chr(97 + i)}", "importance": 0.31 * 0.7**i - 0.002}
                                for i in range(14)]},
    }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body, kind="application/json", **more):
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), "Content-Security-Policy": POLICY,
                            "X-Content-Type-Options": "nosniff", **more}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        place = urllib.parse.urlsplit(self.path)
        path, self.query = place.path[1:], dict(urllib.parse.parse_qsl(place.query))
        if path in FILES:
            name, kind = FILES[path]
            return self.answer(200, (self.server.folder / f"{name}.gz").read_bytes(), kind, Content_Encoding="gzip")
        self.server.asked.append(self.path)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.answer(401, b'{"error": "a token, please"}', WWW_Authenticate="Bearer")
        which = self.query.get("run", "0")
        if not path.startswith("api/") or not which.isdigit() or int(which) >= len(self.server.runs):
            return self.answer(404, b'{"error": "no such thing"}')
        return self.tell(path[4:], self.server.runs[int(which)])

    def tell(self, what, run):
        run.advance()
        if what == "stream":
            return self.stream(run)
        told = {"runs": lambda: {"runs": [{"id": str(i), "name": each.name}
                                          for i, each in enumerate(self.server.runs)]},
                "status": run.status, "events": lambda: {"events": run.events[-1024:]},
                "about": lambda: run.about, "history": lambda: run.history(float(self.query.get("since", 0)))}
        told.update({name: lambda value=value: value for name, value in run.extras.items()})
        if what not in told:
            return self.answer(404, b'{"error": "no such thing"}')
        body = json.dumps(told[what]()).encode()
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            return self.answer(200, gzip.compress(body, 1), Content_Encoding="gzip")
        return self.answer(200, body)

    def stream(self, run):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Connection", "close")
        self.end_headers()
        told = int(self.headers.get("Last-Event-ID") or 0)
        try:
            self.wfile.write(b"retry: 2000\n\n")
            while not self.server.ended.is_set():
                run.advance()
                for event in run.events[told:]:
                    self.wfile.write(f"event: event\nid: {event['id']}\ndata: {json.dumps(event)}\n\n".encode())
                told = len(run.events)
                self.wfile.write(f"event: status\ndata: {json.dumps(run.status())}\n\n".encode())
                self.server.ended.wait(self.server.interval)
        except OSError:
            pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_):
        pass


class Member:
    """with Member(folder, runs) as member: member.url; member.stop() and member.start() on the same port."""

    def __init__(self, folder, *runs, token=None, interval=1.0):
        self.folder, self.runs, self.token, self.interval = pathlib.Path(folder), list(runs), token, interval
        self.server, (self.port,) = None, free_ports(1)  # nobody else's while it is stopped
        self.asked = []

    def start(self):
        self.server = Server(("127.0.0.1", self.port), Handler)
        for name in ("folder", "runs", "token", "interval", "asked"):
            setattr(self.server, name, getattr(self, name))
        self.server.ended = threading.Event()
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self):
        self.server.ended.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()
