"""Makes graphs.json.gz and sequences.txt.gz: models with custom autograd functions, and what PyTorch asked of its
caching allocator for them.

    PYTHONPATH=clients/python/src python tests/golden/functions/record.py [OUT [NAME ...]]

It needs a GPU, or a stub of the CUDA runtime that hands out addresses.
"""

import gzip
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import batchfit

BATCH, WIDTH = 4, 64


class Swish(torch.autograd.Function):
    """As in EfficientNet-PyTorch."""

    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i = ctx.saved_tensors[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


class Mask(torch.autograd.Function):
    """Saves truth values."""

    @staticmethod
    def forward(ctx, x):
        mask = x > 0
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


class Attribute(torch.autograd.Function):
    """Keeps a tensor as an attribute, which no backward pass frees."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return x * ctx.mask

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask


class InPlace(torch.autograd.Function):
    """Changes its input and saves its output."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > 0)


class Output(torch.autograd.Function):
    """Saves nothing but its output, by the newer interface."""

    @staticmethod
    def forward(x):
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class Nothing(torch.autograd.Function):
    """Gradient reversal: gives its input back and saves nothing."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * -ctx.scale, None


class Unchanged(torch.autograd.Function):
    """Gives its very input and gradient back."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Nested(torch.autograd.Function):
    """Calls another function, which is part of this one then, and saves what that gives."""

    @staticmethod
    def forward(ctx, x):
        inner = Swish.apply(x)
        with torch.no_grad():
            doubled = inner * 2
        ctx.save_for_backward(x, inner)
        return doubled + x

    @staticmethod
    def backward(ctx, grad):
        x, inner = ctx.saved_tensors
        return grad * (inner + x)


class Several(torch.autograd.Function):
    """Three inputs, one of them broadcast; three outputs, of which one is unused and one not differentiable."""

    @staticmethod
    def forward(ctx, x, scale, shift):
        y = x * scale + shift
        order = y.argmax(-1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(x, scale)
        return y, y.exp(), order

    @staticmethod
    def backward(ctx, grad, grad_exp, grad_order):
        x, scale = ctx.saved_tensors
        grad_x = grad_scale = grad_shift = None
        grad = grad + grad_exp
        if ctx.needs_input_grad[0]:
            grad_x = grad * scale
        if ctx.needs_input_grad[1]:
            grad_scale = (grad * x).sum(0)
        if ctx.needs_input_grad[2]:
            grad_shift = grad.sum(0)
        return grad_x, grad_scale, grad_shift


class Product(torch.autograd.Function):
    """A linear layer, as PyTorch's documentation writes it."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        return x.mm(weight.t()) + bias.unsqueeze(0)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x), grad.sum(0)


class PlainProduct(torch.autograd.Function):
    """The same without a word of autocast."""

    forward = staticmethod(Product.forward.__wrapped__)
    backward = staticmethod(Product.backward.__wrapped__)


class Wide(torch.autograd.Function):
    """Runs in float32 whatever autocast says."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y * x


class Views(torch.autograd.Function):
    """Gives views of its gradient to its input twice."""

    @staticmethod
    def forward(ctx, a, b):
        return (a + b).view(-1)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.view(-1, 4 * WIDTH)
        return grad, grad


class CrossEntropy(torch.autograd.Function):
    """A loss that computes its gradient in the forward pass."""

    @staticmethod
    def forward(ctx, logits, target):
        log = torch.log_softmax(logits.float(), -1)
        grad = log.exp()
        grad.scatter_add_(1, target.unsqueeze(1), -torch.ones_like(target, dtype=grad.dtype).unsqueeze(1))
        ctx.save_for_backward(grad / logits.shape[0])
        return -log.gather(1, target.unsqueeze(1)).mean()

    @staticmethod
    def backward(ctx, grad_output):
        (grad,) = ctx.saved_tensors
        return grad * grad_output, None


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4 * WIDTH))
        self.shift = torch.nn.Parameter(torch.zeros(4 * WIDTH), requires_grad=False)

    def forward(self, x):
        return Several.apply(x, self.scale, self.shift)[0]


