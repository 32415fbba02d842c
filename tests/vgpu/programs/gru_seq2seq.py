"""Translation with GRUs and attention: an encoder, a decoder stepped token by token with teacher forcing, then greedy decoding until </s>."""
import random
import torch
from torch import nn
from measure import arguments, mark


class Seq2Seq(nn.Module):
    def __init__(self, vocab=16000, d=512):
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.encoder, self.cell = nn.GRU(d, d, 2, batch_first=True), nn.GRUCell(2 * d, d)
        self.attend, self.out = nn.Linear(d, d), nn.Linear(2 * d, vocab)

    def step(self, token, state, memory):
        weights = torch.softmax(torch.bmm(memory, self.attend(state).unsqueeze(2)).squeeze(2), 1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        state = self.cell(torch.cat([self.tgt(token), context], 1), state)
        return self.out(torch.cat([state, context], 1)), state

    def forward(self, src, tgt, forcing):
        memory, h = self.encoder(self.src(src))
        state, token, logits = h[-1], tgt[:, 0], []
        for t in range(1, tgt.shape[1]):
            y, state = self.step(token, state, memory)
            logits.append(y)
            token = tgt[:, t] if random.random() < forcing else y.argmax(1)
        return torch.stack(logits, 1)

    @torch.no_grad()
    def translate(self, src, limit=30, end=2):
        memory, h = self.encoder(self.src(src))
        state, token, done = h[-1], torch.ones(len(src), dtype=torch.long, device=src.device), torch.zeros(len(src), dtype=torch.bool, device=src.device)
        for _ in range(limit):
            y, state = self.step(token, state, memory)
            token = y.argmax(1)
            done |= token == end
            if done.all(): break
        return token


args = arguments(batch=48)
random.seed(0)
model = Seq2Seq().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    src, tgt = torch.randint(3, 16000, (args.batch, 40), device="cuda"), torch.randint(3, 16000, (args.batch, 32), device="cuda")
    logits = model(src, tgt, 1.0)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
model.translate(torch.randint(3, 16000, (args.batch, 40), device="cuda"))
mark("translate")
