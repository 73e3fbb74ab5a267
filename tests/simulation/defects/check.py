#!/usr/bin/env python3
"""Puts repaired defects of the server back, one at a time, and requires that the simulation finds each of them.

Every patch of this folder undoes one repair. It is applied to a copy of the tree in build/defects, where only the
simulation is built; then seeds run until an invariant fails. Prints one line for each defect. Returns 1 if a patch no
longer applies, if a defect is not found, or if the tree fails without any patch. The copy is kept, so that the next run
builds only what has changed. With --apply-only, looks only whether the patches apply."""

import argparse
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
TREE = ROOT / "build/defects"
# The copy is no repository: git would otherwise apply patches to the tree around it.
ENVIRONMENT = {**os.environ, "GIT_CEILING_DIRECTORIES": str(TREE.parent), "CCACHE_BASEDIR": str(TREE),
               "CCACHE_NOHASHDIR": "true"}  # as ./dev does
PROGRAM = pathlib.Path("build/release/bin/simulation")
FAILS = re.compile(r"^seed (\d+) fails", re.M)
FOUND = re.compile(r"^simulation: seed (?P<seed>\d+), event (?P<event>\d+), .*?thread \d+: (?P<what>.*)$", re.M)
ENDED = re.compile(r"^simulation: seed \d+: (?P<what>ended by signal \d+)$", re.M)


def applies(patch):
    """Whether the patch fits the working tree. Says why not."""
    checked = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True)
    if checked.returncode != 0:
        print(f"{patch.stem}: the patch no longer applies: {checked.stderr.strip()}")
    return checked.returncode == 0


def copy_tree():
    """Makes the copy equal to the tree. Files that are equal keep their times."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for path in [path for path in TREE.rglob("*") if path.is_file() or path.is_symlink()]:
        name = path.relative_to(TREE)
        if name.parts[0] != "build" and str(name) not in names:
            path.unlink()
    for name in names:
        source, target = ROOT / name, TREE / name
        if target.exists() and filecmp.cmp(source, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def patch_tree(patch, *options):
    subprocess.run(["git", "apply", *options, str(patch)], cwd=TREE, env=ENVIRONMENT, check=True)


def build(tree, jobs):
    if not (tree / "build/release/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "release", "-DSLUICE_BENCH=OFF"], cwd=tree, env=ENVIRONMENT, check=True,
                       stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build/release", "--", "--quiet", "-j", str(jobs), "simulation"], cwd=tree,
                   env=ENVIRONMENT, check=True)


def simulate(tree, events, seed):
    """The line about the seed that fails, which may be the run before the first one (seed 0); None if none does."""
    run = subprocess.run([tree / PROGRAM, "--seed", str(seed), "--events", str(events)], cwd=tree, capture_output=True,
                         text=True)
    where = FOUND.search(run.stderr)
    if where is not None:
        return f"seed {where['seed']}, event {where['event']}: {where['what']}"
    fails, ended = FAILS.search(run.stdout), ENDED.search(run.stderr)
    if fails is not None:
        return f"seed {fails[1]}: {ended['what'] if ended else run.stderr.strip()}"
    if run.returncode != 0:
        raise RuntimeError(f"the simulation did not run: {run.stdout}{run.stderr}")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of patches' names; all if none is given")
    parser.add_argument("--apply-only", action="store_true", help="look only whether the patches apply")
    parser.add_argument("--events", type=int, default=3_000_000, help="most events for each defect")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at a time")
    options = parser.parse_args()
    patches = [p for p in sorted(FOLDER.glob("*.patch"))
               if not options.names or any(p.name.startswith(name) for name in options.names)]
    if not patches:
        sys.exit(f"no patch is called {' or '.join(options.names)}")
    good = [patch for patch in patches if applies(patch)]
    if options.apply_only:
        print(f"defects: {len(good)} of {len(patches)} patches apply")
        return 0 if len(good) == len(patches) else 1
    failed = len(patches) - len(good)
    copy_tree()
    build(TREE, options.jobs)
    found = simulate(TREE, options.events, options.seed)
    print(f"without a patch: {found or f'no invariant fails in {options.events} events'}", flush=True)
    failed += found is not None
    for patch in good:
        begin = time.monotonic()
        patch_tree(patch)
        try:
            build(TREE, options.jobs)
            built = time.monotonic()
            found = simulate(TREE, options.events, options.seed)
        finally:
            patch_tree(patch, "-R")
        print(f"{patch.stem}: {f'found by {found}' if found else f'NOT FOUND in {options.events} events'} "
              f"(built in {built - begin:.0f} s, ran for {time.monotonic() - built:.0f} s)", flush=True)
        failed += found is None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
