"""The queue and the history, keys, hostile names, and who reaches all of it."""
import json
import re
import subprocess
import sys

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from browser import GOLDEN, key, service
from case import LINK, RESNET, Page

HOSTILE = [
    '<img src=x onerror="alert(1)">',
    "\u202egpj.exe\u2066 <script>alert(2)</script>",
    "x" * 10_000,
    "'\"><svg onload=alert(3)>{{7*7}}${7*7}",
]


class Fits(Page):
    def row(self, fit):
        return self.page.locator("table.fits tbody tr", has=self.page.locator(f"a[href='#/fit/{fit}']"))

    def queue(self, request):
        return self.server.call("/v1/fits", request, "POST")[1]["id"]

    def test_the_list_is_live_and_fits_can_be_cancelled(self):
        page = self.page
        self.go("#/fits")
        expect(page.get_by_role("heading", name="Fits")).to_be_visible()
        expect(page.get_by_text("shown:")).to_be_visible()
        soak = {"model": {"preset": "gpt2"}, "lengths": {"seq_len": "64-1024:8"}, "device": "sim:h200", "memory_limit": "19GiB", "soak": {"steps": 60_000}}
        slow = self.queue(soak)
        expect(self.row(slow).locator(".state")).to_have_text(re.compile("queued|running"))
        done = self.queue({**RESNET, "memory_limit": "7GiB"})
        expect(self.row(done).locator(".state")).to_have_text("done")
        self.row(slow).get_by_role("button", name="Cancel").click()
        expect(self.row(slow).locator(".state")).to_have_text("cancelled")
        expect(self.row(slow).get_by_role("button")).to_have_count(0)
        # A fit that was cancelled says so under its link.
        self.row(slow).get_by_role("link").click()
        expect(page.get_by_role("heading", name="gpt2: cancelled")).to_be_visible()

    def test_the_list_is_filtered_by_state_and_text(self):
        self.ask(RESNET)
        self.ask({**RESNET, "model": {"preset": "resnet34"}})
        self.go("#/fits")
        page = self.page
        rows = page.locator("table.fits tbody tr")
        page.get_by_label("Model or card").fill("ResNet34")
        expect(rows).to_have_count(len([fit for fit in self.fits() if fit["model"] == "resnet34"]))
        self.assertIn("text=ResNet34", page.url)
        page.get_by_label("State").select_option("failed")
        expect(rows).to_have_count(0)
        page.reload()
        expect(page.get_by_label("State")).to_have_value("failed")
        page.get_by_label("State").select_option("")
        expect(rows.first).to_be_visible()

    def test_two_answers_are_compared(self):
        one, other = self.ask(RESNET)["id"], self.ask({**RESNET, "memory_limit": "6GiB"})["id"]
        self.go("#/fits")
        page = self.page
        for fit in (one, other):
            self.row(fit).get_by_role("checkbox").check()
        page.get_by_role("link", name="Compare two").click()
        table = page.get_by_role("region", name="How they differ")
        expect(table.get_by_role("row", name=re.compile(r"^limit \d"))).to_contain_text("8.00 GiB")
        expect(table.get_by_role("row", name=re.compile(r"^limit \d"))).to_contain_text("6.00 GiB")
        expect(table.locator("tr.differs").first).to_be_visible()
        expect(page.locator(".stack")).to_have_count(2)
        link = page.url
        page.get_by_role("combobox", name="Other").select_option(one)
        expect(table.locator("tr.differs")).to_have_count(0)
        page.goto(link)
        page.reload()
        expect(table.locator("tr.differs").first).to_be_visible()

    def test_devices_and_health_are_shown(self):
        with service(self.binary) as own:
            self.page.goto(f"{own.url}/#/service")
            self.watched.url = own.url
            expect(self.page.get_by_role("status")).to_contain_text("takes requests")
            table = self.page.get_by_role("region", name="Cards")
            expect(table).to_contain_text("NVIDIA H200")
            expect(table).to_contain_text("not found on this machine")
            own.kill()
            expect(self.page.get_by_role("status")).to_contain_text("does not answer")


# What the hooks of a script say, and the snapshot that they leave.
SCRIPT = """
import gzip, json, os, socket, sys
session = dict(line.split(" ", 1) for line in open(os.environ["BATCHFIT_VGPU"]).read().splitlines() if " " in line)
gib = 1 << 30
said = [
    {"kind": "start", "script": "train.py", "python": "3.12.1", "torch": "2.11.0", "cuda": "13.0", "cudnn": 91900, "allocator": "", "modules": {}},
    {"kind": "phase", "name": "step 1", "steps": 1, "devices": [[0, 2 * gib, 3 * gib, gib, 3 * gib, 0]]},
    {"kind": "peak", "device": 0, "phase": "step 1", "stack": [sys.argv[1] + ":31 forward"], "module": "backward of layers.3"},
]
to = socket.socket(socket.AF_UNIX)
to.connect(session["socket"])
to.sendall(f"hello\\t{os.getpid()}\\t\\n".encode() + "".join(f"report\\t{json.dumps(one)}\\n" for one in said).encode())
with open(f"{session['history']}/snapshot-{os.getpid()}.pickle", "wb") as file:
    file.write(gzip.open(sys.argv[2]).read())
"""


