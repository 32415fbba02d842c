"""Records on a GPU what convolutions (1-D, 3-D, transposed), recurrent nets, CTC, FFTs, batch norms and grid samplers allocate.

    OUT=folder python cudnn.py [SECONDS] [WORKERS]
    OUT=folder python cudnn.py --text > recording.txt

The second form writes the convolutions' workspaces as `batchfit record-workspaces --recording` takes them, each with a plan
after it that needs nothing: what PyTorch falls back to is not recorded here. The layers (cudnn_layers.json.gz: dimensions,
channels, groups, sides, kernel, stride, padding, dilation, transposed, output padding) are those of models of monai,
torchvision, torchaudio and others, and plain ones around them; cudnn_cases.json.gz has single cases.

PyTorch only. Each worker is a process of its own that runs its share of a seeded list of cases, each in a try, until the
time is over, and writes OUT/part-N.jsonl.gz: one JSON object a line. `events` are the allocator's requests in order: a
positive number of bytes is an allocation, a negative one the end of one ("oom" where a request was refused).
Results depend on no value, so nothing is initialised.
"""

import collections
import gzip
import json
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

LAYERS = json.loads(gzip.decompress(Path(__file__).with_name("cudnn_layers.json.gz").read_bytes()))
# [layer, channels-last, type, batches]: the convolutions of tests/models that were not among them, and others like those.
CASES = json.loads(gzip.decompress(Path(__file__).with_name("cudnn_cases.json.gz").read_bytes()))
DTYPES = ("float32", "float16", "bfloat16", "float64")
BATCHES = {1: ([1, 4, 16, 32, 64, 128], [2, 3, 6, 8, 12, 24, 48, 96, 256]), 3: ([1, 2, 4, 8, 16], [3, 6, 12, 24, 32]), 2: ([1, 8, 32, 128], [2, 4, 16, 64])}
MOST_BYTES = 1_500_000_000
MOST_FLOPS = 1e12


def history(torch, on=True):
    torch.cuda.memory._record_memory_history(enabled="all" if on else None, context=None, max_entries=200_000, clear_history=True)


def traced(torch, run):
    """What `run` returns, and the requests it made."""
    history(torch)
    result = run()
    events = taken(torch)
    return result, events


def taken(torch):
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    events = []
    for entry in trace:
        action = entry["action"]
        if action == "alloc":
            events.append(entry["size"])
        elif action == "free_completed":
            events.append(-entry["size"])
        elif action == "oom":
            events.append("oom")
    return events


# ---------------------------------------------------------------- convolutions


def conv_jobs():
    """(priority, layer, dtype, layout, batches): the common types and batches first."""
    rounds = [[], [], [], [], []]
    for layer in LAYERS:
        first, then = BATCHES[layer[0]]
        rounds[0].append((layer, "float32", False, first))
        rounds[0].append((layer, "float16", False, first))
        rounds[1].append((layer, "bfloat16", False, first))
        if layer[0] != 1:
            rounds[2].append((layer, "float16", True, first))
            rounds[2].append((layer, "float32", True, first))
        rounds[3].append((layer, "float32", False, then))
        rounds[3].append((layer, "float16", False, then))
        rounds[4].append((layer, "bfloat16", False, then))
        if layer[0] == 3:
            rounds[4].append((layer, "bfloat16", True, first))
    made = []
    for number, jobs in enumerate(rounds):
        random.Random(number).shuffle(jobs)
        made += jobs
    # A few in double precision, to see what is chosen there.
    doubles = [(layer, "float64", False, [2]) for layer in LAYERS[::40]]
    return doubles + [(layer, dtype, last, batches) for layer, last, dtype, batches in CASES] + made


