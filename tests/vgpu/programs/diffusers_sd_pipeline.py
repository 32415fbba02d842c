"""Stable Diffusion's parts put together by hand: classifier-free guidance with DDIM in fp16, attention slicing off, the VAE decoding in slices."""
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel
from measure import arguments, mark

args = arguments(batch=2, steps=4)
text = CLIPTextModel(CLIPTextConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8)).half().cuda().eval()
unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=512, block_out_channels=(192, 384, 768, 768), layers_per_block=1).half().cuda().eval()
vae = AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4, block_out_channels=[64, 128, 256, 256], latent_channels=4).half().cuda().eval()
vae.enable_slicing()
mark("model")
schedule = DDIMScheduler()
schedule.set_timesteps(args.steps, device="cuda")
with torch.no_grad():
    states = torch.cat([text(torch.randint(0, 49000, (args.batch, 77), device="cuda"))[0] for _ in range(2)])
    x = torch.randn(args.batch, 4, 64, 64, device="cuda", dtype=torch.float16)
    for t in schedule.timesteps:
        plain, wanted = unet(schedule.scale_model_input(torch.cat([x, x]), t), t, encoder_hidden_states=states).sample.chunk(2)
        x = schedule.step(plain + 7.5 * (wanted - plain), t, x).prev_sample
    mark("denoise")
    image = vae.decode(x / vae.config.scaling_factor).sample.float().cpu()
print(image.shape)
mark("decode")
