#!/usr/bin/env python3
"""run_tlsfuzzer.py FOLDER PEER KEY [SCRIPT...]: tlsfuzzer's TLS 1.3 scripts, from a copy of it in FOLDER, against an
echo server (PEER serve KEY). Prints a table of each script's conversations: how many there are, how many end as the
script expects, and why the others are refused here. Fails if one is refused for no reason listed below.

The scripts expect a web server with an RSA key that asks for no certificate. So they are adapted: they offer ECDSA
instead of one of RSA's signature algorithms, AES-256 instead of AES-128, send our certificate, and don't wait for
ChangeCipherSpec, which this server does not send.
"""

import os
import pathlib
import re
import runpy
import subprocess
import sys

# The maximum number of conversations drawn from a script.
MOST = 60

# Topics of scripts that don't apply to this program.
ABSENT = {
    "0rtt-garbage": "early data",
    "certificate-verify": "RSA keys",
    "certificate-compression": "compression of certificates",
    "client-certificate-compression": "compression of certificates",
    "count-tickets": "session tickets",
    "dhe-shared-secret-padding": "timing, or groups of finite fields",
    "ecdhe-brainpool-curves": "Brainpool curves",
    "ecdsa-brainpool-in-certificate-verify": "Brainpool curves",
    "eddsa": "EdDSA",
    "eddsa-in-certificate-verify": "EdDSA",
    "ffdhe-groups": "groups of finite fields",
    "ffdhe-sanity": "groups of finite fields",
    "keyupdate-from-server": "a command that makes a web server change its keys",
    "minerva": "timing over days",
    "mldsa-in-certificate-verify": "ML-DSA",
    "mlkem": "ML-KEM",
    "non-support": "a server without TLS 1.3",
    "post-handshake-auth": "certificates asked for after the handshake",
    "psk_dhe_ke": "pre-shared keys",
    "psk_ke": "pre-shared keys",
    "rsa-signatures": "RSA keys",
    "rsapss-signatures": "RSA keys",
    "session-resumption": "session tickets",
}

# Why a conversation ends otherwise than its script expects: script, conversation, what was seen; parts of each.
REASONS = [
    (("large-number-of-extensions", "", "illegal_parameter"), BIG := "a hello of more than 16 KiB"),
    (("shuffled-extentions", "", "illegal_parameter"), BIG),
    (("signature-algorithms", "", "illegal_parameter"), BIG),
    (("finished", "padding", "illegal_parameter"), "a message of more than 16 KiB"),
    (("shuffled-extentions", "HRR", "server_hello"), "mbedTLS does not compare the second hello with the first"),
    (("ecdhe-curves", "secp384r1", "handshake_failure"), "handshake_failure for a share longer than any"),
    (("connection-abort", "NewSessionTicket", ""), "no session tickets"),
    (("keyupdate", "app data split", ""), ECHO := "sends back what has come, and does not wait for more"),
    (("unrecognised-groups", "", "illegal_parameter"), BIG),
    (("unrecognised-groups", "ffdhe", ""), "no groups of finite fields"),
    (("", "x448", ""), GROUPS := "no group but X25519, P-256 and P-384"),
    (("", "secp521r1", ""), GROUPS),
    (("serverhello-random", "ffdhe", ""), GROUPS),
    (
        ("record-layer-limits", "Finished", "record_overflow"),
        "with SHA-384, 16 bytes more than the script reckons with",
    ),
    (("obsolete-curves", "", "handshake_failure"), "handshake_failure where no group is in common"),
    (("obsolete-curves", "", "server_hello"), "groups that are not there are passed over, and not counted as a breach"),
    (("", "sigalgs in cert", ""), ECDSA := "asks for signatures with ECDSA alone"),
    (("", "extensions in CertificateRequest", ""), ECDSA),
    (("certificate-request", "sanity", "certificate_required"), "no connection without a certificate"),
    (("ecdsa-in-certificate-verify", "", "decrypt_error"), "decrypt_error for a signature algorithm not asked for"),
    (("ecdsa-in-certificate-verify", "secp384r1", "timed out"), "mbedTLS takes SHA-384 with a key on P-256"),
    (("ecdsa-support", "", ""), SIGNS := "signs by ecdsa_secp256r1_sha256 alone, and finds nothing in common"),
    (("pkcs-signature", "", "server_hello"), LATE := "finds out that it can't sign when ServerHello has gone"),
    (("signature-algorithms", "", "server_hello"), LATE),
    (("signature-algorithms", "", "handshake_failure"), SIGNS),
    (("symetric-ciphers", "CCM", "handshake_failure"), "no CCM"),
    (("version-negotiation", "", "protocol_version"), "no TLS 1.2 to fall back to"),
    (("zero-content-type", "application data", "ApplicationData"), "what is sent back comes before the alert"),
    (("zero-length-data", "app data", "ApplicationData"), ECHO),
]


