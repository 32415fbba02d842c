"""Runs recorded programs with a limit near their own peak, and says whether each fits: on a GPU, then under a virtual one beside that.

    python3 verdicts.py CARD.json [--factors 1.01,0.97,0.9 | --random SEED] [--only a,b] [--slots 14] [--timeout 200]
    python3 verdicts.py HERE.json --beside CARD.json --prefix "batchfit run --on h200 --steps 0 --" [the same]

A limit is a factor times the peak reserved in h200.json, else in h100.json at its first batch; with --random one factor a program, between 0.6 and 1.4. Left out
are programs that choose a batch, a limit or a length by what is free, that compile, or that need more than PyTorch and transformers.
"""
import argparse, concurrent.futures, json, os, random, re, subprocess, sys, tempfile
HERE = os.path.dirname(os.path.abspath(__file__))
OTHERS = "trl|datasets|bitsandbytes|deepspeed|diffusers|lightning|liger_kernel|pynvml|sentence_transformers|torch_geometric"
LEFT_OUT = re.compile(rf"OutOfMemory|mem_get_info|set_per_process|CUDA_ALLOC_CONF|generate|for torchrun|compile|8bit|(import|from) ({OTHERS})")


def recorded():
    """Batch and peak reserved in bytes of each program, by its name."""
    found = {}
    for name in ("h100.json", "h200.json"):
        for run in json.load(open(os.path.join(HERE, name)))["runs"]:
            path = os.path.join(HERE, "programs", run["program"] + ".py")
            is_first = name == "h200.json" or run["program"] not in found
            if run["ok"] and is_first and run.get("world", 1) == 1 and 200 << 20 <= run.get("peak_reserved", 0) <= 40 << 30 and not LEFT_OUT.search(open(path).read()):
                found[run["program"]] = run["batch"], run["peak_reserved"]
    return found


def one(a, program, batch, peak, factor):
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, CAP=str(int(peak * factor)), MEASURE=os.path.join(folder, "measure"), OMP_NUM_THREADS="1")
        command = [*a.prefix.split(), a.python, os.path.join(HERE, "programs", program + ".py"), "--batch", str(batch)]
        try: done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=a.timeout)
        except subprocess.TimeoutExpired: return dict(program=program, factor=factor, verdict="timeout")
        said = done.stderr + done.stdout
        verdict = "fits" if not done.returncode else "out of memory" if "out of memory" in said else "error: " + said[-200:]
        return dict(program=program, factor=factor, verdict=verdict)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out"); p.add_argument("--beside"); p.add_argument("--prefix", default=""); p.add_argument("--factors", default="1.01,0.97,0.9"); p.add_argument("--random", type=int)
    p.add_argument("--only", default=""); p.add_argument("--slots", type=int, default=14); p.add_argument("--timeout", type=float, default=200); p.add_argument("--python", default=sys.executable)
    a = p.parse_args()
    draw = random.Random(a.random)
    of = lambda: [round(draw.uniform(0.6, 1.4), 3)] if a.random is not None else map(float, a.factors.split(","))
    asked = [(program, *run, factor) for program, run in sorted(recorded().items()) for factor in of()]
    with concurrent.futures.ThreadPoolExecutor(a.slots) as pool:
        rows = list(pool.map(lambda ask: one(a, *ask), [ask for ask in asked if not a.only or ask[0] in a.only.split(",")]))
    json.dump(rows, open(a.out, "w"), indent=0)
    for row in rows:
        if row["verdict"] not in ("fits", "out of memory"): print(row["program"], row["factor"], row["verdict"])
    if a.beside:
        card = {(row["program"], row["factor"]): row["verdict"] for row in json.load(open(a.beside))}
        both = [(row, card[row["program"], row["factor"]]) for row in rows if (row["program"], row["factor"]) in card]
        wrong = [(row, on_card) for row, on_card in both if row["verdict"] != on_card]
        for row, on_card in wrong: print(row["program"], row["factor"], "here", row["verdict"], "on the card", on_card)
        print(f"{len(both) - len(wrong)} of {len(both)} are the same")


if __name__ == "__main__": main()
