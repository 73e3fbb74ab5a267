"""What the package contains: stubs, the program, and metadata."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest
import sluice

PACKAGE = pathlib.Path(sluice.__file__).parent


def members(node):
    return {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))} - {"__init__"}


def test_stubs_name_what_the_extension_has():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    public = {name for name in dir(sluice._core) if not name.startswith("_")}
    assert members(tree) == public
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Channel", "Engine"):
            found = {name for name in dir(getattr(sluice._core, node.name)) if not name.startswith("_")}
            assert members(node) == found


def test_stub_of_sampling_params_has_every_parameter():
    tree = ast.parse((PACKAGE / "sampling_params.pyi").read_text())
    (stub,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "SamplingParams")
    init = next(n for n in stub.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    defaults = {a.arg: ast.unparse(d) for a, d in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)}
    defaults["n"] = ast.unparse(init.args.defaults[0])
    found = sluice.SamplingParams().__dict__
    assert set(defaults) == set(found) == {n.target.id for n in stub.body if isinstance(n, ast.AnnAssign)}
    for name, text in defaults.items():
        assert text == str(found[name]), name


def test_everything_public_is_documented():
    assert (PACKAGE / "py.typed").exists()
    for name in sluice.__all__:
        thing = getattr(sluice, name)
        if isinstance(thing, type):
            assert thing.__doc__, name


def test_version():
    assert sluice.__version__ == sluice._core.__version__ and sluice.__version__.count(".") == 2


def test_it_needs_numpy_only():
    script = "import sys, sluice; print(sorted(m for m in ('torch', 'transformers', 'tqdm') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_program_runs():
    if "SLUICE_BIN" not in os.environ and not (PACKAGE / "bin" / "sluice").exists():
        pytest.skip("SLUICE_BIN does not name the program of the build")
    command = [sys.executable, "-m", "sluice", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sluice.__version__ in done.stdout
    done = subprocess.run([*command[:3], "serve", "--no-such"], capture_output=True, text=True)
    assert done.returncode == 2 and "--no-such" in done.stderr
