"""A relay between workers and a ps that does to links what networks do: delays, cuts, half-open connections, low
bandwidth.

The ps binds to 127.0.0.1 and the relay to 127.0.0.2, with the same port, so all members can be given the relay's
address and still have the same config.
"""

import contextlib
import random
import socket
import threading
import time


class Relay:
    """Forwards connections. Attributes, which may change at any time, and cut() and stall() control what happens to
    them."""

    def __init__(self, port, seed=0):
        self.random = random.Random(seed)
        self.delay_s = 0.0  # of every piece, each way
        self.bytes_per_s = 0  # 0: no limit
        self.cut_after = None  # bytes until a connection is reset, chosen again for each one: (least, most)
        self.refuses = False
        self.cuts = self.connections = 0
        self.pairs = []
        self.lock = threading.Lock()
        self.to = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.2", port), backlog=256)
        self.closed = False
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True
        with contextlib.suppress(OSError):  # it may have ended before
            self.listener.shutdown(socket.SHUT_RDWR)  # it wakes the accepting thread
        self.listener.close()
        self.cut()

    def accept(self):
        while not self.closed:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.refuses:
                reset(near)
                continue
            threading.Thread(target=self.serve, args=(near,), daemon=True).start()

    def serve(self, near):
        try:
            far = socket.create_connection(self.to, timeout=5)
        except OSError:
            reset(near)
            return
        far.settimeout(None)
        pair = {"ends": (near, far), "stalled": False, "left": None, "over": threading.Event()}
        with self.lock:
            self.connections += 1
            if self.cut_after:
                pair["left"] = self.random.randrange(*self.cut_after)
            self.pairs.append(pair)
        threads = [threading.Thread(target=self.pump, args=(pair, a, b), daemon=True)
                   for a, b in ((near, far), (far, near))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self.lock:
            self.pairs.remove(pair)
        for end in (near, far):
            end.close()

    def pump(self, pair, source, sink):
        try:
            while True:
                if pair["stalled"]:  # half open: nothing passes, and nobody is told
                    pair["over"].wait()
                    return
                data = source.recv(65536)
                if pair["stalled"]:
                    continue
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                if pair["left"] is not None:
                    part, pair["left"] = data[: max(pair["left"], 0)], pair["left"] - len(data)
                    if pair["left"] <= 0:
                        sink.sendall(part)
                        self.cut_pair(pair)
                        return
                sink.sendall(data)
        except (OSError, ValueError):
            self.cut_pair(pair, count=False)

    def cut_pair(self, pair, count=True):
        with self.lock:
            self.cuts += count
        for end in pair["ends"]:
            reset(end)
        pair["over"].set()

    def cut(self):
        """Resets all connections."""
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            self.cut_pair(pair)

    def stall(self):
        """All present connections become half open, permanently; new ones work."""
        with self.lock:
            for pair in self.pairs:
                pair["stalled"] = True


def reset(end):
    """Resets a connection instead of closing it."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
