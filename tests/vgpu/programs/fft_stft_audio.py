"""Speech enhancement on spectrograms: torch.stft and istft with a bidirectional GRU mask, a multi-resolution loss."""
import torch
from torch import nn
from measure import arguments

args = arguments(batch=16)
window = torch.hann_window(512, device="cuda")
rnn, mask = nn.GRU(257, 384, 2, batch_first=True, bidirectional=True).cuda(), nn.Linear(768, 257).cuda()
optimizer = torch.optim.AdamW([*rnn.parameters(), *mask.parameters()], lr=1e-3)
for step in range(args.steps):
    clean = torch.randn(args.batch, 16000 * 4, device="cuda")
    noisy = clean + 0.3 * torch.randn_like(clean)
    spec = torch.stft(noisy, 512, 128, window=window, return_complex=True)
    m = torch.sigmoid(mask(rnn(spec.abs().transpose(1, 2))[0])).transpose(1, 2)
    out = torch.istft(spec * m, 512, 128, window=window, length=clean.shape[1])
    loss = (out - clean).abs().mean()
    for n in (256, 1024): loss = loss + (torch.stft(out, n, n // 4, window=torch.hann_window(n, device="cuda"), return_complex=True).abs() - torch.stft(clean, n, n // 4, window=torch.hann_window(n, device="cuda"), return_complex=True).abs()).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
