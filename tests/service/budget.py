#!/usr/bin/env python3
"""Looks for the small requests that cost a service most, and asks it a mixture of them, many at a time: does it keep its budget?

Requests are made from the description of the API and changed where they cost much. What the description leaves open (models, sizes) has words
here. Needs PyYAML. Prints the table of docs/operate/operations.md; the status is 1 where the service takes more memory than it may, answers
/healthz too late or ends, or where a key that asks much makes others wait more than twice as long.
"""
import argparse
import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import tempfile
import threading
import time

import yaml

from served import Server, key_of, until

LONGEST, AT_A_TIME = 600, 64
SMALL = (1, 2, 3, 7, 8, 64, 512, 1024)
LARGE = (4096, 65_535, 100_000, 1 << 20, (1 << 24) - 3, (1 << 40) - 87, 1 << 40)
DECODERS = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2", "Gemma3", "Phi3", "DeepseekV3", "Olmo2", "GPT2LMHead", "GPTNeoX", "OPT",
            "Bloom", "Falcon")
ENCODERS = ("BertForMaskedLM", "RobertaForMaskedLM", "AlbertForMaskedLM", "DebertaV2ForMaskedLM", "ViTForImageClassification", "SwinForImageClassification",
            "ConvNextForImageClassification", "Dinov2ForImageClassification")
LAYERS = {"linear": ("out_features",), "conv2d": ("out_channels", "kernel_size"), "relu": (), "flatten": (), "batch_norm2d": (), "layer_norm": (),
          "dropout": (), "max_pool2d": ("kernel_size",)}


