"""deploy/kubernetes: the manifests checked with Kubernetes' own schemas, and each container run as specified, with its
paths mapped to folders and its names to ports of this machine."""

import json
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from deployed import ROOT, TOOLS, read_yaml, tool
from ports import free_ports
from runs import ENDLESS_STEPS, PACE, checkpoints, wait_for

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name != "kustomization.yaml")
FASTER = {"data": {"data_source": "synthetic", "synthetic_train": 3000, "synthetic_test": 500, "validation_size": 0},
          "model": {"layers": [784, 32, 10]}, "cluster": {"lease_secs": 2}, "output": {"log_steps": 50}}


def manifests(*names):
    return [manifest for name in names for manifest in read_yaml(FOLDER / name)]


def job_templates(manifest):
    """{name: job or pod template} of manifests with several."""
    spec = manifest["spec"].get("template", {}).get("spec", manifest["spec"])
    return {job["name"]: job["template"] for job in spec["replicatedJobs"]}


def pods(manifest):
    """{name: (pod template, count)}"""
    if manifest["kind"] in ("JobSet", "TrainingRuntime"):
        return {name: (job["spec"]["template"], job["spec"]["completions"])
                for name, job in job_templates(manifest).items()}
    spec = manifest["spec"]
    name = manifest["metadata"]["name"].removeprefix("trainer-")
    return {name: (spec["template"], spec.get("completions", spec.get("replicas")))}


def jobs_aside(value):
    """An operator's manifest without the Jobs in it, which are Kubernetes' own."""
    if isinstance(value, list):
        return [jobs_aside(item) for item in value]
    if not isinstance(value, dict):
        return value
    aside = {key: jobs_aside(item) for key, item in value.items()}
    for job in aside.get("replicatedJobs", []):
        del job["template"]["spec"]
    return aside


def faults_of(manifests):
    """The errors of each, by its operator's schema."""
    result = subprocess.run([TOOLS / "python", ROOT / "tests" / "operator_models.py"],
                            input=json.dumps(list(map(jobs_aside, manifests))), capture_output=True, text=True,
                            timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.full
def test_what_operators_bring_is_as_they_publish_it():
    jobset, runtime, job, monitor = found = manifests("jobset/jobset.yaml", "kubeflow/runtime.yaml",
                                                      "kubeflow/trainjob.yaml", "monitoring/servicemonitor.yaml")
    wrong = json.loads(json.dumps(found))
    for manifest, path, key, value in zip(wrong, (("network",), ("mlPolicy",), ("trainer",), ("endpoints", 0)),
                                          ("enableDNSHostname", "numNodes", "numNode", "schema"),
                                          (True, "three", 3, "https")):
        at = manifest["spec"]
        for step in path:
            at = at[step]
        at[key] = value
    faults = faults_of([jobset, runtime, job, monitor, *wrong])
    assert faults[:4] == [[]] * 4
    assert faults[4] == ["JobSet.spec.network.enableDNSHostname"] and "should be a valid integer" in faults[5][0]
    assert faults[6:] == [["TrainJob.spec.trainer.numNode"], ["ServiceMonitor.spec.endpoints[0].schema"]]


def test_the_manifests_are_valid(tmp_path):
    """Of operators' kinds (JobSet, TrainingRuntime) the validator knows the Jobs in them."""
    known, foreign = [], {"jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1", "monitoring.coreos.com/v1"}
    for path in FILES:
        for manifest in read_yaml(path):
            parts = [manifest]
            if manifest["apiVersion"] in foreign:
                parts = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job["spec"]}
                         for name, job in (job_templates(manifest).items() if path.parent.name != "monitoring"
                                           and manifest["kind"] != "TrainJob" else [])]
            for part in parts:
                known.append(tmp_path / f"{len(known)}.yaml")
                known[-1].write_text(json.dumps(part))
    assert len(known) == 14
    result = tool(TOOLS / "kubernetes-validate", "--strict", *known)
    assert result.returncode == 0 and result.stdout.count("passed") == len(known), result.stdout + result.stderr


