"""Asking, dropping files, and reading answers."""
import json
import re
import subprocess

from playwright.sync_api import expect

from browser import GOLDEN
from case import LINK, RESNET, Page

# A question that takes the service a while: a soak of many steps.
SLOW = "#/?model=gpt2&device=sim:h200&limit=24GiB&size.seq_len=64-1024:8&precision=amp_bf16&soak=60000"


class Asking(Page):
    def test_an_answer_follows_what_is_typed_and_the_address_holds_the_question(self):
        page = self.page
        self.go()
        expect(page.get_by_role("heading", name="What is the largest batch that fits?")).to_be_visible()
        page.get_by_label("Model", exact=True).press_sequentially("resnet18")
        page.get_by_label("Card").select_option("sim:h200")
        page.get_by_label("Limit").fill("8GiB")
        best = self.ask({key: RESNET[key] for key in ("model", "device", "memory_limit")})["result"]["recommendation"]
        expect(self.sentence()).to_have_text(f"Train with a micro-batch of {best['micro_batch']}.")
        page.get_by_label("Target").fill("512")
        best = self.ask(RESNET)["result"]["recommendation"]
        whole = f"Train with a micro-batch of {best['micro_batch']} and {best['accumulation_steps']} accumulation steps: 512 samples per optimizer step."
        expect(self.sentence()).to_have_text(whole)
        page.wait_for_url("**/#/?model=resnet18&device=sim*target=512")
        page.reload()
        expect(self.sentence()).to_have_text(whole)
        expect(page.get_by_label("Limit")).to_have_value("8GiB")
        # Back to the question before, and forward again.
        page.go_back()
        expect(page.get_by_label("Target")).to_have_value("")
        expect(self.sentence()).to_have_text(re.compile(r"micro-batch of \d+\.$"))
        page.go_forward()
        expect(page.get_by_label("Target")).to_have_value("512")
        expect(self.sentence()).to_have_text(whole)

    def test_a_name_alone_is_answered_without_a_gpu(self):
        page = self.page
        self.go()
        card = page.get_by_label("Card")
        if any(device["available"] and not device["device"].startswith("sim:") for device in self.server.call("/v1/devices")[1]["items"]):
            self.skipTest("the service has a GPU")
        expect(card).to_have_value("sim:rtx4090")
        page.get_by_label("Model", exact=True).fill("gpt2")
        expect(page.get_by_label("Sequence length")).to_have_attribute("placeholder", "1024")
        best = self.ask({"model": "gpt2", "device": "sim:rtx4090"})["result"]["recommendation"]
        expect(self.sentence()).to_have_text(f"Train with a micro-batch of {best['micro_batch']}.")
        expect(page.locator("dl.facts")).to_contain_text("1024 tokens")
        # What the form has no field for, in the words of a request; no flags of the command line.
        notes = page.locator("section[aria-label=Notes]")
        expect(notes).to_contain_text('{"model": {"loss_chunks": 16}} in “Other members of the request” asks about that')
        expect(notes).not_to_contain_text("--")
        # The link names the card.
        page.wait_for_url("**/#/?model=gpt2&device=sim*rtx4090")

    def test_what_fits_where_nothing_does_is_asked_for_and_taken_up(self):
        page = self.page
        self.go("#/?model=gpt2&size.seq_len=512&device=sim:rtx4090&limit=1000MiB&precision=bf16")
        expect(self.sentence()).to_contain_text("Nothing fits")
        page.get_by_role("button", name="What would make one sample fit?").click()
        section = page.get_by_role("region", name="What else would help")
        expect(section.get_by_role("heading")).to_have_text("What makes one sample fit")
        expect(section).to_contain_text("other changes are not enough")
        section.get_by_role("button", name=re.compile("LoRA")).first.click()
        expect(self.sentence()).to_contain_text("Train with")
        expect(page.get_by_label("LoRA rank")).to_have_value("16 on all linear layers")
        expect(page.get_by_label("Model", exact=True)).to_have_value("gpt2")

    def test_an_outdated_fit_is_cancelled(self):
        page = self.page
        known = {fit["id"] for fit in self.fits()}
        self.go(SLOW)
        expect(page.locator("p.status")).to_contain_text(re.compile("Batch|Looking"))
        for limit in ("23GiB", "22GiB", "21GiB"):
            page.get_by_label("Limit").fill(limit)
        # However many of the limits were asked about: all but the last are given up.
        self.until(lambda: [fit["state"] for fit in self.fits() if fit["id"] not in known][1:], lambda states: states and set(states) == {"cancelled"})
        expect(page.locator("p.status")).to_contain_text(re.compile("Batch|Looking"))
        page.get_by_label("Model", exact=True).fill("")
        expect(page.get_by_text("Name a model, or drop a file")).to_be_visible()
        # Whoever asks nothing any more needs no answer.
        self.until(lambda: {fit["state"] for fit in self.fits() if fit["id"] not in known}, lambda states: states == {"cancelled"})

    def test_names_are_offered_and_a_wrong_one_has_its_nearest(self):
        page = self.page
        self.go()
        model = page.get_by_label("Model", exact=True)
        options = page.locator(f"datalist#{model.get_attribute('list')} option")
        expect(options).to_have_count(len(self.server.call("/v1/presets")[1]["items"]))
        model.fill("resnet5")
        page.get_by_label("Card").select_option("sim:h200")
        expect(page.get_by_role("alert")).to_contain_text("resnet5")
        expect(model).to_have_attribute("aria-invalid", "true")
        page.get_by_role("button", name="Ask about").click()
        expect(self.sentence()).to_contain_text("Train with")

    def test_what_is_wrong_is_said_at_its_field(self):
        page = self.page
        self.go(LINK)
        expect(self.sentence()).to_be_visible()
        page.get_by_label("Target").fill("-1")
        expect(page.get_by_label("Target")).to_have_attribute("aria-invalid", "true")
        page.get_by_label("Target").fill("512")
        expect(page.get_by_role("alert")).to_have_count(0)
        self.options()
        page.get_by_label("Other members of the request").fill("{")
        expect(page.get_by_role("alert")).to_contain_text("This is no JSON")
        expect(page.get_by_label("Other members of the request")).to_have_attribute("aria-invalid", "true")

    def test_options_make_variants_lengths_soaks_and_suggestions(self):
        page = self.page
        self.go("#/?model=gpt2&device=sim:h200&limit=16GiB&size.seq_len=256")
        self.options()
        for word in ("fp32", "amp bf16"):
            page.get_by_role("group", name="Precision").get_by_label(word, exact=True).check()
        page.get_by_role("group", name="Optimizer").get_by_label("sgd", exact=True).check()
        page.get_by_role("group", name="Checkpointing").get_by_label("per block").check()
        page.get_by_label("Accumulation steps").fill("2")
        page.get_by_label("Look for").select_option("throughput")
        table = page.get_by_role("region", name="Variants, best first")
        expect(table.locator("tbody tr")).to_have_count(2)
        expect(table).to_contain_text("amp bf16, sgd")
        for part in ("precision=fp32%2Camp_bf16", "optimizer=sgd", "checkpointing=per_block", "accumulation=2", "objective=throughput"):
            # The address follows a moment later.
            expect(page).to_have_url(re.compile(re.escape(part)))
        # Lengths.
        page.get_by_label("Sequence length").fill("128:10,256:5")
        expect(page.get_by_role("region", name="Largest safe batches").locator("tbody tr")).to_have_count(2)
        # What else, and one of the changes.
        self.go("#/?model=resnet18&device=sim:h200&limit=6GiB")
        expect(self.sentence()).to_be_visible()
        self.options()
        page.get_by_label("Say what else would help").check()
        expect(page.get_by_role("heading", name=re.compile("^To take"))).to_be_visible()
        page.get_by_role("button", name="Ask with precision amp_fp16").click()
        expect(page.locator("dl.facts")).to_contain_text("amp fp16")
        expect(page.get_by_role("group", name="Precision").get_by_label("amp fp16")).to_be_checked()
        # A soak.
        self.go("#/?model=resnet18&device=sim:h200&limit=6GiB&size.image_size=160,224")
        expect(self.sentence()).to_be_visible()
        self.options()
        page.get_by_label("Find the batch that lasts").check()
        page.get_by_label("Steps", exact=True).fill("50")
        expect(self.answer()).to_contain_text("was followed over 50 steps")

    def test_other_members_of_a_request_can_be_asked(self):
        self.go("#/?model=resnet18&device=sim:h200&limit=8GiB&more=" + json.dumps({"world_size": 4, "target_batch": 4096}))
        expect(self.sentence()).to_contain_text("4096 samples per optimizer step")


