"""The view of a step in a browser: a question's step, a dropped snapshot, keys, pointer, screen reader, hostile names.

    python tests/page/step.py target/debug/batchfit [--pictures FOLDER]

needs what tests/page/browser.py says. `--pictures` writes what the view looks like, light and dark, wide and narrow, to be looked at.
"""

import argparse
import gzip
import json
import pickle
import tempfile
import time
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from browser import GOLDEN, SECONDS, Watched, launch, service

PLANTED = GOLDEN / "planted"
STEP = "#/step?model=resnet18&device=sim%3Artx4090&batch=32"
HOSTILE = "<img src=x onerror=document.title='owned'>"


def check(name, holds, *about):
    print(f"{'ok' if holds else 'FAILED':<7} {name}", *([] if holds else about))
    return bool(holds)


def check_soon(name, look, *about):
    """Checks what `look` gives once it is true: the page draws when it gets to it."""
    deadline = time.monotonic() + SECONDS
    while not (holds := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return check(name, holds, *about)


class Pages:
    """Pages of one browser, watched."""

    def __init__(self, browser):
        self.browser, self.watched = browser, []

    def wrong(self):
        return [each for watched in self.watched for each in watched.errors + watched.foreign()]


def opened(pages, url, address):
    context = pages.browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(SECONDS * 1000)
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
    canvas.wait_for()
    return canvas


def text(page, selector):
    return page.locator(selector).first.inner_text()


def alerts(page):
    return " ".join(page.get_by_role("alert").all_inner_texts())


def said(page, part):
    # Not `wait_for_function`, which the page's policy does not let run.
    page.locator(".step-live", has_text=part).wait_for(state="attached")
    return text(page, ".step-live")


def a_question(pages, url):
    page = opened(pages, url, STEP)
    canvas = timeline(page)
    yield check_soon("a question's step opens at its peak", lambda: "the peak" in text(page, ".step-card"))
    yield check_soon("its verdict is told", lambda: "Batch 32 fits" in text(page, "#step-verdict"))
    at = text(page, "#step-at")
    canvas.focus()
    page.keyboard.press("ArrowUp")
    spoken = said(page, "parameters")
    yield check("a key chooses a tensor and it is read out", "parameters" in spoken and "allocated" in spoken, spoken)
    name = text(page, "#step-tensor")
    page.keyboard.press("Enter")
    pinned = page.locator(".step-card button[aria-pressed=true]")
    yield check_soon("Enter pins it", lambda: pinned.count() == 1)
    page.keyboard.press("ArrowUp")
    yield check_soon("another press goes to the next one", lambda: text(page, "#step-tensor") != name, name)
    page.keyboard.press("Escape")
    yield check_soon("Escape lets go", lambda: pinned.count() == 0)
    page.keyboard.press("Home")
    spoken = said(page, "Event 0 of")
    yield check("Home goes to the start", "0 B allocated" in spoken, spoken)
    page.keyboard.press("End")
    end = "Event {0} of {0}".format(at.split(" of ")[1])
    yield check_soon("End goes to the end", lambda: text(page, "#step-at") == end, end)
    page.keyboard.press("ArrowLeft")
    yield check_soon("an arrow goes back in time", lambda: text(page, "#step-at") != end)
    page.keyboard.press("p")
    yield check_soon("p goes to the peak", lambda: text(page, "#step-at") == at, at)
    before = canvas.screenshot()
    page.keyboard.press("+")
    page.keyboard.press("+")
    yield check_soon("plus zooms", lambda: canvas.screenshot() != before)
    page.keyboard.press("0")
    yield check_soon("zero zooms out", lambda: canvas.screenshot() == before)
    page.keyboard.press("]")
    yield check_soon("a bracket zooms the height", lambda: canvas.screenshot() != before)
    page.get_by_role("button", name="Everything").click()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.9 * box["height"])
    shown = page.locator(".step-card").nth(1)
    yield check_soon("the pointer names module, purpose and bytes", lambda: "Purpose" in shown.inner_text() and "Bytes" in shown.inner_text())
    page.mouse.click(box["x"] + 0.25 * box["width"], box["y"] + 0.9 * box["height"])
    yield check_soon("a click moves the cursor", lambda: text(page, "#step-at") != at)
    page.get_by_label("Go to", exact=True).select_option(label="step 3")
    yield check_soon("a step can be gone to", lambda: "step 3" in text(page, ".step-card"))
    page.get_by_role("slider", name="Moment").focus()
    now = text(page, "#step-at")
    page.keyboard.press("ArrowRight")
    yield check_soon("the slider moves the moment", lambda: text(page, "#step-at") != now)
    segments = page.locator("canvas.step-segments")
    segments.focus()
    page.keyboard.press("ArrowRight")
    first = said(page, ": ")
    page.keyboard.press("ArrowRight")
    yield check_soon("keys walk the map from block to block", lambda: text(page, ".step-live") != first, first)
    rows = page.locator(".step-tables table").nth(1).locator("tbody tr")
    yield check_soon("a table names the largest tensors", lambda: rows.count() == 20)
    rows.first.get_by_role("button").click()
    yield check_soon("one of them can be pinned", lambda: rows.first.locator("[aria-pressed=true]").count() == 1)


