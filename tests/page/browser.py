"""A service and a browser of one's own, for what tests and measures the page.

Needs `pip install playwright==1.65.2 axe-playwright-python==0.1.8` and Chromium (Debian's
`chromium-headless-shell`, which takes a third of the processor time of its `chromium`; that one and Playwright's own will do).
"""
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "service"))
from served import Server  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
# Tests fail after this; none waits for it otherwise.
SECONDS = 300


def chromium():
    named = map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))
    found = os.environ.get("BATCHFIT_CHROMIUM") or next(filter(None, named), None)
    return found or sys.exit("there is no chromium; install Debian's chromium-headless-shell, or name one in BATCHFIT_CHROMIUM")


def launch(playwright):
    # No sandbox: whoever runs tests in a container is root there. The pages are our own.
    return playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--force-color-profile=srgb"])


@contextlib.contextmanager
def service(binary, *arguments):
    """A running service on a database of its own, which does not mind how fast the machine is."""
    with tempfile.TemporaryDirectory() as folder, Server(binary, pathlib.Path(folder) / "batchfit.db", "--fit-deadline", "600", *arguments) as server:
        server.url = f"http://127.0.0.1:{server.port}"
        yield server


def key(binary, server, scope="fit", name="page"):
    """A key for a service that asks for one."""
    made = subprocess.run(
        [str(binary), "keys", "create", "--name", name, "--scope", scope, "--database", str(server.database)],
        capture_output=True, text=True, check=True,
    )
    return made.stdout.split()[0]


class Watched:
    """What a page asked for, said and refused to do."""

    def __init__(self, context, url):
        self.url, self.requests, self.errors = url, [], []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        context.on("console", self.said)
        context.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def said(self, message):
        # A status that is no success is logged by the browser itself; that the page says what it means is tested.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def foreign(self):
        return [url for url in self.requests if not url.startswith((self.url + "/", "data:", "blob:"))]
