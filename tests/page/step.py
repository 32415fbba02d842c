"""The view of a step in a browser: a question's step, a dropped snapshot, keys, pointer, screen reader, hostile names.

    python tests/page/step.py target/debug/batchfit [--pictures FOLDER]

needs what tests/page/browser.py says. `--pictures` writes what the view looks like, light and dark, wide and narrow, to be looked at.
"""

import argparse
import gzip
import json
import pickle
import tempfile
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from browser import GOLDEN, Watched, launch, service

PLANTED = GOLDEN / "planted"
STEP = "#/step?model=resnet18&device=sim%3Artx4090&batch=32"
HOSTILE = "<img src=x onerror=document.title='owned'>"


def check(name, holds, *about):
    print(f"{'ok' if holds else 'FAILED':<7} {name}", *([] if holds else about))
    return bool(holds)


class Pages:
    """Pages of one browser, watched."""

    def __init__(self, browser):
        self.browser, self.watched = browser, []

    def wrong(self):
        return [each for watched in self.watched for each in watched.errors + watched.foreign()]


def opened(pages, url, address, width=1280, dark=False):
    scheme = "dark" if dark else "light"
    context = pages.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    pages.watched.append(Watched(context, url))
    page = context.new_page()
    page.goto(f"{url}/{address}")
    return page


