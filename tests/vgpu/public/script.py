"""script.py MEASURES STEPS SCRIPT ARGUMENTS: runs a script as it is, writes the allocator's peaks after each optimizer step, and ends after STEPS."""
import importlib.abc, importlib.machinery, importlib.util, json, os, runpy, sys, types
from unittest.mock import MagicMock

out, steps, script = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Absent(types.ModuleType):
    """A module that is not installed, and of which nothing is needed but that it can be imported and called."""
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = ("wandb", "tensorboard", "matplotlib", "tensorboard_logger", "tensorboardX", "pytorch_fid", "scipy", "cv2", "tiktoken", "h5py", "sktime", "reformer_pytorch", "patoolib", "statsmodels", "ptwt", "local_attention", "colorama", "requests", "sklearn")

    def find_spec(self, name, path=None, target=None):
        if any(name == n or name.startswith(n + ".") for n in self.names): return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec): return Absent(spec.name)
    def exec_module(self, module): pass


class SummaryWriter:
    log_dir = "runs"
    def __init__(self, *_, **__): os.makedirs("runs", exist_ok=True)
    def __getattr__(self, name): return lambda *_, **__: None


class StandardScaler:
    def fit(self, x): self.mean, self.deviation = x.mean(0), x.std(0) + 1e-9; return self
    def transform(self, x): return (x - self.mean) / self.deviation
    def inverse_transform(self, x): return x * self.deviation + self.mean


sys.meta_path.append(Finder())
import numpy, torch, torchvision
for name, of in (("torch.utils.tensorboard", {"SummaryWriter": SummaryWriter}), ("sklearn.preprocessing", {"StandardScaler": StandardScaler})):
    if isinstance(importlib.import_module("tensorboard" if "tensor" in name else "sklearn"), Absent):
        sys.modules[name] = Absent(name)
        vars(sys.modules[name]).update(of)
# Old scripts name these; data is not what its checksums say; weights are not downloaded.
numpy.int, numpy.Inf = int, numpy.inf
import torchvision.datasets.cifar, torchvision.models._api
torchvision.datasets.cifar.check_integrity = lambda path, md5=None: os.path.isfile(path)
torchvision.models._api.WeightsEnum.get_state_dict = lambda *_, **__: None
load = torch.nn.Module.load_state_dict
torch.nn.Module.load_state_dict = lambda self, state, *a, **k: None if state is None else load(self, state, *a, **k)
torch.hub.list = lambda *_, **__: []
count = 0


def row(phase):
    if not torch.cuda.is_initialized(): return
    torch.cuda.synchronize()
    s = torch.cuda.memory_stats()
    with open(out, "a") as f: f.write(json.dumps(dict(phase=phase, peak_allocated=s["allocated_bytes.all.peak"], peak_reserved=s["reserved_bytes.all.peak"])) + "\n")
    torch.cuda.reset_peak_memory_stats()


def after(optimizer, args, kwargs):
    global count
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing(): return
    count += 1
    row(f"step{count}")
    if count >= steps:
        sys.stdout.flush(); sys.stderr.flush()
        os._exit(0)


from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(after)
torch.manual_seed(0)
sys.argv, sys.path[0] = sys.argv[3:], os.path.dirname(os.path.abspath(script))
try: runpy.run_path(script, run_name="__main__")
finally: row("end")
