#!/usr/bin/env python3
"""names.py [SITE_PACKAGES..]: writes src/names/list.rs, the CUDA names that programs link to or look up and nothing here answers by hand.

With folders of installed wheels, their names join those already in the list. Without, only what has been written by hand since is taken out
(what is by hand: the names of an object compiled without the list)."""
import glob, os, re, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "src/names/list.rs")
OURS = re.compile(r"(__cuda|cuda[A-Z]|cublas|cusparse|cusolver|cufft|curand|nvml[A-Z]|cupti[A-Z]|p?nccl[A-Z]|cuFile|nvshmem|"
                  r"cu(Array|Checkpoint|Coredump|Ctx|Dev|Destroy|Event|External|Flush|Func|Get|Graph|Green|Host|Import|Init|Ipc|Kernel|Launch|Library|"
                  r"Link|Logs|Mem|Mipmapped|Module|Multicast|Occupancy|Param|Pointer|Profiler|Process|Signal|Stream|Surf|Tensor|Tex|Thread|User|Wait))")
# Types and constants that look like functions, and what belongs to libraries that stay real.
NOT = re.compile(r"cudnn|nvrtc|nvJitLink|.*(_st|_t|_fn|Fn|_enum|_v\d+_t)$|cudaGL|cudaEGL|cudaVDPAU|cudaD3D|cu(GL|EGL|VDPAU|D3D)|__cuda_?fp|cudaProfilerTypedefs")
# What makes something: a fresh handle goes to the first argument.
CREATES = re.compile(r"(cu|cuda|cublas|cusparse|cusolver|curand|cufft)\w*Create(?!.*(Info|Destroy))|cusparse(Const)?\w+_create\w*")
# What sets, destroys or computes, and leaves nothing behind that a host reads: done.
DONE = re.compile(r"cu(blas|sparse|solver|rand|fft|pti|da|)\w*(Set|set|Destroy|destroy|Unload|Free|Release|Reset|Launch|Prefetch|Advise|Synchronize|Enable|Disable|Unregister|Register|Profiler|Push)\w*|"
                  r"cublas(Lt)?[SDCZHIG]\w+|cublas(Gemm|Lt|Hgemm|Nrm2|Dot|Scal|Axpy|Trsm|Asum|Rot)\w+|cusparse[SDCZX][a-z]\w+|cusparse(SpMM|SpMV|SDDMM|SpSM|SpSV|SpGEMM|Axpby|Gather|Scatter|DenseToSparse|SparseToDense)\w*|cusolver(Dn|Sp|)[SDCZXI][a-z]\w+|"
                  r"curand(Generate|Seed)\w*|cufft(Xt)?Exec\w*")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def symbols(path, kind):
    return {line.split()[-1].split("@")[0] for line in run("nm", "-D", kind, path).splitlines() if line.split()}


def by_hand():
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "object.so")
        subprocess.run(["rustc", "--edition", "2024", "--crate-name", "batchfit_vgpu", "--crate-type", "cdylib", "-C", "panic=abort", "--cap-lints", "allow",
                        "--cfg", "batchfit_without_names", os.path.join(HERE, "src/lib.rs"), "-o", made], check=True)
        return symbols(made, "--defined-only")


def wanted(site):
    found = set()
    for path in [p for pattern in ("torch/lib/*.so*", "torch/lib/../*.so", "torchvision/*.so", "torchaudio/lib/*.so", "bitsandbytes/*cuda*.so", "triton/_C/*.so") for p in glob.glob(os.path.join(site, pattern))]:
        found |= symbols(path, "--undefined-only")
    for pattern in ("nvidia/*/include/cuda.h", "nvidia/*/include/cuda_runtime_api.h", "triton/backends/nvidia/include/cuda.h", "torch/include/c10/cuda/driver_api.h", "triton/backends/nvidia/driver.c"):
        for path in glob.glob(os.path.join(site, pattern)):
            text = re.sub(r"/\*.*?\*/", " ", open(path, encoding="utf8", errors="replace").read(), flags=re.S)
            called = set(re.findall(r"\b(cu[A-Z]\w+|cuda[A-Z]\w+|nvml[A-Z]\w+)\s*\(", text)) | set(re.findall(r"_\((cu\w+|nvml\w+)", text))
            if path.endswith("cuda.h"):     # `#define cuMemAlloc cuMemAlloc_v2`: both are looked up
                called |= {name for pair in re.findall(r"#define\s+(cu[A-Z]\w+)\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w+)", text) for name in pair}
            found |= called
    for path in glob.glob(os.path.join(site, "pynvml.py")):
        found |= set(re.findall(r"GetFunctionPointer\(\"(nvml\w+)\"", open(path, encoding="utf8").read()))
    return {name for name in found if OURS.match(name) and not NOT.match(name) and name.isidentifier()}


def listed():
    if not os.path.exists(LIST):
        return set()
    return {name for name in re.findall(r"\b\w+\b", re.sub(r"//.*", "", open(LIST, encoding="utf8").read())) if OURS.match(name)}


def unversioned(name):
    return re.sub(r"_v\d+$", "", name)


def kind(name):
    if name.startswith("nvml"):
        return "not_supported"
    if re.search(r"[bB]uffer_?[sS]ize|[wW]orkspace_?[sS]ize|_get_?[wW]orkspace", name):
        return "unanswered"
    return "creates" if CREATES.fullmatch(name) else "done" if DONE.fullmatch(name) and "Get" not in name else "unanswered"


def main():
    have = by_hand()
    names = listed().union(*(wanted(site) for site in sys.argv[1:])) - have
    kinds = {"done": [], "creates": [], "not_supported": [], "unanswered": [], "same": []}
    for name in sorted(names):
        base = unversioned(name)
        # Versions of a name in the driver: one by hand answers for the others, else a lookup of the other finds an answer that does nothing.
        twins = [twin for twin in (base, *(f"{base}_v{n}" for n in (2, 3, 4))) if twin in have]
        if twins and re.match(r"cu[A-Z]", name) and not name.startswith("cuFile"):
            kinds["same"].append(f"{name} = {twins[0]},")
        else:
            kinds[kind(name)].append(name)
    with open(LIST, "w", encoding="utf8") as out:
        out.write("// Written by names.py: names that nothing answers by hand, by what calling them does (super).\n")
        for title, entries in kinds.items():
            line, lines = "   ", []
            for entry in entries:
                if len(line) + 1 + len(entry) > 250:
                    lines, line = [*lines, line], "   "
                line += " " + entry
            out.write("\n".join([f"{title}! {{", *lines, line, "}"]) + "\n")
    print(", ".join(f"{len(entries)} {title}" for title, entries in kinds.items()), f"; {len(have)} by hand")


if __name__ == "__main__":
    main()
