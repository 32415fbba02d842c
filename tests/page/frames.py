"""How smooth the timeline of a step is: frame times over a scripted zoom, for steps of any number of events.

    python tests/page/frames.py target/release/batchfit

needs what tests/page/browser.py says. It starts the service, asks for a step of some 64,000 events, turns the
wheel over the timeline and moves the cursor with the keys, and prints the time from frame to frame, as the browser shows them, and
what a frame took in the page's own code. Without a GPU chromium draws in software: on a desktop there is more room.
"""

import argparse
import statistics
import urllib.parse

from playwright.sync_api import sync_playwright

from browser import launch, service

# 64,000 events: two micro-steps of 48 blocks, as the address of a question names them.
MODEL = {"model": "gpt2-xl", "size.seq_len": 1024, "precision": "amp_bf16", "accumulation": 2}

# Turns of the wheel, each a notch; towards the reader first.
NOTCHES = 90

COUNT = """
window.frames_ = []; window.work_ = [];
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (run) => ask((at) => {
  const began = performance.now(); run(at); window.work_.push(performance.now() - began);
});
const count = (at) => { window.frames_.push(at); ask(count); };
ask(count);
"""


def times(values):
    ordered = sorted(values)
    at = lambda part: ordered[min(len(ordered) - 1, int(part * len(ordered)))]
    return f"median {statistics.median(ordered):5.1f} ms, p95 {at(0.95):5.1f} ms, most {ordered[-1]:6.1f} ms"


def measured(page, what, act):
    page.evaluate("window.frames_.length = 0; window.work_.length = 0;")
    act()
    frames = page.evaluate("window.frames_")
    work = page.evaluate("window.work_")
    apart = [after - before for before, after in zip(frames, frames[1:])]
    print(f"{what:<22} {len(apart):4} frames  {times(apart)}   in the page: {times(work)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batchfit")
    arguments = parser.parse_args()
    question = {**MODEL, "device": "sim:h200", "batch": 1}
    with service(arguments.batchfit) as server, sync_playwright() as play:
        browser = launch(play)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(COUNT)
        page.goto(f"{server.url}/#/step?{urllib.parse.urlencode(question)}")
        canvas = page.locator("canvas.step-timeline")
        canvas.wait_for(timeout=120_000)
        print(page.locator("#step-at").inner_text())
        canvas.focus()
        box = canvas.bounding_box()
        x, y = box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"]
        page.mouse.move(x, y)
        page.wait_for_timeout(500)

        def wheel(towards):
            for _ in range(NOTCHES):
                page.mouse.wheel(0, towards)
                page.wait_for_timeout(8)

        def drag():
            page.mouse.down()
            for step in range(NOTCHES):
                page.mouse.move(x - 3 * step, y)
                page.wait_for_timeout(8)
            page.mouse.up()

        def keys():
            for _ in range(NOTCHES):
                page.keyboard.press("ArrowRight")
                page.wait_for_timeout(8)

        measured(page, "zoom in", lambda: wheel(-20))
        measured(page, "drag", drag)
        measured(page, "zoom out", lambda: wheel(20))
        measured(page, "cursor by keys", keys)
        browser.close()


if __name__ == "__main__":
    main()
