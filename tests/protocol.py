"""A second implementation of the protocol, for tests: it reads its schema from net/PROTOCOL.md and uses OpenSSL's TLS.

    with Client(port, key="fleet.key") as client:
        welcome = client.hello(role=2, index=1, cluster="digits")
        pong = client.call("ping", nonce=7)
"""

import pathlib
import re
import socket
import ssl
import struct

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "net" / "PROTOCOL.md"
HEADER = struct.Struct("<4sHHQIIII")
LAST = 1
NUMBERS = {"U8": "B", "U16": "H", "U32": "I", "U64": "Q", "I32": "i", "I64": "q", "F32": "f", "F64": "d"}


def read_schema(text):
    """{number: (name, [(field, kind, limit)])} from the document's tables."""
    schema = {}
    for section in re.split(r"^### ", text, flags=re.M)[1:]:
        head = re.match(r"(\d+) (\w+)\n", section)
        if head:
            rows = re.findall(r"^\| (\w+) \| ([A-Z]+\d*) \| (\d+) \| ", section, flags=re.M)
            schema[int(head[1])] = (head[2], [(field, kind, int(limit)) for field, kind, limit in rows])
    return schema


SCHEMA = read_schema(DOCUMENT.read_text())
NUMBER = {name: number for number, (name, _) in SCHEMA.items()}


def encode(name, **values):
    """The bytes of a message; missing fields are zero or empty."""
    out = b""
    fields = SCHEMA[NUMBER[name]][1]
    unknown = set(values) - {field for field, _, _ in fields}
    assert not unknown, f"{name} has no {unknown}"
    for field, kind, _ in fields:
        if kind == "TEXT":
            text = values.get(field, "").encode()
            out += struct.pack("<I", len(text)) + text + b"\0"
        elif kind == "RANGES":
            ranges = values.get(field, [])
            out += struct.pack("<I", len(ranges)) + b"".join(struct.pack("<QI", *part) for part in ranges)
        else:
            out += struct.pack("<" + NUMBERS[kind], values.get(field, 0))
    return out


def decode(name, data):
    """A message's fields; raises ValueError unless all bytes are used."""
    values, at = {}, 0
    for field, kind, limit in SCHEMA[NUMBER[name]][1]:
        if kind in NUMBERS:
            (values[field],) = struct.unpack_from("<" + NUMBERS[kind], data, at)
            at += struct.calcsize("<" + NUMBERS[kind])
            continue
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        if count > limit:
            raise ValueError(f"{name}.{field}: {count} is more than {limit}")
        if kind == "TEXT":
            values[field] = data[at : at + count].decode()
            if data[at + count] != 0:
                raise ValueError(f"{name}.{field}: no zero byte at its end")
            at += count + 1
        else:
            values[field] = [struct.unpack_from("<QI", data, at + 12 * i) for i in range(count)]
            at += 12 * count
    if at != len(data):
        raise ValueError(f"{name}: {len(data) - at} bytes too many")
    return values


def frame(name, message, *, bulk=b"", request=1, generation=0, flags=LAST, version=1):
    """A whole frame."""
    header = HEADER.pack(b"TRNR", version, NUMBER[name], request, generation, flags, len(message), len(bulk))
    return header + message + bulk