def conv_case(torch, job, out, deadline):
    (nd, cin, cout, groups, size, kernel, stride, padding, dilation, transposed, extra), dtype, last, batches = job
    element = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}[dtype]
    dtype_ = getattr(torch, dtype)
    shape = [cin, cout // groups] if transposed else [cout, cin // groups]
    form = {2: torch.channels_last, 3: torch.channels_last_3d}.get(nd)
    ops = torch.ops.aten
    for batch in batches:
        if time.time() > deadline:
            return
        if transposed:
            sides = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + e for n, s, p, d, k, e in zip(size, stride, padding, dilation, kernel, extra)]
        else:
            sides = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, s, p, d, k in zip(size, stride, padding, dilation, kernel)]
        if min(sides) < 1:
            return
        volume = lambda sides: math.prod(sides)
        x_count, y_count = batch * cin * volume(size), batch * cout * volume(sides)
        flops = 2 * (x_count * cout if transposed else y_count * cin) // groups * volume(kernel)
        limit = MOST_FLOPS if groups == 1 else MOST_FLOPS / 20
        if dtype == "float64":
            limit /= 20
        if (x_count + y_count) * element > MOST_BYTES or flops > limit:
            return
        row = {"kind": "conv", "layer": [nd, cin, cout, groups, size, kernel, stride, padding, dilation, transposed, extra], "dtype": dtype, "last": last, "batch": batch}
        try:
            x = torch.empty([batch, cin, *size], dtype=dtype_, device="cuda")
            w = torch.empty([*shape, *kernel], dtype=dtype_, device="cuda")
            if last:
                x, w = x.to(memory_format=form), w.to(memory_format=form)
            args = (stride, padding, dilation, bool(transposed), extra, groups)
            y, row["forward"] = traced(torch, lambda: ops.convolution(x, w, None, *args))
            row["y_strides"] = list(y.stride())
            g = torch.empty_like(y)
            back = lambda mask: (lambda: ops.convolution_backward(g, x, w, [cout] if mask[2] else None, *args, mask) and None)
            if cin > 3:
                _, row["grad_input"] = traced(torch, back([True, False, False]))
            _, row["grad_weight"] = traced(torch, back([False, True, False]))
            if batch == batches[0] and (groups > 1 or last or transposed or dtype == "float64"):
                _, row["all"] = traced(torch, back([True, True, True]))
        except Exception as error:
            row["error"] = str(error)[:300]
        history(torch, False)
        x = w = y = g = None
        out(row)
    if torch.cuda.memory_reserved() > 6 << 30:
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- recurrent nets


