#!/usr/bin/env python3
"""What a key that lies about outcomes costs other keys, and what honest ones learn: asks a service of its own, with keys.

    tests/service/liar.py BATCHFIT

Standard library only, Linux.
"""
import argparse
import pathlib
import statistics
import tempfile

from served import Server, check, key_of, run, until

GPU = {"rtx4090": "NVIDIA GeForce RTX 4090", "h200": "NVIDIA H200"}
PRESETS = """alexnet convnext_tiny convnext_base densenet121 densenet201 efficientnet_b0 efficientnet_b4 efficientnet_v2_s googlenet inception_v3
    mnasnet1_0 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_y_400mf regnet_y_8gf resnet18 resnet34 resnet50 resnet101 resnet152
    resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 swin_t vgg11 vgg16 vgg19_bn vit_b_16 wide_resnet50_2 gpt2""".split()
QUESTIONS = [(preset, "12GiB") for preset in PRESETS] + [
    ("vgg16", "4GiB"), ("vit_b_16", "3GiB"), ("convnext_base", "4GiB"), ("resnet152", "3GiB"), ("alexnet", "2GiB"), ("gpt2", "4GiB")]


def question(preset, limit):
    model = {"preset": preset, **({"seq_len": 128} if preset == "gpt2" else {})}
    return {"model": model, "training": {"precision": "amp_fp16"}, "device": "sim:rtx4090", "memory_limit": limit}


def convolutions(precision, limit):
    """Of which scratch memory was not recorded in bfloat16, and weights take most of the limit."""
    layers = [{"type": "conv2d", "out_channels": 512, "kernel_size": 3, "padding": 1}, {"type": "relu"}] * 2
    layers += [{"type": "flatten"}, {"type": "linear", "out_features": 128}]
    return {"model": {"layers": layers, "input": {"shape": [3, 16, 16]}, "loss": "cross_entropy"}, "training": {"precision": precision},
            "device": "sim:rtx4090", "memory_limit": limit}


# Small steps: its batch is thousands of samples.
LAYERS = [{"type": "linear", "out_features": 512}, {"type": "relu"}, {"type": "linear", "out_features": 10}]
SMALL = {"model": {"layers": LAYERS, "input": {"shape": [256]}, "loss": "cross_entropy"}, "device": "sim:h200", "memory_limit": "16GiB"}


class Service(Server):
    """With keys, on which nothing is known."""

    def __init__(self, batchfit):
        self.folder = tempfile.TemporaryDirectory()
        super().__init__(batchfit, f"{self.folder.name}/liar.db", "--require-keys", "--key-rate", "0")
        self.batchfit, self.keys = batchfit, {}

    def key(self, name):
        if name not in self.keys:
            self.keys[name] = key_of(self, self.batchfit, name)
            until(lambda: self.call("/v1/fits", headers=self.keys[name])[0] == 200, "the key is known")
        return self.keys[name]

    def ask(self, name, asked):
        status, fit = self.call("/v1/fits", asked, headers={**self.key(name), "Prefer": "wait=60"})
        check(status == 200 and fit["state"] == "done", fit)
        return fit["id"], fit["result"]["recommendation"]

    def tell(self, name, fit, asked, **seen):
        environment = {"gpu": GPU[asked["device"][4:]], "pytorch": "2.11.0"}
        told = {"environment": environment, "retries": 0, "steps": 100, **seen}
        status, outcome = self.call(f"/v1/recommendations/{fit}/outcomes", told, headers=self.key(name))
        check(status == 201, outcome)
        return outcome

    def train(self, name, asked, needs):
        """Whether it ran out of memory on a machine that reserves so much more than is predicted."""
        fit, answer = self.ask(name, asked)
        reserved = int(answer["peak_reserved_bytes"] * (1 + needs))
        died = reserved > answer["limit_bytes"]
        seen = {"outcome": "out_of_memory"} if died else {"outcome": "fits", "peak_reserved_bytes": reserved}
        self.tell(name, fit, asked, batch=answer["micro_batch"], **seen)
        return died

    def lie(self, name, asked):
        """Tells that each answer runs out of memory."""
        for _ in range(7):
            fit, answer = self.ask(name, asked)
            if answer["micro_batch"] > 0:
                self.tell(name, fit, asked, batch=answer["micro_batch"], outcome="out_of_memory")


