"""ddpm.py IMAGES AMP: the training of denoising-diffusion-pytorch's README, of smaller images."""
import sys
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet

diffusion = GaussianDiffusion(Unet(dim=64, dim_mults=(1, 2, 4, 8), flash_attn=True), image_size=64, timesteps=1000, sampling_timesteps=250)
Trainer(diffusion, sys.argv[1], train_batch_size=16, train_lr=8e-5, train_num_steps=700000, gradient_accumulate_every=2, ema_decay=0.995, amp=sys.argv[2] == "1", calculate_fid=False).train()
