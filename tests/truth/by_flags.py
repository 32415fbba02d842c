"""Recipes of libraries, asked by flags, beside what they took of an H100 (two for `gpu2_`).

    python3 tests/recipes/by_flags.py target/release/batchfit

`recorded.json` holds peaks by step (before the first evaluation), recorded with PyTorch 2.11 and the versions it names; `recipes.json` what flags can say of
each program: a config.json, flags, and how many samples a row's batch is (pairs count twice). Where texts are padded to the longest of a batch, each
step is asked with its own length (`lengths`, by batch). A row's error is that of the highest peak of its steps; rows `refused` must be
refused with that way on, rows `noted` must have that note.
"""
import json, os, subprocess, sys, tempfile

here = os.path.dirname(os.path.abspath(__file__))


def ask(binary, recipe, configs, batch, folder, *more):
    what = recipe["model"]
    if what in configs:
        path = os.path.join(folder, what + ".json")
        with open(path, "w") as f:
            json.dump(configs[what], f)
        what = path
    command = [binary, "probe", what, *recipe["flags"].split(), "--batch", str(batch * recipe.get("samples", 1)), "--json", *more]
    for name, value in recipe.get("with", {}).items():
        command += ["--with", f"{name}={json.dumps(value)}"]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, XDG_DATA_HOME=folder))


def p95(errors):
    return sorted(errors)[max(0, -(-95 * len(errors) // 100) - 1)]


def main(binary):
    with open(os.path.join(here, "recipes.json")) as f:
        table = json.load(f)
    with open(os.path.join(here, "recorded.json")) as f:
        recorded = json.load(f)["rows"]
    errors, refused, noted, failed = {"allocated": [], "reserved": []}, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for row in recorded:
            options = row.get("options", {})
            for recipe in table["recipes"]:
                if recipe["program"] != row["program"] or any(options.get(k) != v for k, v in recipe.get("options", {}).items()):
                    continue
                name = " ".join([row["program"], f"b{row['batch']}", *(f"{k}={v}" for k, v in recipe.get("options", {}).items())])
                vary = recipe.get("vary", "--seq-len")
                lengths = recipe.get("lengths", {}).get(str(row["batch"]), [])
                first = [vary, str(lengths[0])] if lengths else []
                answer = ask(binary, recipe, table["configs"], row["batch"], folder, *first)
                if recipe.get("refused"):
                    if answer.returncode == 2 and recipe["refused"] in answer.stderr + answer.stdout:
                        refused += 1
                    else:
                        failed += 1
                        print(f"{name}: not refused with {recipe['refused']!r}: {answer.stderr.strip()}")
                    continue
                try:
                    steps = json.loads(answer.stdout)["steps"]
                    for at, length in enumerate(lengths):
                        more = ask(binary, recipe, table["configs"], row["batch"], folder, vary, str(length))
                        steps[at] = json.loads(more.stdout)["steps"][at]
                except (ValueError, KeyError):
                    failed += 1
                    print(f"{name}: {answer.stderr.strip() or answer.stdout[:300]}")
                    continue
                if "noted" in recipe:
                    if any(recipe["noted"] in note for note in json.loads(answer.stdout)["notes"]):
                        noted += 1
                    else:
                        failed += 1
                        print(f"{name}: no note of {recipe['noted']!r}")
                    continue
                said = {k: max(s[f"peak_{k}_bytes"] for s in steps[:len(row["steps"])]) for k in errors}
                took = {k: max(s[k] for s in row["steps"]) for k in errors}
                parts = []
                for k in errors:
                    error = 100 * (said[k] / took[k] - 1)
                    errors[k].append(abs(error))
                    parts.append(f"{k} {said[k] / 2**30:.2f} of {took[k] / 2**30:.2f} GiB ({error:+.2f} %)")
                print(f"{name}: {', '.join(parts)}", flush=True)
    for k, e in errors.items():
        print(f"{k}: {len(e)} rows, median {sorted(e)[len(e) // 2]:.2f} %, p95 {p95(e):.2f} %, largest {max(e):.2f} %")
    print(f"refused with a way on: {refused}; answered as PyTorch's, and noted: {noted}; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
