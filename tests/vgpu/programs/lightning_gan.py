"""Lightning with manual optimisation of two networks, bf16-mixed."""
import tempfile
import pytorch_lightning as pl, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from measure import arguments


class GAN(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(nn.Linear(128, 1024), nn.LeakyReLU(0.2), nn.BatchNorm1d(1024), nn.Linear(1024, 4096), nn.LeakyReLU(0.2), nn.Linear(4096, 3 * 64 * 64), nn.Tanh())
        self.d = nn.Sequential(nn.Linear(3 * 64 * 64, 2048), nn.LeakyReLU(0.2), nn.Linear(2048, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))

    def training_step(self, real, i):
        og, od = self.optimizers()
        ones, zeros = real.new_ones(len(real), 1), real.new_zeros(len(real), 1)
        fake = self.g(torch.randn(len(real), 128, device=self.device))
        self.toggle_optimizer(og)
        og.zero_grad(); self.manual_backward(F.binary_cross_entropy_with_logits(self.d(fake), ones)); og.step()
        self.untoggle_optimizer(og)
        self.toggle_optimizer(od)
        od.zero_grad(); self.manual_backward(F.binary_cross_entropy_with_logits(self.d(real), ones) + F.binary_cross_entropy_with_logits(self.d(fake.detach()), zeros)); od.step()
        self.untoggle_optimizer(od)

    def configure_optimizers(self): return torch.optim.Adam(self.g.parameters(), 2e-4), torch.optim.Adam(self.d.parameters(), 2e-4)


args = arguments(batch=512)
loader = DataLoader(torch.randn(args.batch * args.steps, 3 * 64 * 64), batch_size=args.batch)
pl.Trainer(accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tempfile.mkdtemp()).fit(GAN(), loader)
