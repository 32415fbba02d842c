"""Runs the programs of this folder and writes their allocator's peaks as one JSON; on a machine with a GPU that is a recording, under a virtual GPU its answer.

    python3 record.py OUT.json [--only a,b] [--skip a,b] [--slots 12] [--room 70] [--seconds 440] [--double] [--timeout 150] [--logs FOLDER] [--no-fork] [--ranks N] [--extra NAME=FOLDER]..

rows: program, batch, phase, peak_allocated, peak_reserved, allocated, reserved, retries, rank, seconds (and what a program wrote with its phase, such as the batch found).
runs: program, batch, ok, seconds, error, versions, device, total_memory, world.

Several programs run at once while what they are expected to reserve (expected.json, GiB) fits into --room: the allocator's figures are each process's own. A run is a process forked from one that has
imported the libraries and never touched CUDA; programs that compile, and those that set the environment before they import torch, are started afresh. --double: also twice the batch of programs for which that is of use. --ranks: programs written for torchrun run on N GPUs, else alone as rank 0 of 1
(or as the environment's WORLD_SIZE says). --extra: a folder of packages only for the programs that name NAME, as "import NAME" or "from NAME"; transformers imports DeepSpeed wherever it finds it.
"""
import argparse, glob, json, os, re, subprocess, sys, threading, time
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
HELPERS = {"measure", "standin"}


def text(name): return open(os.path.join(PROGRAMS, name + ".py")).read()
def early(name): return 'os.environ["' in text(name).split("import torch")[0]
def uses(name, module): return bool(re.search(rf"^\s*(import|from) {module}\b", text(name), re.M)) or module in name.split("_")
def ranks(name): return "for torchrun" in text(name)[:400]
def default(name, option="batch"):
    m = re.search(rf"arguments\([^)]*{option}=(\d+)", text(name)); return int(m.group(1)) if m else 3


