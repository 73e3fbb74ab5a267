"""Tests what is installed: completions, the manual page, and the Debian package under a user without a home."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import httpx
import pytest

from serving import READY, binary

BUILD = binary().resolve().parent.parent
NO_HOME = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def user(uid):
    """What runs a command as another user; only root can."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if os.getuid() == 0 else []


def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, **options).stdout


def test_version_has_the_facts_of_the_build():
    facts = dict(line.split(": ", 1) for line in output(binary(), "--version").splitlines()[1:])
    assert set(facts) == {"commit", "compiler", "backends", "CUDA"}
    assert "reference" in facts["backends"].split(", ") and re.match(r"(GCC|Clang) \d", facts["compiler"])
    assert re.fullmatch(r"[0-9a-f]{12}( with changes)?|unknown", facts["commit"])


BASH = """
source <({program} completion bash)
compopt() {{ :; }}
COMP_WORDS=({words} '{current}'); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _sluice; echo "${{COMPREPLY[*]}}"
"""


@pytest.mark.parametrize(
    "words, current, expected",
    [
        ("sluice", "ser", "serve"),
        ("sluice serve", "--max-model-l", "--max-model-len"),
        ("sluice serve --dtype", "fl", "float32 float16"),
        ("sluice bench", "lat", "latency"),
        ("sluice bench latency", "--max-model", "--max-model-len"),
        ("sluice docs", "o", "options"),
    ],
)
def test_bash_completion(words, current, expected):
    script = BASH.format(program=binary(), words=words, current=current)
    assert sorted(output("bash", "-c", script).split()) == sorted(expected.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completions_of_other_shells(shell, tmp_path):
    script = output(binary(), "completion", shell)
    assert "kv-cache-dtype" in script and "float16" in script and "latency" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_manual_page(tmp_path):
    page = output(binary(), "man")
    options = output(binary(), "serve", "--help")
    for name in re.findall(r"--([a-z][a-z-]+)", options):
        assert name == "help" or name.replace("-", r"\-") in page, name
    if shutil.which("man"):
        (tmp_path / "sluice.1").write_text(page)
        done = subprocess.run(["man", "--warnings", "-l", tmp_path / "sluice.1"], capture_output=True, text=True,
                              env={**os.environ, "MANPAGER": "cat", "MAN_KEEP_STDERR": "1"})  # fmt: skip
        assert done.returncode == 0 and done.stderr == "" and "EXIT STATUS" in done.stdout


def test_install(tmp_path):
    output("cmake", "--install", BUILD, "--prefix", tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "bin/sluice", "share/bash-completion/completions/sluice", "share/zsh/vendor-completions/_sluice",
        "share/fish/vendor_completions.d/sluice.fish", "share/man/man1/sluice.1", "share/doc/sluice/copyright",
        "include/sluice/c.h", "lib/libsluice.so", "lib/libsluice.so.1", "lib/libsluice.so.0.1.0",
        "lib/pkgconfig/sluice.pc",
    }  # fmt: skip


@pytest.fixture(scope="module")
def package():
    """The files of the Debian package, where every user can read them."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        place.chmod(0o755)
        output("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", place / "made")
        (deb,) = (place / "made").glob("*.deb")
        output("dpkg", "-x", deb, place / "root")
        output("dpkg", "-e", deb, place / "control")
        yield place


def test_package_has_its_parts(package):
    root = package / "root"
    for path in ("usr/bin/sluice", "etc/sluice/config.yaml", "usr/lib/systemd/system/sluice.service",
                 "usr/share/man/man1/sluice.1", "usr/share/bash-completion/completions/sluice"):  # fmt: skip
        assert (root / path).is_file(), path
    assert (package / "control" / "conffiles").read_text() == "/etc/sluice/config.yaml\n"
    for script in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", package / "control" / script], check=True)
    needs = (package / "control" / "control").read_text()
    assert re.search(r"^Depends: libc6 \(>= [\d.]+\)$", needs, re.M)


def test_package_runs_a_prompt_as_another_user_without_a_home(package):
    temporary = package / "tmp"
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o1777)
    env = {**NO_HOME, "TMPDIR": str(temporary)}
    assert output(*user(65533), package / "root/usr/bin/sluice", "run", "What is 17 + 25?", env=env).strip()


@pytest.mark.parametrize("home", [None, "/nonexistent", "/"])
@pytest.mark.parametrize("uid", [65534, 1234567])
def test_first_answer_after_the_installation(package, uid, home):
    """Installs the package and asks a server within 10 s: any user, no home, a working folder that is read-only."""
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        for name, mode in (("", 0o755), ("tmp", 0o1777), ("work", 0o555)):
            (place / name).mkdir(exist_ok=True)
            (place / name).chmod(mode)
        env = {**NO_HOME, "TMPDIR": str(place / "tmp"), **({} if home is None else {"HOME": home})}
        begin = time.monotonic()
        output("dpkg", "-x", next((package / "made").glob("*.deb")), place / "root")
        options = ["--config", place / "root/etc/sluice/config.yaml", "--port", "0"]
        server = subprocess.Popen([*user(uid), place / "root/usr/bin/sluice", "serve", *options], cwd=place / "work",
                                  env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if ready := READY.search(line):
                    break
            assert ready, "".join(lines)
            messages = [{"role": "user", "content": "What is 17 + 25?"}]
            reply = httpx.post(ready["url"] + "/v1/chat/completions", json={"messages": messages}, timeout=60)
            took = time.monotonic() - begin
            assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"], reply.text
            assert took < 10, f"the first answer came {took:.1f} s after the installation began"
        finally:
            server.terminate()
            assert server.wait(30) == 0
