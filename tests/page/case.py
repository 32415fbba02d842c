"""What tests of the page have in common: a page of their own, and what must hold after each of them."""
import re
import time
import unittest

from playwright.sync_api import expect

from browser import SECONDS, Watched

RESNET = {"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "8GiB", "target_batch": 512}
LINK = "#/?model=resnet18&device=sim:h200&limit=8GiB&target=512"


class Page(unittest.TestCase):
    # Given by flows.py: the browser, a service for all tests, and the program.
    browser = server = binary = None

    def setUp(self):
        self.open(self.server.url)

    def open(self, url, **options):
        self.context = self.browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.context.set_default_timeout(SECONDS * 1000)
        expect.set_options(timeout=SECONDS * 1000)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        self.watched = Watched(self.context, url)
        self.page = self.context.new_page()
        self.url = url

    def tearDown(self):
        self.context.close()
        self.assertEqual(self.watched.errors, [])
        self.assertEqual(self.watched.foreign(), [])

    def go(self, link=""):
        self.page.goto(f"{self.url}/{link}")

    def answer(self):
        return self.page.locator("article.answer")

    def sentence(self):
        return self.page.locator("p.sentence")

    def options(self):
        """Opens the options. Where a question before had them open, they close a moment after the address has changed."""
        options = self.page.locator("details", has=self.page.get_by_text("Options", exact=True))
        expect(options).not_to_have_attribute("open", re.compile(""))
        options.locator("summary").first.click()

    def ask(self, request):
        """What the service answers over its API."""
        fit = self.server.call("/v1/fits", request, "POST", {"Prefer": "wait=30"})[1]
        self.until(lambda: self.server.call(f"/v1/fits/{fit['id']}")[1], lambda found: found["state"] == "done")
        return self.server.call(f"/v1/fits/{fit['id']}")[1]

    def until(self, look, is_there):
        """Looks at the service until it is as it should be."""
        deadline = time.monotonic() + SECONDS
        while not is_there(found := look()):
            self.assertLess(time.monotonic(), deadline, found)
            time.sleep(0.1)

    def fits(self):
        return self.server.call("/v1/fits?limit=500")[1]["items"]
