"""Text Embeddings Inference: its tests are in Rust and start the router in their own process. This collects their
requests and the types of the answers from the files, sends the requests, and checks that the answers have the types."""
import json
import os
import pathlib
import re

import pytest
import requests

import sluice

ROUTER = pathlib.Path(os.environ["COMPAT_CHECKOUT"]) / "router" / "tests"
REQUEST = re.compile(r"json!\((\{.*?\})\);.*?\.post\(\"http://[^/]*(/\w+)\"\).*?res\.json::<(.*?)>\(\)", re.S)


def to_json(text: str):
    text = re.sub(r"vec!\[", "[", text)
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))


def check(kind: str, structs: dict, answer):
    if kind.startswith("Vec<"):
        assert isinstance(answer, list) and answer
        for item in answer:
            check(kind[4:-1], structs, item)
    elif kind in structs:
        assert isinstance(answer, dict)
        for name, field in structs[kind].items():
            check(field, structs, answer[name])
    else:
        kinds = {"Score": (float, int), "usize": int, "String": str, "f32": (float, int), "bool": bool}
        assert isinstance(answer, kinds[kind])


class RustFile(pytest.File):
    def collect(self):
        text = re.sub(r"^// ?", "", self.path.read_text(), flags=re.M)
        structs = {
            name: dict(re.findall(r"(\w+): ([\w<>]+),", fields))
            for name, fields in re.findall(r"struct (\w+) \{(.*?)\}", text, re.S)
        }
        for test, body in re.findall(r"async fn (test_\w+)\(\)(.*?)\n\}", text, re.S):
            for number, (request, path, kind) in enumerate(REQUEST.findall(body)):
                yield Case.from_parent(
                    self, name=f"{test}[{number}]", request=to_json(request), path_=path, kind=kind, structs=structs
                )


class Case(pytest.Item):
    def __init__(self, *, request, path_, kind, structs, **options):
        super().__init__(**options)
        self.request, self.path_, self.kind, self.structs = request, path_, kind, structs

    def runtest(self):
        server = servers(self.path_)
        answer = requests.post(server.url + self.path_, json=self.request)
        assert answer.status_code == 200, answer.text
        check(self.kind, self.structs, answer.json())


running = {}


def servers(path: str) -> sluice.Server:
    if path not in running:
        labels = {"/predict": 3, "/rerank": 1}.get(path)
        args = [] if labels else ["--task", "embed", "--matryoshka"]
        running[path] = sluice.Server(*args, model=sluice.scorer(labels) if labels else sluice.MODEL)
    return running[path]


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".rs" and file_path.parent == ROUTER:
        return RustFile.from_parent(parent, path=file_path)


def pytest_unconfigure(config):
    for server in running.values():
        server.stop()
