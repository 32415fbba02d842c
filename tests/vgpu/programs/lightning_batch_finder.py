"""Lightning's Tuner looks for a batch size by doubling until out of memory; the process may use 3 GiB."""
import tempfile
import pytorch_lightning as pl, torch
from pytorch_lightning.tuner import Tuner
from torch import nn
from torch.utils.data import DataLoader
from measure import arguments, mark


class Net(pl.LightningModule):
    def __init__(self, batch_size):
        super().__init__()
        self.batch_size, self.net = batch_size, nn.Sequential(*(m for i, o in ((3, 64), (64, 128), (128, 128)) for m in (nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def train_dataloader(self): return DataLoader([(torch.randn(3, 64, 64), i % 10) for i in range(512)], batch_size=self.batch_size)
    def training_step(self, batch, i): return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())


args = arguments(batch=16, steps=3)
torch.cuda.set_per_process_memory_fraction(3 * 2 ** 30 / torch.cuda.get_device_properties(0).total_memory)
model = Net(args.batch)
trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir=tempfile.mkdtemp())
found = Tuner(trainer).scale_batch_size(model, mode="binsearch", max_trials=6, steps_per_trial=args.steps)
print("batch", found)
mark("found", found=found)
