"""A bidirectional LSTM over padded texts of different lengths: packed sequences, Adam, clipping."""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from measure import arguments


class Classifier(nn.Module):
    def __init__(self, vocab=30000, dim=300, hidden=512):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(vocab, dim, padding_idx=0), nn.LSTM(dim, hidden, 2, batch_first=True, bidirectional=True, dropout=0.3), nn.Linear(2 * hidden, 5)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(out.max(1).values)


args = arguments(batch=64)
model = Classifier().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    lengths = torch.randint(20, 257, (args.batch,))
    ids = torch.randint(1, 30000, (args.batch, int(lengths.max())))
    ids[torch.arange(ids.shape[1])[None] >= lengths[:, None]] = 0
    loss = nn.functional.cross_entropy(model(ids.cuda(), lengths.cuda()), torch.randint(0, 5, (args.batch,)).cuda())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