def test_the_validator_finds_mistakes(tmp_path):
    text = (FOLDER / "base" / "ps.yaml").read_text()
    for right, wrong in [("serviceName:", "serviceNmae:"), ("periodSeconds: 5", "periodSeconds: often")]:
        (tmp_path / "ps.yaml").write_text(text.replace(right, wrong))
        assert tool(TOOLS / "kubernetes-validate", "--strict", tmp_path / "ps.yaml").returncode != 0


def test_kustomizations_name_what_there_is():
    for path in FOLDER.rglob("kustomization.yaml"):
        (content,) = read_yaml(path)
        generated = [file for each in (*content.get("configMapGenerator", []), *content.get("secretGenerator", []))
                     for file in each["files"]]
        for name in (*content["resources"], *set(generated) - {"fleet.key", "operator.pub", "token"}):
            assert (path.parent / name).exists(), name
        ignored = (FOLDER / ".gitignore").read_text().split()
        assert {"fleet.key", "operator.pub", "token"} & set(generated) <= set(ignored)


@pytest.mark.parametrize("variant", ["base", "jobset"])
def test_kubectl_puts_them_together(trainer, tmp_path, variant):
    if not shutil.which("kubectl"):
        pytest.skip("no kubectl here")
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    for name in ("fleet.key", "operator.pub", "token"):
        (tmp_path / "kubernetes/base" / name).write_text("x" * 32)
    result = tool("kubectl", "kustomize", tmp_path / "kubernetes" / variant)
    assert result.returncode == 0, result.stderr
    (tmp_path / "all.yaml").write_text(result.stdout)
    kinds = sorted(manifest["kind"] for manifest in read_yaml(tmp_path / "all.yaml"))
    same = ["ConfigMap"] * 2 + ["NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget", "Secret", "Service"]
    assert kinds == sorted(same + (["Job", "Job", "StatefulSet", "PodDisruptionBudget"] if variant == "base"
                                   else ["JobSet"]))


def test_pods_are_locked_down():
    found = [pod for path in FILES for manifest in read_yaml(path) if manifest["kind"] in
             ("StatefulSet", "Job", "JobSet", "TrainingRuntime") for pod in pods(manifest).values()]
    assert len(found) == 8
    for pod, _ in found:
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
        assert {probe["httpGet"]["path"] for probe in (container["readinessProbe"], container["livenessProbe"])} == {
            "/readyz", "/healthz"}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]} | ({"state"} if "state" in mounted else set())


