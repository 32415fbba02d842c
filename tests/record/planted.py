"""Records memory snapshots of small training loops, some with a fault planted in them.

    python tests/record/planted.py tests/golden/planted

Needs PyTorch 2.11 and a CUDA device; a stub of the runtime that only hands out addresses is enough, because the snapshots show
allocations and not values. Each file is the pickle of `torch.cuda.memory._dump_snapshot`, cut to what a reader of it needs and packed
with gzip: `NAME.pickle.gz`, where NAME begins with the verdict that is expected. Those whose name ends with `-unseen` were written
before the rules in force.
"""

import gzip
import os
import pickle
import sys
import tempfile

import torch
from torch import nn

DEVICE = "cuda"


class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def parts(width=256, layers=4, momentum=0.9):
    net = Net(width, layers).to(DEVICE)
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)


def clean():
    net, optimizer = parts()
    for _ in range(8):
        x = torch.empty(512, 256, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_adam_accumulating_unseen():
    net = Net(128, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(6):
        for _ in range(3):
            x = torch.empty(300, 128, device=DEVICE)
            net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_with_validation_unseen():
    net, optimizer = parts(128, 2)
    for step in range(12):
        x = torch.empty(256, 128, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            with torch.no_grad():
                y = torch.empty(1024, 128, device=DEVICE)
                net(y).square().mean()


def growth_losses():
    net, optimizer = parts()
    losses = []
    for _ in range(8):
        x = torch.empty(512, 256, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)


def growth_hook():
    net, optimizer = parts()
    kept = []
    net.layers[1].register_forward_hook(lambda module, given, output: kept.append(output.detach()))
    for _ in range(8):
        x = torch.empty(512, 256, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def growth_retained():
    net, optimizer = parts()
    total = 0
    for _ in range(8):
        x = torch.empty(512, 256, device=DEVICE)
        loss = net(x).square().mean()
        total = total + loss
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()


def growth_validation_unseen():
    net, optimizer = parts(128, 3)
    scores = []
    for _ in range(7):
        x = torch.empty(400, 128, device=DEVICE)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        y = torch.empty(200, 128, device=DEVICE)
        scores.append(net(y).mean())


def growth_cache_unseen():
    net = Net(128, 3).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters())
    seen = {}
    for step in range(9):
        x = torch.empty(300, 128, device=DEVICE)
        out = net(x)
        seen[step] = out.detach().clone()
        out.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def growth_to_the_end_unseen():
    torch.cuda.set_per_process_memory_fraction((110 << 20) / torch.cuda.get_device_properties(0).total_memory)
    net, optimizer = parts()
    outputs = []
    for _ in range(100):
        x = torch.empty(512, 256, device=DEVICE)
        out = net(x)
        outputs.append(out)
        out.square().mean().backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()


def lengths(sizes, limit):
    """Batches of many lengths under a limit, each kept while the next one is made."""
    torch.cuda.set_per_process_memory_fraction((limit << 20) / torch.cuda.get_device_properties(0).total_memory)
    net, optimizer = parts(512, 3)
    for size in sizes:
        x = torch.empty(size, 512, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def fragmentation():
    lengths([1100 + 700 * step for step in range(30)], 300)


def fragmentation_unseen():
    lengths([2000 + 450 * step for step in range(44)], 280)


def too_large():
    torch.cuda.set_per_process_memory_fraction((150 << 20) / torch.cuda.get_device_properties(0).total_memory)
    net, optimizer = parts(512, 8)
    for _ in range(3):
        x = torch.empty(8192, 512, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def too_large_in_backward_unseen():
    torch.cuda.set_per_process_memory_fraction((200 << 20) / torch.cuda.get_device_properties(0).total_memory)
    net = Net(1024, 6).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        x = torch.empty(1024, 1024, device=DEVICE)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Block(nn.Module):
    """A block of several lines, such as those of a transformer."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        y = self.up(y)
        y = torch.nn.functional.gelu(y)
        y = self.down(y)
        return x + y


class Deep(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def limited(mib):
    torch.cuda.set_per_process_memory_fraction((mib << 20) / torch.cuda.get_device_properties(0).total_memory)


def too_large_in_the_first_forward_unseen():
    limited(260)
    net = Deep(128, 24).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        x = torch.empty(4096, 128, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def too_large_in_inference_unseen():
    limited(120)
    net = Deep(256, 8).to(DEVICE)
    with torch.no_grad():
        for _ in range(4):
            x = torch.empty(20000, 256, device=DEVICE)
            net(x).argmax(-1)


def clean_window_unseen():
    net = Deep(64, 6).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    window = []
    for _ in range(14):
        x = torch.empty(500, 64, device=DEVICE)
        out = net(x)
        window = window[-2:] + [out.detach().clone()]
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_inference_unseen():
    net = Deep(64, 6).to(DEVICE)
    answers = []
    with torch.inference_mode():
        for _ in range(10):
            x = torch.empty(700, 64, device=DEVICE)
            answers.append(net(x).argmax(-1).cpu())


def clean_two_nets_unseen():
    left, right = Net(64, 2).to(DEVICE), Deep(64, 2).to(DEVICE)
    one = torch.optim.Adam(left.parameters())
    two = torch.optim.SGD(right.parameters(), lr=0.1)
    for _ in range(7):
        x = torch.empty(256, 64, device=DEVICE)
        made = left(x)
        loss = right(made.detach()).square().mean()
        loss.backward()
        two.step()
        two.zero_grad()
        loss = right(made).mean()
        loss.backward()
        one.step()
        one.zero_grad()
        two.zero_grad()


def clean_running_sum_unseen():
    net = Deep(64, 4).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    total = torch.zeros((), device=DEVICE)
    # Known as a leak, but what grows is the host's: backward frees what the sum's graph saved.
    for _ in range(9):
        x = torch.empty(300, 64, device=DEVICE)
        loss = net(x).square().mean()
        total = total + loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def growth_inference_outputs_unseen():
    net = Deep(64, 4).to(DEVICE)
    outputs = []
    with torch.no_grad():
        for _ in range(12):
            x = torch.empty(1000, 64, device=DEVICE)
            outputs.append(net(x))


def growth_state_hook_unseen():
    net = Deep(96, 3).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    for block in net.blocks:
        block.up.register_forward_hook(lambda module, given, output: seen.append(output.clone().detach()))
    for _ in range(8):
        x = torch.empty(200, 96, device=DEVICE)
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fragmentation_without_a_limit_unseen():
    net = Deep(512, 3).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(24):
        x = torch.empty(600 + 300 * step, 512, device=DEVICE)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


PLANTED = [
    too_large_in_the_first_forward_unseen, too_large_in_inference_unseen, clean_window_unseen, clean_inference_unseen,
    clean_two_nets_unseen, clean_running_sum_unseen, growth_inference_outputs_unseen, growth_state_hook_unseen,
    fragmentation_without_a_limit_unseen,
    clean, clean_adam_accumulating_unseen, clean_with_validation_unseen, growth_losses, growth_hook, growth_retained,
    growth_validation_unseen, growth_cache_unseen, growth_to_the_end_unseen, fragmentation, fragmentation_unseen, too_large,
    too_large_in_backward_unseen,
]


def shortened(file):
    """A file without the folders of this machine; that it was installed is of interest."""
    _, installed, inner = file.partition("/site-packages/")
    return f"lib/python3/site-packages/{inner}" if installed else os.path.basename(file)


def is_of_plant(frame):
    """Whether a frame is worth a place in the file: of PyTorch's, only where modules are called."""
    file, name = frame["filename"], frame["name"]
    of_plant = os.path.dirname(os.path.abspath(file)) == os.path.dirname(os.path.abspath(__file__)) and name not in ("record", "<module>")
    return of_plant or "/transformers/" in file or file.endswith("/torch/nn/modules/module.py")


def record(plant, folder):
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=100_000)
    try:
        plant()
    except torch.OutOfMemoryError as error:
        print(plant.__name__, str(error)[:100])
        error.__traceback__ = None
        del error
    with tempfile.NamedTemporaryFile() as file:
        torch.cuda.memory._dump_snapshot(file.name)
        snapshot = pickle.load(open(file.name, "rb"))
    known = {}

    def frames(stack):
        own = [frame for frame in stack if is_of_plant(frame)]
        made = tuple((shortened(frame["filename"]), frame["line"], frame["name"]) for frame in own)
        return known.setdefault(made, [dict(zip(("filename", "line", "name"), one)) for one in made])
    for trace in snapshot["device_traces"]:
        for entry in trace:
            entry["frames"] = frames(entry.get("frames", []))
            for key in ("time_us", "compile_context", "user_metadata"):
                entry.pop(key, None)
    for segment in snapshot["segments"]:
        segment.pop("frames", None)
        for block in segment["blocks"]:
            block.pop("frames", None)
            block.pop("history", None)
    kept = {key: snapshot[key] for key in ("segments", "device_traces", "allocator_settings")}
    name = plant.__name__.replace("_", "-")
    path = f"{folder}/{name}.pickle.gz"
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        pickle.dump(kept, file, protocol=4)
    print(name, len(kept["device_traces"][0]), "events", os.path.getsize(path), "bytes")


if __name__ == "__main__":
    import planted_attacks
    import planted_unseen

    folder, names = sys.argv[1], sys.argv[2:]
    PLANTED += planted_attacks.PLANTED + planted_unseen.PLANTED
    if not names:
        # Each in a process of its own, so that nothing is left of the one before.
        for plant in PLANTED:
            if os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, folder, plant.__name__]) != 0:
                sys.exit(f"{plant.__name__} failed")
    for plant in PLANTED:
        if plant.__name__ in names:
            record(plant, folder)
