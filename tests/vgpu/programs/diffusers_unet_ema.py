"""diffusers: unconditional UNet2DModel with EMAModel, Accelerate, DDPM noise."""
import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from measure import arguments

args = arguments(batch=16)
accelerator = Accelerator(mixed_precision="fp16")
model = UNet2DModel(sample_size=64, layers_per_block=1, block_out_channels=(128, 128, 256, 256), down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_cosine_schedule_with_warmup(optimizer, 1, 10)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
ema, noise_schedule = EMAModel(model.parameters(), decay=0.999), DDPMScheduler(1000)
ema.to(accelerator.device)
for step in range(args.steps):
    clean = torch.randn(args.batch, 3, 64, 64, device=accelerator.device)
    noise, t = torch.randn_like(clean), torch.randint(0, 1000, (args.batch,), device=clean.device)
    with accelerator.autocast(): loss = torch.nn.functional.mse_loss(model(noise_schedule.add_noise(clean, noise, t), t).sample.float(), noise)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    ema.step(model.parameters())
