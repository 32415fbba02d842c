"""Compares a training step of batchfit's kernels with PyTorch's, on the same weights and the same batch.

For each model and precision: export the model, write its weights and a batch to a file, run three steps in PyTorch and three
with batchfit, and compare the losses of all steps and every parameter's gradient in the first. Both sides run without TF32.

A gradient is itself uncertain by about as much as rounding changes it, which the column `noise` shows: PyTorch's own distance
from its float64 gradient. Two independent roundings are sqrt(2) times as far apart as one of them is from the truth, so an error
may be as large as the limit or 1.5 times the noise, whichever is larger; all gradients together must keep the limit. Gradients jump where an
activation crosses the kink of a relu, so that a freshly made ResNet-18 turns float32's 1e-7 into 1e-3 and bfloat16's 4e-3 into
0.4. Raising the biases in front of its relus keeps all but a few activations away from the kink.

Usage: python3 numerics.py CHECK [--only MODEL] [--precision PRECISION]
CHECK is the test binary that `cargo test --test gpu --no-run` builds. Needs a GPU, torch, torchvision and safetensors.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

LIMITS = {"fp32": 1e-3, "amp_fp16": 2e-2, "amp_bf16": 2e-2, "bf16": 2e-2, "fp16": 2e-2}
AUTOCAST = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}
PARAMETERS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
STEPS = 3


class CifarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2, 2)
        self.fc = nn.Linear(64 * 16 * 16, 10)

    def forward(self, x):
        return self.fc(self.pool(self.relu(self.conv1(x))).flatten(1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(3)])
        self.head = nn.Linear(512, 100)

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x)


class Transformer(nn.Module):
    """One block on 64 positions of 128 features, in 4 heads."""
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(128), nn.LayerNorm(128)
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
        self.head = nn.Linear(64 * 128, 10)

    def forward(self, x):
        parts = self.qkv(self.norm1(x)).split(128, dim=2)
        query, key, value = (part.view(x.shape[0], 64, 4, 32).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape[0], 64, 128))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return self.head(x.flatten(1))


def resnet18():
    import torchvision
    return torchvision.models.resnet18()


# How to build a model, the shape of a sample, the number of classes, the batch, the precisions.
MODELS = {
    "cifarnet": (CifarNet, (3, 32, 32), 10, 64, ["fp32", "amp_fp16", "amp_bf16"]),
    "mlp": (Mlp, (512,), 100, 96, ["fp32", "amp_fp16", "amp_bf16", "bf16"]),
    "transformer": (Transformer, (64, 128), 10, 24, ["fp32", "amp_fp16", "amp_bf16"]),
    "resnet18": (resnet18, (3, 224, 224), 1000, 16, ["fp32", "amp_fp16", "amp_bf16"]),
}


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return F.cross_entropy(self.model(x), y)


def export(build, sample, classes, path, dtype):
    """Writes the forward pass with its loss as `torch.export` serializes it."""
    from torch._export.serde.serialize import serialize
    with torch.device("meta"):
        model = WithLoss(build()).to(dtype).train()
        x, y = torch.empty(4, *sample, dtype=dtype), torch.zeros(4, dtype=torch.long)
    batch = torch.export.Dim("batch", min=2, max=1 << 20)
    program = torch.export.export(model, (x, y), dynamic_shapes={"x": {0: batch}, "y": {0: batch}})
    with open(path, "wb") as file:
        file.write(serialize(program).exported_program)


def steps_in_pytorch(build, state, x, y, precision):
    """Losses of three steps, and the gradients of the first."""
    dtype = PARAMETERS.get(precision, torch.float32)
    model = build().to("cuda", dtype).train()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    autocast = AUTOCAST.get(precision)
    losses, gradients = [], {}
    for step in range(STEPS):
        with torch.autocast("cuda", dtype=autocast or torch.float16, enabled=autocast is not None):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {name: p.grad.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, gradients


def distance(a, b):
    a, b = a.double().cpu(), b.double().cpu()
    return ((a - b).norm() / b.norm().clamp_min(1e-30)).item()


def check(name, precision, binary, folder):
    build, sample, classes, batch, _ = MODELS[name]
    dtype = PARAMETERS.get(precision, torch.float32)
    torch.manual_seed(0)
    model = build().to("cuda", dtype)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:  # ones and zeros would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.bias.add_(3.0)
    state = {path: tensor.detach().clone() for path, tensor in model.state_dict().items()}
    x = torch.randn(batch, *sample, device="cuda", dtype=dtype)
    y = torch.randint(classes, (batch,), device="cuda")
    del model
    graph, feed, dump = (os.path.join(folder, file) for file in ("graph.json", "feed", "dump"))
    export(build, sample, classes, graph, dtype)
    given = {path: tensor for path, tensor in state.items() if tensor.is_floating_point()}
    save_file({**given, "x": x, "y": y}, feed)

    losses, gradients = steps_in_pytorch(build, state, x, y, precision)
    exact = {path: tensor.double() if tensor.is_floating_point() else tensor for path, tensor in state.items()}
    _, references = steps_in_pytorch(build, exact, x.double(), y, "fp64")
    settings = dict(MODEL=graph, FEED=feed, DUMP=dump, PRECISION=precision, BATCH=str(batch))
    environment = {**os.environ, **{f"BATCHFIT_NUMERICS_{key}": value for key, value in settings.items()}}
    command = [binary, "--ignored", "--exact", "numerics::a_step_on_given_values", "--nocapture"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        print(f"{name} {precision}: batchfit failed\n{ran.stdout}\n{ran.stderr}")
        return False
    ours = load_file(dump)

    limit = LIMITS[precision]
    rows = []
    for step, loss in enumerate(losses):
        off = abs(ours["loss"][step].item() - loss) / abs(loss)
        rows.append((f"loss of step {step + 1}", off, 0.0))
    for path, gradient in gradients.items():
        if path not in ours:
            rows.append((path, float("inf"), 0.0))
            continue
        noise = distance(gradient, references[path])
        rows.append((path, distance(ours[path], gradient), noise))
    together = [torch.cat([side[path].flatten().double().cpu() for path in gradients]) for side in (ours, gradients, references)]
    overall, overall_noise = distance(*together[:2]), distance(*together[1:])
    failed = [row for row in rows if not row[1] <= max(limit, 1.5 * row[2])]
    worst = max(rows, key=lambda row: row[1])
    print(f"{name:11} {precision:9} {len(gradients):3} gradients  together {overall:.2e} (noise {overall_noise:.2e})  "
          f"worst {worst[1]:.2e} ({worst[0]}, noise {worst[2]:.2e})  "
          f"loss {losses[0]:.6f} off {rows[0][1]:.1e} {rows[1][1]:.1e} {rows[2][1]:.1e}  {'FAILED' if failed or overall > limit else 'ok'}")
    beyond = [row for row in rows if row[1] > limit]
    for what, error, noise in beyond[:8]:
        print(f"    {what:40} error {error:.2e}  noise {noise:.2e}")
    return not failed and overall <= limit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check")
    parser.add_argument("--only")
    parser.add_argument("--precision")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    binary = os.path.abspath(options.check)
    passed = True
    for name, (*_, precisions) in MODELS.items():
        for precision in precisions:
            if options.only in (None, name) and options.precision in (None, precision):
                with tempfile.TemporaryDirectory() as folder:
                    passed = check(name, precision, binary, folder) and passed
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