class Maker:
    """Makes requests from their schema."""

    def __init__(self, schemas, presets, seed):
        self.schemas, self.presets, self.random = schemas, presets, random.Random(seed)

    def number(self, low, high):
        choices = [value for value in (*SMALL, *LARGE, low, high) if low <= value <= high]
        return self.random.choice(choices)

    def hugging_face(self):
        chance = self.random
        architecture = chance.choice([f"{name}ForCausalLM" if "LMHead" not in name else f"{name}Model" for name in DECODERS] + list(ENCODERS))
        width = chance.choice((16, 64, 128))
        config = {"architectures": [architecture], "num_hidden_layers": chance.choice((1, 4, 16, 64, 256, 1024)), "hidden_size": width, "num_attention_heads": 2,
                  "num_key_value_heads": 2, "intermediate_size": width, "vocab_size": chance.choice((64, 65, 1000, 1 << 20))}
        more = {"n_routed_experts": chance.choice((8, 64, 256)), "num_local_experts": chance.choice((8, 64, 1024)), "num_experts": 64,
                "num_experts_per_tok": 1, "num_layers": chance.choice((4, 64, 512)), "d_model": width, "head_dim": 8, "max_position_embeddings": 4096,
                "image_size": chance.choice((32, 224, 4096)), "patch_size": 4, "sliding_window": 8, "depths": [2] * chance.choice((4, 16))}
        config |= {name: value for name, value in more.items() if chance.random() < 0.4}
        return config

    def open(self, name):
        """What the schema says nothing of."""
        chance = self.random
        match name:
            case "device":
                return chance.choice(("sim:h200", "sim:t4", "sim:rtx4090", "h100-80g"))
            case "memory_limit":
                return chance.choice(("1GiB", "8GiB", 0.5, 1 << 40))
            case "preset":
                return chance.choice(self.presets)
            case "hf":
                return self.hugging_face()
            case "layers":
                kinds = [chance.choice(list(LAYERS)) for _ in range(chance.choice((1, 3, 8)))]
                sizes = {"kernel_size": 3, **dict.fromkeys(("out_features", "out_channels"), chance.choice((8, 1024, 1 << 20)))}
                return [{"type": kind, **{name: sizes[name] for name in LAYERS[kind]}} for kind in kinds]
            case "input":
                return {"shape": [chance.choice((3, 8, 1 << 16))] + [32, 32] * chance.randrange(2)}
            case "seq_len":
                return chance.choice((8, 512, "1-512", "1-4096:64", "64:900,512:30"))
            case "image_size":
                return chance.choice((32, 224, "160,192,224", 4096))
            case "lora":
                return {"r": chance.choice((1, 8, 256))}
            case "suggest":
                return True
            case "allocator":
                return chance.choice(("expandable_segments:True", "max_split_size_mb:21", "garbage_collection_threshold:0.01"))
            case "loss":
                return "cross_entropy"
            case "priority":
                return chance.choice(("batch", "interactive"))
        return None

    def make(self, schema, name=""):
        chance = self.random
        if "$ref" in schema:
            return self.make(self.schemas[schema["$ref"].rsplit("/", 1)[1]], name)
        if (known := self.open(name)) is not None:
            return known
        if "oneOf" in schema:
            some = [one for one in schema["oneOf"] if one.get("type") != "null" and "Exported" not in str(one) and "Recorded" not in str(one)]
            return self.make(chance.choice(some), name)
        if "enum" in schema:
            return chance.choice([value for value in schema["enum"] if value is not None])
        kinds = schema.get("type", [])
        kind = next((one for one in ([kinds] if isinstance(kinds, str) else kinds) if one != "null"), None)
        if kind == "object":
            required = schema.get("required", [])
            members = {}
            for member, inner in schema.get("properties", {}).items():
                if member in required or chance.random() < 0.12:
                    members[member] = self.make(inner, member)
            return {member: value for member, value in members.items() if value is not None}
        if kind == "array":
            each = schema.get("items", {})
            made = [self.make(each) for _ in range(chance.choice((1, 2, 5)))]
            return [value for index, value in enumerate(made) if value is not None and value not in made[:index]] or None
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", 1)), schema.get("maximum", 1 << 40)
            return self.number(int(low), int(high)) if kind == "integer" else self.number(float(low), float(high))
        return {"boolean": chance.random() < 0.5, "string": None}.get(kind)

    def mend(self, request):
        """What goes with what, which the schema does not say: most requests are to be taken."""
        model, training = request["model"], request.setdefault("training", {}) if "generation" in request else request.get("training")
        if "hf" in model:
            is_vision = any(name in model["hf"]["architectures"][0] for name in ("Image", "CLIP"))
            model.update({"image_size": 32} if is_vision else {"seq_len": self.random.choice((8, 64))})
            for member in ("task", "num_labels", "target_len"):
                model.pop(member, None)
        elif "/" in model.get("preset", ""):
            model["seq_len"] = self.random.choice((8, 512))
        if "lengths" in request and not {"seq_len", "image_size"} & set(request["lengths"]):
            request["lengths"]["seq_len" if "seq_len" in model else "image_size"] = "32,64,128"
        if "generation" in request:
            training["mode"] = "inference"
        if training and training.get("mode") == "inference":
            request["training"] = {name: value for name, value in training.items() if name in ("mode", "precision")}
        for member in ("compare", "search", "unknown_ops"):
            if self.random.random() < 0.9:
                request.pop(member, None)
        return request

    def request(self, like=None):
        """A request of at most 600 bytes: a new one, or one that is like another but for a member or two."""
        while True:
            made = self.make(self.schemas["Request"])
            made["device"] = self.open("device")
            if like is not None:
                kept = dict(like)
                for member in self.random.sample(sorted({*made, *like}), self.random.choice((1, 2))):
                    kept.pop(member, None)
                    if member in made:
                        kept[member] = made[member]
                made = {"model": like["model"], **kept}
            made.pop("timeout_seconds", None)
            made = self.mend(made)
            if len(json.dumps(made)) <= LONGEST:
                return made


DOORS = ("/v1/fits", "/v1/fits", "/v1/probes", "/v1/recommendations/nearest")


