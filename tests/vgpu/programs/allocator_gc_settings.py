"""garbage_collection_threshold, max_split_size_mb and roundup_power2_divisions under a memory fraction, batches of changing size."""
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:0.6,max_split_size_mb:128,roundup_power2_divisions:4"
import torch, torchvision
from measure import arguments, mark

args = arguments(batch=24, steps=5)
torch.cuda.set_per_process_memory_fraction(4 * 2 ** 30 / torch.cuda.get_device_properties(0).total_memory)
model = torchvision.models.resnet50(weights=None).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for size in [160, 224, 192, 256, 128][:args.steps]:
    loss = model(torch.randn(args.batch, 3, size, size, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.empty_cache()
mark("emptied")
