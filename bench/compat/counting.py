"""A plugin of pytest: leaves out the cases that cases/PEER.toml names, counts the others, and prints both.

A case is named by the end of its id, with wildcards (`cases`: `test_basic.py::test_load*`), or by a regular expression
(`matches`). `left_out` cases do not run. `words`
cases run, but the tests assert what another model says: if one fails, it is counted apart. So is a case that calls code
of the peer, which is not installed (stubs.py)."""
import collections
import fnmatch
import os
import pathlib
import re
import tomllib

import pytest

CASES = tomllib.loads((pathlib.Path(__file__).parent / "cases" / (os.environ["COMPAT_PEER"] + ".toml")).read_text())


def reason(nodeid: str, kind: str) -> str | None:
    for group in CASES.get(kind, []):
        if any(re.fullmatch(fnmatch.translate("*" + pattern), nodeid) for pattern in group.get("cases", [])):
            return group["reason"]
        if any(re.search(pattern, nodeid) for pattern in group.get("matches", [])):
            return group["reason"]
    return None


class Count:
    def __init__(self):
        self.left_out = collections.Counter()
        self.outcomes = {}  # id of a case: passed, failed, skipped, words or code

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        left_out = [item for item in items if reason(item.nodeid, "left_out")]
        self.left_out.update(reason(item.nodeid, "left_out") for item in left_out)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not reason(item.nodeid, "left_out")]

    def pytest_runtest_logreport(self, report):
        if report.passed and report.when != "call":
            return
        outcome = report.outcome
        if report.failed and "PeersOwnCode" in report.longreprtext:
            outcome = "code"
        elif report.failed and (("shape", "the same") in report.user_properties or reason(report.nodeid, "words")):
            outcome = "words"
        if self.outcomes.get(report.nodeid) not in ("failed", "words", "code"):
            self.outcomes[report.nodeid] = outcome

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        files = collections.defaultdict(collections.Counter)
        for nodeid, outcome in self.outcomes.items():
            files[nodeid.split("::")[0]][outcome] += 1
        total = sum(files.values(), collections.Counter())
        write("\n| file | passed | failed | other model's words | peer's own code | skipped by the test |")
        write("| --- | --- | --- | --- | --- | --- |")
        for name, counts in [*sorted(files.items()), ("all", total)]:
            columns = (counts[outcome] for outcome in ("passed", "failed", "words", "code", "skipped"))
            write(f"| {name} | {' | '.join(map(str, columns))} |")
        if counted := total["passed"] + total["failed"]:
            write(f"\n{total['passed']} of {counted} passed: {100 * total['passed'] / counted:.1f} %")
        for why, cases in sorted(self.left_out.items()):
            write(f"left out {cases}: {why}")


def pytest_configure(config):
    config.pluginmanager.register(Count(), "compat-count")