def ask(port, door, request, wait):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=wait + 120)
    with contextlib.closing(connection):
        body = {**request, "batch": 1} if door == "/v1/probes" else request
        try:
            connection.request("POST", door, json.dumps(body), {"Prefer": f"wait={wait}"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 202:
                # Nobody waits for it any more.
                connection.request("DELETE", f"/v1/fits/{json.loads(text)['id']}")
                connection.getresponse().read()
            return answer.status
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return 0


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def named(door, request):
    model = request["model"]
    config = model.get("hf")
    what = model.get("preset") or (f"{config['architectures'][0]}, {config['num_hidden_layers']} layers" if config else f"{len(model.get('layers', []))} layers")
    others = ", ".join(sorted(set(request) - {"model", "device", "memory_limit"}))
    return f"{door.rsplit('/', 1)[1]}, {what}{': ' + others if others else ''}"


def look(server, maker, seconds):
    """Asks one at a time; what each took."""
    seen, end = [], time.monotonic() + seconds
    while time.monotonic() < end and server.process.poll() is None:
        worst = sorted(seen, key=lambda row: -row["mib"])[:6] + sorted(seen, key=lambda row: -row["seconds"])[:6]
        like = maker.random.choice(worst) if worst and maker.random.random() < 0.5 else None
        request, door = maker.request(like and like["request"]), like["door"] if like else maker.random.choice(DOORS)
        pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
        before, busy, begun = server.rss_mib("VmRSS"), cpu_seconds(server.process.pid), time.monotonic()
        status = ask(server.port, door, request, 8)
        seen.append({"door": door, "request": request, "bytes": len(json.dumps(request)), "status": status, "mib": server.rss_mib() - before,
                     "seconds": cpu_seconds(server.process.pid) - busy, "wall": time.monotonic() - begun})
    return seen


def health(port, seconds, told):
    """Asks /healthz again and again, in a process of its own: threads of Python wait for each other."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun, status = time.monotonic(), 0
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
        times.append(time.monotonic() - begun if status == 200 else 30.0)
        time.sleep(0.02)
    told.send(times)


def together(server, maker, worst, seconds):
    """Asks 64 at a time; statuses, and seconds of /healthz."""
    statuses, end, lock = {}, time.monotonic() + seconds, threading.Lock()
    heard, told = multiprocessing.Pipe(duplex=False)
    asking = multiprocessing.Process(target=health, args=(server.port, seconds, told), daemon=True)
    asking.start()

    def client():
        while time.monotonic() < end and server.process.poll() is None:
            with lock:
                like, fresh = maker.random.choice(worst), maker.random.random()
                if fresh < 0.3:
                    request = maker.request()
                elif fresh < 0.6:
                    request = maker.request(like["request"])
                else:
                    # Otherwise it were answered from what was stored.
                    request = {**like["request"], "target_batch": maker.random.randrange(1, 1 << 20)}
            status = ask(server.port, like["door"], request, 5)
            with lock:
                statuses[status] = statuses.get(status, 0) + 1

    threads = [threading.Thread(target=client, daemon=True) for _ in range(AT_A_TIME)]
    for thread in threads:
        thread.start()
    times = heard.recv()
    for thread in threads:
        thread.join(180)
    return statuses, sorted(times)


SMALL_MODEL = {"model": {"preset": "resnet18"}, "device": "sim:t4"}
LARGE_MODEL = {"model": {"hf": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 100, "hidden_size": 16, "num_attention_heads": 2,
                                "num_key_value_heads": 2, "intermediate_size": 16, "vocab_size": 64}, "seq_len": 8}, "device": "sim:h200"}


def asked(server, like, door, number, key, wait):
    own = {"batch": number % 200 + 1} if door == "/v1/probes" else {"target_batch": 64 + 3 * number}
    return server.call(door, {**like, **own}, headers={**key, "Prefer": f"wait={wait}"}, timeout=120)[0]


def greed(server, door, key, numbers):
    """Asks 60 large ones at a time, until this process is ended."""
    def ask():
        while True:
            with contextlib.suppress(OSError):
                # As `Retry-After` says: what a client does meanwhile is not the service's.
                if asked(server, LARGE_MODEL, door, next(numbers), key, 10) in (429, 503):
                    time.sleep(1)

    threads = [threading.Thread(target=ask) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def shares(server, batchfit, seconds):
    """What nine keys wait that ask small things by turns, without and beside a tenth one that asks large ones, 60 at a time. Each p95 in seconds.

    The tenth asks from a process of its own: threads of one Python process wait for each other, and that would be counted as the service's."""
    keys = [key_of(server, batchfit, f"key{number}") for number in range(10)]
    numbers = itertools.count(1)
    until(lambda: server.call("/v1/fits", headers=keys[9])[0] == 200, "the keys are known")

    def waited(door, greedy):
        times, end = [], time.monotonic() + seconds
        beside = multiprocessing.Process(target=greed, args=(server, greedy, keys[9], itertools.count(next(numbers))), daemon=True)

        def modest(key):
            while time.monotonic() < end:
                begun = time.monotonic()
                status = asked(server, SMALL_MODEL, door, next(numbers), key, 60)
                times.append(time.monotonic() - begun if status in (200, 201) else 120.0)
                time.sleep(0.3)

        if greedy:
            beside.start()
        threads = [threading.Thread(target=modest, args=(key,)) for key in keys[:9]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if greedy:
            beside.kill()
            beside.join()
        return sorted(times)[int(len(times) * 0.95)]

    doors = ("/v1/fits", "/v1/probes")
    alone = {door: waited(door, None) for door in doors}
    return [(door, greedy, alone[door], waited(door, greedy)) for door in doors for greedy in doors]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit")
    parser.add_argument("--minutes", type=float, default=10, help="half of them to look for what costs most, half for the mixture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-mib", type=int, default=512)
    parser.add_argument("--healthz-ms", type=float, default=50)
    given = parser.parse_args()
    description = yaml.safe_load(subprocess.run([given.batchfit, "openapi"], capture_output=True, text=True, check=True).stdout)
    seconds = given.minutes * 30
    with tempfile.TemporaryDirectory() as folder, Server(given.batchfit, f"{folder}/look.db") as server:
        presets = [preset["name"] for preset in server.call("/v1/presets")[1]["items"]]
        maker = Maker(description["components"]["schemas"], presets, given.seed)
        seen = look(server, maker, seconds)
        survived = server.process.poll() is None
    taken = [row for row in seen if row["status"] in (200, 202, 404)]
    print(f"{len(seen)} requests one at a time, {len(taken)} of them taken; what cost most:\n")
    print("| request | bytes | status | MiB | seconds of a processor |\n| --- | --- | --- | --- | --- |")
    worst = []
    for measure in ("mib", "seconds"):
        for row in sorted(seen, key=lambda row: -row[measure])[:5]:
            if row not in worst:
                worst.append(row)
                print(f"| {named(row['door'], row['request'])} | {row['bytes']} | {row['status']} | {row['mib']} | {row['seconds']:.1f} |")
    with tempfile.TemporaryDirectory() as folder, Server(given.batchfit, f"{folder}/together.db") as server:
        statuses, times = together(server, maker, sorted(seen, key=lambda row: -row["mib"])[:12] + sorted(seen, key=lambda row: -row["seconds"])[:12], seconds)
        survived &= server.process.poll() is None
        peak, panics = server.rss_mib(), server.panics()
    with tempfile.TemporaryDirectory() as folder, Server(given.batchfit, f"{folder}/shares.db", "--require-keys") as server:
        held = shares(server, given.batchfit, min(seconds / 10, 20))
    p99 = times[int(len(times) * 0.99)] * 1000 if times else 0.0
    answers = ", ".join(f"{count} of {status}" for status, count in sorted(statuses.items()))
    print(f"\n{AT_A_TIME} at a time, {seconds:.0f} s: {sum(statuses.values())} answers ({answers}), {peak} MiB at most, /healthz p99 {p99:.0f} ms, worst {times[-1] * 1000 if times else 0:.0f} ms")
    for door, greedy, before, beside in held:
        print(f"nine keys ask {door}: p95 {before * 1000:.0f} ms; {beside * 1000:.0f} ms beside a tenth that asks {greedy}, 60 at a time")
    for row in worst[:3]:
        print("  ", row["door"], json.dumps(row["request"]))
    holds = survived and not panics and peak <= given.most_mib and p99 <= given.healthz_ms and 0 not in statuses
    holds &= all(beside <= 2 * before for _, _, before, beside in held)
    print("the budget holds" if holds else f"the budget does not hold: {given.most_mib} MiB and {given.healthz_ms} ms ({panics[:1]})")
    raise SystemExit(0 if holds else 1)


if __name__ == "__main__":
    main()
