"""nn.DataParallel over whatever GPUs there are, pickled and loaded again with map_location."""
import io
import torch, torchvision
from measure import arguments, mark

args = arguments(batch=32)
model = torch.nn.DataParallel(torchvision.models.googlenet(weights=None, num_classes=100, aux_logits=False, init_weights=False)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(args.steps):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(args.batch, 3, 192, 192, device="cuda")), torch.randint(0, 100, (args.batch,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
f = io.BytesIO()
torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, f)
f.seek(0)
state = torch.load(f, map_location="cuda:0")
model.module.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
mark("loaded")
