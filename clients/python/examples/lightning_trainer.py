"""Lightning: one line before `trainer.fit`, or a callback. Run it on a machine with an NVIDIA GPU."""

import lightning
import torch

import batchfit


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Vectors(lightning.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.batch_size = 32

    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.randn(4096, 1024), torch.randint(10, (4096,)))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size, shuffle=True)


def trainer(**named):
    return lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, precision="bf16-mixed", logger=False, enable_checkpointing=False, **named
    )


module, data, first = Classifier(), Vectors(), trainer()
plan = batchfit.lightning.tune(first, module, data, target_batch=4096, memory_limit="512MiB")
first.fit(module, datamodule=data)

# The same as a callback: it tunes when the fit starts.
finder = batchfit.lightning.BatchSizeFinder(target_batch=4096, memory_limit="512MiB")
trainer(callbacks=[finder]).fit(Classifier(), datamodule=Vectors())
