"""Exports the graph of every config here with batchfit's Python client, for tests/it/model/huggingface.rs.

    PYTHONPATH=clients/python/src python tests/golden/huggingface/make.py [NAME ...]

NAME.json is {"hf": CONFIG, "seq_len": ..., "target_len": ..., "image_size": ..., "dtype": "bf16" or "f16"}: a model of a request,
and the dtype of its parameters if that is not float32. NAME.graph.json.gz is what the exporter made of it (PyTorch 2.11,
transformers 5.17), without what the test does not read.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def export(name: str) -> None:
    model = json.loads((HERE / f"{name}.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        config, graph = Path(folder) / "config.json", Path(folder) / "graph.json"
        config.write_text(json.dumps(model["hf"]))
        command = [sys.executable, "-m", "batchfit", "export", "--hf", str(config), "-o", str(graph)]
        for member in ("seq_len", "target_len", "image_size", "dtype"):
            if member in model:
                command += ["--" + member.replace("_", "-"), str(model[member])]
        subprocess.run(command, check=True)
        document = json.loads(graph.read_text())
    text = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    (HERE / f"{name}.graph.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.json"))
    for name in names:
        export(name)
        print(name)
