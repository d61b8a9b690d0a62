"""Fuzz tests with new examples, round after round, until the time is up.

    python -m tests.fuzz.run --minutes 60

Every round has another seed, which is printed: `FUZZ_PROFILE=long pytest tests/fuzz --hypothesis-seed=SEED` repeats it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time


def main() -> int:
    """Run rounds until one fails or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    options = parser.parse_args()
    started, seed, failed = time.monotonic(), options.first, 0
    while time.monotonic() - started < options.minutes * 60:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "tests/fuzz", f"--hypothesis-seed={seed}"]
        done = subprocess.run(command, env={**os.environ, "FUZZ_PROFILE": "long"}, capture_output=True, text=True)
        failed += done.returncode != 0
        if done.returncode:
            print(done.stdout)
        print(f"seed {seed}: {done.stdout.splitlines()[-1]}", flush=True)
        seed += 1
    print(f"{seed - options.first - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
