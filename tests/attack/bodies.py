#!/usr/bin/env python3
"""Sends bodies that are small on the wire and large in memory, and graphs that are large, to a batchfit of its own.

    cargo build --release
    python3 tests/attack/bodies.py target/release/batchfit

Prints, for each, the answer, how long it took, the largest resident memory of the server so far, and the slowest
`/healthz` meanwhile; and then the same for all of them at once, three times over, with ordinary requests beside them.
Standard library only.
"""

import gzip
import http.client
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time

BATCH = "Symbol('s0', positive=True, integer=True)"


def tensor(dtype, *sizes):
    size = lambda n: {"as_expr": {"expr_str": BATCH, "hint": None}} if n is None else {"as_int": n}
    return {
        "dtype": dtype,
        "sizes": [size(n) for n in sizes],
        "requires_grad": True,
    }


def named(name, value):
    return {"name": name, "arg": {"as_tensor": {"name": value}}, "kind": 1}


class Graph:
    """What torch.export writes, as far as batchfit reads it: with all of it, 100,000 nodes are more than a body may have."""

    def __init__(self):
        self.values, self.inputs, self.specs, self.nodes = {}, [], [], []

    def given(self, name, value, spec):
        self.values[name] = value
        self.inputs.append({"as_tensor": {"name": name}})
        self.specs.append(spec)
        return name

    def state(self, kind, path, *sizes):
        name = f"{kind[0]}_{path.replace('.', '_')}"
        spec = {kind: {"arg": {"name": name}, f"{kind}_name": path}}
        if kind == "buffer":
            spec[kind]["persistent"] = True
        return self.given(name, tensor(7, *sizes), spec)

    def input(self, name, value):
        return self.given(name, value, {"user_input": {"arg": {"as_tensor": {"name": name}}}})

    def node(self, target, arguments, sizes, module=None):
        result = f"t{len(self.nodes)}"
        self.values[result] = tensor(7, *sizes)
        stack = "L__self__,,Net"
        if module:
            path, kind = module
            stack += f";L__self___{path.replace('.', '_')},{path},torch.nn.modules.{kind}"
        self.nodes.append(
            {
                "target": f"torch.ops.aten.{target}",
                "inputs": arguments,
                "outputs": [{"as_tensor": {"name": result}}],
                "metadata": {"nn_module_stack": stack},
            }
        )
        return result

    def done(self):
        graph = {
            "inputs": self.inputs,
            "outputs": self.nodes[-1]["outputs"],
            "nodes": self.nodes,
            "tensor_values": self.values,
            "sym_int_values": {},
        }
        return {"graph_module": {"graph": graph, "signature": {"input_specs": self.specs, "output_specs": []}}}


def given(name, kind, value):
    return {"name": name, "arg": {f"as_{kind}": value}, "kind": 1}


def mlp(nodes, width=8):
    """A perceptron of so many nodes."""
    graph = Graph()
    layers = (nodes - 1) // 2
    weights = [graph.state("parameter", f"layers.{2 * index}.weight", width, width) for index in range(layers)]
    last, labels = graph.input("x", tensor(7, None, width)), graph.input("y", tensor(5, None))
    for index, weight in enumerate(weights):
        arguments = [named("input", last), named("weight", weight)]
        last = graph.node("linear.default", arguments, (None, width), (f"layers.{2 * index}", "linear.Linear"))
        module = (f"layers.{2 * index + 1}", "activation.ReLU")
        last = graph.node("relu.default", [named("self", last)], (None, width), module)
    graph.node("cross_entropy_loss.default", [named("self", last), named("target", labels)], ())
    return graph.done()


