"""Exports the graph of every config here with batchfit's Python client, for tests/it/model/huggingface.rs.

    PYTHONPATH=clients/python/src python tests/golden/huggingface/make.py [NAME ...]

NAME.json is a model of a request: {"hf": CONFIG, "seq_len": ..., "target_len": ..., "image_size": ..., "param_dtype": "bf16",
"lora": ..., "frozen": [...], "padded": true}. NAME.graph.json.gz is what the exporter made of it (PyTorch 2.11,
transformers 5.17), without what the test does not read.
"""

import gzip
import json
import os
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
        if {"lora", "frozen", "padded"} & set(model):
            adapted(model, Path(folder), graph)
            return written(name, graph)
        command = [sys.executable, "-m", "batchfit", "export", "--hf", str(config), "-o", str(graph)]
        for member in ("seq_len", "target_len", "image_size"):
            if member in model:
                command += ["--" + member.replace("_", "-"), str(model[member])]
        if "param_dtype" in model:
            command += ["--dtype", model["param_dtype"].replace("fp16", "f16")]
        # Gemma 3 walks through a set of words, in an order that is another one each time; functions compiled by
        # torch.jit.script are traced as the Python code that they are.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTORCH_JIT": "0"}
        subprocess.run(command, check=True, env=environment)
        return written(name, graph)


BUILD = """
import json, re, transformers
model = json.load(open({path!r}))

def build():
    config_class = getattr(transformers, model["hf"]["architectures"][0])
    config = config_class.config_class.from_dict(model["hf"])
    config.use_cache = False
    made = config_class(config)
    if "lora" in model:
        from peft import LoraConfig, get_peft_model
        made = get_peft_model(made, LoraConfig(task_type="CAUSAL_LM", **model["lora"]))
    for path, parameter in made.named_parameters():
        if any(re.match(pattern.replace(".", "[.]").replace("*", "[^.]*") + "([.]|$)", path) for pattern in model.get("frozen", [])):
            parameter.requires_grad = False
    return made
"""


def adapted(model: dict[str, object], folder: Path, graph: Path) -> None:
    """Exports a language model that PEFT has adapted, a part of which is frozen, or whose texts are padded."""
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "adapted.py").write_text(BUILD.format(path=str(folder / "model.json")))
    tokens = f"i64[B,{model['seq_len']}]"
    batch = [f"input_ids={tokens}", "labels=input_ids"]
    if model.get("padded"):
        batch.append(f"attention_mask={tokens}")
    command = [sys.executable, "-m", "batchfit", "export", "adapted:build", "--batch", *batch]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    subprocess.run([*command, "--loss", "model", "-o", str(graph)], check=True, env=environment)


PAIRS = "L__self__model,model,batchfit.export.huggingface._Pairs;"


def written(name: str, graph: Path) -> None:
    document = json.loads(graph.read_text())
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    if PAIRS in text:  # The model is asked for its loss in a module around it.
        text = text.replace(PAIRS, "").replace("model.model", "model")
    (HERE / f"{name}.graph.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.json"))
    for name in names:
        export(name)
        print(name)
