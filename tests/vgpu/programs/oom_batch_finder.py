"""Doubles the batch until torch.OutOfMemoryError, clears, then bisects; the process may use 3 GiB."""
import gc
import torch, torchvision
from measure import arguments, mark

args = arguments(batch=8, steps=2)
torch.cuda.set_per_process_memory_fraction(3 * 2 ** 30 / torch.cuda.get_device_properties(0).total_memory)
model = torchvision.models.resnet34(weights=None).cuda()
optimizer = torch.optim.Adam(model.parameters())


def fits(batch):
    try:
        for _ in range(args.steps):
            loss = model(torch.randn(batch, 3, 224, 224, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return True
    except torch.cuda.OutOfMemoryError as e:
        assert "CUDA out of memory" in str(e) and "GiB is allowed" in str(e) or "total capacity" in str(e), str(e)
        return False
    finally:
        loss = None
        optimizer.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.empty_cache()


low = args.batch
while fits(2 * low): low *= 2
high = 2 * low
while high - low > 2:
    middle = (low + high) // 2
    if fits(middle): low = middle
    else: high = middle
print("batch", low)
mark("found", found=low)
