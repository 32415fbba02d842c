"""Lightning: a module with 16-mixed precision, gradient clipping and accumulation, validation, a learning-rate schedule."""
import tempfile
import pytorch_lightning as pl, torch, torchvision
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from measure import arguments


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet34(weights=None, num_classes=10)

    def training_step(self, batch, i):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, i): self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)}


args = arguments(batch=64, steps=2)
data = TensorDataset(torch.randn(args.batch * args.steps * 2, 3, 112, 112), torch.randint(0, 10, (args.batch * args.steps * 2,)))
trainer = pl.Trainer(accelerator="gpu", devices=1, precision="16-mixed", max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tempfile.mkdtemp())
trainer.fit(Net(), DataLoader(data, batch_size=args.batch, shuffle=True), DataLoader(data, batch_size=args.batch))