def rnn_jobs():
    base = dict(mode="LSTM", i=64, h=128, t=50, b=8, l=1, bi=False, drop=0.0, proj=0, dtype="float32", amp=None, first=True, state=False, xgrad=True, what="train")
    jobs = []
    sweeps = dict(i=[1, 8, 17, 32, 40, 80, 100, 256, 300, 512], h=[8, 16, 20, 32, 50, 64, 100, 256, 300, 512, 768, 1024], t=[1, 2, 5, 10, 24, 100, 128, 200, 512],
                  b=[1, 2, 3, 4, 12, 16, 20, 32, 64, 96, 128, 256], l=[2, 3, 4], bi=[True], drop=[0.2], proj=[32, 64], first=[False], state=[True], xgrad=[False], what=["eval", "train_no_grad"])
    for mode in ("LSTM", "GRU", "RNN_TANH", "RNN_RELU"):
        for dtype, amp in (("float32", None), ("float16", None), ("float32", "float16"), ("bfloat16", None), ("float32", "bfloat16"), ("float64", None)):
            own = dict(base, mode=mode, dtype=dtype, amp=amp)
            jobs.append(own)
            for l, bi, drop in ((2, False, 0.0), (2, True, 0.0), (2, False, 0.3), (3, True, 0.3)):
                jobs.append(dict(own, l=l, bi=bi, drop=drop))
            for key, values in sweeps.items():
                if key == "proj" and mode != "LSTM":
                    continue
                for value in values:
                    jobs.append(dict(own, **{key: value}))
    draw = random.Random(7)
    randoms = []
    for _ in range(6000):
        one = dict(base, mode=draw.choice(["LSTM", "LSTM", "GRU", "RNN_TANH", "RNN_RELU"]),
                   i=draw.choice([1, 3, 8, 16, 32, 40, 64, 80, 96, 128, 200, 256, 300, 512, 768, 1024]), h=draw.choice([8, 16, 32, 48, 50, 64, 96, 100, 128, 192, 200, 256, 300, 384, 512, 650, 768, 1024, 1500, 2048]),
                   t=draw.choice([1, 7, 10, 16, 24, 35, 50, 64, 96, 100, 128, 200, 256, 400, 512, 1000]), b=draw.choice([1, 2, 4, 5, 8, 10, 16, 20, 24, 32, 48, 50, 64, 80, 100, 128, 200, 256, 512, 1024]),
                   l=draw.choice([1, 1, 2, 2, 3, 4]), bi=draw.random() < 0.4, drop=draw.choice([0.0, 0.2]), first=draw.random() < 0.6, state=draw.random() < 0.2, xgrad=draw.random() < 0.6,
                   what=draw.choice(["train", "train", "train", "eval"]))
        one["dtype"], one["amp"] = draw.choice([("float32", None), ("float32", None), ("float16", None), ("float32", "float16"), ("bfloat16", None), ("float32", "bfloat16")])
        if one["mode"] == "LSTM" and draw.random() < 0.15:
            one["proj"] = max(1, one["h"] // draw.choice([2, 4]))
        if one["l"] == 1:
            one["drop"] = 0.0
        randoms.append(one)
    for job in randoms:
        size = job["t"] * job["b"] * (job["h"] * 8 * job["l"] * (2 if job["bi"] else 1) + job["i"]) * 4
        weights = 16 * job["l"] * job["h"] * (2 * job["h"] + job["i"]) * (2 if job["bi"] else 1)
        if size < 1_500_000_000 and weights < 1_500_000_000:
            jobs.append(job)
    return jobs


def rnn_case(torch, job, out, deadline):
    row = dict(kind="rnn", **job)
    try:
        torch.manual_seed(0)
        make = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}.get(job["mode"], torch.nn.RNN)
        more = {"nonlinearity": job["mode"][4:].lower()} if job["mode"].startswith("RNN") else {}
        if job["proj"]:
            more["proj_size"] = job["proj"]
        net = make(job["i"], job["h"], job["l"], bidirectional=job["bi"], dropout=job["drop"], batch_first=job["first"], device="meta", dtype=getattr(torch, job["dtype"]), **more)
        net, row["empty"] = traced(torch, lambda: net.to_empty(device="cuda"))
        _, row["flatten"] = traced(torch, lambda: net.flatten_parameters())
        net.train(job["what"] != "eval")
        shape = [job["b"], job["t"], job["i"]] if job["first"] else [job["t"], job["b"], job["i"]]
        x = torch.zeros(shape, device="cuda", dtype=getattr(torch, job["dtype"]), requires_grad=job["xgrad"] and job["what"] == "train")
        state = ()
        if job["state"]:
            ways = job["l"] * (2 if job["bi"] else 1)
            h = torch.zeros([ways, job["b"], job["proj"] or job["h"]], device="cuda", dtype=x.dtype)
            c = torch.zeros([ways, job["b"], job["h"]], device="cuda", dtype=x.dtype)
            state = ((h, c),) if job["mode"] == "LSTM" else (h,)
        amp = job["amp"]

        def forward():
            with torch.set_grad_enabled(job["what"] == "train"), torch.autocast("cuda", dtype=getattr(torch, amp or "float16"), enabled=amp is not None):
                y, last = net(x, *state)
            del last
            return y

        for turn in ("cold", "warm"):
            y, row["forward_" + turn] = traced(torch, forward)
            row["y"] = [list(y.shape), list(y.stride()), str(y.dtype)]
            if job["what"] == "train":
                g = torch.empty_like(y)

                def backward():
                    y.backward(g)

                _, row["backward_" + turn] = traced(torch, backward)
                history(torch)
                del y, g
                for parameter in net.parameters():
                    parameter.grad = None
                x.grad = None
                row["end_" + turn] = taken(torch)
            else:
                del y
    except Exception as error:
        row["error"] = str(error)[:300]
    history(torch, False)
    net = x = state = y = g = None
    out(row)
    if torch.cuda.memory_reserved() > 6 << 30:
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- the rest


