"""Files of torch.save and safetensors without torch: Python's pickle and zipfile write them in torch's layout."""

import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile


def module(name, **members):
    made = types.ModuleType(name)
    for key, value in members.items():
        value.__module__, value.__qualname__ = name, key
        setattr(made, key, value)
    sys.modules[name] = made  # pickle imports by module name
    return made


def class_named(name):
    return type(name, (), {})


torch = module("torch", BFloat16Storage=class_named("BFloat16Storage"), FloatStorage=class_named("FloatStorage"),
               HalfStorage=class_named("HalfStorage"))
utils = module("torch._utils", _rebuild_tensor_v2=lambda *_: None)
utils._rebuild_tensor_v2.__name__ = "_rebuild_tensor_v2"


class Storage:
    def __init__(self, key, kind, data, width):
        self.key, self.kind, self.data, self.elements = key, kind, data, len(data) // width


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.arguments = (storage, offset, shape, strides, False, collections.OrderedDict())

    def __reduce__(self):
        return (utils._rebuild_tensor_v2, self.arguments)


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", value.kind, value.key, "cpu", value.elements) if isinstance(value, Storage) else None


def save(path, state, storages, protocol=2):
    data = io.BytesIO()
    Pickler(data, protocol).dump(state)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        archive.writestr("archive/byteorder", "little")
        for storage in storages:
            archive.writestr(f"archive/data/{storage.key}", storage.data)
        archive.writestr("archive/version", "3\n")


def read_safetensors(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    return {
        name: (entry["shape"], raw[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def strides_of(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)
