#!/usr/bin/env python3
"""Checks that each file in src/ includes only its own folder and earlier folders of the ladder
(docs/architecture.md)."""
import pathlib
import re
import sys

LADDER = ("base parallel tensor batch quant hub formats tokenizer grammar chat ops kernels lora nn models cache sampling "
          "speculative scheduler engine server route cli binding app").split()
# Stricter than the ladder: these folders may include only the named ones (and include/sluice).
ONLY = {"server": {"server", "base"}, "route": {"route", "server", "cache", "hub", "base"},
        "batch": {"batch", "tensor", "base"}, "cache": {"cache", "base"},
        "grammar": {"grammar", "base"},
        "scheduler": {"scheduler", "cache", "batch", "tensor", "base"},
        "nn": set(LADDER[:LADDER.index("nn") + 1]) - {"kernels"},
        "models": set(LADDER[:LADDER.index("models") + 1]) - {"kernels"}}
ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def main():
    errors = []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cc", ".cu", ".cuh"):
            continue
        folder = path.relative_to(ROOT / "src").parts[0]
        if folder not in LADDER:
            errors.append(f"{path.relative_to(ROOT)}: folder '{folder}' is not in the ladder")
            continue
        allowed = ONLY.get(folder, set(LADDER[:LADDER.index(folder) + 1]))
        for name in INCLUDE.findall(path.read_text()):
            target = name.split("/")[0] if "/" in name else folder  # the build generates a bare name for this folder
            if target != "sluice" and target not in allowed:
                errors.append(f"{path.relative_to(ROOT)}: includes {name}, but {folder} may not include {target}")
    for path in sorted((ROOT / "include").rglob("*.h")):
        for name in INCLUDE.findall(path.read_text()):
            if not name.startswith("sluice/"):
                errors.append(f"{path.relative_to(ROOT)}: a public header includes {name}")
    print("\n".join(errors) or "layers: every include follows the ladder")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
