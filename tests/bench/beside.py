"""How much processor time fits take in two builds, by turns, so that others on the machine slow both down alike.

    python tests/bench/beside.py BEFORE NOW

Prints the least of fifteen runs of each, in milliseconds, process start included.
"""

import resource
import subprocess
import sys

RUNS = 15
FITS = (
    "resnet50 --on h200",
    "vit_b_16 --on h200 --amp bf16",
    "tests/golden/exported/llama1b-bf16-table.json.gz --on h200 --precision bf16",
)


def spent(binary, arguments):
    """Milliseconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([binary, "fit", *arguments.split(), "--json"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main():
    binaries = sys.argv[1:3]
    for arguments in FITS:
        least = dict.fromkeys(binaries, float("inf"))
        for _ in range(RUNS):
            for binary in binaries:
                least[binary] = min(least[binary], spent(binary, arguments))
        before, now = least.values()
        print(f"{arguments}: {before:.1f} ms, now {now:.1f} ms ({100 * (now / before - 1):+.0f} %)")


if __name__ == "__main__":
    main()
