"""The files of deploy/: valid, consistent, and with options that the program has."""

import pathlib
import re
import subprocess

import pytest
import yaml  # comes with langchain-openai

from serving import ROOT, binary

DEPLOY = ROOT / "deploy"
FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path: pathlib.Path) -> list[dict]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def workloads(path: pathlib.Path) -> list[dict]:
    return [document for document in documents(path) if document["kind"] in ("Deployment", "StatefulSet")]


def options_of(command: str) -> set[str]:
    done = subprocess.run([binary(), command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))


@pytest.fixture(scope="module")
def known():
    return {command: options_of(command) for command in ("serve", "route")}


def test_there_are_files():
    assert {path.name for path in FILES} >= {"deployment.yaml", "podmonitor.yaml", "route.yaml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_options_exist(path, known):
    for workload in workloads(path):
        for container in workload["spec"]["template"]["spec"]["containers"]:
            command, *words = container["args"]
            names = [word.split("=")[0] for word in words if word.startswith("--")]
            assert len(names) >= 3
            assert set(names) <= known[command], (path.name, command)
            ports = {port["containerPort"] for port in container["ports"]}
            assert [int(word.removeprefix("--port=")) for word in words if word.startswith("--port=")] == list(ports)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_objects_find_each_other(path):
    objects = documents(path)
    labels = {}
    for workload in workloads(path):
        template = workload["spec"]["template"]
        assert workload["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        labels[workload["metadata"]["name"]] = template["metadata"]["labels"]
        pod = template["spec"]
        assert pod["enableServiceLinks"] is False
        drained = [int(w.split("=")[1]) for c in pod["containers"] for w in c["args"] if "shutdown-timeout" in w]
        waited = [int(c["lifecycle"]["preStop"]["exec"]["command"][1]) for c in pod["containers"]]
        assert pod["terminationGracePeriodSeconds"] > drained[0] / 1000 + waited[0]
        claims = {v["persistentVolumeClaim"]["claimName"] for v in pod.get("volumes", []) if "persistentVolumeClaim" in v}
        assert claims <= {o["metadata"]["name"] for o in objects if o["kind"] == "PersistentVolumeClaim"}
    services = [o for o in objects if o["kind"] == "Service"]
    assert all(service["spec"]["selector"] in labels.values() for service in services)
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    assert len(names) == len(set(names))


def test_the_router_has_every_replica():
    (replicas,) = [w for w in workloads(DEPLOY / "kubernetes" / "route.yaml") if w["kind"] == "StatefulSet"]
    (route,) = [w for w in workloads(DEPLOY / "kubernetes" / "route.yaml") if w["kind"] == "Deployment"]
    words = route["spec"]["template"]["spec"]["containers"][0]["args"]
    name, service = replicas["metadata"]["name"], replicas["spec"]["serviceName"]
    wanted = [f"--replica=http://{name}-{i}.{service}:8000" for i in range(replicas["spec"]["replicas"])]
    assert [word for word in words if word.startswith("--replica=")] == wanted


def test_monitors_select_the_pods():
    monitors = documents(DEPLOY / "kubernetes" / "podmonitor.yaml")
    selected = set()
    for monitor in monitors:
        selector = monitor["spec"]["selector"]
        selected |= set(selector.get("matchLabels", {}).values())
        for expression in selector.get("matchExpressions", []):
            selected |= set(expression["values"])
    labels = {
        workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for path in FILES
        for workload in workloads(path)
    }
    assert selected == labels


def test_the_slurm_script(known):
    path = DEPLOY / "slurm" / "serve.sbatch"
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text().replace("\\\n", " ")
    for command in ("serve", "route"):
        (line,) = [line for line in text.splitlines() if f'"$sluice" {command} ' in line]
        names = set(re.findall(r"--[a-z][a-z-]*", line.split(f'"$sluice" {command} ', 1)[1]))
        assert names and names <= known[command], names