def run_script(page, name):
    """The id of a run that is stored where the service of all tests shows it."""
    command = ["run", "--on", "t4", "--database", page.server.database, "--quiet", "--", sys.executable, "-c", SCRIPT, name]
    snapshot = GOLDEN / "snapshots/overrun.pickle.gz"
    subprocess.run(list(map(str, [page.binary, *command, snapshot])), check=True, capture_output=True)
    return page.server.call("/v1/runs")[1]["items"][0]["id"]


class Runs(Page):
    def test_a_run_is_shown_with_its_phases_and_its_step(self):
        page, run = self.page, run_script(self, HOSTILE[0])
        self.go("#/runs")
        page.locator(f"a[href='#/run/{run}']").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("fits:")
        expect(page.get_by_role("region", name="Phases")).to_contain_text("2.00 GiB")
        expect(page.get_by_text("backward of layers.3", exact=True)).to_be_visible()
        expect(page.get_by_text(f"{HOSTILE[0]}:31 forward", exact=True)).to_be_visible()
        expect(page.get_by_role("region", name="Largest tensors")).to_be_visible()
        expect(page.locator("main canvas").first).to_be_visible()
        self.assertEqual(page.locator("main img, main script").count(), 0)


class Keys(Page):
    def setUp(self):
        self.guarded = service(self.binary, "--require-keys")
        self.server = self.guarded.__enter__()
        self.addCleanup(self.guarded.__exit__, None, None, None)
        super().setUp()

    def test_a_key_is_asked_for_used_and_forgotten(self):
        page, made = self.page, key(self.binary, self.server)
        self.go("#/fits")
        expect(page.get_by_label("This service asks for a key")).to_be_visible()
        page.get_by_label("This service asks for a key").fill("batchfit_wrong")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_label("This key is not known")).to_be_visible()
        page.get_by_label("This key is not known").fill(made)
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("0 shown")).to_be_visible()
        # Events come with the key too: the list is live.
        fit = self.server.call("/v1/fits", RESNET, "POST", {"authorization": f"Bearer {made}"})[1]["id"]
        expect(page.locator(f"a[href='#/fit/{fit}']")).to_be_visible()
        self.go(LINK)
        expect(self.sentence()).to_be_visible()
        page.get_by_role("button", name="curl").click()
        expect(page.get_by_text("Copied for curl.")).to_be_visible()
        self.assertIn('-H "Authorization: Bearer $KEY"', page.evaluate("navigator.clipboard.readText()"))
        kept = page.evaluate("() => [JSON.stringify(sessionStorage), JSON.stringify(localStorage) + document.cookie + location.href]")
        self.assertIn(made, kept[0])
        self.assertNotIn(made, kept[1])
        self.assertFalse([url for url in self.watched.requests if made in url])
        # Another tab has no key.
        other = self.context.new_page()
        other.goto(f"{self.url}/#/fits")
        expect(other.get_by_label("This service asks for a key")).to_be_visible()
        page.get_by_role("button", name="Forget the key").click()
        self.assertEqual(page.evaluate("sessionStorage.length"), 0)

    def test_a_key_that_may_only_look_is_told_so(self):
        made = key(self.binary, self.server, "read", "reader")
        self.go(LINK)
        self.page.get_by_label("This service asks for a key").fill(made)
        self.page.get_by_role("button", name="Use it").click()
        expect(self.page.get_by_role("alert")).to_contain_text("read")


