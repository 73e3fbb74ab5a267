"""Stands for Python packages that a peer's tests import and that are not installed (the peer's own, torch).

install("vllm", own={"vllm.tokenizers": module}, real={"vllm.x": path}) makes every import below vllm work: `own` modules
are the adapter's, `real` ones are files of the peer, and any other is empty: its names fail when a test calls them."""
import importlib.abc
import importlib.util
import sys
import types


class Missing:
    """A name of such a module: it can be imported and be in annotations, and fails when it is called."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs):
        raise PeersOwnCode(self.__name__)

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    def __mro_entries__(self, bases):
        return ()


class PeersOwnCode(NotImplementedError):
    """The test calls code of the peer instead of its server."""


class Empty(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package: str, own: dict, real: dict):
        self.package, self.own, self.real = package, own, real

    def find_spec(self, name, path=None, target=None):
        if name in self.real:
            return importlib.util.spec_from_file_location(name, self.real[name])
        if name in self.own or name == self.package or name.startswith(self.package + "."):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Empty(spec.name)
        for name, value in self.own.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module):
        pass


def install(package: str, own: dict | None = None, real: dict | None = None):
    sys.meta_path.insert(0, Finder(package, own or {}, real or {}))
