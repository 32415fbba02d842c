"""diffusers: a diffusion transformer (DiT) with gradient checkpointing, bf16, 8-bit Adam of bitsandbytes, rectified flow."""
import bitsandbytes as bnb, torch
from diffusers import DiTTransformer2DModel
from measure import arguments

args = arguments(batch=16)
model = DiTTransformer2DModel(num_attention_heads=12, attention_head_dim=64, in_channels=4, out_channels=4, num_layers=10, sample_size=32, patch_size=2, num_embeds_ada_norm=1000).cuda()
model.enable_gradient_checkpointing()
optimizer = bnb.optim.Adam8bit(model.parameters(), lr=1e-4)
for step in range(args.steps):
    x, noise = torch.randn(args.batch, 4, 32, 32, device="cuda"), torch.randn(args.batch, 4, 32, 32, device="cuda")
    t = torch.rand(args.batch, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        v = model(torch.lerp(x, noise, t[:, None, None, None]), timestep=(t * 999).long(), class_labels=torch.randint(0, 1000, (args.batch,), device="cuda")).sample
    loss = (v.float() - (noise - x)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