def adapt(folder, key):
    """Makes tlsfuzzer's conversations those of a client with our key."""
    sys.path[:0] = [str(folder)]
    from tlslite.constants import CipherSuite, SignatureScheme
    from tlslite.extensions import SignatureAlgorithmsExtension
    from tlslite.utils.keyfactory import parsePEMKey
    from tlslite.x509 import X509
    from tlslite.x509certchain import X509CertChain
    from tlsfuzzer import expect, messages, tree

    with open(key, encoding="ascii") as file:
        pem = file.read()
    certificate, private = X509(), parsePEMKey(pem, private=True)
    certificate.parse(pem)
    CipherSuite.TLS_AES_128_GCM_SHA256 = CipherSuite.TLS_AES_256_GCM_SHA384
    create, add_child = SignatureAlgorithmsExtension.create, tree.TreeNode.add_child

    def create_with_ecdsa(self, values):
        pss, ecdsa = SignatureScheme.rsa_pss_pss_sha256, SignatureScheme.ecdsa_secp256r1_sha256
        if values and pss in values and ecdsa not in values:
            values = [ecdsa if value == pss else value for value in values]
        return create(self, values)

    def add_adapted(self, child):
        if isinstance(child, expect.ExpectChangeCipherSpec):
            return self
        if isinstance(child, expect.ExpectCertificate) and isinstance(self, expect.ExpectEncryptedExtensions):
            self = add_child(self, expect.ExpectCertificateRequest())
        shown = (messages.CertificateGenerator, messages.CertificateVerifyGenerator)
        if isinstance(child, messages.FinishedGenerator) and child.protocol in (None, (3, 4)):
            if not isinstance(self, shown) and not getattr(self, "shown", False):
                self = add_child(self, messages.CertificateGenerator(X509CertChain([certificate])))
                self = add_child(self, messages.CertificateVerifyGenerator(private))
        added = add_child(self, child)
        added.shown = isinstance(self, shown) or getattr(self, "shown", False)
        return added

    SignatureAlgorithmsExtension.create = create_with_ecdsa
    tree.TreeNode.add_child = add_adapted


def play(folder, name, port, key):
    """One script, in this process."""
    adapt(folder, key)
    script = str(folder / "scripts" / f"test-tls13-{name}.py")
    with open(script, encoding="utf-8") as file:
        text = file.read()
    app = folder / "tlsfuzzer" / "_apps" / f"test_tls13_{name.replace('-', '_')}.py"
    if app.exists():
        text = app.read_text(encoding="utf-8")
    options = re.search(r'getopt\(\s*argv,\s*"([^"]*)"', text)[1]
    sys.argv = [script, "-p", port]
    if "n:" in options:
        sys.argv += ["-n", str(MOST)]
    if "k:" in options:
        sys.argv += ["-k", key, "-c", key]
    if "coalescing" in text:
        sys.argv += ["--coalescing"]
    if '"repeat="' in text:
        sys.argv += ["--repeat=2"]
    runpy.run_path(script, run_name="__main__")


def results(output):
    """[(conversation, what was seen instead; "": as expected)]."""
    found, name = [], None
    for line in output.splitlines():
        if line.endswith("...") and not line.startswith(" "):
            name = line[:-3].strip()
        elif name and line == "OK":
            found.append((name, ""))
            name = None
        elif name and re.match(r"(\w+\.)*\w*(Error|Exception|Alert|Abort\w*|Closed\w*|timeout)(:|$)", line):
            found.append((name, line))
            name = None
    return found


def reason(script, name, seen):
    return next(
        (why for parts, why in REASONS if all(part in whole for part, whole in zip(parts, (script, name, seen)))), None
    )


def main(folder, peer, key, only):
    folder = pathlib.Path(folder).resolve()
    scripts = sorted(path.name[len("test-tls13-") : -3] for path in (folder / "scripts").glob("test-tls13-*.py"))
    assert scripts, f"{folder} has no scripts/test-tls13-*.py"
    server = subprocess.Popen([peer, "serve", key], stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip()
    # Its output is not needed, but it must not block on it.
    drain = subprocess.Popen(["cat"], stdin=server.stdout, stdout=subprocess.DEVNULL)
    total = passed = unexplained = 0
    print("| script | conversations | as expected | otherwise, and why |\n| --- | --- | --- | --- |")
    for script in only or scripts:
        if script in ABSENT:
            print(f"| {script} | | | not run: it is about {ABSENT[script]} |", flush=True)
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--play", str(folder), script, port, key],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            timeout=1800,
        )
        found = results(done.stdout)
        whys = {}
        for name, seen in found:
            if seen:
                why = reason(script, name, seen) or f"NO REASON: {name}: {seen}"
                unexplained += why.startswith("NO REASON")
                whys[why] = whys.get(why, 0) + 1
        if not found:
            whys[f"NO REASON: {done.stdout[-300:]}"] = 1
            unexplained += 1
        good = sum(not seen for _, seen in found)
        total, passed = total + len(found), passed + good
        print(
            f"| {script} | {len(found)} | {good} | {'; '.join(f'{count}: {why}' for why, count in whys.items())} |",
            flush=True,
        )
    print(f"| all | {total} | {passed} | |")
    alive = server.poll() is None
    server.terminate()
    drain.wait()
    if not alive:
        print("the server is gone", file=sys.stderr)
    return 1 if unexplained or not alive else 0


if __name__ == "__main__":
    if sys.argv[1] == "--play":
        play(pathlib.Path(sys.argv[2]), *sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1], os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3]), sys.argv[4:]))
