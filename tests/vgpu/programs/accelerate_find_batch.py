"""accelerate's find_executable_batch_size halves (by tenths) a batch until a step fits into 4 GiB."""
import torch
from accelerate.utils import find_executable_batch_size
from transformers import GPT2Config, GPT2LMHeadModel
from measure import arguments, mark

args = arguments(batch=128)
torch.cuda.set_per_process_memory_fraction(4 * 2 ** 30 / torch.cuda.get_device_properties(0).total_memory)
tried = []


@find_executable_batch_size(starting_batch_size=args.batch)
def train(batch_size):
    tried.append(batch_size)
    model = GPT2LMHeadModel(GPT2Config(n_embd=512, n_layer=4, n_head=8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(args.steps):
        ids = torch.randint(0, 50257, (batch_size, 128), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return batch_size


found = train()
print("found", found, "tried", tried)
mark("found", found=found, tried=tried)