class Pod:
    """A container, run as the manifest says."""

    def __init__(self, machine, name, index, template, settings, names):
        (self.container,) = template["spec"]["containers"]
        self.grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        self.name, self.folder = f"{name}-{index}", machine.folder / f"{name}-{index}"
        self.http, self.machine, self.names = free_ports(1)[0], machine, names
        self.settings = {**settings, "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
                         "metadata.labels['batch.kubernetes.io/job-completion-index']": str(index)}
        for mount in sorted(self.container["volumeMounts"], key=lambda mount: len(mount["mountPath"])):
            source, at = machine.volumes[mount["name"]], self.path(mount["mountPath"])
            if "subPath" in mount:
                shutil.copy2(source / mount["subPath"], at)
            elif source:
                shutil.copytree(source, at)
            else:
                at.mkdir(parents=True)
        state = machine.folder / f"state-{name}"  # a claim outlives its pod
        if name in ("chief", "node") and state.exists():
            shutil.copytree(state, self.path("/var/lib/trainer") / "run", dirs_exist_ok=True)

    def path(self, text):
        return self.folder / text.lstrip("/")

    def local(self, text):
        for name, port in self.names.items():
            text = text.replace(name, f"127.0.0.1:{port}")
        text = text.replace(":9200", f":{self.http}")
        return re.sub(r"(?<=[=:])/(var/lib/trainer|keys)", rf"{self.folder}/\1", text)

    def environment(self):
        found = {}
        for variable in self.container["env"]:
            if "valueFrom" in variable:
                source = variable["valueFrom"]
                key = source["fieldRef"]["fieldPath"] if "fieldRef" in source else source["configMapKeyRef"]["key"]
                found[variable["name"]] = self.settings[key]
            else:
                found[variable["name"]] = self.expand(variable["value"], found)
        return found

    @staticmethod
    def expand(text, environment):
        return re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], text)

    def start(self):
        environment = self.environment()
        command = [self.machine.trainer if word == "/trainer" else self.local(self.expand(word, environment))
                   for word in (*self.container["command"], *self.container["args"])]
        self.output = open(self.machine.folder / f"{self.name}.out", "w")
        self.process = subprocess.Popen(command, cwd=self.path(self.container["workingDir"]), stdout=self.output,
                                        stderr=subprocess.STDOUT,
                                        env={name: self.local(value) for name, value in environment.items()})
        return self

    def text(self):
        return (self.machine.folder / f"{self.name}.out").read_text()

    def get(self, path, token=None):
        """The status, as kubelet and Prometheus get it: without checking the certificate."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"https://127.0.0.1:{self.http}{path}", headers=headers)
        try:
            return urllib.request.urlopen(request, context=context, timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def probe(self, name):
        return self.get(self.container[name]["httpGet"]["path"])


class Machine:
    """The machine on which a manifest's pods run."""

    def __init__(self, trainer, folder, steps, paced=False):
        self.trainer, self.folder, self.pods = trainer, folder, []
        self.volumes = {"config": folder / "config", "keys": folder / "keys", "tmp": None, "state": None}
        for name in ("config", "keys"):
            self.volumes[name].mkdir(parents=True)
        config = json.loads((FOLDER / "base/config.json").read_text())
        pace = PACE if paced or steps >= ENDLESS_STEPS else 0
        train = {"train_steps": steps, "num_threads": 1, "max_steps_per_s": pace}
        for section, keys in {**FASTER, "train": train}.items():
            config.setdefault(section, {}).update(keys)
        (self.volumes["config"] / "config.json").write_text(json.dumps(config))
        keys = self.volumes["keys"]
        tool(trainer, "keygen", "--out=fleet.key", cwd=keys)
        tool(trainer, "keygen", "--operator=operator.key", cwd=keys)
        (keys / "operator.key.pub").rename(keys / "operator.pub")
        (keys / "token").write_text("0123456789abcdef\n")
        for path in keys.iterdir():
            path.chmod(0o440)  # defaultMode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pod in self.pods:
            pod.process.kill()
            pod.process.wait()
            pod.output.close()

    def start(self, templates, settings, names):
        self.pods = [Pod(self, name, index, template, settings, names).start()
                     for name, (template, count) in templates.items() for index in range(count)]
        return {pod.name: pod for pod in self.pods}

    def end(self):
        """SIGTERM to all, as `kubectl delete` sends it; each ends within its grace period."""
        for pod in self.pods:
            pod.process.send_signal(signal.SIGTERM)
        for pod in self.pods:
            assert pod.process.wait(pod.grace) == 143, pod.text()


def host_names(cluster):
    names = [name for hosts in cluster.values() for name in hosts]
    return dict(zip(names, free_ports(len(names))))


def variant_of(name):
    """The pods, and the hosts that they get."""
    if name == "base":
        found = manifests("base/ps.yaml", "base/chief.yaml", "base/worker.yaml")
        (cluster,) = manifests("base/cluster.yaml")
    else:
        found = manifests("jobset/jobset.yaml")
        (content,) = manifests("jobset/kustomization.yaml")
        (patch,) = [patch["patch"] for patch in content["patches"] if patch["target"]["kind"] == "ConfigMap"]
        cluster = {"data": {"CLUSTER": patch.split("CLUSTER: |\n")[1]}}
    templates = {key: pod for manifest in found if "spec" in manifest and manifest["kind"] != "PersistentVolumeClaim"
                 for key, pod in pods(manifest).items()}
    return templates, cluster["data"]["CLUSTER"]


