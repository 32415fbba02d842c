"""Everything that the page does, with real clicks in headless Chromium against a real service.

    python3 tests/page/flows.py BATCHFIT [unittest's arguments]
"""
import pathlib
import sys
import unittest

from playwright.sync_api import sync_playwright

from browser import launch, service
from case import Page
from flows_ask import *  # noqa: F403
from flows_service import *  # noqa: F403


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    Page.binary = pathlib.Path(sys.argv.pop(1)).resolve()
    with sync_playwright() as playwright, service(Page.binary) as Page.server:
        Page.browser = launch(playwright)
        result = unittest.main(verbosity=2, exit=False).result
        Page.browser.close()
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
