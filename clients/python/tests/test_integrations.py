"""Tests of tuning with Hugging Face's Trainer, Lightning and Accelerate, on the processor: with real steps of theirs.

They need these libraries, and are left out where they are not installed.
"""

import importlib.util
import io
import random
import tempfile
import unittest
from contextlib import redirect_stdout

import torch
from torch import nn

import batchfit
import fake_device

MIB = 1 << 20


def has(*names):
    return all(importlib.util.find_spec(name) is not None for name in names)


class Data(torch.utils.data.Dataset):
    def __init__(self, length=40):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(length, 16, generator=generator)
        self.y = torch.randint(4, (length,), generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        data = Data()
        return (data[index] for index in range(len(data)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(16, 32).requires_grad_(False)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(32, 4)
        self.sizes = []

    def forward(self, x, labels=None):
        self.sizes.append(len(x))
        logits = self.head(self.drop(torch.relu(self.norm(self.frozen(x)))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def seed():
    random.seed(2)
    torch.manual_seed(2)


def quietly(run, *arguments, **named):
    out = io.StringIO()
    with redirect_stdout(out):
        result = run(*arguments, **named)
    return result, out.getvalue()


@unittest.skipUnless(has("transformers", "accelerate"), "needs transformers and accelerate")
class HuggingFaceTest(unittest.TestCase):
    def trainer(self, data=None, **named):
        import transformers

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        losses = []

        class Trainer(transformers.Trainer):
            def training_step(self, *arguments, **named):
                loss = super().training_step(*arguments, **named)
                losses.append(loss.item())
                return loss

        arguments = transformers.TrainingArguments(
            output_dir=folder.name, max_steps=6, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
            logging_strategy="no", learning_rate=0.05, **{"per_device_train_batch_size": 4, **named},
        )
        seed()
        trainer = Trainer(model=Model(), args=arguments, train_dataset=data if data is not None else Data())
        trainer.losses = losses
        return trainer

    def test_the_arguments_are_set_and_nothing_else_changes(self):
        trainer = self.trainer()
        before = fake_device.values(trainer.model, torch.get_rng_state())
        with fake_device.installed():
            plan, said = quietly(batchfit.hf.tune, trainer, target_batch=256, memory_limit=100 * MIB)
        self.assertEqual((plan.micro_batch, plan.accumulation_steps), (64, 4))
        self.assertEqual(trainer.args.per_device_train_batch_size, 64)
        self.assertEqual(trainer.args.gradient_accumulation_steps, 4)
        self.assertIn("per_device_train_batch_size 4 -> 64, gradient_accumulation_steps 1 -> 4", said)
        self.assertEqual(len(said.splitlines()), 1)
        self.assertEqual(fake_device.values(trainer.model, torch.get_rng_state()), before)
        self.assertIsNone(trainer.optimizer)
        self.assertEqual(trainer.state.global_step, 0)
        self.assertEqual(trainer.get_train_dataloader().batch_size or trainer.get_train_dataloader().batch_sampler.batch_size, 64)
        # Of forty samples, batches of more.
        self.assertGreater(max(recording.batch for recording in fake_device.MADE), 40)
        self.assertEqual({recording.accumulation for recording in fake_device.MADE}, {2})

    def test_training_afterwards_gives_the_losses_of_training_alone(self):
        for named in ({}, {"gradient_accumulation_steps": 2}, {"bf16": True}, {"gradient_checkpointing": False, "lr_scheduler_type": "cosine"}):
            with self.subTest(named):
                alone = self.trainer(**named)
                seed()
                alone.train()
                tuned = self.trainer(**named)
                seed()
                with fake_device.installed():
                    plan, _ = quietly(batchfit.hf.tune, tuned, memory_limit=4 * MIB)
                self.assertEqual((plan.micro_batch, plan.accumulation_steps), (4, named.get("gradient_accumulation_steps", 1)))
                tuned.losses.clear()
                tuned.train()
                self.assertEqual(tuned.losses, alone.losses)
                self.assertEqual(fake_device.values(tuned.model), fake_device.values(alone.model))

    def test_checkpointing_and_noise_as_the_trainer_has_them(self):
        import transformers

        config = transformers.BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16
        )

        class Sentences(torch.utils.data.Dataset):
            def __len__(self):
                return 20

            def __getitem__(self, index):
                return {"input_ids": torch.arange(8) + index, "labels": index % 2}

        losses = []
        for tunes in (False, True):
            trainer = self.trainer(Sentences(), gradient_checkpointing=True, neftune_noise_alpha=5.0)
            seed()
            model = transformers.BertForSequenceClassification(config)
            trainer.model = trainer.model_wrapped = model
            seed()
            if tunes:
                with fake_device.installed():
                    quietly(batchfit.hf.tune, trainer, memory_limit=4 * MIB)
                self.assertFalse(model.is_gradient_checkpointing)
                self.assertEqual(len(model.get_input_embeddings()._forward_hooks), 0)
            trainer.losses.clear()
            trainer.train()
            losses.append(list(trainer.losses))
        self.assertEqual(*losses)

    def test_an_optimizer_of_ones_own_and_streams(self):
        for data in (Data(), Stream()):
            model = Model()
            trainer = self.trainer(data)
            trainer.model = trainer.model_wrapped = model
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
            trainer.optimizer, trainer.lr_scheduler = optimizer, scheduler
            with fake_device.installed():
                plan, _ = quietly(batchfit.hf.tune, trainer, memory_limit=100 * MIB)
            self.assertGreater(plan.micro_batch, 90)
            self.assertIs(trainer.optimizer, optimizer)
            self.assertEqual(len(optimizer.state), 0)
            trainer.train()

    def test_errors_of_the_model_leave_the_trainer_as_it_was(self):
        trainer = self.trainer()
        before = fake_device.values(trainer.model)
        original = trainer.model.forward

        def forward(x, labels=None):
            if len(x) > 50:
                raise ZeroDivisionError
            return original(x, labels)

        trainer.model.forward = forward
        with fake_device.installed(), self.assertRaises(ZeroDivisionError):
            batchfit.hf.tune(trainer, memory_limit=100 * MIB)
        self.assertEqual(fake_device.values(trainer.model), before)
        self.assertEqual(trainer.args.per_device_train_batch_size, 4)
        self.assertIsNone(trainer.optimizer)

    def test_other_objects_are_refused(self):
        with self.assertRaisesRegex(TypeError, "transformers.Trainer"):
            batchfit.hf.tune(object())


@unittest.skipUnless(has("accelerate"), "needs accelerate")
class AccelerateTest(unittest.TestCase):
    def setUp(self):
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
            self.addCleanup(state._reset_state)

    def program(self, batch_size=4):
        from accelerate import Accelerator

        seed()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = Model()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        loader = torch.utils.data.DataLoader(Data(), batch_size=batch_size, shuffle=True, drop_last=True)
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

        def train(batches):
            losses = []
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(**batch)["loss"]
                    losses.append(loss.item())
                    accelerator.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            return losses

        def step(b):
            train([{"x": torch.randn(b, 16), "labels": torch.randint(4, (b,))}])

        return accelerator, model, optimizer, loader, step, train

    def test_loader_and_accumulation_are_set(self):
        accelerator, model, optimizer, loader, step, train = self.program()
        before = fake_device.values(model, optimizer, torch.get_rng_state())
        with fake_device.installed():
            plan, said = quietly(batchfit.accelerate.tune, accelerator, model, optimizer, step, target_batch=64, memory_limit=40 * MIB)
        self.assertEqual((plan.micro_batch, plan.accumulation_steps), (32, 2))
        self.assertEqual(accelerator.gradient_accumulation_steps, 2)
        self.assertIn("batch_size 4 -> 32", said)
        self.assertEqual(fake_device.values(model, optimizer, torch.get_rng_state()), before)
        self.assertEqual({recording.accumulation for recording in fake_device.MADE}, {2})
        self.assertEqual([len(batch["x"]) for batch in loader], [32])
        train(loader)

    def test_training_afterwards_gives_the_losses_of_training_alone(self):
        *_, loader, _, train = self.program()
        alone = train(loader) + train(loader)
        accelerator, model, optimizer, loader, step, train = self.program()
        with fake_device.installed():
            plan, _ = quietly(batchfit.accelerate.tune, accelerator, model, optimizer, step, memory_limit=4 * MIB)
        self.assertEqual((plan.micro_batch, plan.accumulation_steps), (4, 2))
        self.assertEqual(train(loader) + train(loader), alone)


@unittest.skipUnless(has("lightning"), "needs lightning")
class LightningTest(unittest.TestCase):
    def module(self, with_loader=True):
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = Model()
                self.batch_size = 4
                self.losses = []

            def training_step(self, batch, index):
                loss = self.model(**batch)["loss"]
                self.losses.append(loss.item())
                self.log("loss", loss, on_epoch=True)
                return loss

            def configure_optimizers(self):
                optimizer = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}}

            if with_loader:

                def train_dataloader(self):
                    return torch.utils.data.DataLoader(Data(), batch_size=self.batch_size, shuffle=True)

        seed()
        return Module()

    def trainer(self, **named):
        import warnings

        import lightning

        warnings.simplefilter("ignore")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return lightning.Trainer(
            accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder.name, **named,
        )

    def test_the_attribute_and_the_accumulation_are_set(self):
        module, trainer = self.module(), self.trainer()
        before = fake_device.values(module, torch.get_rng_state())
        with fake_device.installed():
            plan, said = quietly(batchfit.lightning.tune, trainer, module, target_batch=256, memory_limit=100 * MIB)
        self.assertEqual((plan.micro_batch, plan.accumulation_steps), (64, 4))
        self.assertEqual((module.batch_size, trainer.accumulate_grad_batches), (64, 4))
        self.assertIn("batch_size 4 -> 64, accumulate_grad_batches 1 -> 4", said)
        self.assertEqual(fake_device.values(module, torch.get_rng_state()), before)
        self.assertEqual(trainer.global_step, 0)
        self.assertEqual(trainer.callbacks and [type(one).__name__ for one in trainer.callbacks if "Finder" in type(one).__name__], [])
        module.losses.clear()
        trainer.fit(module)
        self.assertEqual(len(module.losses), 2)

    def test_training_afterwards_gives_the_losses_of_training_alone(self):
        for named in ({}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}, {"precision": "bf16-mixed"}):
            with self.subTest(named):
                alone, trainer = self.module(), self.trainer(**named)
                seed()
                trainer.fit(alone)
                tuned, trainer = self.module(), self.trainer(**named)
                seed()
                with fake_device.installed():
                    plan, _ = quietly(batchfit.lightning.tune, trainer, tuned, memory_limit=4 * MIB)
                self.assertEqual(plan.micro_batch, 4)
                tuned.losses.clear()
                trainer.fit(tuned)
                self.assertEqual(tuned.losses, alone.losses)
                self.assertEqual(fake_device.values(tuned), fake_device.values(alone))

    def test_loaders_and_data_modules(self):
        import lightning

        class Source(lightning.LightningDataModule):
            def __init__(self):
                super().__init__()
                self.save_hyperparameters({"batch_size": 4})

            def train_dataloader(self):
                return torch.utils.data.DataLoader(Data(), batch_size=self.hparams.batch_size)

        source = Source()
        loader = torch.utils.data.DataLoader(Stream(), batch_size=4)
        shuffled = torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(4))
        for data, now in (
            (source, lambda: source.hparams.batch_size),
            (loader, lambda: loader.batch_size),
            (shuffled, lambda: shuffled.batch_size),
        ):
            module, trainer = self.module(with_loader=False), self.trainer()
            del module.batch_size
            with fake_device.installed():
                plan, said = quietly(batchfit.lightning.tune, trainer, module, data, memory_limit=32 * MIB)
            self.assertGreater(plan.micro_batch, 28)
            self.assertEqual(now(), plan.micro_batch)
            self.assertIn(f"batch_size 4 -> {plan.micro_batch}", said)
            module.losses.clear()
            if isinstance(data, lightning.LightningDataModule):
                trainer.fit(module, datamodule=data)
            else:
                trainer.fit(module, data)
            self.assertEqual(len(module.losses), 2 * -(-40 // plan.micro_batch))

    def test_the_callback_goes_on_to_train(self):
        module = self.module()
        finder = batchfit.lightning.BatchSizeFinder(target_batch=32, memory_limit=20 * MIB)
        trainer = self.trainer(callbacks=[finder])
        seed()
        with fake_device.installed():
            _, said = quietly(trainer.fit, module)
        self.assertEqual((finder.plan.micro_batch, finder.plan.accumulation_steps), (16, 2))
        self.assertIn("batchfit:", said)
        self.assertEqual(module.model.sizes[-3:], [16, 16, 8])
        self.assertEqual(trainer.current_epoch, 2)

    def test_manual_optimization_with_two_optimizers(self):
        import lightning

        class Both(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.automatic_optimization = False
                self.a, self.b = Model(), Model()
                self.batch_size = 4
                self.losses = []

            def training_step(self, batch, index):
                for model, optimizer in zip((self.a, self.b), self.optimizers()):
                    optimizer.zero_grad()
                    loss = model(**batch)["loss"]
                    self.manual_backward(loss)
                    optimizer.step()
                    self.losses.append(loss.item())

            def configure_optimizers(self):
                return [torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=0.01) for m in (self.a, self.b)]

            def train_dataloader(self):
                return torch.utils.data.DataLoader(Data(), batch_size=self.batch_size)

        seed()
        alone = Both()
        self.trainer().fit(alone)
        seed()
        tuned, trainer = Both(), self.trainer()
        with fake_device.installed():
            plan, _ = quietly(batchfit.lightning.tune, trainer, tuned, memory_limit=4 * MIB)
        self.assertEqual(plan.micro_batch, 4)
        tuned.losses.clear()
        trainer.fit(tuned)
        self.assertEqual(tuned.losses, alone.losses)

    def test_an_error_leaves_the_trainer_as_it_was(self):
        module, trainer = self.module(), self.trainer()
        before = fake_device.values(module)
        forward = module.model.forward

        def failing(x, labels=None):
            if len(x) > 50:
                raise ZeroDivisionError
            return forward(x, labels)

        module.model.forward = failing
        with fake_device.installed(), self.assertRaises(ZeroDivisionError):
            batchfit.lightning.tune(trainer, module, memory_limit=100 * MIB)
        self.assertEqual(fake_device.values(module), before)
        self.assertEqual((module.batch_size, trainer.accumulate_grad_batches), (4, 1))


if __name__ == "__main__":
    unittest.main()