@pytest.mark.parametrize("variant", ["base", "jobset"])
@pytest.mark.full(but=("base",))
def test_pods_train_and_save_at_their_end(trainer, tmp_path, variant):
    templates, cluster = variant_of(variant)
    names = host_names(json.loads(cluster))
    with Machine(trainer, tmp_path / "first", steps=100000000) as machine:
        members = machine.start(templates, {"CLUSTER": cluster}, names)
        assert sorted(members) == ["chief-0", "ps-0", "worker-0", "worker-1"]
        for pod in members.values():
            wait_for(lambda: pod.probe("readinessProbe") == 200, f"readiness of {pod.name}: {pod.text()}")
            assert pod.probe("livenessProbe") == 200
            assert pod.get("/metrics") == 401 and pod.get("/metrics", "0123456789abcdef") == 200
        chief = members["chief-0"]
        wait_for(lambda: chief.text().count('"event":"step"') >= 2, "steps")
        before = json.loads([line for line in chief.text().splitlines() if '"event":"step"' in line][-1])["global_step"]
        machine.end()
        kept = checkpoints(chief.path("/var/lib/trainer/run"))
        assert max(kept, default=0) >= before, chief.text()
    with Machine(trainer, tmp_path / "second", steps=max(kept) + 200) as machine:
        shutil.copytree(chief.path("/var/lib/trainer/run"), machine.folder / "state-chief")
        members = machine.start(templates, {"CLUSTER": cluster}, names)
        for name in ("chief-0", "worker-0", "worker-1"):
            assert members[name].process.wait(240) == 0, members[name].text()
        assert kept[max(kept)].name in members["chief-0"].text(), "it went on"
        assert members["ps-0"].process.poll() is None, "it serves the next job, or whoever comes late"


def test_a_trainjob_has_as_many_nodes_as_it_says(trainer, tmp_path):
    (runtime,), (job,) = manifests("kubeflow/runtime.yaml"), manifests("kubeflow/trainjob.yaml")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"]
    name = job["metadata"]["name"]
    templates = pods(runtime)
    templates["node"] = templates["node"][0], job["spec"]["trainer"]["numNodes"]
    names = host_names({"ps": [f"{name}-ps-0-0.{name}:2222"], "worker": [f"{name}-node-0-0.{name}:2222"]})
    with Machine(trainer, tmp_path, steps=9000, paced=True) as machine:  # so that the last to join is in time
        members = machine.start(templates, {"metadata.labels['jobset.sigs.k8s.io/jobset-name']": name}, names)
        assert sorted(members) == ["node-0", "node-1", "node-2", "ps-0"]
        for i in range(3):
            assert members[f"node-{i}"].process.wait(240) == 0, members[f"node-{i}"].text()
        assert "worker 2 " in members["ps-0"].text() and "joined" in members["ps-0"].text()


def test_the_monitor_finds_the_service():
    (monitor,), (service,) = manifests("monitoring/servicemonitor.yaml"), manifests("base/service.yaml")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    (kustomization,) = manifests("base/kustomization.yaml")
    secret = kustomization["secretGenerator"][0]
    credentials = monitor["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert credentials["name"] == secret["name"] and credentials["key"] in secret["files"]


def test_pods_are_found_by_what_selects_them():
    labels = [pod["metadata"]["labels"] for path in ("base/ps.yaml", "base/chief.yaml", "base/worker.yaml")
              for manifest in manifests(path) if manifest["kind"] in ("StatefulSet", "Job")
              for pod, _ in pods(manifest).values()]
    selectors = [manifest["spec"]["selector"]["matchLabels"] for manifest in manifests("base/disruption.yaml")]
    (network,), (service,) = manifests("base/network.yaml"), manifests("base/service.yaml")
    selectors += [network["spec"]["podSelector"]["matchLabels"], service["spec"]["selector"]]
    for selector in selectors:
        assert any(selector.items() <= each.items() for each in labels), selector