class Hostile(Page):
    def harmless(self):
        """No name has become markup, and none makes the page wider than the window."""
        page = self.page
        self.assertEqual(page.locator("main img, main script, main svg, main iframe").count(), 0)
        wide = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        self.assertLessEqual(wide, 0, page.url[:300])

    def test_names_in_every_field_stay_text(self):
        page = self.page
        for name in HOSTILE:
            self.go()
            page.get_by_label("Model", exact=True).fill(name)
            page.get_by_label("Limit").fill(name)
            page.get_by_label("Target").fill(name)
            expect(page.get_by_role("alert").first).to_be_visible()
            self.harmless()
            self.options()
            for label in ("Accumulation steps", "Other members of the request"):
                page.get_by_label(label).fill(name)
            page.get_by_label("Other members of the request").fill(json.dumps({name: name}))
            expect(page.get_by_role("alert").first).to_be_visible()
            self.harmless()

    def test_names_in_the_address_stay_text(self):
        page = self.page
        for name in HOSTILE:
            link = page.evaluate("(name) => encodeURIComponent(name)", name[:4000])
            for members in ("model={}&device=sim:h200", "model=resnet18&device={}", "source={}&label={}", "model=gpt2&size.seq_len={}&device=sim:h200", "model=a&precision={}"):
                page.goto("about:blank")
                self.go("#/?" + members.replace("{}", link))
                expect(page.get_by_role("heading", name="What is the largest batch that fits?")).to_be_visible()
                expect(page.locator(".problem, small.wrong").first).to_be_visible()
                self.harmless()
            for view in ("fit/{}", "fits?text={}", "compare/{}/{}", "{}"):
                page.goto("about:blank")
                self.go("#/" + view.replace("{}", link))
                expect(page.locator("main h1, main .problem").first).to_be_visible()
                self.harmless()

    def test_names_in_files_and_answers_stay_text(self):
        page = self.page
        config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 1, "vocab_size": 500, "n_positions": 64}
        for name in HOSTILE:
            self.go("#/?device=sim:h200&limit=4GiB")
            document = json.dumps({**config, "_name_or_path": name}).encode()
            page.locator("input[type=file]").set_input_files({"name": name[:200].replace("/", "_"), "mimeType": "", "buffer": document})
            page.get_by_label("Sequence length").fill("32")
            expect(self.sentence()).to_contain_text("Train with")
            self.harmless()
            page.get_by_role("button", name="Hugging Face", exact=True).click()
            expect(page.get_by_text("Copied for Hugging Face.")).to_be_visible()
            page.get_by_role("link", name="Link to this answer").click()
            expect(page.get_by_role("heading", name=re.compile("Answer of"))).to_be_visible()
            self.harmless()
        self.go("#/fits")
        expect(page.locator("table.fits tbody tr").first).to_be_visible()
        self.harmless()


class Reachable(Page):
    VIEWS = ["", LINK, "#/?model=nothing&device=sim:h200", "#/fits", "#/runs", "#/service"]

    def test_everything_is_reached_with_the_keyboard(self):
        page = self.page
        self.go()
        expect(page.get_by_label("Model", exact=True)).to_be_visible()
        keyboard = page.keyboard
        keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        keyboard.press("Enter")
        keyboard.press("Tab")
        expect(page.get_by_label("Model", exact=True)).to_be_focused()
        keyboard.type("resnet18")
        keyboard.press("Escape")
        keyboard.press("Tab")
        expect(page.get_by_role("button", name="Choose a file")).to_be_focused()
        reached = set()
        for _ in range(60):
            keyboard.press("Tab")
            reached.add(page.evaluate("() => document.activeElement.labels?.[0]?.textContent.trim() || document.activeElement.textContent.trim().slice(0, 40)"))
        for name in ("Card", "Limit", "Target", "Options"):
            self.assertTrue(any(name in one for one in reached), (name, reached))
        page.get_by_label("Card").focus()
        keyboard.type("NVIDIA H200")
        page.get_by_label("Limit").focus()
        keyboard.type("8GiB")
        # Of this question, not of one that was half typed: the answer that is copied stays.
        best = self.ask({key: RESNET[key] for key in ("model", "device", "memory_limit")})["result"]["recommendation"]
        expect(self.sentence()).to_have_text(f"Train with a micro-batch of {best['micro_batch']}.")
        page.get_by_text("Options").focus()
        keyboard.press("Enter")
        expect(page.get_by_label("Accumulation steps")).to_be_visible()
        page.get_by_role("button", name="Shell").focus()
        keyboard.press("Enter")
        expect(page.get_by_text("Copied for Shell.")).to_be_visible()

    def test_axe_finds_nothing(self):
        fits = [self.ask(RESNET)["id"], self.ask({**RESNET, "training": {"precision": ["fp32", "amp_bf16"]}, "suggest": True})["id"]]
        links = [*self.VIEWS, *(f"#/fit/{fit}" for fit in fits), "#/compare/" + "/".join(fits), f"#/run/{run_script(self, 'train.py')}"]
        for link in links:
            self.page.goto("about:blank")
            self.go(link)
            self.settle()
            for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)):
                self.page.set_viewport_size({"width": width, "height": 800})
                self.page.emulate_media(color_scheme=scheme)
                found = Axe().run(self.page).response["violations"]
                told = [(one["id"], one["help"], [node["target"] for node in one["nodes"]][:3]) for one in found]
                self.assertEqual(told, [], (scheme, width, link))
                wide = self.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
                self.assertLessEqual(wide, 0, (scheme, width, link))

    def settle(self):
        """Until nothing is loading, and whoever opened Options sees what is in it."""
        expect(self.page.locator("main h1").first).to_be_visible()
        self.page.wait_for_load_state("networkidle") if "#/fits" not in self.page.url else self.page.wait_for_selector("table.fits tbody tr")
        self.page.evaluate("() => document.querySelectorAll('details').forEach((one) => (one.open = true))")
