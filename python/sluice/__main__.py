"""`python -m sluice ...` runs the program `sluice`, which the package contains."""

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the program. SLUICE_BIN names another one."""
    program = os.environ.get("SLUICE_BIN") or str(pathlib.Path(__file__).parent / "bin" / "sluice")
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"sluice: {program}: {error.strerror} (set SLUICE_BIN to the program)")


if __name__ == "__main__":
    main()
