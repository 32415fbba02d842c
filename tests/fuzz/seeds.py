#!/usr/bin/env python3
"""Writes what each target of coverage-guided fuzzing begins with, from the test data of this repository.

    tests/fuzz/seeds.py FOLDER     # FOLDER/TARGET/NAME, and FOLDER/TARGET.dict with words

Exported graphs are cut down to what batchfit reads, so that a mutation hits something.
"""
import gzip
import hashlib
import io
import json
import pathlib
import pickle
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
SOURCE = HERE.parent.parent / "src"


def unpacked(path):
    data = (GOLDEN / path).read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def small(graph):
    """A graph without what is not read: names of files, ranges, hints."""
    def cut(value):
        if isinstance(value, dict):
            drop = ("stack_trace", "torch_fn", "source_fn_stack", "from_node", "range_constraints", "opset_version", "verifiers", "module_call_graph")
            return {key: cut(inner) for key, inner in value.items() if key not in drop}
        return [cut(inner) for inner in value] if isinstance(value, list) else value
    return json.dumps(cut(json.loads(graph)), separators=(",", ":")).encode()


def tensor(*sizes):
    return {"dtype": 7, "sizes": [{"as_expr": {"expr_str": "s0"}} if size is None else {"as_int": size} for size in sizes], "requires_grad": True}


def little():
    """The smallest graph that trains: a linear layer and a sum."""
    named = lambda name: {"as_tensor": {"name": name}}
    given = lambda name, value: {"name": name, "arg": named(value), "kind": 1}
    values = {"w": tensor(4, 8), "x": tensor(None, 8), "t0": tensor(None, 4), "t1": tensor()}
    stack = {"nn_module_stack": "L__self__,,Net;L__self___fc,fc,torch.nn.modules.linear.Linear"}
    nodes = [
        {"target": "torch.ops.aten.linear.default", "inputs": [given("input", "x"), given("weight", "w")], "outputs": [named("t0")], "metadata": stack},
        {"target": "torch.ops.aten.sum.default", "inputs": [given("self", "t0")], "outputs": [named("t1")], "metadata": stack},
    ]
    specs = [{"parameter": {"arg": {"name": "w"}, "parameter_name": "fc.weight"}}, {"user_input": {"arg": named("x")}}]
    graph = {"inputs": [named("w"), named("x")], "outputs": [named("t1")], "nodes": nodes, "tensor_values": values, "sym_int_values": {}}
    return json.dumps({"graph_module": {"graph": graph, "signature": {"input_specs": specs, "output_specs": []}}}, separators=(",", ":")).encode()


