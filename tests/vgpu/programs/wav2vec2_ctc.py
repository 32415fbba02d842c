"""wav2vec 2.0 with CTC on raw sound of different lengths, time masking, gradient checkpointing."""
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
from measure import arguments

args = arguments(batch=8)
config = Wav2Vec2Config(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, vocab_size=32, mask_time_prob=0.1, ctc_loss_reduction="mean", ctc_zero_infinity=True, attn_implementation="sdpa")
model = Wav2Vec2ForCTC(config)
model.freeze_feature_encoder()
model.gradient_checkpointing_enable()
model.cuda().train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(args.steps):
    lengths = torch.randint(40000, 80001, (args.batch,))
    sound, mask = torch.randn(args.batch, 80000), (torch.arange(80000)[None] < lengths[:, None]).long()
    labels = torch.randint(1, 32, (args.batch, 40))
    labels[torch.arange(40)[None] >= torch.randint(10, 41, (args.batch, 1))] = -100
    loss = model(input_values=sound.cuda(), attention_mask=mask.cuda(), labels=labels.cuda()).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