def a_fit(pages, url):
    question = {"model": {"preset": "resnet18"}, "device": "sim:rtx4090", "training": {"precision": ["fp32", "amp_fp16"]}, "target_batch": 5000}
    asked = urllib.request.Request(f"{url}/v1/fits", json.dumps(question).encode(), {"prefer": "wait=30"})
    fit = json.load(urllib.request.urlopen(asked))
    best = fit["result"]["recommendation"]
    page = opened(pages, url, f"#/fit/{fit['id']}")
    page.get_by_role("link", name="The step", exact=True).click()
    timeline(page)
    peak = f"{best['peak_reserved_bytes'] / 2**30:.2f} GiB"
    batch = f"Batch {best['micro_batch']} fits"
    yield check_soon("the step of an answer is that of its batch", lambda: batch in text(page, ".step-verdict"), batch)
    yield check_soon("with the peak that the answer tells", lambda: peak in text(page, ".step-verdict"), peak)


def a_snapshot(pages, url):
    page = opened(pages, url, "#/step")
    page.locator("#step-file").set_input_files(PLANTED / "growth-hook.pickle.gz")
    timeline(page)
    yield check_soon("a snapshot's verdict is told", lambda: text(page, "#step-verdict").startswith("Memory grows"))
    yield check_soon("with the line to change", lambda: "planted.py:30" in text(page, ".step-advice"))
    yield check_soon("and who holds the memory", lambda: "planted.py:30 forward" in text(page, ".step-verdict table"))
    rows = page.locator("section[aria-labelledby=step-settings] tbody tr")
    rows.first.wait_for()
    yield check_soon("settings of the allocator are compared", lambda: rows.count() > 8)
    page.get_by_label("Allocator", exact=True).fill("expandable_segments:True")
    page.get_by_role("button", name="Replay under these").click()
    page.locator(".step-verdict dd", has_text="expandable_segments:True").wait_for()
    yield check("it is replayed under others", True)
    page.get_by_label("Limit", exact=True).fill("many")
    page.get_by_role("button", name="Replay under these").click()
    yield check_soon("what is wrong is told in the service's words", lambda: "many" in alerts(page))
    # The alert of the limit stays until the file was read, so it is waited for the words of the new one.
    page.locator("#step-file").set_input_files(__file__)
    page.locator(".step-verdict").wait_for(state="detached")
    yield check_soon("what is no recording is refused", lambda: "the file starts with" in alerts(page))


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
        yield check_soon("a hostile name is shown as text", lambda: "onerror" in text(page, ".step"))
    yield check("and makes no element", page.locator("img").count() == 0 and page.title() != "owned", page.title())


def everybody(pages, url, pictures):
    for address, what in [(STEP, "step"), ("#/step", "snapshot")]:
        page = opened(pages, url, address)
        if what == "snapshot":
            page.locator("#step-file").set_input_files(PLANTED / "fragmentation.pickle.gz")
        timeline(page).focus()
        page.keyboard.press("ArrowUp")
        if what == "snapshot":
            page.locator("section[aria-labelledby=step-settings] tbody tr").first.wait_for()
        said(page, " ")  # what the key chose: the page is drawn
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (1280, 360):
                page.set_viewport_size({"width": width, "height": 900})
                found = violations(page)
                shape = f"{what}-{width}-{scheme}"
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