LAYERS = [
    [{"type": "linear", "out_features": 10}],
    [{"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"type": "batch_norm2d"}, {"type": "relu"},
     {"type": "max_pool2d", "kernel_size": 2}, {"type": "flatten"}, {"type": "dropout", "p": 0.5}, {"type": "linear", "out_features": 10}],
]


def requests():
    for path in sorted((GOLDEN / "truth" / "requests").glob("*.json"))[:12]:
        document = json.loads(path.read_text())
        document["device"] = "sim:h200"
        yield json.dumps(document)
    model = {"preset": "resnet18"}
    yield json.dumps({"model": model, "device": "sim:h200", "memory_limit": 0.5, "target_batch": 512, "world_size": 4, "timeout_seconds": 60,
                      "priority": "batch", "training": {"precision": ["fp32", "amp_fp16"], "optimizer": "adamw", "optimizer_impl": "fused",
                      "checkpointing": ["none", "per_block"], "parallel": {"strategy": "ddp", "bucket_cap_mb": 25}},
                      "allocator": "expandable_segments:True,max_split_size_mb:128"})
    yield json.dumps({"model": {"preset": "gpt2", "seq_len": 128}, "device": "sim:a100-80g", "training": {"parallel": ["fsdp2", "zero1"], "world_size": 8}})
    yield json.dumps({"model": {"layers": LAYERS[1], "input": {"shape": [3, 32, 32]}, "loss": "cross_entropy"}, "device": "sim:t4"})
    yield json.dumps({"model": {"recorded": ["sha256:" + "0" * 64]}, "device": "sim:t4"})


def huggingface():
    small_first = sorted((GOLDEN / "huggingface").glob("*.json"), key=lambda path: path.stat().st_size)
    seen = set()
    for path in small_first:
        document = json.loads(path.read_text())
        config = document.get("hf") or document.get("config") or document.get("model", {}).get("hf") or document
        family = config.get("model_type")
        if family not in seen:
            seen.add(family)
            yield json.dumps(config)


def snapshot():
    frames = [{"filename": "train.py", "line": 3, "name": "step"}]
    block = lambda address, size, state: {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}
    base = 0x7F0000000000
    segment = {"device": 0, "address": base, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512, "requested_size": 512, "stream": 0,
               "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
               "blocks": [block(base, 512, "active_allocated"), block(base + 512, (2 << 20) - 512, "inactive")]}
    event = lambda action, address, size: {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, "time_us": 1}
    trace = [event("segment_alloc", base, 2 << 20), event("alloc", base, 512), event("alloc", base + 512, 1024),
             event("free_requested", base + 512, 1024), event("free_completed", base + 512, 1024)]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0, "expandable_segments": False,
                "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False, "roundup_power2_divisions": {}}
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": settings}


def traces():
    for path in ("cifarnet-fp32-sgd-b512", "cifarnet-fp32-sgd-b512.split128gc80"):
        lines = unpacked(f"traces/trace-{path}.txt.gz").split(b"\n")
        yield b"\n".join(lines[:60]) + b"\n"
        yield b"\n".join(lines) + b"\n"
    yield b'# {"total":1000000000,"limit":2097152,"batch":4,"accumulation":2,"alloc_conf":"expandable_segments:True"}\n' \
          b"segment_map 7f0000000000 2097152 0\nalloc 7f0000000000 512 0\noom 0 4194304 0\nsnapshot 0 0 0\nsegment_unmap 7f0000000000 2097152 0\n"


def recorded():
    own = [unpacked(f"recorded/cifarnet-fp32-sgd.b{batch}.gz") for batch in (64, 128)]
    for files in (own, [own[0], own[0]]):
        first, second = files
        # The first byte says where the second file begins, in 256ths.
        yield bytes([256 * len(first) // (len(first) + len(second)) | 1]) + first + second
    lines = [file.split(b"\n", 2)[2] for file in own]
    yield bytes([128]) + b"".join(lines)


def archive(model):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("archive/models/model.json", model)
        out.writestr("archive/version", "1")
    return file.getvalue()


def https():
    def request(first, *headers, body=b""):
        return "\n".join([first, *headers]).encode() + b"\n\n" + body
    fit = b'{"model":{"preset":"resnet18"},"device":"sim:h200","memory_limit":"12GiB"}'
    yield request("POST /v1/fits", "idempotency-key: a", "content-type: application/json", body=fit)
    yield request("GET /v1/fits/{id}", 'if-none-match: "0"', "accept-encoding: gzip")
    yield request("DELETE /v1/fits/{id}")
    yield request("GET /v1/fits/{id}/events", "last-event-id: 4294967296")
    yield request("GET /v1/fits?state=failed&limit=2&cursor={id}")
    yield request("GET /v1/recommendations?model=resnet18&device=sim%3Ah200&precision=fp32&optimizer=adamw&checkpointing=none&evidence=simulated"
                  "&limit_bytes=12GiB&world_size=2&gpu=H200&limit=10&cursor=1m7xp2h6f3269wv2")
    yield request("POST /v1/searches", body=b'{"memory_limit":"24GiB","target_batch":1024,"world_size":2,"avoid_out_of_memory":true}')
    yield request("POST /v1/searches/{id}/observations", body=b'{"batch":1,"outcome":"fits","peak_reserved_bytes":1577058304}')
    yield request("GET /v1/searches/{id}")
    yield request("DELETE /v1/searches/{id}")
    yield request("POST /v1/probes", "prefer: wait=1", body=b'{"model":{"preset":"resnet18"},"device":"sim:h200","batch":8}')
    yield request("POST /v1/replays?memory_limit=0.5&allocator=max_split_size_mb:20&compare=true", body=next(traces()))
    yield request("GET /v1/graphs?limit=1&cursor=sha256:" + "0" * 64)
    yield request("PUT /v1/graphs/sha256:" + hashlib.sha256(little()).hexdigest(), body=little())
    yield request("DELETE /v1/graphs/{id}")
    for path in ("/v1/devices", "/v1/presets?family=resnet", "/healthz", "/metrics", "/problems", "/docs", "/openapi.yaml", "/v1/recommendations/{id}"):
        yield request(f"GET {path}", "origin: http://localhost", "authorization: Bearer batchfit_x")


def seeds():
    yield "request", requests()
    yield "exported", [little(), small(unpacked("exported/cifarnet.json.gz")), small(unpacked("exported/family-lookup.json.gz")), archive(little())]
    yield "layers", map(json.dumps, LAYERS)
    yield "huggingface", huggingface()
    yield "trace", traces()
    document = snapshot()
    late = {**document, "device_traces": [document["device_traces"][0][3:]]}
    yield "snapshot", [pickle.dumps(one, protocol) for one in (document, late) for protocol in (2, 4)]
    yield "recorded", recorded()
    observations = [{"batch": 1, "outcome": "fits", "peak_reserved_bytes": 2 << 30}, {"batch": 2, "outcome": "fits_with_retries"},
                    {"batch": 8, "outcome": "out_of_memory"}, {"batch": 4, "outcome": "crashed"}]
    terms = [{}, {"memory_limit": "24GiB", "target_batch": 1024, "world_size": 2}, {"start_batch": 3, "max_batch": 100, "avoid_out_of_memory": True,
             "allocator": "expandable_segments:True", "gpu": "H200", "fresh": True}]
    yield "search", ["\n".join(map(json.dumps, [one, *observations])) for one in terms]
    told = [{**one, "recorded": "run.txt"} for one in observations]
    yield "lines", ["\n".join(map(json.dumps, [terms[1], *told])), "CUDA out of memory\nbatchfit: peak_reserved_bytes=1048576\rbatchfit: num_alloc_retries=2\n"]
    variant = {"probe": {"variant": {}, "batch": 8, "limit_bytes": 1 << 30}}
    orders = [{"take": {"device": "cuda:0"}}, {"open": {"request": "{}", "rank": 0}}, "invite", "list",
              variant, {"join": {"invitation": "anywhere", "ranks": 2}}, "shutdown"]
    gpu = {"ordinal": 0, "name": "H200", "total_bytes": 1, "free_bytes": 1, "compute": [9, 0], "multiprocessors": 1, "threads_per_multiprocessor": 2048, "driver": None}
    answers = [{"hello": {"version": 7}}, "taken", {"busy": {"detail": "x"}}, {"inventory": {"gpus": [gpu], "missing": None}},
               {"ready": {"gpu": gpu, "cuda": "13.0", "cudnn": None, "available_bytes": 1, "used_by_others_bytes": None, "no_room": None}},
               {"refused": {"refusal": "lost", "detail": "x"}}, {"gpu": "H200", "torch": "2.11", "least_batch": 1, "most_batch": 8},
               {"batch": 1, "outcome": "fits", "path": "a", "seconds": 0.5}]
    yield "worker", ["\n".join(map(json.dumps, orders)), "\n".join(map(json.dumps, answers))]
    yield "texts", ["max_split_size_mb:128,garbage_collection_threshold:0.8,roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True",
                    "backend:native,pinned_use_cuda_host_register:True", "12GiB", "0.8", "512 MiB", "98%", "cuda:0", "sim:h200", "auto", "sha256:" + "a" * 64,
                    "layers.*.attention.[qk]?", "gpu-box.lan", "[::1]", "pause=3", "exit-after=2"]
    settings = (HERE.parent.parent / "deploy" / "batchfit.toml").read_text()
    yield "settings", [settings, re.sub(r"(?m)^# ?(?=\w+ =)", "", settings)]
    yield "http", https()
    graph, trace = little(), next(traces())
    files = [graph, gzip.compress(graph), archive(graph), trace, gzip.compress(trace), pickle.dumps(document, 4), unpacked("recorded/cifarnet-fp32-sgd.b64.gz")]
    sent = [bytes([where * 2]) + file for where in (0, 1) for file in files]
    sent += [bytes([1]) + gzip.compress(gzip.compress(graph)), bytes([5]) + gzip.compress(b'{"model":{"preset":"vgg16"},"device":"sim:t4"}')]
    yield "upload", sent


def words():
    """Names in the sources: members of documents, operators, settings."""
    text = "\n".join(path.read_text() for part in ("model", "replay", "alloc", "search", "worker", "http", "aten") for path in sorted((SOURCE / part).rglob("*.rs")))
    found = sorted(set(re.findall(r'"([a-z][a-z0-9_:.]{2,30})"', text)))
    return "".join(f'"{word}"\n' for word in found)


def main(folder):
    dictionary = words()
    for target, all_of_it in seeds():
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(all_of_it):
            (place / f"seed-{number:02}").write_bytes(seed if isinstance(seed, bytes) else seed.encode())
        (folder / f"{target}.dict").write_text(dictionary)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