def zygote(names):
    """Imports once, forks a process for each line of JSON on stdin, says {"id", "pid"} and {"id", "rc"}."""
    import runpy, select
    import torch
    capability = torch.cuda.get_device_capability
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)       # asked by bitsandbytes while it is imported; the real answer would start CUDA, and then no fork could use it
    say = lambda **m: (sys.__stdout__.write(json.dumps(m) + "\n"), sys.__stdout__.flush())
    for n in names:
        m, _, attrs = n.partition(":")
        t = time.time()
        try:
            mod = __import__(m, fromlist=["x"])
            for a in filter(None, attrs.split("+")): getattr(mod, a)
        except Exception as e: say(log=f"import {n}: {type(e).__name__}: {e}"[:300])
        say(log=f"{n.partition(':')[0]} {time.time() - t:.1f} s")
    torch.cuda.get_device_capability = capability
    say(ready=not torch.cuda.is_initialized())
    open_log, running = os.environ.get("VGPU_LOG"), {}
    while True:
        if select.select([0], [], [], 0.1)[0]:
            line = sys.stdin.readline()
            if not line: break
            q = json.loads(line)
            pid = os.fork()
            if not pid:
                os.setsid()
                os.environ.update(q["env"])
                for fd in os.listdir("/proc/self/fd"):          # a virtual GPU's log that is open already
                    try:
                        if open_log and q["env"].get("VGPU_LOG") and os.readlink("/proc/self/fd/" + fd) == open_log: os.dup2(os.open(q["env"]["VGPU_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), int(fd))
                    except OSError: pass
                out, null = os.open(q["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), os.open("/dev/null", os.O_RDONLY)
                os.dup2(out, 1); os.dup2(out, 2); os.dup2(null, 0)
                os.chdir(q["cwd"]); sys.path.insert(0, os.path.dirname(q["argv"][0])); sys.argv = list(q["argv"])
                code = 0
                try: runpy.run_path(q["argv"][0], run_name="__main__")
                except SystemExit as e: code = int(e.code or 0) if isinstance(e.code, (int, type(None))) else 1
                except BaseException:
                    import traceback
                    traceback.print_exc(); code = 1
                import atexit
                try: atexit._run_exitfuncs()
                except BaseException: code = code or 1
                try: sys.stdout.flush(); sys.stderr.flush()
                finally: os._exit(code)
            running[pid] = q["id"]
            say(id=q["id"], pid=pid)
        while running:
            try: pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError: break
            if not pid: break
            if pid in running: say(id=running.pop(pid), rc=os.waitstatus_to_exitcode(status))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out"); ap.add_argument("--only", default=""); ap.add_argument("--skip", default=""); ap.add_argument("--slots", type=int, default=12); ap.add_argument("--room", type=float, default=70); ap.add_argument("--seconds", type=float, default=440)
    ap.add_argument("--timeout", type=float, default=150); ap.add_argument("--double", action="store_true"); ap.add_argument("--no-fork", action="store_true"); ap.add_argument("--logs", default=""); ap.add_argument("--env", action="append", default=[]); ap.add_argument("--ranks", type=int, default=1); ap.add_argument("--extra", action="append", default=[])
    ap.add_argument("--imports", default="torchvision,torchaudio,timm,transformers:Trainer+LlamaForCausalLM+GPT2LMHeadModel+BitsAndBytesConfig+BertForSequenceClassification,peft,datasets,trl:SFTTrainer+DPOTrainer+GRPOTrainer+RewardTrainer,sentence_transformers,sentence_transformers.cross_encoder,diffusers:UNet2DConditionModel+AutoencoderKL+UNet2DModel,pytorch_lightning,torch_geometric.nn,torch._dynamo,torch._inductor.compile_fx")
    a = ap.parse_args()
    start = time.time()
    logs = os.path.abspath(a.logs or "/tmp/vgpu-record-%d" % os.getpid()); os.makedirs(logs, exist_ok=True)
    env = dict(os.environ, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1", PYTORCH_NVML_BASED_CUDA_CHECK="1", DS_SKIP_CUDA_CHECK="1", DS_BUILD_OPS="0", HF_HOME=os.path.join(logs, "hf"), WANDB_DISABLED="true",
               TORCHINDUCTOR_COMPILE_THREADS=os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1"))
    env.update(e.split("=", 1) for e in a.env)
    names = sorted(os.path.basename(p)[:-3] for p in glob.glob(PROGRAMS + "/*.py")); names = [n for n in names if n not in HELPERS]
    if a.only: names = [n for n in a.only.split(",")]
    names = [n for n in names if n not in a.skip.split(",")]
    expected = json.load(open(os.path.join(HERE, "expected.json"))) if os.path.exists(os.path.join(HERE, "expected.json")) else {}
    jobs = [(n, None) for n in names] + [(n, 2 * default(n)) for n in names if a.double and expected.get(n, {}).get("double", True)]
    jobs.sort(key=lambda j: (j[1] is not None, -expected.get(j[0], {}).get("seconds", 20)))          # long ones first, doubles last
    extra = dict(e.split("=", 1) for e in a.extra)
    added = lambda name: [folder for module, folder in extra.items() if uses(name, module)]
    fresh = lambda name: early(name) or "torch.compile(" in text(name) or bool(added(name)) or "deepspeed" in name or a.ranks > 1 and ranks(name)
    rows, runs, lock, room, port = [], [], threading.Lock(), threading.Condition(), [29700]
    used, busy = [0.0], [0]
    z, done, pids = None, {}, {}
    if not a.no_fork and any(not fresh(n) for n in names):
        z = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--zygote", a.imports], env=dict(env, VGPU_LOG=os.path.join(logs, "imports.vgpu")) if "VGPU_LOG" in env else env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = False
        for line in z.stdout:
            if not line.startswith("{"): continue
            m = json.loads(line)
            if "log" in m: print(f"{time.time() - start:6.1f} {m['log']}", flush=True)
            if "ready" in m: ready = m["ready"]; break
        if not ready: print("no forks: the imports started CUDA or failed", flush=True); z = None

        def read():
            for line in z.stdout:
                if not line.startswith("{"): continue
                m = json.loads(line)
                if "pid" in m: pids[m["id"]] = m["pid"]
                if "rc" in m: done[m["id"]].rc = m["rc"]; done[m["id"]].set()
        if z: threading.Thread(target=read, daemon=True).start()

    def save():
        with lock:
            with open(a.out + ".tmp", "w") as f: json.dump({"rows": rows, "runs": runs, "seconds": round(time.time() - start, 1)}, f)
            os.replace(a.out + ".tmp", a.out)

    def one(name, batch, gib):
        tag = name if batch is None else f"{name}-b{batch}"
        base = os.path.join(logs, tag)
        for e in (".measure", ".vgpu", ".log"):
            if os.path.exists(base + e): os.remove(base + e)
        cwd = os.path.join(logs, "cwd"); os.makedirs(cwd, exist_ok=True)
        mine = {"MEASURE": base + ".measure"}
        if "VGPU_LOG" in env: mine["VGPU_LOG"] = base + ".vgpu"
        if ranks(name):
            with lock: port[0] += 1
            if a.ranks == 1:
              for k, v in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port[0])).items(): mine[k] = env.get(k, v)
        if added(name): mine["PYTHONPATH"] = ":".join(added(name) + [p for p in (env.get("PYTHONPATH"),) if p])
        argv = [os.path.join(PROGRAMS, name + ".py")] + (["--batch", str(batch)] if batch else [])
        t, limit = time.time(), min(a.timeout, max(5, a.seconds - (time.time() - start)))
        if z and not fresh(name):
            with lock:
                i = len(done); done[i] = threading.Event()
                z.stdin.write(json.dumps(dict(id=i, argv=argv, log=base + ".log", env=mine, cwd=cwd)) + "\n"); z.stdin.flush()
            if not done[i].wait(limit):
                try: os.killpg(pids[i], 9)
                except (OSError, KeyError): pass
                done[i].wait(5)
                rc = "timeout"
            else: rc = done[i].rc
        else:
            start_with = ["-m", "torch.distributed.run", f"--nproc_per_node={a.ranks}", f"--master_port={port[0]}", "--max-restarts=0"] if a.ranks > 1 and ranks(name) else []
            with open(base + ".log", "w") as f: p = subprocess.Popen([sys.executable] + start_with + argv, env=dict(env, **mine), cwd=cwd, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)
            try: rc = p.wait(limit)
            except subprocess.TimeoutExpired: os.killpg(p.pid, 9); p.wait(); rc = "timeout"
        got = []
        if os.path.exists(base + ".measure"):
            for line in open(base + ".measure"):
                try: got.append(json.loads(line))
                except ValueError: pass
        end = next((r for r in got if r["phase"] == "end" and r["rank"] == 0), {})
        said = open(base + ".log", errors="replace").read()
        run = dict(program=name, batch=got[-1]["batch"] if got else batch, ok=rc == 0 and bool(end), rc=rc, wall=round(time.time() - t, 1), peak_allocated=max([r["peak_allocated"] for r in got] or [0]), peak_reserved=max([r["peak_reserved"] for r in got] or [0]),
                   **{k: end.get(k) for k in ("versions", "cudnn", "device", "total_memory", "world")})
        for r in got: [r.pop(k, None) for k in ("versions", "cudnn", "device", "total_memory", "world")]
        if not run["ok"]: run["error"] = said[-1500:]
        with lock: rows.extend(got); runs.append(run)
        save()
        last = [l for l in said.splitlines() if re.search(r"Error|error:|Killed|Fault", l)][-1:]
        print(f"{time.time() - start:6.1f} {tag:30} ok={run['ok']} rc={rc} {run['wall']:6.1f} s {run['peak_allocated'] / 2**30:6.2f} {run['peak_reserved'] / 2**30:6.2f} GiB {len(got)} phases {(last or [''])[0][:220] if not run['ok'] else ''}", flush=True)

    def worker():
        while True:
            with room:
                while True:
                    if not jobs or time.time() - start > a.seconds - 12: return
                    for k, (n, b) in enumerate(jobs):
                        gib = min(a.room, 1.2 + expected.get(n, {}).get("gib", 5) * (2 if b else 1))
                        if not busy[0] or used[0] + gib <= a.room: break
                    else: room.wait(0.5); continue
                    jobs.pop(k); used[0] += gib; busy[0] += 1
                    break
            try: one(n, b, gib)
            except Exception as e: print(f"{n}: {type(e).__name__}: {e}", flush=True)
            with room: used[0] -= gib; busy[0] -= 1; room.notify_all()

    threads = [threading.Thread(target=worker) for _ in range(a.slots)]
    for t in threads: t.start()
    for t in threads: t.join()
    save()
    print(f"{time.time() - start:.1f} s: {len(runs)} runs, {sum(r['ok'] for r in runs)} ok, {len(rows)} rows; not run: {[n if b is None else f'{n} {b}' for n, b in jobs]}", flush=True)
    if z: z.stdin.close()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "--zygote": zygote(sys.argv[2].split(","))
    else: main()
