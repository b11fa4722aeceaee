"""Fleets and machines: addresses as people paste them, members that come and go, files that a power cut damaged."""

from field.case import TRAIN, Case, learnable, matches, never_says, says

CHECK = "trainer config check --job_name=ps"
WORKERS = "--worker_hosts=b:2222"
ROWS = {"d/train.csv": learnable()}
SHORT = TRAIN.replace("--epochs=60", "--epochs=3 --train_dir=run")
BEST = "run/best.safetensors"  # which may be another name of the newest checkpoint
VERSION = '{"fleet":{"name":"north","version":2}}\n'


def refuses(*texts):
    """Exit status 2, and one error that says all of these."""
    def check(result):
        assert result.status == 2, (result.status, result.end)
        errors = [line for line in result.stderr.splitlines() if "error:" in line]
        assert len(errors) == 1 and all(text in errors[0] for text in texts), (texts, result.end)
    check.of_failure = True
    return check


def exists(path):
    def check(result):
        assert (result.folder / path).exists(), (path, result.end)
    return check


CASES = [
    Case("address_with_a_scheme", "tensorflow#17854: grpc://host:2222 from a cluster description",
         {}, [f"{CHECK} --ps_hosts=grpc://hub:2222 {WORKERS}"],
         [refuses("--ps_hosts", "it has a scheme; write host:port without grpc://")]),
    Case("address_with_a_blank", "kubeflow: a list of hosts with a blank behind each comma",
         {}, [f"{CHECK} '--ps_hosts=hub:2222, b:2222' {WORKERS}"], [refuses("it contains a blank")]),
    Case("address_with_a_path", "TensorFlowOnSpark#367: an address copied from a browser",
         {}, [f"{CHECK} --ps_hosts=hub:2222/ {WORKERS}"], [refuses("it has a path")]),
    Case("address_ipv6_without_brackets", "etcd, consul: IPv6 addresses pasted from `ip addr`",
         {}, [f"{CHECK} --ps_hosts=fe80::7:2222 {WORKERS}"], [refuses("here [fe80::7]:2222")]),
    Case("address_ipv6_with_a_zone", "grpc#3272: fe80::1%eth0 means something on one machine only",
         {}, [f"{CHECK} '--ps_hosts=[fe80::1%eth0]:2222' {WORKERS}"], [refuses("a zone (%)")]),
    Case("address_without_a_port", "tensorflow#2048: the port is left out",
         {}, [f"{CHECK} --ps_hosts=hub {WORKERS}"], [refuses("missing port; write host:port")]),
    Case("address_port_0", "ray, dask: port 0 stands for any port",
         {}, [f"{CHECK} --ps_hosts=hub:0 {WORKERS}"], [refuses("a number from 1 to 65535")]),
    Case("address_port_too_large", "docker compose: 70000 by a slip of the finger",
         {}, [f"{CHECK} --ps_hosts=hub:70000 {WORKERS}"], [refuses("a number from 1 to 65535")]),
    Case("address_empty", "a trailing comma in a list that a script made",
         {}, [f"{CHECK} --ps_hosts=hub:2222, {WORKERS}"], [refuses("it is empty; is there a comma too many?")]),
    Case("address_twice_in_other_case", "kubernetes: Hub and hub are one host",
         {}, [f"{CHECK} --ps_hosts=hub:2222,HUB:2222 {WORKERS}"], [refuses("duplicate address")]),
    Case("address_octet_too_large", "inet_aton accepts what people never meant",
         {}, [f"{CHECK} --ps_hosts=10.0.0.256:2222 {WORKERS}"], [refuses("not an IPv4 address")]),
    Case("bind_with_a_port", "docker -p 9999:2222: the port outside differs from the one inside",
         {}, [f"{CHECK} --ps_hosts=gw:9999 {WORKERS} --bind=[::]:2222"], [says("valid")]),
    Case("bind_misspelt", "nginx: listen http://0.0.0.0",
         {}, [f"{CHECK} --ps_hosts=gw:9999 {WORKERS} --bind=http://0.0.0.0"],
         [refuses("--bind", "is not an address to listen on", "it has a scheme")]),
    Case("elastic_min_workers", "elasticdl#897, horovod#2652: wait for those who may come, listed or not",
         {}, [f"{CHECK} --ps_hosts=gw:9999 {WORKERS} --elastic=1 --elastic_workers=10 --issync=1 --min_workers=5 "
              "--min_replicas=3"], [says("valid")]),
    Case("elastic_too_many", "horovod: min_np above max_np",
         {}, [f"{CHECK} --ps_hosts=gw:9999 {WORKERS} --elastic=1 --elastic_workers=3 --min_workers=5"],
         [refuses("--min_workers", "worker_hosts lists 1 and elastic lets 3 more join, fewer than 5")]),
    Case("best_model_damaged", "iotedge#4062: an SD card returns other bytes than were written",
         ROWS, [SHORT, f"sh -c 'head -c 2000 {BEST} >x && mv x {BEST}'", SHORT.replace("--epochs=3", "--epochs=6")],
         [says("best.safetensors: is cut off", "so the best model so far is lost"), exists("run/best.safetensors"),
          exists("run/best.safetensors.damaged")]),
    Case("best_model_flipped", "metaseq#53: a checkpoint that can be opened, but isn't what was written",
         ROWS, [SHORT, f"sh -c 'cp {BEST} x && printf XYZ | dd of=x bs=1 seek=9000 conv=notrunc && mv x {BEST}'",
                SHORT.replace("--epochs=3", "--epochs=6")],
         [says("its content does not match its digest", "set aside"), exists("run/best.safetensors.damaged")]),
    Case("version_in_force_empty", "k3os#381: files of length 0 after a power cut",
         {**ROWS, "config.json": '{"fleet":{"name":"north","version":1}}', "config.json.d/current": ""},
         [f"{SHORT} --config=config.json"],
         [says("config.json.d/current: set aside", "config.json alone comes into force"),
          exists("config.json.d/current.damaged")]),
    Case("version_damaged", "k3s#532: the record in force does not match its checksum",
         {**ROWS, "config.json": '{"fleet":{"name":"north","version":1}}', "config.json.d/current": "3\n",
          "config.json.d/00000002.json": VERSION, "config.json.d/00000003.json": "",
          "config.json.d/00000003.json.sum": "00000001\n"},
         [f"{SHORT} --config=config.json"],
         [matches(r"00000003.json: is damaged"), says("version 2 of the config comes into force here"),
          never_says("error:")]),
]
