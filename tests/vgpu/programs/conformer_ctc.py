"""torchaudio's Conformer over mel spectrograms computed on the GPU, with nn.CTCLoss."""
import torch, torchaudio
from torch import nn
from measure import arguments

args = arguments(batch=8)
mel = torchaudio.transforms.MelSpectrogram(16000, n_fft=400, hop_length=160, n_mels=80).cuda()
model = torchaudio.models.Conformer(input_dim=80, num_heads=4, ffn_dim=1024, num_layers=6, depthwise_conv_kernel_size=31).cuda()
head = nn.Linear(80, 256).cuda()
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
ctc = nn.CTCLoss(zero_infinity=True)
for step in range(args.steps):
    sound = torch.randn(args.batch, 16000 * 8, device="cuda")
    x = torch.log(mel(sound) + 1e-6).transpose(1, 2)
    lengths = torch.randint(x.shape[1] // 2, x.shape[1] + 1, (args.batch,)).cuda()
    lengths[0] = x.shape[1]
    y, out = model(x, lengths)
    logp = head(y).log_softmax(-1).transpose(0, 1)
    loss = ctc(logp, torch.randint(1, 256, (args.batch, 50)).cuda(), out, torch.full((args.batch,), 50).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
