"""llama.cpp: its tests start the program that LLAMA_SERVER_BIN_PATH names."""
import os
import pathlib

import sluice

os.environ |= {
    "LLAMA_SERVER_BIN_PATH": str(pathlib.Path(__file__).resolve().parents[1] / "llama_server.py"),
    "COMPAT_BINARY": str(sluice.BINARY),
    "COMPAT_MODEL": str(sluice.ENDLESS),
    "COMPAT_CONTEXT": str(sluice.CONTEXT),
}