def misc_jobs():
    jobs = []
    for t, n, c, s in ((50, 4, 20, 10), (50, 16, 20, 10), (50, 64, 20, 10), (100, 16, 32, 20), (200, 16, 80, 40), (400, 8, 1000, 60), (128, 32, 30, 100), (300, 32, 5000, 120), (1000, 4, 40, 200)):
        for targets in ("int64", "int32", "int32_cpu", "int32_flat", "int32_flat_cpu", "int64_cpu"):
            for reduction in ("mean", "sum", "none"):
                jobs.append(("ctc", dict(t=t, n=n, c=c, s=s, targets=targets, reduction=reduction)))
    lengths = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 19, 31, 32, 37, 48, 50, 60, 64, 80, 96, 97, 100, 101, 120, 127, 128, 144, 160, 192, 200, 224, 240, 250, 256, 257, 300, 320, 384, 400, 480, 500, 509, 512, 640, 720, 768, 800, 900, 960, 1000, 1009, 1024, 1200, 1280, 1500, 1536, 2000, 2048, 2400, 3000, 3072, 4000, 4096, 4800, 5000, 6000, 6144, 8000, 8192, 9600, 10000, 10007, 12288, 16000, 16384, 20000, 22050, 24000, 30000, 32000, 32768, 44100, 48000, 65536, 80000, 100000, 131072, 160000, 262144, 524288, 1048576]
    for n in lengths:
        for b in (1, 3, 8, 64, 1000):
            for op in ("fft", "rfft", "irfft"):
                for dtype in ("float32", "float64", "float16"):
                    if dtype == "float16" and n & (n - 1):
                        continue
                    if dtype == "float64" and b not in (1, 8):
                        continue
                    if n * b * 8 < 1 << 28:
                        jobs.append(("fft", dict(op=op, shape=[b, n], dims=[1], dtype=dtype)))
    planes = [4, 7, 8, 14, 16, 28, 32, 33, 48, 56, 64, 96, 100, 112, 127, 128, 160, 192, 224, 256, 320, 384, 512, 1024]
    for n in planes:
        for m in (n, n // 2 + 1, 64, 50):
            for b in (1, 3, 16, 64, 200):
                for op in ("fft2", "rfft2", "irfft2", "ifft2"):
                    if n * m * b * 8 < 1 << 28:
                        jobs.append(("fft", dict(op=op, shape=[b, n, m], dims=[1, 2], dtype="float32")))
    for n in (4, 8, 16, 20, 32, 50, 64, 96, 128):
        for b in (1, 2, 8, 32):
            for op in ("fftn", "rfftn", "irfftn", "ifftn"):
                if n ** 3 * b * 8 < 1 << 28:
                    jobs.append(("fft", dict(op=op, shape=[b, n, n, n], dims=[1, 2, 3], dtype="float32")))
    for n in (14, 28, 64, 100, 256):
        for b in (1, 3, 16):
            for c in (32, 64, 384):
                for op in ("rfft2", "irfft2", "fft2"):
                    jobs.append(("fft", dict(op=op, shape=[b, n, n // 2 + 1 if op == "irfft2" else n, c], dims=[1, 2], dtype="float32")))
                for op in ("rfft", "irfft", "fft"):
                    jobs.append(("fft", dict(op=op, shape=[b, n, c], dims=[1], dtype="float32")))
    for n, hop, samples in ((400, 160, 16000), (512, 128, 16000), (1024, 256, 22050), (1024, 256, 44100), (2048, 512, 88200), (4096, 1024, 88200), (400, 200, 8000)):
        for b in (1, 2, 8, 32):
            for window in (True, False):
                for center in (True, False):
                    jobs.append(("stft", dict(n=n, hop=hop, samples=samples, b=b, window=window, center=center)))
    for shape in ([8, 32], [256, 512], [8, 32, 50], [32, 64, 1000], [8, 32, 28, 28], [4, 64, 56, 56], [64, 256, 14, 14], [2, 16, 16, 32, 32], [1, 32, 64, 64, 64], [2, 3, 8, 8], [1, 8, 128, 128], [1, 256, 32, 32]):
        for dtype in ("float32", "float16", "bfloat16"):
            for weight in ("same", "float32", "none"):
                for last in (False, True):
                    if last and len(shape) < 4:
                        continue
                    for what in ("train", "eval", "train_no_grad", "no_stats"):
                        jobs.append(("batch_norm", dict(shape=shape, dtype=dtype, weight=weight, last=last, what=what)))
                        if what in ("train", "eval") and len(shape) > 2:
                            jobs.append(("instance_norm", dict(shape=shape, dtype=dtype, weight=weight, last=last, what=what)))
    for shape, to in (([2, 3, 16, 16], [8, 8]), ([4, 64, 32, 32], [64, 64]), ([1, 1100, 8, 8], [8, 8])):
        for dtype in ("float32", "float16", "float64"):
            for align in (True, False):
                for mode in ("bilinear", "nearest", "bicubic"):
                    jobs.append(("grid_sample", dict(shape=shape, to=to, dtype=dtype, align=align, mode=mode)))
                jobs.append(("affine_grid", dict(shape=shape, to=to, dtype=dtype, align=align)))
    for amp in ("float16", "bfloat16"):
        for layer in (["Conv1d", 16, 32, 3, [4, 16, 100]], ["Conv3d", 8, 16, 3, [2, 8, 16, 16, 16]], ["ConvTranspose3d", 8, 16, 2, [2, 8, 16, 16, 16]], ["ConvTranspose1d", 16, 32, 4, [4, 16, 100]], ["Conv3d", 1, 16, 3, [2, 1, 32, 32, 32]]):
            for last in (False, True):
                jobs.append(("module", dict(layer=layer, amp=amp, last=last)))
                jobs.append(("module", dict(layer=layer, amp=None, last=last)))
    return jobs


def misc_case(torch, job, out, deadline):
    kind, about = job
    row = dict(kind=kind, **about)
    F = torch.nn.functional
    try:
        if kind == "ctc":
            x = torch.empty([about["t"], about["n"], about["c"]], device="cuda").normal_().log_softmax(2).requires_grad_()
            name = about["targets"].split("_")
            where = "cpu" if name[-1] == "cpu" else "cuda"
            shape = [about["n"] * about["s"]] if "flat" in name else [about["n"], about["s"]]
            y = torch.randint(1, about["c"], shape, dtype=getattr(torch, name[0]), device=where)
            lengths = dict(dtype=torch.int32 if name[0] == "int32" else torch.int64)
            a, b = torch.full([about["n"]], about["t"], **lengths), torch.full([about["n"]], about["s"], **lengths)
            for turn in ("cold", "warm"):
                loss, row["forward_" + turn] = traced(torch, lambda: F.ctc_loss(x, y, a, b, reduction=about["reduction"]))
                g = torch.ones_like(loss)
                _, row["backward_" + turn] = traced(torch, lambda: loss.backward(g))
                x.grad = None
                history(torch)
                del loss
                row["end_" + turn] = taken(torch)
        elif kind == "fft":
            complex_ = {"float32": torch.complex64, "float64": torch.complex128, "float16": torch.complex32}[about["dtype"]]
            real = about["op"].startswith("rfft")
            x = torch.zeros(about["shape"], device="cuda", dtype=getattr(torch, about["dtype"]) if real else complex_)
            run = getattr(torch.fft, about["op"])
            single = about["op"] in ("fft", "rfft", "irfft")
            call = lambda: run(x, dim=about["dims"][0] if single else about["dims"])
            for turn in ("cold", "warm"):
                y, row["forward_" + turn] = traced(torch, call)
            row["y"] = [list(y.shape), list(y.stride())]
            y = None
            x.requires_grad_()
            y, row["forward_grad"] = traced(torch, call)
            g = torch.zeros_like(y)
            _, row["backward"] = traced(torch, lambda: y.backward(g))
        elif kind == "stft":
            x = torch.zeros([about["b"], about["samples"]], device="cuda", requires_grad=True)
            window = torch.hann_window(about["n"], device="cuda") if about["window"] else None
            call = lambda: torch.stft(x, about["n"], about["hop"], window=window, center=about["center"], return_complex=True)
            for turn in ("cold", "warm"):
                y, row["forward_" + turn] = traced(torch, call)
                g = torch.zeros_like(y)
                row["y"] = [list(y.shape), list(y.stride())]
                _, row["backward_" + turn] = traced(torch, lambda: y.backward(g))
                x.grad = None
            if about["center"]:
                z = y.detach().clone().requires_grad_()
                z2, row["inverse"] = traced(torch, lambda: torch.istft(z, about["n"], about["hop"], window=torch.ones(about["n"], device="cuda") if window is None else window))
                g = torch.zeros_like(z2)
                _, row["inverse_backward"] = traced(torch, lambda: z2.backward(g))
        elif kind in ("batch_norm", "instance_norm"):
            shape, dtype = about["shape"], getattr(torch, about["dtype"])
            x = torch.zeros(shape, device="cuda", dtype=dtype)
            if about["last"]:
                x = x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
            x.requires_grad_()
            kept = dtype if about["weight"] == "same" else torch.float32
            w, b, m, v = (torch.ones(shape[1], device="cuda", dtype=kept) for _ in range(4))
            w.requires_grad_(), b.requires_grad_()
            if about["weight"] == "none":
                w = b = None
            if about["what"] == "no_stats":
                m = v = None
            training = about["what"] != "eval"

            def call():
                with torch.set_grad_enabled(about["what"] != "train_no_grad"):
                    if kind == "instance_norm":
                        return F.instance_norm(x, m if not training else None, v if not training else None, w, b, training)
                    return F.batch_norm(x, m, v, w, b, training)

            for turn in ("cold", "warm"):
                y, row["forward_" + turn] = traced(torch, call)
                row["y"] = [list(y.shape), list(y.stride())]
                if y.requires_grad:
                    row["node"] = y.grad_fn.name()
                    g = torch.empty_like(y)
                    _, row["backward_" + turn] = traced(torch, lambda: y.backward(g))
                    history(torch)
                    y = None
                    row["end_" + turn] = taken(torch)
                    x.grad = None
                    if w is not None:
                        w.grad = b.grad = None
        elif kind in ("grid_sample", "affine_grid"):
            dtype = getattr(torch, about["dtype"])
            n, c = about["shape"][:2]
            x = torch.zeros(about["shape"], device="cuda", dtype=dtype, requires_grad=True)
            theta = torch.zeros([n, 2, 3], device="cuda", dtype=dtype, requires_grad=True)
            grid = torch.zeros([n, *about["to"], 2], device="cuda", dtype=dtype, requires_grad=True)
            if kind == "affine_grid":
                call = lambda: F.affine_grid(theta, [n, c, *about["to"]], align_corners=about["align"])
            else:
                call = lambda: F.grid_sample(x, grid, mode=about["mode"], align_corners=about["align"])
            for turn in ("cold", "warm"):
                y, row["forward_" + turn] = traced(torch, call)
                row["node"] = y.grad_fn.name()
                g = torch.empty_like(y)
                _, row["backward_" + turn] = traced(torch, lambda: y.backward(g))
                x.grad = grid.grad = theta.grad = None
        elif kind == "module":
            name, i, o, k, shape = about["layer"]
            net = getattr(torch.nn, name)(i, o, k, padding=1).cuda()
            x = torch.zeros(shape, device="cuda", requires_grad=True)
            if about["last"] and len(shape) == 5:
                x = x.detach().to(memory_format=torch.channels_last_3d).requires_grad_()
                net = net.to(memory_format=torch.channels_last_3d)

            def call():
                with torch.autocast("cuda", dtype=getattr(torch, about["amp"] or "float16"), enabled=about["amp"] is not None):
                    return net(x)

            for turn in ("cold", "warm"):
                y, row["forward_" + turn] = traced(torch, call)
                row["y"] = [list(y.shape), list(y.stride())]
                g = torch.empty_like(y)
                _, row["backward_" + turn] = traced(torch, lambda: y.backward(g))
                history(torch)
                y = None
                row["end_" + turn] = taken(torch)
                x.grad = None
                net.zero_grad()
    except Exception as error:
        row["error"] = str(error)[:300]
    history(torch, False)
    x = y = g = w = b = m = v = z = z2 = net = theta = grid = loss = None
    out(row)
    if torch.cuda.memory_reserved() > 6 << 30:
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- running


def worker(number, workers, seconds, folder):
    deadline = time.time() + seconds
    import torch

    torch.cuda.init()
    # Two workers in ten for recurrent nets, one for the rest, as soon as they are done they help with convolutions.
    special = max(1, workers // 5)
    with gzip.open(os.path.join(folder, f"part-{number}.jsonl.gz"), "wt") as file:

        def out(row):
            file.write(json.dumps(row, separators=(",", ":")) + "\n")

        properties = torch.cuda.get_device_properties(0)
        out(dict(kind="about", torch=torch.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), card=properties.name, processors=properties.multi_processor_count,
                 capability=list(torch.cuda.get_device_capability()), worker=number, workers=workers, seconds=seconds))
        # The libraries' handles and workspaces are not of any case.
        a = torch.zeros([64, 64], device="cuda", requires_grad=True)
        try:
            (a @ a).sum().backward()
            torch.nn.functional.linear(a, a, a[0]).sum().backward()
        except Exception as error:
            out(dict(kind="about", error=str(error)[:300]))
        plans = []
        if number < special:
            plans.append((rnn_case, rnn_jobs()[number::special], 0.75))
        elif number < special + max(1, workers // 10):
            plans.append((misc_case, misc_jobs()[number - special :: max(1, workers // 10)], 1.0))
        convolutions = conv_jobs()
        plans.append((conv_case, convolutions[number::workers] if workers > 1 else convolutions, 1.0))
        start = time.time()
        for case, jobs, share in plans:
            until = start + (deadline - start) * share
            ran = 0
            for job in jobs:
                if time.time() > until:
                    break
                case(torch, job, out, deadline)
                ran += 1
            out(dict(kind="done", of=case.__name__, ran=ran, jobs=len(jobs), seconds=round(time.time() - start, 1)))


def text(folder):
    """The convolutions' workspaces in the format of crates/cuda/src/cudnn/record.rs."""
    short = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    jobs = collections.defaultdict(dict)
    for path in sorted(Path(folder).glob("part-*.jsonl.gz")):
        for line in gzip.open(path, "rt"):
            row = json.loads(line)
            if row["kind"] != "conv" or "error" in row or row["dtype"] not in short:
                continue
            nd, cin, cout, groups, *sides, transposed, extra = row["layer"]
            if groups > 1 and groups == cin and cout % cin == 0 and not transposed and not row["last"]:
                continue  # PyTorch's own kernels
            if nd == 1:
                sides = [[one, *side] for one, side in zip((1, 1, 1, 0, 1), sides)]
                extra = [0, *extra]
            numbers = [cin, cout, groups, *sum(sides, []), transposed]
            if row["last"] or nd == 3 or any(extra):
                numbers.append(int(row["last"]))
            if nd == 3 or any(extra):
                numbers += extra
            key = ",".join(map(str, numbers))
            for made in ("forward", "grad_input", "grad_weight"):
                sizes = [event for event in row.get(made) or [] if event != "oom" and event > 0]
                if sizes:
                    jobs[key, short[row["dtype"]], made][row["batch"]] = sizes[1] if len(sizes) > 1 else 0
    print("# PyTorch 2.11.0, cuDNN 9.19.0, NVIDIA H200")
    for (key, dtype, made), batches in sorted(jobs.items()):
        print(f"J {key} {dtype} {made}")
        for batch, size in sorted(batches.items()):
            print(f"{batch} 0:{size} 1:0" if size else f"{batch} 1:0")


def main():
    folder = os.environ.get("OUT", ".")
    if sys.argv[1:] == ["--text"]:
        return text(folder)
    os.makedirs(folder, exist_ok=True)
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        return worker(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), folder)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 210.0
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else max(2, min(14, (os.cpu_count() or 8) - 1))
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    processes = [subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", str(number), str(workers), str(seconds)], env=environment) for number in range(workers)]
    for process in processes:
        try:
            process.wait(timeout=seconds + 60)
        except subprocess.TimeoutExpired:
            process.kill()
    print("exits", [process.returncode for process in processes])


if __name__ == "__main__":
    main()
