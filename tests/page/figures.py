"""How large and how fast the page is, and what axe says of it; with --screenshot, the picture of the README.

    python3 tests/page/figures.py BATCHFIT                                  # the figures
    python3 tests/page/figures.py BATCHFIT --screenshot docs/use/page.png       # the picture alone

Sizes are those of the files as the service sends them, compressed with gzip. A slow machine is a processor slowed down by Chromium's
DevTools protocol (`Emulation.setCPUThrottlingRate`); the median of the runs counts, because other programs run here too.
"""
import argparse
import gzip
import pathlib
import statistics
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from browser import ROOT, Watched, launch, service

LINK = "#/?model=resnet50&device=sim:rtx4090&precision=amp_fp16&optimizer=sgd_momentum&target=512"
SLOWER = 6
RUNS = 5
REQUEST = {"model": {"preset": "resnet50"}, "device": "sim:rtx4090", "training": {"precision": "amp_fp16", "optimizer": "sgd_momentum"}, "target_batch": 512}


def sizes(server):
    """Bytes of each file as it is sent."""
    found = {}
    for path in sorted((ROOT / "crates/server/src/http/page").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            name = path.relative_to(ROOT / "crates/server/src/http/page").as_posix()
            request = urllib.request.Request(f"{server.url}/page/{name}", headers={"accept-encoding": "gzip"})
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
            assert gzip.decompress(body) == path.read_bytes(), f"{name} is not the committed file; build the binary again"
            found[name] = len(body)
    return found


def first_paint(browser, server, slower):
    """Milliseconds until something is painted, until the form can be used, and how many requests and bytes that took."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    page.goto(f"{server.url}/")
    page.get_by_label("Model", exact=True).wait_for()
    usable = page.evaluate("performance.now()")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    files = page.evaluate("performance.getEntriesByType('resource').filter((one) => one.name.includes('/page/')).map((one) => one.encodedBodySize)")
    context.close()
    return paint, usable, len(files) + 1, sum(files)


def findings(browser, server):
    """What axe finds, over all views, light and dark, narrow and wide; how many pages; requests to others."""
    status, fit = server.call("/v1/fits", REQUEST, "POST", {"Prefer": "wait=60"})
    assert status == 200
    views = ["", LINK, "#/?model=nothing&device=sim:h200", "#/fits", "#/service", f"#/fit/{fit['id']}", f"#/compare/{fit['id']}/{fit['id']}"]
    found, pages, foreign, requests = [], 0, [], 0
    for scheme in ("light", "dark"):
        for width in (360, 1280):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
            watched = Watched(context, server.url)
            page = context.new_page()
            for view in views:
                page.goto("about:blank")
                page.goto(f"{server.url}/{view}")
                page.locator("main h1").first.wait_for()
                page.wait_for_timeout(1500)
                found += [(view, scheme, width, one["id"]) for one in Axe().run(page).response["violations"]]
                pages += 1
            foreign += watched.foreign()
            requests += len(watched.requests)
            context.close()
    return found, pages, foreign, requests


def screenshot(browser, server, file):
    context = browser.new_context(viewport={"width": 1200, "height": 1240})
    page = context.new_page()
    page.goto(f"{server.url}/{LINK}")
    page.locator(".chart canvas").wait_for()
    # The line has all of its points.
    page.locator("section[aria-label='Batches and memory'] tbody tr").nth(12).wait_for(state="attached")
    page.wait_for_timeout(500)
    page.screenshot(path=file, full_page=False)
    context.close()
    shrink(file)
    print(f"{file}: {pathlib.Path(file).stat().st_size / 1024:.0f} KiB")


def shrink(file):
    """Fewer colours, where Pillow is there to do it."""
    try:
        from PIL import Image
    except ImportError:
        return
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("batchfit", type=pathlib.Path)
    parser.add_argument("--screenshot", type=pathlib.Path)
    given = parser.parse_args()
    with service(given.batchfit.resolve()) as server, sync_playwright() as playwright:
        browser = launch(playwright)
        if given.screenshot:
            return screenshot(browser, server, given.screenshot)
        found = sizes(server)
        own = sum(size for name, size in found.items() if not name.startswith("vendor/"))
        print(f"size         {sum(found.values()) / 1024:.1f} KiB with gzip in {len(found)} files, {own / 1024:.1f} KiB of it our own")
        for slower in (1, SLOWER):
            runs = [first_paint(browser, server, slower) for _ in range(RUNS)]
            paint, usable = (statistics.median(run[which] for run in runs) for which in (0, 1))
            print(f"first paint  {paint:.0f} ms, form usable {usable:.0f} ms, processor slowed down {slower} times ({RUNS} runs)")
        print(f"first view   {runs[0][2]} requests, {runs[0][3] / 1024:.1f} KiB")
        wrong, pages, foreign, requests = findings(browser, server)
        print(f"axe          {len(wrong)} findings on {pages} pages" + "".join(f"\n  {one}" for one in wrong))
        print(f"requests     {requests}, of them {len(foreign)} to others")
        browser.close()


if __name__ == "__main__":
    main()