def violations(page):
    """What axe finds, a line each."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]


def timeline(page):
    canvas = page.locator("canvas.step-timeline")
    canvas.wait_for(timeout=120_000)
    page.wait_for_timeout(300)
    return canvas


def text(page, selector):
    return page.locator(selector).first.inner_text()


def said(page, part):
    # Not `wait_for_function`, which the page's policy does not let run.
    page.locator(".step-live", has_text=part).wait_for(state="attached", timeout=5000)
    return text(page, ".step-live")


def a_question(pages, url):
    page = opened(pages, url, STEP)
    canvas = timeline(page)
    at = text(page, "#step-at")
    yield check("a question's step opens at its peak", "the peak" in text(page, ".step-card"), at)
    yield check("its verdict is told", "Batch 32 fits" in text(page, "#step-verdict"), text(page, "#step-verdict"))
    canvas.focus()
    page.keyboard.press("ArrowUp")
    spoken = said(page, "parameters")
    yield check("a key chooses a tensor and it is read out", "parameters" in spoken and "allocated" in spoken, spoken)
    name = text(page, "#step-tensor")
    page.keyboard.press("Enter")
    pinned = page.locator(".step-card button[aria-pressed=true]")
    yield check("Enter pins it", pinned.count() == 1)
    page.keyboard.press("ArrowUp")
    page.wait_for_timeout(100)
    yield check("another press goes to the next one", text(page, "#step-tensor") != name, name)
    page.keyboard.press("Escape")
    yield check("Escape lets go", pinned.count() == 0)
    page.keyboard.press("Home")
    spoken = said(page, "Event 0 of")
    yield check("Home goes to the start", "0 B allocated" in spoken, spoken)
    page.keyboard.press("End")
    page.wait_for_timeout(400)
    total = text(page, "#step-at").split(" of ")
    yield check("End goes to the end", total[0].removeprefix("Event ") == total[1], total)
    page.keyboard.press("ArrowLeft")
    yield check("an arrow goes back in time", text(page, "#step-at") != "Event {1} of {1}".format(*total))
    page.keyboard.press("p")
    page.wait_for_timeout(50)
    yield check("p goes to the peak", text(page, "#step-at") == at, text(page, "#step-at"))
    before = canvas.screenshot()
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.wait_for_timeout(200)
    yield check("plus zooms", canvas.screenshot() != before)
    page.keyboard.press("0")
    page.keyboard.press("]")
    page.wait_for_timeout(200)
    yield check("a bracket zooms the height", canvas.screenshot() != before)
    page.get_by_role("button", name="Everything").click()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.9 * box["height"])
    page.wait_for_timeout(200)
    shown = page.locator(".step-card").nth(1).inner_text()
    yield check("the pointer names module, purpose and bytes", "Purpose" in shown and "Bytes" in shown, shown)
    page.mouse.click(box["x"] + 0.25 * box["width"], box["y"] + 0.9 * box["height"])
    yield check("a click moves the cursor", text(page, "#step-at") != at)
    page.get_by_label("Go to", exact=True).select_option(label="step 3")
    yield check("a step can be gone to", "step 3" in text(page, ".step-card"), text(page, ".step-card"))
    page.get_by_role("slider", name="Moment").focus()
    now = text(page, "#step-at")
    page.keyboard.press("ArrowRight")
    yield check("the slider moves the moment", text(page, "#step-at") != now)
    segments = page.locator("canvas.step-segments")
    segments.focus()
    page.keyboard.press("ArrowRight")
    first = said(page, ": ")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(400)
    yield check("keys walk the map from block to block", text(page, ".step-live") != first, first)
    page.wait_for_timeout(400)
    rows = page.locator(".step-tables table").nth(1).locator("tbody tr")
    yield check("a table names the largest tensors", rows.count() == 20, rows.count())
    rows.first.get_by_role("button").click()
    yield check("one of them can be pinned", rows.first.locator("[aria-pressed=true]").count() == 1)


def a_fit(pages, url):
    question = {"model": {"preset": "resnet18"}, "device": "sim:rtx4090", "training": {"precision": ["fp32", "amp_fp16"]}, "target_batch": 5000}
    asked = urllib.request.Request(f"{url}/v1/fits", json.dumps(question).encode(), {"prefer": "wait=30"})
    fit = json.load(urllib.request.urlopen(asked))
    best = fit["result"]["recommendation"]
    page = opened(pages, url, f"#/fit/{fit['id']}")
    page.get_by_role("link", name="The step", exact=True).click()
    timeline(page)
    verdict = text(page, ".step-verdict")
    peak = f"{best['peak_reserved_bytes'] / 2**30:.2f} GiB"
    yield check("the step of an answer is that of its batch", f"Batch {best['micro_batch']} fits" in verdict, verdict)
    yield check("with the peak that the answer tells", peak in verdict, peak, verdict)


def a_snapshot(pages, url):
    page = opened(pages, url, "#/step")
    page.locator("#step-file").set_input_files(PLANTED / "growth-hook.pickle.gz")
    timeline(page)
    yield check("a snapshot's verdict is told", text(page, "#step-verdict").startswith("Memory grows"), text(page, "#step-verdict"))
    advice = text(page, ".step-advice")
    yield check("with the line to change", "planted.py:30" in advice, advice)
    holders = text(page, ".step-verdict table")
    yield check("and who holds the memory", "planted.py:30 forward" in holders, holders)
    rows = page.locator("section[aria-labelledby=step-settings] tbody tr")
    rows.first.wait_for(timeout=60_000)
    yield check("settings of the allocator are compared", rows.count() > 8, rows.count())
    page.get_by_label("Allocator", exact=True).fill("expandable_segments:True")
    page.get_by_role("button", name="Replay under these").click()
    page.locator(".step-verdict dd", has_text="expandable_segments:True").wait_for(timeout=60_000)
    yield check("it is replayed under others", True)
    page.get_by_label("Limit", exact=True).fill("many")
    page.get_by_role("button", name="Replay under these").click()
    page.get_by_role("alert").wait_for(timeout=20_000)
    failure = text(page, "[role=alert]")
    yield check("what is wrong is told in the service's words", "many" in failure or "bytes" in failure, failure)
    page.locator("#step-file").set_input_files(__file__)
    page.locator(".step-verdict").wait_for(state="detached", timeout=20_000)
    page.get_by_role("alert").wait_for(timeout=20_000)
    failure = text(page, "[role=alert]")
    yield check("what is no recording is refused", "starts with" in failure or "recording" in failure, failure)


def hostile_names(pages, url):
    snapshot = pickle.loads(gzip.decompress((PLANTED / "growth-hook.pickle.gz").read_bytes()))
    for trace in snapshot["device_traces"]:
        for entry in trace:
            for frame in entry.get("frames", []):
                if frame["filename"].endswith("planted.py"):
                    frame["filename"] = HOSTILE + ".py"
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(pickle.dumps(snapshot))
        file.flush()
        page = opened(pages, url, "#/step")
        page.locator("#step-file").set_input_files(file.name)
        canvas = timeline(page)
        canvas.focus()
        page.keyboard.press("ArrowUp")
        page.wait_for_timeout(400)
    yield check("a hostile name is shown as text", "onerror" in text(page, ".step"), text(page, ".step-verdict"))
    yield check("and makes no element", page.locator("img").count() == 0 and page.title() != "owned", page.title())


def everybody(pages, url, pictures):
    for address, what in [(STEP, "step"), ("#/step", "snapshot")]:
        for dark in (False, True):
            for width in (1280, 360):
                page = opened(pages, url, address, width=width, dark=dark)
                if what == "snapshot":
                    page.locator("#step-file").set_input_files(PLANTED / "fragmentation.pickle.gz")
                timeline(page).focus()
                page.keyboard.press("ArrowUp")
                if what == "snapshot":
                    page.locator("section[aria-labelledby=step-settings] tbody tr").first.wait_for(timeout=60_000)
                page.wait_for_timeout(400)
                found = violations(page)
                shape = f"{what}-{width}-{'dark' if dark else 'light'}"
                yield check(f"axe finds nothing: {shape}", not found, json.dumps(found, indent=1))
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                yield check(f"nothing sticks out: {shape}", wide <= 0, wide)
                if pictures:
                    page.screenshot(path=f"{pictures}/{shape}.png", full_page=True)
                page.context.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batchfit")
    parser.add_argument("--pictures")
    arguments = parser.parse_args()
    with service(arguments.batchfit) as server, sync_playwright() as playwright:
        url, pages = server.url, Pages(launch(playwright))
        passed = [*a_question(pages, url), *a_fit(pages, url), *a_snapshot(pages, url), *hostile_names(pages, url)]
        passed += everybody(pages, url, arguments.pictures)
        passed.append(check("nothing went wrong in the pages, and no other site was asked", not pages.wrong(), pages.wrong()))
    raise SystemExit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
