"""What the programs of this folder share: the command line, and with MEASURE=FILE a JSON line of the allocator's peaks for each phase.

A phase ends with each step of any optimizer, where a program says mark("name"), and at the end ("end"). Without MEASURE all of this does nothing, and a program is what its user wrote.
"""
import argparse, atexit, json, os, sys, time
import torch

_file, _start, _steps = os.environ.get("MEASURE"), time.time(), 0


def arguments(batch, steps=3, **more):
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=batch)
    p.add_argument("--steps", type=int, default=steps)
    for name, value in more.items(): p.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    a, _ = p.parse_known_args()
    torch.manual_seed(0)
    mark.batch = a.batch
    return a


def mark(phase, **more):
    """The phase that began at the last mark ends here; `more` is written with it."""
    if not _file or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing(): return
    torch.cuda.synchronize()
    s = torch.cuda.memory_stats()
    rank = int(os.environ.get("RANK", 0))
    row = dict(program=os.path.basename(sys.argv[0])[:-3], batch=mark.batch, phase=phase, peak_allocated=s.get("allocated_bytes.all.peak", 0), peak_reserved=s.get("reserved_bytes.all.peak", 0),
               allocated=s.get("allocated_bytes.all.current", 0), reserved=s.get("reserved_bytes.all.current", 0), retries=s.get("num_alloc_retries", 0), rank=rank, seconds=round(time.time() - _start, 2), **more)
    with open(_file, "a") as f: f.write(json.dumps(row) + "\n")
    torch.cuda.reset_peak_memory_stats()


def _after_step(optimizer, args, kwargs):
    global _steps
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing(): return
    _steps += 1
    mark(f"step{_steps}")


def _end():
    if not torch.cuda.is_initialized(): return
    import importlib.metadata as md
    versions = {}
    for k in ("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed", "datasets", "sentence-transformers", "diffusers", "pytorch-lightning", "torchvision", "torchaudio", "timm", "torch-geometric",
              "liger-kernel", "torchtune", "ultralytics", "triton"):
        if k.replace("-", "_") in sys.modules:
            try: versions[k] = md.version(k)
            except Exception: pass
    mark("end", versions=versions, cudnn=torch.backends.cudnn.version(), device=torch.cuda.get_device_name(), total_memory=torch.cuda.get_device_properties(0).total_memory, world=int(os.environ.get("WORLD_SIZE", 1)))


mark.batch = 0
if _file:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(_after_step)
    atexit.register(_end)
if os.environ.get("CAP"):
    torch.cuda.set_per_process_memory_fraction(int(os.environ["CAP"]) / torch.cuda.get_device_properties(0).total_memory)