def means(nodes, width=8):
    """Means and differences, so many nodes: each mean is a reduction with scratch memory, and so is each gradient."""
    graph = Graph()
    weight = graph.state("parameter", "weight", width)
    last = graph.input("x", tensor(7, None, width))
    last = graph.node("mul.Tensor", [named("self", last), named("other", weight)], (None, width))
    for _ in range((nodes - 2) // 2):
        arguments = [named("self", last), given("dim", "ints", [-1]), given("keepdim", "bool", True)]
        mean = graph.node("mean.dim", arguments, (None, 1))
        last = graph.node("sub.Tensor", [named("self", last), named("other", mean)], (None, width))
    graph.node("sum.default", [named("self", last)], ())
    return graph.done()


def convolutions(nodes):
    """Convolutions and batch norms, so many nodes, each with parameters of its own."""
    graph = Graph()
    shape = (None, 4, 8, 8)
    layers = []
    for index in range((nodes - 1) // 2):
        norm = [graph.state("parameter", f"norm{index}.{name}", 4) for name in ("weight", "bias")]
        norm += [graph.state("buffer", f"norm{index}.{name}", 4) for name in ("running_mean", "running_var")]
        layers.append((graph.state("parameter", f"conv{index}.weight", 4, 4, 3, 3), norm))
    last = graph.input("x", tensor(7, *shape))
    for index, (weight, norm) in enumerate(layers):
        pairs = [given(name, "ints", [1, 1]) for name in ("stride", "padding")]
        arguments = [named("input", last), named("weight", weight), given("bias", "none", True), *pairs]
        last = graph.node("conv2d.default", arguments, shape, (f"conv{index}", "conv.Conv2d"))
        names = ("weight", "bias", "running_mean", "running_var")
        arguments = [named("input", last), *(named(name, value) for name, value in zip(names, norm))]
        arguments += [given("training", "bool", True), given("momentum", "float", 0.1), given("eps", "float", 1e-5)]
        arguments.append(given("cudnn_enabled", "bool", True))
        last = graph.node("batch_norm.default", arguments, shape, (f"norm{index}", "batchnorm.BatchNorm2d"))
    graph.node("sum.default", [named("self", last)], ())
    return graph.done()


def trace(events):
    """A recording of so many events: blocks of 512 bytes, every second one freed again."""
    base, blocks = 0x7F0000000000, events // 2
    lines = [b'# {"total":1000000000000,"alloc_conf":""}', b"segment_alloc %x %d 0" % (base, 512 * blocks + (2 << 20))]
    lines += [b"alloc %x 512 0" % (base + 512 * block) for block in range(blocks)]
    for block in range(0, blocks, 2):
        lines += [b"%s %x 512 0" % (action, base + 512 * block) for action in (b"free_requested", b"free_completed")]
    return b"\n".join(lines[: events + 1]) + b"\n"


def request(model, **members):
    document = {"model": model, "device": "sim:h200", **members}
    return json.dumps(document, separators=(",", ":")).encode()


def fill(start, item, end, mib=63):
    """JSON text of so many MiB."""
    return start + item * ((mib << 20) // len(item)) + end


def bodies():
    small = request({"preset": "resnet18"})
    yield "an ordinary request", "/v1/fits", small, True
    yield "zeros", "/v1/fits", bytes(64 << 20), True
    yield "objects beside the model", "/v1/fits", fill(b'{"training":[', b"{},", b"{}]}"), True
    yield "objects in the place of a graph", "/v1/fits", fill(b'{"model":{"exported":[', b"{},", b"{}]}}"), True
    start = b'{"model":{"exported":{"graph_module":{"graph":{"inputs":[],"outputs":[],"nodes":['
    node = b'{"target":"","inputs":[],"outputs":[]},'
    yield "small nodes", "/v1/fits", fill(start, node, b"{}]}}}}}"), True
    start = b'{"model":{"exported":{"graph_module":{"graph":{"inputs":['
    yield "small arguments", "/v1/fits", fill(start, b'{"as_none":0},', b"{}]}}}}}"), True
    yield "numbers", "/v1/fits", fill(start + b'{"as_ints":[', b"1,", b"1]}]}}}}}"), True
    yield "nesting", "/v1/fits", b'{"model":' + b"[" * (60 << 20), True
    start = b'{"model":{"input":{"shape":[8]},"layers":['
    yield "layers", "/v1/fits", fill(start, b'{"type":"relu"},', b"{}]}}"), True
    yield "members of a preset", "/v1/fits", fill(b'{"model":{"preset":"resnet18","x":[', b"[],", b"1]}}"), True
    yield "a pickle of None", "/v1/replays", b"\x80\x02](" + b"N" * (62 << 20) + b"e.", True
    yield "a pickle of lists", "/v1/replays", b"\x80\x02](" + b"]" * (62 << 20) + b"e.", True
    yield "a pickle of numbers", "/v1/replays", pickle.dumps(list(range(1000, 9_000_000)), 2), True
    settings = b'# {"total":1000000000,"alloc_conf":"' + b"x" * (60 << 20) + b'"}\n'
    yield "allocator settings", "/v1/replays", settings, True
    for nodes in (1_000, 10_000, 100_000, 150_000):
        yield f"a graph of {nodes} nodes", "/v1/fits", request({"exported": mlp(nodes)}), True
    accumulated = {"precision": "amp_fp16", "accumulation": 65536}
    yield "100,000 nodes, accumulated", "/v1/fits", request({"exported": means(99_980)}, training=accumulated), True
    three = {"precision": ["amp_fp16", "amp_bf16", "fp32"], "optimizer": "adamw"}
    model = {"exported": convolutions(19_990)}
    yield "20,000 nodes, three precisions", "/v1/fits", request(model, training=three), True
    yield "a probe of them, accumulated", "/v1/probes", request(model, training=accumulated, batch=8), True
    yield "a long recording, compared", "/v1/replays?compare=true", trace(524_000), True


class Server:
    def __init__(self, program, folder):
        database = f"sqlite:{folder}/batchfit.db"
        command = [program, "serve", "--listen", "127.0.0.1:8971", "--database", database]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                self.ask("GET", "/healthz")
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("the server does not answer")

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", 8971, timeout=120)
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def peak_mib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) >> 10


class Pulse(threading.Thread):
    """Asks for the server's health all the time."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.all, self.ended = server, [], False

    @property
    def slowest(self):
        return max(self.all, default=0)

    def run(self):
        while not self.ended:
            began = time.monotonic()
            self.server.ask("GET", "/healthz")
            self.all.append(time.monotonic() - began)
            time.sleep(0.01)


def at_once(server, everything):
    """Sends all bodies side by side, three times over, and ordinary requests meanwhile."""
    answers, ordinary, left = [], [], len(everything)
    lock = threading.Lock()

    def send(path, body):
        nonlocal left
        for _ in range(3):
            headers = {"content-type": "application/json", "content-encoding": "gzip", "prefer": "wait=60"}
            status, _text = server.ask("POST", path, body, headers)
            with lock:
                answers.append(status)
        with lock:
            left -= 1

    threads = [threading.Thread(target=send, args=pair, daemon=True) for pair in everything]
    pulse = Pulse(server)
    pulse.start()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while left:
        asked = time.monotonic()
        batch = request({"preset": "resnet18"}, memory_limit=f"{8000 + len(ordinary)}MiB")
        status, text = server.ask("POST", "/v1/fits", batch, {"prefer": "wait=60"})
        assert status == 200 and json.loads(text)["state"] == "done", (status, text)
        ordinary.append(time.monotonic() - asked)
        time.sleep(0.05)
    took = time.monotonic() - began
    pulse.ended = True
    pulse.join()
    counted = {status: answers.count(status) for status in sorted(set(answers))}
    ordinary.sort()
    pulses = sorted(pulse.all)
    print(f"\nall of them at once, three times: {counted} in {took:.0f} s, peak {server.peak_mib()} MiB")
    print(f"/healthz meanwhile: {len(pulses)} times, 99 % within {pulses[len(pulses) * 99 // 100] * 1000:.0f} ms")
    middle, last = ordinary[len(ordinary) // 2], ordinary[-1]
    print(f"ordinary fits meanwhile: {len(ordinary)}, median {middle:.2f} s, slowest {last:.2f} s")
    if server.peak_mib() >= 512:
        raise SystemExit("more than the 512 MiB that the server should stay under")


def one_by_one(server):
    """Sends each body alone; gives those that were compressed."""
    print(f"{'':34}{'status':>7}{'s':>8}{'peak MiB':>10}{'healthz ms':>12}")
    everything = []
    for name, path, body, compress in bodies():
        headers = {"content-type": "application/json", "prefer": "wait=60"}
        if compress:
            body = gzip.compress(body, 6)
            headers["content-encoding"] = "gzip"
            everything.append((path, body))
        pulse = Pulse(server)
        pulse.start()
        began = time.monotonic()
        status, text = server.ask("POST", path, body, headers)
        took = time.monotonic() - began
        pulse.ended = True
        pulse.join()
        document = json.loads(text)
        said = document.get("detail") or document.get("error") or document.get("state") or document.get("verdict")
        print(f"{name:34}{status:>7}{took:>8.2f}{server.peak_mib():>10}{pulse.slowest * 1000:>12.0f}  {said}")
    return everything


def main():
    everything = None
    # The second server has no answers stored.
    for attack in (one_by_one, lambda server: at_once(server, everything)):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(sys.argv[1], folder)
            try:
                everything = attack(server)
            finally:
                server.process.terminate()
                server.process.wait()


if __name__ == "__main__":
    main()
