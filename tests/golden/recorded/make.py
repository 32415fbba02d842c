#!/usr/bin/env python3
"""Writes traces of PyTorch's allocator in batchfit's own format, which has no addresses and is a sixth as large.

A trace is text: `# {"case": ..., "batch": ..., "total": ...}`, then lines of `action addr size stream`, as
`torch.cuda.memory._snapshot()["device_traces"]` has them. Construction and three steps of the cases of `tests/golden/truth`
were recorded so on an NVIDIA H200 (PyTorch 2.11, CUDA 13.0, cuDNN 9.19), each at several batches.

Usage: make.py OUT TRACE.txt.gz...
"""
import gzip
import json
import pathlib
import sys


def converted(lines):
    header = json.loads(next(lines)[1:])
    about = {"batch": header["batch"], "case": header["case"], "total_bytes": header["total"]}
    out, alive, streams, count = ["batchfit recording 1", json.dumps(about)], {}, {}, 0
    for line in lines:
        if line.startswith("#"):
            continue
        action, address, size, stream = line.split()
        if action == "alloc":
            number = streams.setdefault(stream, len(streams))
            out.append(f"a {size} {number}" if number else f"a {size}")
            alive[address] = count
            count += 1
        elif action == "free_completed" and address in alive:
            out.append(f"f {alive.pop(address)}")
    return "\n".join(out) + "\n"


def main():
    folder = pathlib.Path(sys.argv[1])
    for path in map(pathlib.Path, sys.argv[2:]):
        with gzip.open(path, "rt") as lines:
            text = converted(lines)
        with open(folder / path.name.replace(".txt.gz", ".gz"), "wb") as raw:
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=9, mtime=0) as file:
                file.write(text.encode())


if __name__ == "__main__":
    main()
