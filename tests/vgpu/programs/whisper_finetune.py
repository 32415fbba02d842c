"""Whisper fine-tuned by a plain loop in fp16 with a frozen encoder, then transcription by generate."""
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from measure import arguments, mark

args = arguments(batch=8)
config = WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536)
model = WhisperForConditionalGeneration(config).cuda()
model.freeze_encoder()
model.config.use_cache = False
optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-5)
scaler = torch.amp.GradScaler("cuda")
for step in range(args.steps):
    sound, labels = torch.randn(args.batch, 80, 3000), torch.randint(10, 50000, (args.batch, 100))
    with torch.autocast("cuda", dtype=torch.float16): loss = model(input_features=sound.cuda(), labels=labels.cuda()).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
model.eval()
with torch.no_grad(): print(model.generate(sound[:2].cuda(), max_new_tokens=16, use_cache=True).shape)
mark("transcribe")