def context(key=None, authority=None, *, maximum=None):
    """An SSL context of a client: with the fleet key `key`, or a member's key and its authority; None: no key."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False  # certificates name members, not hosts
    if maximum:
        made.maximum_version = maximum
    else:
        made.minimum_version = ssl.TLSVersion.TLSv1_3
    if key:
        made.load_cert_chain(key)
        made.load_verify_locations(authority or key)
    else:
        made.verify_mode = ssl.CERT_NONE
    return made


# Worker 0, with this program's protocol version.
HELLO = {
    "version_min": 1,
    "version_max": 1,
    "program": "protocol.py",
    "role": 2,
    "expected_role": 0,
    "expected_index": -1,
    "incarnation": 1,
}


class Client:
    """A connection to a member, over TLS or, with insecure=True, plain TCP."""

    def __init__(self, port, key=None, authority=None, host="127.0.0.1", insecure=False, timeout=60):
        self.socket = socket.create_connection((host, port), timeout=timeout)
        if not insecure:
            self.socket = context(key, authority).wrap_socket(self.socket)
        self.request = 0
        self.generation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def read(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += part
        return data

    def send(self, name, bulk=b"", flags=LAST, version=1, **values):
        self.request += 1
        data = frame(
            name,
            encode(name, **values),
            bulk=bulk,
            request=self.request,
            generation=self.generation,
            flags=flags,
            version=version,
        )
        self.socket.sendall(data)

    def receive(self):
        """(name, fields, bulk) of the next frame; "request", "generation" and "last" are among the fields."""
        magic, version, number, request, generation, flags, size, bulk_size = HEADER.unpack(self.read(HEADER.size))
        assert magic == b"TRNR" and number in SCHEMA, (magic, number)
        name = SCHEMA[number][0]
        fields = decode(name, self.read(size))
        fields.update(request=request, generation=generation, last=bool(flags & LAST), protocol=version)
        return name, fields, self.read(bulk_size)

    def call(self, name, **values):
        """Sends a request and returns (name, fields, bulk) of the first frame of its answer."""
        self.send(name, **values)
        return self.receive()

    def hello(self, **values):
        """Says hello as worker 0 with this program's protocol version, unless told otherwise."""
        name, fields, _ = self.call("hello", **{**HELLO, **values})
        return name, fields


def learn(known, ranges, bulk):
    """Updates known, {index: bfloat16 as an integer}, by differences (dtype 2)."""
    at = 0
    for first, count in ranges:
        for block in range(first, first + count, 32):
            floats, bits = min(32, first + count - block), bulk[at]
            at += 1
            if bits == 16:
                known.update(zip(range(block, block + floats), struct.unpack_from(f"<{floats}H", bulk, at)))
            elif bits:
                assert bits in (4, 8) and floats == 32, (bits, floats)
                part = bulk[at : at + 4 * bits]
                changes = list(part) if bits == 8 else [byte & 15 for byte in part] + [byte >> 4 for byte in part]
                for j, change in enumerate(changes):
                    signed = change - (1 << bits) if change >> (bits - 1) else change
                    known[block + j] = (known[block + j] + signed) & 0xFFFF
            at += bits * floats // 8
    assert at == len(bulk), (at, len(bulk))


def add_packed(known, ranges, bulk, dtype):
    """Adds packed answers (dtypes 3 to 6) to known, {index: float}, in float32 as members do."""
    single = struct.Struct("<f")

    def values(count, at):
        if dtype == 4:
            return struct.unpack_from(f"<{count}f", bulk, at), at + 4 * count
        if dtype == 5:
            halves = struct.unpack_from(f"<{count}H", bulk, at)
            return [single.unpack(struct.pack("<I", half << 16))[0] for half in halves], at + 2 * count
        blocks = (count + 63) // 64
        scales = struct.unpack_from(f"<{blocks}f", bulk, at)
        changes = struct.unpack_from(f"<{count}b", bulk, at + 4 * blocks)
        widened = [single.unpack(single.pack(scales[i // 64] * change))[0] for i, change in enumerate(changes)]
        return widened, at + 4 * blocks + count

    at = 0
    for first, count in ranges:
        places = range(count)
        if dtype > 3:
            chosen, size = struct.unpack_from("<HH", bulk, at)
            gaps, places, next_place = iter(bulk[at + 4:at + 4 + size]), [], 0
            for gap in gaps:
                gap = gap & 127 | next(gaps) << 7 if gap > 127 else gap
                places.append(next_place + gap)
                next_place = places[-1] + 1
            assert len(places) == chosen, (chosen, places)
            at += 4 + size
        added, at = values(len(places), at)
        for place, value in zip(places, added, strict=True):
            known[first + place] = single.unpack(single.pack(known[first + place] + value))[0]
    assert at == len(bulk), (at, len(bulk))


def read_vectors(text):
    """[(name, frame's bytes, {field: text})] from the document's ```vector blocks."""
    vectors = []
    for name, hexadecimal, fields in re.findall(r"```vector (\w+)\n(.*?)---\n(.*?)```", text, flags=re.S):
        values = dict(line.split(" = ", 1) for line in fields.strip().splitlines())
        vectors.append((name, bytes.fromhex("".join(hexadecimal.split())), values))
    return vectors
