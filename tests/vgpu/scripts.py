"""Runs small scripts on a virtual GPU and looks at what comes of them: their phases, what is known of values, what is said of the peak.

    scripts.py BATCHFIT [NAME...] [--python PYTHON]

PYTHON has PyTorch for CUDA. Ends with 1 where an answer is another than it should be.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

BLOCKS = """
import torch, torch.nn as nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 2048), nn.Linear(2048, 256)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
model = nn.Sequential(*[Block() for _ in range(3)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def step(f):
    f(torch.randn(1024, 256, device="cuda")).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def phases(answer):
    return [phase["name"] for phase in answer["phases"]]


def peak(answer):
    at_peak = answer["at_peak"] or {"phase": None, "module": None, "stack": []}
    return at_peak["phase"], at_peak["module"], [line.split(" ")[0] for line in at_peak["stack"]]


# Name: the script, what is asked of its answer, and what that should be.
SCRIPTS = {
    "the module and the line at the peak of a script that fits": (
        BLOCKS + "for _ in range(3):\n    step(model)\n",
        lambda answer: (answer["verdict"], phases(answer), peak(answer), answer["findings"]["has_stacks"]),
        ("fits", ["start", "step 1", "step 2", "step 3"], ("step 1", "backward of 2.up", ["script.py:12", "script.py:15"]), True),
    ),
    "what another process holds is in the way until it ends": (
        "import subprocess, sys, torch\nhold = 'import torch; x = torch.empty(50 << 30, dtype=torch.uint8, device=\\'cuda\\'); print(1, flush=True); input()'\n"
        "other = subprocess.Popen([sys.executable, '-c', hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\nother.stdout.readline()\n"
        "take = lambda: torch.empty(50 << 30, dtype=torch.uint8, device='cuda')\ntry:\n    take()\n    sys.exit(5)\nexcept torch.OutOfMemoryError as error:\n"
        "    assert f'Process {other.pid} has 50.5' in str(error), error\nother.communicate(b'\\n')\ntake()\n",
        lambda answer: (answer["verdict"], answer["exit_code"], answer["out_of_memory"]["others_bytes"] >> 30),
        ("fits", 0, 50),
    ),
    "a file that was there before is not overwritten": (
        "import os, torch\nopen('old.pt', 'w').write('mine')\nos.utime('old.pt', (1, 1))\nx = torch.zeros(8, device='cuda')\n"
        "torch.save(x, 'old.pt')\ntorch.save(x, f='new.pt')\nassert open('old.pt').read() == 'mine' and len(torch.load('new.pt')) == 8\n",
        lambda answer: (answer["verdict"], answer["exit_code"]),
        ("fits", 0),
    ),
    "who looks at the peak keeps nothing alive": (
        "import torch, torch.nn as nn\nclass Chain(nn.Module):\n    def forward(self, x):\n        a = torch.relu(x)\n        b = torch.relu(a)\n        del a\n        return torch.relu(b)\n"
        "x = torch.zeros(64 << 20, device='cuda')\nwith torch.no_grad():\n    Chain()(x)\n",
        lambda answer: answer["peak_allocated_bytes"],
        3 * (256 << 20),
    ),
    "a compiled step begins where an eager one does, and nothing is compiled but the script's own": (
        BLOCKS + "import torch._dynamo.utils as u\nstep(torch.compile(model, backend='aot_eager'))\nassert u.counters['frames']['total'] == 1, u.counters\n",
        lambda answer: (answer["exit_code"], phases(answer), peak(answer)[0]),
        (0, ["start", "step 1", "after the last step"], "step 1"),
    ),
    "a generator and a discriminator that evaluate in turn are in the midst of a step": (
        "import torch, torch.nn as nn\ng, d = nn.Linear(64, 512).cuda(), nn.Linear(512, 1).cuda()\nof_g, of_d = (torch.optim.Adam(one.parameters()) for one in (g, d))\nnoise = torch.randn(256, 64, device='cuda')\n"
        "for _ in range(3):\n    d.train(); g.eval()\n    with torch.no_grad(): fake = g(noise)\n    d(fake).mean().backward(); of_d.step()\n    g.train(); d.eval()\n    d(g(noise)).mean().backward(); of_g.step()\n",
        phases,
        ["start", "step 1", "step 2", "step 3"],
    ),
    "a teacher that is told to evaluate is a part of the step, and the student's own evaluation is none": (
        "import torch, torch.nn as nn\nteacher, student = nn.Linear(64, 512).cuda(), nn.Linear(64, 512).cuda()\noptimizer, x = torch.optim.SGD(student.parameters(), 1e-3), torch.randn(256, 64, device='cuda')\n"
        "for _ in range(3):\n    teacher.eval()\n    with torch.no_grad(): target = teacher(x)\n    student.train(); (student(x) - target).square().mean().backward(); optimizer.step()\n    student.eval()\n    with torch.no_grad(): student(x)\n",
        phases,
        ["start", "step 1", "evaluation", "step 2", "evaluation", "step 3"],
    ),
    "optimizers of the same parameters take turns, and one that another calls makes no step of its own": (
        "import torch\nnet, x = torch.nn.Linear(64, 64).cuda(), torch.randn(64, 64, device='cuda')\nadam, lbfgs = torch.optim.Adam(net.parameters()), torch.optim.LBFGS(net.parameters(), max_iter=2)\n"
        "class Outer(torch.optim.SGD):\n    def step(self, closure):\n        closure(); adam.step(); super().step()\n"
        "outer = Outer(net.parameters(), 1e-3)\ndef closure():\n    net.zero_grad(); loss = net(x).square().mean(); loss.backward(); return loss\nclosure(); adam.step(); lbfgs.step(closure); outer.step(closure)\n",
        lambda answer: (answer["steps"], phases(answer)),
        (3, ["start", "step 1", "step 2", "step 3"]),
    ),
    "lines of a package that python -m runs are the script's, wherever it is installed": (
        "import os, sys\nos.makedirs('site-packages/own')\nopen('site-packages/own/train.py', 'w').write('import torch\\ndef main():\\n    torch.zeros(1 << 20, device=\"cuda\")\\nmain()\\n')\n"
        "os.environ['PYTHONPATH'] = 'site-packages'\nos.execv(sys.executable, [sys.executable, '-m', 'own.train'])\n",
        lambda answer: (answer["exit_code"], peak(answer)[2]),
        (0, ["site-packages/own/train.py:3", "site-packages/own/train.py:4"]),
    ),
    "names of the script are its own": (
        "compile = exec = open = sys = 0\n" + BLOCKS + "step(model)\nif model(torch.randn(1024, 256, device='cuda'))[0, 0] > 5: pass\nassert sys == 0\n",
        lambda answer: (answer["exit_code"], phases(answer), len(answer["doubts"])),
        (0, ["start", "step 1", "after the last step"], 1),
    ),
    "LBFGS goes on for as many iterations as it was told, with the history that it keeps for them": (
        "import torch\nfor search, pairs in ((None, 5), ('strong_wolfe', 5)):\n    net, x = torch.nn.Linear(1024, 1024).cuda(), torch.randn(64, 1024, device='cuda')\n"
        "    lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=6, max_eval=60, line_search_fn=search)\n"
        "    def closure():\n        lbfgs.zero_grad(); loss = net(x).square().mean(); loss.backward(); return loss\n"
        "    lbfgs.step(closure)\n    kept = [len(state['old_dirs']) for state in lbfgs.state.values()]\n    assert kept == [pairs], (search, kept)\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "checks of bounds that nobody computed hold": (
        "import torch\nx = torch.randn(512, 1024, device='cuda')\nlow, high = torch.aminmax(x, dim=1)\nassert not torch.any(low > high) and torch.all(low <= high) and low.mean() <= high.mean()\n",
        lambda answer: (answer["exit_code"], answer["certainty"]),
        (0, "doubtful"),
    ),
    "on one core no tensor of a kept graph outlives it": (
        "import os, torch\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nnet, x, seen = torch.nn.Linear(256, 256).cuda(), torch.randn(64, 256, device='cuda'), set()\n"
        "for _ in range(300):\n    g = torch.autograd.grad((net(x) ** 2).sum(), list(net.parameters()), create_graph=True)\n    del g\n    seen.add(torch.cuda.memory_allocated())\nassert len(seen) == 1, seen\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "a slice of a large mask can be filled, and what was never computed is no zero": (
        "import torch\nmask = torch.where(torch.ones(4, 1, 1024, 1024, device='cuda', dtype=torch.bool), 0.0, 1.0)[:, 0, 0]\nmask[torch.ones(4, 1024, device='cuda') == 2] = 1\nassert not (mask > 0).any()\n"
        "x = torch.randn(256, 4096, device='cuda')\nassert not (x @ x.T == 0).any()\n",
        lambda answer: (answer["exit_code"], answer["certainty"]),
        (0, "chosen"),
    ),
    # As an H200 had it with PyTorch 2.11.
    "cudnn.benchmark takes for a moment what the largest engine asks for": (
        "import torch\ntorch.backends.cudnn.benchmark = True\nfor batch, inputs, side, outputs, taps, stride, padding, peaks in (\n"
        "    (128, 64, 32, 64, 3, 1, 1, (448937984, 620904448)), (128, 512, 4, 512, 3, 1, 1, (769654784, 1715470336)), (64, 64, 32, 128, 4, 2, 1, (38273536, 293601280)), (16, 64, 56, 256, 1, 1, 0, (641728512, 618987520))):\n"
        "    torch.cuda.empty_cache()\n    layer = torch.nn.Conv2d(inputs, outputs, taps, stride, padding, bias=False).cuda()\n    x = torch.randn(batch, inputs, side, side, device='cuda', requires_grad=True)\n"
        "    def peak(run):\n        before = torch.cuda.memory_allocated()\n        torch.cuda.reset_peak_memory_stats()\n        result = run()\n        return result, torch.cuda.max_memory_allocated() - before\n"
        "    y, forward = peak(lambda: layer(x))\n    ones = torch.ones_like(y)\n    _, backward = peak(lambda: y.backward(ones))\n    assert (forward, backward) == peaks, (forward, backward, peaks)\n    del x, y, ones, layer\n",
        lambda answer: (answer["exit_code"], ["cudnn.benchmark" in one["what"] for one in answer["assumptions"]]),
        (0, [True]),
    ),
    "random numbers are those that a GPU draws, of the same seed": (
        "import torch\ntorch.manual_seed(0)\na = torch.rand(5, device='cuda')\ntorch.manual_seed(0)\nb = torch.randn(4, device='cuda')\n"
        "assert [round(v, 4) for v in a.tolist() + b.tolist()] == [0.399, 0.5167, 0.0249, 0.9401, 0.9459, -0.9247, -0.4253, -2.6438, 0.1452]\n"
        "torch.manual_seed(0)\nassert torch.equal(torch.rand(1000, device='cuda') < 0.3, torch.empty(1000, device='cuda').uniform_(generator=torch.Generator('cuda').manual_seed(0)) < 0.3)\n",
        lambda answer: (answer["exit_code"], answer["certainty"]),
        (0, "exact"),
    ),
    "parameters that were trained are equal where one was copied from the other, or saved and loaded": (
        "import copy, io, torch\ndef trained():\n    p = torch.nn.Parameter(torch.randn(256, 256, device='cuda'))\n    optimizer = torch.optim.SGD([p], 1e-3); p.square().sum().backward(); optimizer.step(); return p\n"
        "a, b = trained(), trained()\nassert not torch.equal(a, b) and torch.equal(a, a) and torch.equal(a, copy.deepcopy(a))\n"
        "file = io.BytesIO(); torch.save({'a': a}, file); file.seek(0); loaded = torch.nn.Parameter(torch.load(file)['a']); assert torch.equal(a, loaded)\n"
        "with torch.no_grad():\n    b.copy_(a)\nassert torch.equal(a, b)\n"
        "x, y = (torch.nn.Parameter(torch.randn(256, 256).cuda()) for _ in 'xy')\nassert not torch.equal(x, y) and torch.equal(x, x.detach().clone())\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "products of batches succeed, and a histogram of what was never computed has bounds": (
        "import torch\nx = torch.randn(1 << 23, device='cuda')\nfor shape in ((4, 2, 2), (3000, 2, 2), (600, 8, 4)):\n    torch.linalg.qr(torch.randn(*shape, device='cuda'))\n"
        "torch.linalg.lstsq(torch.randn(8, 4, 2, device='cuda'), torch.randn(8, 4, 1, device='cuda'))\n"
        "full = torch.ones(1500, dtype=torch.int32, device='cuda') + torch.randint(9, (1500,), device='cuda', dtype=torch.int32); full.sum().item(); del full\n"
        "torch.linalg.inv(x[:6000].view(1500, 2, 2) * x[10000])\ntorch.histc(x, 5)\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "numbers that nobody computed are those that a check asks for": (
        "import torch, torch.distributions as D\nx = torch.randn(64, 700, device='cuda') @ torch.randn(700, 700, device='cuda')\n"
        "assert (x - x.detach() == 1.0).all() and not (x == 1.0).any() and not (x == 0).any() and not torch.isinf(x).any()\n"
        "D.Bernoulli(logits=x).log_prob((x > 0).float()); D.Bernoulli(logits=x).log_prob(torch.ones_like(x)); d = D.OneHotCategorical(logits=x); d.log_prob(d.sample())\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "each box is of the first level that is asked for": (
        "import torch\nlevels = torch.randn(100, 4096, device='cuda').sum(1).long()\nassert [len(torch.where(levels == k)[0]) for k in (0, 1, 2)] == [100, 0, 0]\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "torch.compile does not warn": (
        BLOCKS + "import warnings\nwarnings.filterwarnings('error', message='.*global hooks')\nstep(torch.compile(model, backend='eager'))\n",
        lambda answer: (answer["exit_code"], phases(answer)),
        (0, ["start", "step 1", "after the last step"]),
    ),
    "what is saved is no turn of a script": (
        "import io, torch\ntorch.save({'bias': torch.randn(3, 1 << 20, device='cuda').sum(1)}, io.BytesIO())\n",
        lambda answer: answer["doubts"],
        [],
    ),
    "a permutation that is scattered into memory of before is known": (
        "import torch\norder = torch.randperm(1000).cuda()\ntorch.randn(2000, 1 << 10, device='cuda').sum(1)\ninverse = torch.empty_like(order)\n"
        "inverse.scatter_(0, order, torch.arange(1000, device='cuda'))\nassert (inverse.cpu()[order.cpu()] == torch.arange(1000)).all()\n",
        lambda answer: (answer["exit_code"], answer["doubts"]),
        (0, []),
    ),
    "sparse gradients of an embedding that is used twice are coalesced": (
        "import torch\ntable = torch.nn.Embedding(1000, 64, sparse=True).cuda()\nused = [torch.randint(0, 1000, (900,), device='cuda') for _ in range(2)]\n"
        "sum(torch.randn(900, 64, device='cuda').mul(table(ids)).sum() for ids in used).backward()\nassert table.weight.grad.coalesce()._nnz() == torch.cat(used).unique().numel()\n",
        lambda answer: (answer["exit_code"], answer["doubts"]),
        (0, []),
    ),
    "of what was never computed nearly all differs from a mark, and little is above a threshold": (
        "import torch\nx = torch.randn(100_000, 2, device='cuda').sum(1)\nassert x[x.floor() != -1].numel() == 100_000\nassert x[x > 3].numel() == 0\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "what another stream copies to the host is no free memory until it is done, or waited for": (
        "import torch\nside, host = torch.cuda.Stream(), torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)\ndef offload():\n    x = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
        "    side.wait_stream(torch.cuda.current_stream())\n    with torch.cuda.stream(side): host.copy_(x, non_blocking=True)\n    x.record_stream(side)\n"
        "for _ in range(2): offload()\nfor _ in range(3): torch.cuda.synchronize(); offload()\nside.synchronize(); offload()\n",
        lambda answer: answer["peak_reserved_bytes"] >> 20,
        128,
    ),
    "an event is complete when the products before it are, and a copy to memory that is not pinned waits for them": (
        "import torch\na, host = torch.zeros(8192, 8192, device='cuda', dtype=torch.bfloat16), torch.empty(8192, 8192, dtype=torch.bfloat16)\n"
        "done = torch.cuda.Event()\na @ a\ndone.record()\nassert not done.query()\ntorch.cuda.synchronize()\nassert done.query()\na @ a\ndone.record()\nhost.copy_(a, non_blocking=True)\nassert done.query()\n",
        lambda answer: answer["exit_code"],
        0,
    ),
    "sequences of several lengths are packed and unpacked": (
        "import torch, torch.nn as nn\nx = torch.randn(8, 50, 64, device='cuda', requires_grad=True)\nlengths = torch.randint(20, 51, (8,), device='cuda')\nnet = nn.GRU(64, 64, 2, batch_first=True, bidirectional=True).cuda()\n"
        "for _ in range(2):\n    packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)\n    out, back = nn.utils.rnn.pad_packed_sequence(net(packed)[0], batch_first=True)\n"
        "    out.sum().backward()\n    assert (back == lengths.cpu()).all()\n",
        lambda answer: (answer["exit_code"], answer["doubts"]),
        (0, []),
    ),
}


# What can go wrong with the object that computes small tensors where none is carried: a compiler, the part of `batchfit run` in Python that is changed
# before, and what is said of it.
HALF = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo half > "$2"; shift; done'
FAILURES = {
    "the compiler is killed": ("kill -9 $$", "", "the compiler ended with -9"),
    "the compiler does not end": ("sleep 1000", "s/^LONGEST = .*/LONGEST = 0/", "took longer than 0 s"),
    "the disk is full": ("echo 'error: No space left on device' >&2; exit 1", "", "No space left on device"),
    "what was compiled is cut": (HALF, "", "does not load"),
    "what was compiled is of another version": ("exec g++ \"$@\" -UMADE_OF '-DMADE_OF=\"0.0\"'", "", "does not load"),
}
READS = "import torch\nx = torch.arange(5, device='cuda')\nprint('computed' if int(x.sum()) == 10 else 'not computed')\n"
SCRIPTS |= {
    f"{name}: that is said": (
        READS,
        lambda answer, said=said: (answer["exit_code"], answer["certainty"], len(answer["doubts"]), [said in note for note in answer["notes"] if "no numbers are computed" in note]),
        (0, "doubtful", 1, [True]),
        compiler,
        edit,
    )
    for name, (compiler, edit, said) in FAILURES.items()
}


def run(options, script, compiler=None, edit=""):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "script.py"), "w") as file:
            file.write(script)
        python, environment = options.python, dict(os.environ)
        if compiler:
            # Changes what was unpacked before Python sees it.
            carried = f'r=$(dirname "${{LD_PRELOAD%%:*}}")\n(unset LD_PRELOAD; rm -rf "$r/values/prebuilt"; sed -i "{edit}" "$r/python/values.py")'
            for name, text in (("python", f'{carried}\nexec {options.python} "$@"'), ("compiler", compiler)):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(f"#!/bin/sh\n{text}\n")
                os.chmod(file.name, 0o700)
            python = os.path.join(folder, "python")
            environment.update(CXX=os.path.join(folder, "compiler"), BATCHFIT_VGPU_CACHE=os.path.join(folder, "cache"))
        command = [options.batchfit, "run", "--on", "h100-80g", "--database", "runs.db", "--json", "--", python, "script.py"]
        done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return (json.loads(done.stdout) if done.stdout else {}), done.stderr[-2000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batchfit", type=os.path.abspath)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    wrong = 0
    for name, (script, look, expected, *broken) in SCRIPTS.items():
        if options.names and not any(word in name for word in options.names):
            continue
        answer, said = run(options, script, *broken)
        try:
            found = look(answer)
        except (KeyError, TypeError) as error:
            found = repr(error)
        wrong += found != expected
        print(f"{'ok' if found == expected else 'WRONG'}: {name}" + ("" if found == expected else f"\n  expected {expected}\n  found    {found}\n{said}"), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
