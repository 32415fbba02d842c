"""`batchfit.fit`. It needs PyTorch and the binary."""

import os
import tempfile
import unittest
from unittest import mock

import torch

import batchfit


class AskingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        environment = mock.patch.dict(os.environ, {"BATCHFIT_DATABASE": f"{folder.name}/batchfit.db"})
        environment.start()
        self.addCleanup(environment.stop)

    def test_a_name(self):
        answer = batchfit.fit("resnet18", on="t4", amp="fp16", target=64, image_size=64)

        self.assertEqual((answer.micro_batch, answer.accumulation_steps, answer.fits), (64, 1, True))
        self.assertIn("Train with a micro-batch of 64", str(answer))
        self.assertIn("activations", answer._repr_html_())

    def test_a_module_of_ones_own(self):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        batch = {"x": torch.zeros(2, 64), "y": torch.zeros(2, dtype=torch.long)}

        answer = batchfit.fit(model, batch, "cross_entropy", on="t4", target=32)
        same = batchfit.export(model, batch, "cross_entropy").fit(on="t4", target=32)

        self.assertEqual(answer.micro_batch, 32)
        self.assertEqual(same.peak_reserved_bytes, answer.peak_reserved_bytes)
        self.assertTrue(str(answer).startswith("Sequential on Tesla T4"), answer)

    def test_what_does_not_fit_is_an_answer_and_what_is_wrong_an_error(self):
        answer = batchfit.fit("resnet18", on="t4", memory_limit="64MiB")
        self.assertFalse(answer.fits)
        self.assertIn("Nothing fits", str(answer))
        with self.assertRaisesRegex(batchfit.FitError, "only NVIDIA"):
            batchfit.fit("resnet18", on="mi300x")
        with self.assertRaisesRegex(batchfit.FitError, "one card is asked about at a time"):
            batchfit.fit("resnet18", on="t4,l4", image_size=64)

    def test_what_is_of_a_module_is_no_less_asked_of_a_name(self):
        answer = batchfit.fit("gpt2", on="rtx4090", seq_len=64, dtype="bf16")
        self.assertIn("with bf16", str(answer))
        with self.assertRaisesRegex(batchfit.FitError, "fit finds the batch"):
            batchfit.fit("gpt2", batch=8, on="t4")
        with self.assertRaisesRegex(batchfit.FitError, "its own loss"):
            batchfit.fit("gpt2", loss="mse", on="t4")
        with self.assertRaisesRegex(batchfit.FitError, "config.json"):
            batchfit.fit({"architectures": ["GPT2LMHeadModel"]}, on="t4")

    def test_a_name_like_a_flag_is_a_name(self):
        with self.assertRaisesRegex(batchfit.FitError, "--version"):
            batchfit.fit("--version", on="t4")

    def test_values_in_a_list(self):
        answer = batchfit.fit("gpt2", on="t4", precision=["amp_fp16", "fp32"], seq_len=64, target=8)

        self.assertEqual(len(answer.document["result"]["variants"]), 2)

    def test_a_device_in_the_place_of_a_card(self):
        answer = batchfit.fit("resnet18", device="sim:t4", image_size=64, target=64)

        self.assertEqual(answer.micro_batch, 64)


if __name__ == "__main__":
    unittest.main()