class Linear(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(4 * WIDTH, 4 * WIDTH)

    def forward(self, x):
        return self.function.apply(x, self.linear.weight, self.linear.bias)


class Calls(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


class Block(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.up, self.act, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), act, torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(act()) for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, 10)
        self.checkpointed = False

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def of(call):
    return lambda: Calls(call)


ACTS = {
    "swish": of(lambda x: Swish.apply(x)),
    "mask": of(lambda x: Mask.apply(x)),
    "attribute": of(lambda x: Attribute.apply(x)),
    "in_place": of(lambda x: InPlace.apply(x)),
    "output": of(lambda x: Output.apply(x)),
    "nothing": of(lambda x: Nothing.apply(x, 0.5)),
    "unchanged": of(lambda x: Unchanged.apply(x)),
    "nested": of(lambda x: Nested.apply(x)),
    "several": Scaled,
    "product": lambda: Linear(Product),
    "plain_product": lambda: Linear(PlainProduct),
    "wide": of(lambda x: Wide.apply(x)),
    "views": of(lambda x: Views.apply(x, x * 2).view(-1, 4 * WIDTH)),
    "twice": of(lambda x: Swish.apply(x) + Output.apply(x)),
}


def custom_loss(logits, target):
    return CrossEntropy.apply(logits, target)


def bloom():
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(vocab_size=128, hidden_size=WIDTH, n_layer=2, n_head=4, use_cache=False)
    return BloomForCausalLM(config)


def inputs(device="cpu"):
    return {
        "x": torch.zeros(BATCH, WIDTH, device=device),
        "y": torch.zeros(BATCH, dtype=torch.int64, device=device),
    }


def tokens(device="cpu"):
    ids = torch.zeros(BATCH, 16, dtype=torch.int64, device=device)
    return {"input_ids": ids, "labels": ids.clone()}


# By name: the model, a batch, the loss for the export, and what a training loop computes.
CASES = {
    name: (lambda act=act: Net(act), inputs, "cross_entropy", lambda m, b: F.cross_entropy(m(b["x"]), b["y"]))
    for name, act in ACTS.items()
}
CASES["loss"] = (
    lambda: Net(torch.nn.ReLU),
    inputs,
    lambda m, x, y: custom_loss(m(x), y),
    lambda m, b: custom_loss(m(b["x"]), b["y"]),
)
CASES["bloom"] = (bloom, tokens, "model", lambda m, b: m(**b).loss)

# Precision, whether blocks are checkpointed, micro-steps.
WAYS = [("fp32", False, 1), ("amp_fp16", False, 1), ("fp32", True, 1), ("amp_bf16", True, 1), ("fp32", False, 2)]


def record(build, make, compute, precision, checkpointed, accumulation):
    """What construction and three steps of SGD ask for."""
    amp = {"amp_fp16": torch.float16, "amp_bf16": torch.bfloat16}.get(precision)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
    model = build().to("cuda").train()
    model.checkpointed = checkpointed
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=1.0) if precision == "amp_fp16" else None

    def micro_step():
        batch = make("cuda")
        with torch.autocast("cuda", dtype=amp or torch.float16, enabled=amp is not None):
            loss = compute(model, batch) / accumulation
        (scaler.scale(loss) if scaler else loss).backward()
        while batch:
            batch.popitem()

    for _ in range(3):
        for _ in range(accumulation):
            micro_step()
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    del model, optimizer, scaler
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    signs = {"alloc": "+", "free_requested": "-"}
    return [f"{signs[event['action']]}{event['size']}" for event in events if event["action"] in signs]


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    names = sys.argv[2:] or list(CASES)
    graphs, lines = {}, []
    for name in names:
        build, make, loss, compute = CASES[name]
        graphs[name] = batchfit.export(build(), make(), loss).document
        for precision, checkpointed, accumulation in WAYS:
            if name == "bloom" and (precision, checkpointed, accumulation) != WAYS[0]:
                continue
            if name == "plain_product" and precision != "fp32":
                # Its backward pass would multiply float32 by half precision.
                continue
            lines.append(f"# {name} {precision} {'per_block' if checkpointed else 'none'} {accumulation}")
            lines += record(build, make, compute, precision, checkpointed, accumulation)
    for name, text in [("graphs.json.gz", json.dumps(graphs)), ("sequences.txt.gz", "\n".join(lines) + "\n")]:
        (out / name).write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
