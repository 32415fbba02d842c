"""Makes the tables of results from the files that `run.py` wrote: `table.py OUT` prints Markdown."""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


def first(text: str, characters: int = 220) -> str:
    """The reason of a problem document or of a message, on one line."""
    try:
        text = json.loads(text[text.index("{") :])["detail"]
    except (ValueError, KeyError):
        pass
    text = " ".join(text.split())
    return text if len(text) <= characters else text[: characters - 1] + "…"


def spread(name: str, errors: list[float]) -> str:
    absolute = [abs(error) for error in errors]
    worst = max(absolute, default=float("nan"))
    return (
        f"| {name} | {len(errors)} | {100 * statistics.median(absolute or [float('nan')]):.3f} % | "
        f"{100 * percentile(absolute, 95):.2f} % | {100 * worst:.2f} % |"
    )


def main() -> int:
    out = Path(sys.argv[1])
    exports = {row["model"]: row for row in lines(out / "exports.jsonl")}
    answers: dict[str, list[dict]] = defaultdict(list)
    for row in lines(out / "answers.jsonl"):
        answers[row["model"]].append(row)
    # What is kept beside this script, and what was recorded again.
    kept, new = Path(__file__).parent / "recordings.jsonl", out / "recordings.jsonl"
    recorded = {
        (row["model"], row["precision"], row["batch"]): row
        for row in [*lines(kept), *lines(new)]
        if "allocated" in row
    }

    missing = {name for name, row in exports.items() if row.get("missing")}
    exported = {name for name, row in exports.items() if "nodes" in row}
    refused = sorted(set(exports) - exported - missing)
    failed = sorted(name for name in exported if not answers[name] or any("error" in row for row in answers[name]))
    answered = exported - set(failed)
    libraries = Counter(exports[name]["library"] for name in exported)

    print(f"{len(exports)} models of {len({row['library'] for row in exports.values()})} libraries: {len(exported)} exported, ", end="")
    print(f"{len(answered)} of them answered ({100 * len(answered) / max(len(exported), 1):.1f} %), ", end="")
    print(f"{len(refused)} not exported, {len(missing)} not tried for want of a package.\n")

    rows = []
    for name in sorted(answered):
        for row in answers[name]:
            truth = recorded.get((name, row["precision"], row.get("batch")))
            if truth and "allocated" in row:
                off = [row[kind] / truth[kind] - 1 for kind in ("allocated", "reserved")]
                rows.append((name, row, truth, *off))
    for where, *kind in (("a stub of the CUDA runtime", True, False), ("an H200", False, False), ("a virtual H200", False, True)):
        of = [row for row in rows if [row[2].get("stub", False), row[2].get("virtual", False)] == kind]
        if not of:
            continue
        print(f"Peaks compared with PyTorch 2.11 on {where}, {len({row[0] for row in of})} models:\n")
        print("| | rows | median | 95 % | worst |\n| --- | --- | --- | --- | --- |")
        for precision in sorted({row[1]["precision"] for row in of}):
            some = [row for row in of if row[1]["precision"] == precision]
            print(spread(f"allocated, {precision}", [row[3] for row in some]))
            print(spread(f"reserved, {precision}", [row[4] for row in some]))
        print(spread("allocated", [row[3] for row in of]))
        print(spread("reserved", [row[4] for row in of]))
        print()
    fits = sorted(row["ms"] for name in answered for row in answers[name] if "fit" in row)
    if fits:
        print(f"A fit took {statistics.median(fits):.0f} ms in the median and {percentile(fits, 95):.0f} ms at the 95th percentile, process start included.\n")

    print("| library | version | exported | answered |\n| --- | --- | --- | --- |")
    for library in sorted(libraries):
        names = [name for name in exported if exports[name]["library"] == library]
        print(f"| {library} | {exports[names[0]]['version']} | {len(names)} | {len(set(names) & answered)} |")
    for title, names, reason in (
        ("Exported and not answered", failed, lambda name: next((first(r["error"]) for r in answers[name] if "error" in r), "not asked")),
        ("Not exported", refused, lambda name: first(exports[name]["error"])),
        ("Not tried", sorted(missing), lambda name: first(exports[name]["error"])),
    ):
        if names:
            print(f"\n{title}:\n")
            print("\n".join(f"- `{name}`: {reason(name)}" for name in names))
    off = [row for row in rows if abs(row[3]) > 0.01 or abs(row[4]) > 0.03]
    if off:
        print("\nPeaks allocated off by more than 1 %, or reserved by more than 3 %:\n")
        for name, row, truth, allocated, reserved in sorted(off, key=lambda r: -abs(r[3])):
            print(f"- `{name}` {row['precision']} batch {row['batch']}: allocated {100 * allocated:+.2f} %, reserved {100 * reserved:+.2f} %")
    bounds = {(name, note) for name in answered for row in answers[name] for note in row.get("assumptions", [])}
    if bounds:
        print("\nAnswers that rest on a stated bound or assumption:\n")
        print("\n".join(f"- `{name}`: {note}" for name, note in sorted(bounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
