"""Lightning as a template has it: a LightningDataModule, torchmetrics, EMAWeightAveraging, StochasticWeightAveraging, GradientAccumulationScheduler, ModelCheckpoint, a callback that prints memory; fit, validate, test from the best checkpoint, predict."""
import os, tempfile, torch, torch.nn as nn, torch.nn.functional as F, lightning as L
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, LearningRateMonitor, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.callbacks.weight_averaging import EMAWeightAveraging
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import Accuracy
from measure import arguments, mark
args = arguments(batch=24, steps=3)
class Data(L.LightningDataModule):
    def setup(self, stage=None):
        if not hasattr(self, "train"):
            self.train, self.val, self.test = random_split(TensorDataset(torch.randn(8 * args.batch, 3, 64, 64), torch.randint(0, 10, (8 * args.batch,))), [5 * args.batch, 2 * args.batch, args.batch])
    def train_dataloader(self): return DataLoader(self.train, batch_size=args.batch, num_workers=0, pin_memory=True, shuffle=True)
    def val_dataloader(self): return DataLoader(self.val, batch_size=args.batch, pin_memory=True)
    def test_dataloader(self): return DataLoader(self.test, batch_size=args.batch, pin_memory=True)
    predict_dataloader = test_dataloader
class Res(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.a, self.b, self.s = nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, 3, 1, 1, bias=False),
            nn.BatchNorm2d(o)), nn.ReLU(), nn.Sequential(nn.Conv2d(i, o, 1, s, bias=False), nn.BatchNorm2d(o)) if s > 1 or i != o else nn.Identity()
    def forward(self, x): return self.b(self.a(x) + self.s(x))
class Lit(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__(); self.save_hyperparameters()
        self.net = nn.Sequential(nn.Conv2d(3, 40, 3, 1, 1), *[Res(i, o, s) for i, o, s in ((40, 40, 1), (40, 80, 2), (80, 160, 2), (160, 160, 1))], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 10))
        self.train_acc, self.val_acc, self.val_best, self.loss = Accuracy(task="multiclass", num_classes=10), Accuracy(task="multiclass", num_classes=10), MaxMetric(), MeanMetric()
    def forward(self, x): return self.net(x)
    def step(self, batch): x, y = batch; z = self(x); return F.cross_entropy(z, y), z.argmax(1), y
    def training_step(self, batch, i):
        loss, p, y = self.step(batch); self.loss(loss); self.train_acc(p, y)
        self.log("train/loss", self.loss, on_step=False, on_epoch=True); self.log("train/acc", self.train_acc, on_step=False, on_epoch=True); return loss
    def validation_step(self, batch, i): loss, p, y = self.step(batch); self.val_acc(p, y); self.log("val/acc", self.val_acc, prog_bar=True)
    def on_validation_epoch_end(self): self.val_best(self.val_acc.compute()); self.log("val/best", self.val_best.compute(), sync_dist=True)
    test_step = validation_step
    def predict_step(self, batch, i): return self(batch[0]).softmax(1)
    def configure_optimizers(self): o = torch.optim.SGD(self.parameters(), self.hparams.lr, momentum=0.9, weight_decay=5e-4); return [o], [torch.optim.lr_scheduler.CosineAnnealingLR(o, 3)]
class Memory(Callback):
    def on_train_epoch_end(self, trainer, module): print("peak", torch.cuda.max_memory_allocated()); mark(f"epoch{trainer.current_epoch}")
def run(callbacks, **more):
    folder = tempfile.mkdtemp(); best = ModelCheckpoint(folder, monitor="val/acc", mode="max", save_last=True)
    trainer = L.Trainer(max_epochs=args.steps, callbacks=[best, Memory(), *callbacks], logger=False, enable_progress_bar=False, enable_model_summary=True, default_root_dir=folder, num_sanity_val_steps=1, **more)
    model, data = Lit(), Data(); trainer.fit(model, data); mark("fit"); trainer.validate(model, data)
    trainer.test(model, data, ckpt_path="best", weights_only=False); print(len(trainer.predict(model, data))); mark("predicted")
run([EMAWeightAveraging(decay=0.9)], precision="bf16-mixed", gradient_clip_val=1.0)
run([StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1), GradientAccumulationScheduler({0: 1, 1: 2})], benchmark=False)