class Files(Page):
    def choose(self, *files):
        self.page.locator("input[type=file]").set_input_files(list(files))

    def file(self, name, document):
        return {"name": name, "mimeType": "application/json", "buffer": json.dumps(document).encode()}

    def drop(self, name, document):
        """As somebody who drags a file onto the page."""
        page = self.page
        transfer = page.evaluate_handle(
            "([name, text]) => { const all = new DataTransfer(); all.items.add(new File([text], name)); return all; }",
            [name, json.dumps(document)],
        )
        for event in ("dragover", "drop"):
            page.locator(".ask").dispatch_event(event, {"dataTransfer": transfer})

    def test_a_request_fills_the_form(self):
        self.go()
        self.drop("request.json", {**RESNET, "training": {"precision": "amp_fp16", "clip_grad_norm": 1.0}, "world_size": 2})
        page = self.page
        expect(page.get_by_label("Model", exact=True)).to_have_value("resnet18")
        expect(page.get_by_label("Target")).to_have_value("512")
        expect(page.get_by_role("group", name="Precision").get_by_label("amp fp16")).to_be_checked()
        more = json.loads(page.get_by_label("Other members of the request").input_value())
        self.assertEqual(more, {"training": {"clip_grad_norm": 1.0}})
        expect(page.get_by_label("GPUs")).to_have_value("2")
        expect(self.sentence()).to_contain_text("512 samples")

    def test_a_config_is_asked_about_and_held_by_the_address(self):
        config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 2, "vocab_size": 1000, "n_positions": 256}
        self.go("#/?device=sim:h200&limit=8GiB")
        self.choose(self.file("config.json", config))
        expect(self.page.locator(".file")).to_contain_text("config.json")
        self.page.get_by_label("Sequence length").fill("128")
        expect(self.sentence()).to_contain_text("Train with")
        told = self.sentence().inner_text()
        self.page.reload()
        expect(self.sentence()).to_have_text(told)
        self.page.get_by_role("button", name="Name a model instead").click()
        expect(self.page.get_by_label("Model", exact=True)).to_have_value("")

    def test_an_exported_graph_is_uploaded_and_asked_about(self):
        self.go("#/?device=sim:h200&limit=4GiB")
        self.choose(GOLDEN / "exported/mlp-small.pt2")
        expect(self.page.locator(".file")).to_contain_text("mlp-small.pt2")
        expect(self.sentence()).to_contain_text("Train with")
        self.assertIn("sha256", self.page.url)

    def test_recordings_are_one_program(self):
        self.go("#/?device=sim:h200&limit=12GiB")
        for batch in (8, 16):
            self.choose(GOLDEN / f"recorded/resnet50-ampfp16-sgd.b{batch}.gz")
            expect(self.page.locator(".file")).to_contain_text(f"b{batch}.gz")
        expect(self.page.get_by_label("Batches")).to_have_value("8,16")
        expect(self.sentence()).to_contain_text("Train with")
        expect(self.answer()).to_contain_text("from recordings of the program")

    def test_a_memory_snapshot_is_taken_and_what_it_lacks_is_said(self):
        self.go("#/?device=sim:h200&limit=12GiB")
        self.choose(GOLDEN / "snapshots/complete.pickle.gz")
        expect(self.page.locator(".file")).to_contain_text("complete.pickle.gz")
        self.page.get_by_label("Batches").fill("4")
        expect(self.page.locator("p.sentence, .problem").first).to_be_visible()

    def test_what_is_no_model_is_refused_with_its_name(self):
        self.go()
        self.choose({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no graph"})
        expect(self.page.get_by_role("alert")).to_contain_text("notes.txt")


class Answers(Page):
    def test_what_is_copied_is_what_the_command_line_writes(self):
        self.go(LINK)
        expect(self.sentence()).to_be_visible()
        page = self.page
        for name, title in (("hf", "Hugging Face"), ("lightning", "Lightning"), ("accelerate", "Accelerate"), ("env", "Shell")):
            page.get_by_role("button", name=title, exact=True).click()
            expect(page.get_by_text(f"Copied for {title}.")).to_be_visible()
            request = self.server.database.with_name("request.json")
            request.write_text(json.dumps(RESNET))
            command = [str(self.binary), "fit", str(request), "--format", name, "--database", str(request.with_name("other.db"))]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self.assertEqual(page.evaluate("navigator.clipboard.readText()"), said)
            expect(page.get_by_label(f"For {title}")).to_have_text(said)
        page.get_by_role("button", name="curl").click()
        expect(page.get_by_text("Copied for curl.")).to_be_visible()
        command = page.evaluate("navigator.clipboard.readText()")
        fit = json.loads(subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout)
        self.assertEqual(fit["state"], "done")

    def test_the_memory_adds_up_to_the_limit_and_the_free_part_is_hatched(self):
        self.go(LINK)
        table = self.page.locator("table.legend")
        expect(table).to_contain_text("activations")
        shares = [float(text.removesuffix(" %")) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
        self.assertAlmostEqual(sum(shares), 100, delta=0.1 * len(shares))
        free = self.page.locator(".stack .c-free")
        self.assertIn("repeating-linear-gradient", free.evaluate("part => getComputedStyle(part).backgroundImage"))
        drawn = self.page.evaluate("""() => {
            const parts = [...document.querySelectorAll('.stack .part')].map((part) => part.getBoundingClientRect().width);
            return parts.at(-1) / parts.reduce((sum, width) => sum + width, 0);
        }""")
        self.assertAlmostEqual(100 * drawn, shares[-1], delta=1.5)

    def test_the_curve_has_zones_and_more_batches_than_were_probed(self):
        page, fit = self.page, self.ask({"model": {"preset": "resnet18"}, "device": "sim:h200", "memory_limit": "8GiB"})
        # Of fits that took long no more batches are simulated; this machine may be slow.
        page.route(f"**/v1/fits/{fit['id']}", lambda route: route.fulfill(json={**fit, "finished_at": fit["started_at"]}))
        self.go(f"#/fit/{fit['id']}")
        expect(page.locator(".chart canvas")).to_be_visible()
        page.get_by_text("The same as a table").click()
        rows = page.get_by_role("region", name="Batches and memory as a table").locator("tbody tr")
        expect(rows.nth(10)).to_be_visible()
        said = " ".join(rows.all_inner_texts())
        for verdict in ("fits", "fits with retries", "out of memory"):
            self.assertIn(verdict, said)
        # Both zones are tinted: colours that are neither paper nor a line, which is a few pixels wide.
        widths = page.evaluate("""() => {
            const canvas = document.querySelector('.chart canvas');
            const pixels = canvas.getContext('2d');
            const row = pixels.getImageData(0, Math.round(canvas.height * 0.45), canvas.width, 1).data;
            const widths = {};
            for (let x = 0; x < canvas.width; x++) {
                const colour = row.slice(4 * x, 4 * x + 4).join();
                widths[colour] = (widths[colour] ?? 0) + 1 / canvas.width;
            }
            return widths;
        }""")
        self.assertEqual(len([colour for colour, width in widths.items() if width > 0.02]), 3, widths)

    def test_measured_points_lie_over_the_simulated_line(self):
        """No GPU is here: the answer of the service is given a probe that was run on one."""
        fit = self.ask(RESNET)
        probe = {**fit["result"]["probes"][0], "evidence": "probed"}
        fit["result"]["probes"].append(probe)
        fit["result"]["probes"].append({**probe, "batch": max(1, probe["batch"] // 2), "peak_reserved_bytes": probe["peak_reserved_bytes"] // 2})
        self.page.route(f"**/v1/fits/{fit['id']}", lambda route: route.fulfill(json=fit))
        self.go(f"#/fit/{fit['id']}")
        expect(self.page.locator(".u-legend")).to_contain_text("measured")
        self.page.get_by_text("The same as a table").click()
        expect(self.page.get_by_role("region", name="as a table")).to_contain_text("probed")

    def test_nothing_fits_is_an_answer_too(self):
        self.go("#/?model=meta-llama/Llama-2-7b-hf&size.seq_len=2048&device=sim:t4")
        expect(self.sentence()).to_contain_text("Nothing fits")
        expect(self.page.get_by_role("button", name="Hugging Face", exact=True)).to_have_count(0)

    def test_on_a_phone_the_answer_is_a_tap_or_enter_away(self):
        page, outcome = self.page, self.page.get_by_role("region", name="Answer")
        page.set_viewport_size({"width": 390, "height": 844})
        self.go(f"{LINK}&precision=amp_bf16")
        best = self.ask({**RESNET, "training": {"precision": "amp_bf16"}})["result"]["recommendation"]
        see = page.get_by_role("button", name=f"Micro-batch {best['micro_batch']}: see the answer")
        expect(see).to_be_in_viewport()
        expect(self.sentence()).not_to_be_in_viewport()
        expect(page.locator("p.status")).to_have_text(f"Micro-batch {best['micro_batch']}: see the answer")
        see.click()
        expect(self.sentence()).to_be_in_viewport()
        expect(outcome).to_be_focused()
        # What is wrong is brought into view by the keyboard.
        page.get_by_label("Model", exact=True).fill("resnet5")
        why = page.get_by_role("button", name="No answer: see why")
        expect(why).to_be_in_viewport()
        expect(outcome.get_by_role("alert")).not_to_be_in_viewport()
        page.get_by_label("Model", exact=True).press("Enter")
        expect(outcome.get_by_role("alert")).to_be_in_viewport()
        expect(outcome).to_be_focused()

    def test_a_link_leads_to_an_answer_and_to_its_question(self):
        fit = self.ask(RESNET)
        self.go(f"#/fit/{fit['id']}")
        expect(self.page.get_by_role("heading", name="resnet18")).to_be_visible()
        self.page.get_by_role("link", name="Change this question").click()
        expect(self.page.get_by_label("Model", exact=True)).to_have_value("resnet18")
        expect(self.page.get_by_label("Limit")).to_have_value("8GiB")
        self.go("#/fit/none")
        expect(self.page.get_by_role("alert")).to_contain_text("no fit")
