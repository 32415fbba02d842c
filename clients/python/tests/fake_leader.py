#!/usr/bin/env python3
"""Leads a search as `batchfit search --ask-tell` does, by the peaks that it is told: a line through the last two."""

import json
import sys

DONE = "done"


class Search:
    def __init__(self, terms):
        self.terms = terms
        self.told = []
        share = terms.get("target_batch", 1 << 24) // terms.get("world_size", 1)
        self.ceiling = min(share, terms.get("max_batch", 1 << 24))

    def next(self):
        terms, limit = self.terms, self.terms["memory_limit"]
        fits = {one["batch"]: one["peak_reserved_bytes"] for one in self.told if one["outcome"] == "fits"}
        refused = [one["batch"] for one in self.told if one["outcome"] != "fits"]
        tried = {one["batch"] for one in self.told}
        high = min(refused, default=self.ceiling + 1)
        if not fits:
            batch = min(terms["start_batch"], self.ceiling) if not refused else high // 2
            return batch if batch >= 1 and batch not in tried else None
        if len(fits) == 1:
            low = max(fits)
            batch = min(low * 2, high - 1, low * limit // fits[low])
        else:
            a, b = sorted(fits)[-2:]
            slope = max(1, (fits[b] - fits[a]) / (b - a))
            batch = min(int(b + (limit * 0.97 - fits[b]) / slope), high - 1, b * 4)
        return batch if batch > max(fits) and batch not in tried and len(tried) < 8 else None

    def document(self):
        batch = self.next()
        fits = {one["batch"]: one["peak_reserved_bytes"] for one in self.told if one["outcome"] == "fits"}
        low = max(fits, default=0)
        target, ranks = self.terms.get("target_batch"), self.terms.get("world_size", 1)
        steps = 1
        if target and low:
            low = max(n for n in range(1, low + 1) if (target // ranks) % n == 0)
            steps = target // ranks // low
        recommendation = {
            "micro_batch": low, "accumulation_steps": steps if low else 0, "global_batch": low * steps * ranks, "shortfall": 0,
            "max_batch": max(fits, default=0), "max_batch_without_retries": max(fits, default=0),
            "peak_reserved_bytes": fits.get(low), "limit_bytes": self.terms["memory_limit"], "headroom_bytes": None,
            "limited_by": "a line", "evidence": "trained", "notes": [],
        }
        return {
            "id": "x", "state": DONE if batch is None else "active", "next_batch": batch, "request": self.terms,
            "recommendation": recommendation if batch is None else None, "observations": self.told,
        }


def main():
    search = None
    for line in sys.stdin:
        said = json.loads(line)
        if search is None:
            search = Search(said)
        else:
            search.told.append(said)
        print(json.dumps(search.document()), flush=True)


if __name__ == "__main__":
    main()
