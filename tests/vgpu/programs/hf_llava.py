"""A vision-language model (LLaVA): a CLIP tower, a projector, a Llama; the tower frozen, bf16 autocast."""
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
from measure import arguments

args = arguments(batch=2)
vision = CLIPVisionConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, image_size=224, patch_size=14)
text = LlamaConfig(vocab_size=32064, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8)
model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_id=32000)).cuda()
model.model.vision_tower.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-5)
patches = (224 // 14) ** 2
for step in range(args.steps):
    ids = torch.randint(3, 32000, (args.batch, patches + 128), device="cuda")
    ids[:, 8:8 + patches] = 32000
    labels = ids.masked_fill(ids == 32000, -100)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, pixel_values=torch.randn(args.batch, 3, 224, 224, device="cuda"), labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