def costs(batchfit):
    """What one lying key takes from another's answer."""
    falls = []
    with Service(batchfit) as service:
        for preset, limit in QUESTIONS:
            asked = question(preset, limit)
            before = service.ask("victim", asked)[1]["micro_batch"]
            service.lie("liar", asked)
            after = service.ask("victim", asked)[1]["micro_batch"]
            falls.append((1 - after / before if before else 0.0, preset, limit, before, after))
    above = [fall for fall, *_ in falls if fall > 0.05]
    worst, preset, limit, before, after = max(falls)
    figures = (f"{len(above)} of {len(falls)} batches fall by more than 5 %; median {statistics.median(fall for fall, *_ in falls):.1%}, "
               f"most {worst:.1%} ({preset} in {limit}: {before} to {after})")
    check(not above, figures)
    return figures


def trained(batchfit, keys, trainings, needs, lies=0):
    """How often memory ran out where such keys train the small model by turns, the first times after a lie."""
    died = 0
    with Service(batchfit) as service:
        for turn in range(trainings):
            if turn < lies:
                service.lie("liar", SMALL)
            died += service.train(f"key{turn % keys}", SMALL, needs)
    return died


def doubts(batchfit):
    """What reports about a precision say of another one, which doubts more."""
    safe, doubtful = convolutions("fp32", "1GiB"), convolutions("bf16", "512MiB")
    with Service(batchfit) as service:
        before = [service.ask("victim", asked)[1] for asked in (safe, doubtful)]
        service.train("liar", doubtful, 0)
        lied = service.ask("victim", safe)[1]["micro_batch"]
        for turn in range(60):
            service.train(f"key{turn % 3}", safe, 0)
        after = [service.ask("victim", asked)[1] for asked in (safe, doubtful)]
    batches = [[answer["micro_batch"] for answer in answers] for answers in (before, after)]
    left = [answer["headroom"]["fraction"] for answer in before + after]
    figures = (f"one key's report about bf16: fp32 {batches[0][0]} to {lied}; 60 trainings of fp32: {batches[0][0]} to {batches[1][0]} "
               f"({left[0]:.1%} to {left[2]:.1%} left), bf16 {batches[0][1]} to {batches[1][1]} ({left[1]:.1%} to {left[3]:.1%})")
    check(lied >= 0.95 * batches[0][0] and left[2] < left[0] and left[3] == left[1], figures)
    return figures


def alone(batchfit):
    """An honest key that trains a model alone."""
    needs = [0.02, 0.03, 0.036, 0.042, 0.049]
    deaths = [trained(batchfit, 1, 50, need) for need in needs]
    figures = ", ".join(f"{need:.1%} more: {died} of 50" for need, died in zip(needs, deaths))
    check(max(deaths) <= 4, figures)
    return f"out of memory where the machine reserves {figures}"


def together(batchfit):
    """Honest keys that train one model by turns: ten, and nine without and beside a liar."""
    figures = []
    for need in (0.01, 0.03, 0.049):
        ten, nine, beside = (trained(batchfit, *case) for case in ((10, 90, need), (9, 90, need), (9, 90, need, 20)))
        figures.append(f"{need:.1%} more: ten keys {ten} of 90, nine {nine}, nine beside a liar {beside}")
        check(beside <= nine, figures[-1])
    return "out of memory where machines reserve " + ", ".join(figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("batchfit", type=pathlib.Path)
    given = parser.parse_args()
    run([(trial.__name__, lambda trial=trial: trial(given.batchfit)) for trial in (costs, doubts, alone, together)])


if __name__ == "__main__":
    main()
