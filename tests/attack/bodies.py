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


def mlp(nodes, width=8):
    """What torch.export writes for a perceptron of so many nodes, as far as batchfit reads it: with all of it, 100,000
    nodes are more than a body may have."""
    layers = (nodes - 1) // 2
    values, inputs, specs, graph = {}, [], [], []
    for index in range(layers):
        weight = f"p_layers_{index}_weight"
        values[weight] = tensor(7, width, width)
        inputs.append({"as_tensor": {"name": weight}})
        specs.append({"parameter": {"arg": {"name": weight}, "parameter_name": f"layers.{2 * index}.weight"}})
    for name, value in [("x", tensor(7, None, width)), ("y", tensor(5, None))]:
        values[name] = value
        inputs.append({"as_tensor": {"name": name}})
        specs.append({"user_input": {"arg": {"as_tensor": {"name": name}}}})
    last = "x"

    def node(target, arguments, result, module, kind):
        stack = f"L__self__,,Net;L__self___layers_{module},layers.{module},torch.nn.modules.{kind}"
        graph.append(
            {
                "target": f"torch.ops.{target}",
                "inputs": arguments,
                "outputs": [{"as_tensor": {"name": result}}],
                "metadata": {"nn_module_stack": stack},
            }
        )

    for index in range(layers):
        result = f"linear_{index}"
        values[result] = tensor(7, None, width)
        weight = f"p_layers_{index}_weight"
        node("aten.linear.default", [named("input", last), named("weight", weight)], result, 2 * index, "linear.Linear")
        last = f"relu_{index}"
        values[last] = tensor(7, None, width)
        node("aten.relu.default", [named("self", result)], last, 2 * index + 1, "activation.ReLU")
    values["loss"] = tensor(7)
    graph.append(
        {
            "target": "torch.ops.aten.cross_entropy_loss.default",
            "inputs": [named("self", last), named("target", "y")],
            "outputs": [{"as_tensor": {"name": "loss"}}],
            "metadata": {"nn_module_stack": "L__self__,,Net"},
        }
    )
    return {
        "graph_module": {
            "graph": {
                "inputs": inputs,
                "outputs": [{"as_tensor": {"name": "loss"}}],
                "nodes": graph,
                "tensor_values": values,
                "sym_int_values": {},
            },
            "signature": {"input_specs": specs, "output_specs": []},
        }
    }


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


def main():
    with tempfile.TemporaryDirectory() as folder:
        server = Server(sys.argv[1], folder)
        try:
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
                said = document.get("detail") or document.get("error") or document.get("state")
                print(f"{name:34}{status:>7}{took:>8.2f}{server.peak_mib():>10}{pulse.slowest * 1000:>12.0f}  {said}")
            at_once(server, everything)
        finally:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
