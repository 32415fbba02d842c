"""More loops for `planted.py`, each made to be misjudged: growth that is seldom, slow or hidden, and what only looks like it."""

import collections
import copy
import ctypes

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from planted import DEVICE, Deep, Net, limited


def model(width=64, layers=3, lr=0.1):
    net = Deep(width, layers).to(DEVICE)
    return net, torch.optim.AdamW(net.parameters(), lr=lr)


def train(net, optimizer, samples=300, width=64):
    x = torch.empty(samples, width, device=DEVICE)
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def taken_by_others(mib_left):
    """Memory outside of PyTorch's allocator, as another process on the same GPU takes it; what is left is for this one."""
    free, _ = torch.cuda.mem_get_info()
    pointer = ctypes.c_void_p()
    error = ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(free - (mib_left << 20)))
    assert error == 0, error


def growth_each_fourth_validation():
    net, optimizer = model()
    scores = []
    for step in range(28):
        train(net, optimizer)
        if step % 4 == 3:
            y = torch.empty(200, 64, device=DEVICE)
            scores.append(net(y).square().mean())


def growth_three_validations():
    net, optimizer = model()
    predicted = []
    for _ in range(4):
        for _ in range(8):
            train(net, optimizer)
        with torch.no_grad():
            for _ in range(5):
                y = torch.empty(2000, 64, device=DEVICE)
                predicted.append(net(y))


def growth_images_now_and_then():
    net, optimizer = model()
    logged = []
    for step in range(32):
        x = torch.empty(300, 64, device=DEVICE)
        out = net(x)
        if step % 3 == 0:
            logged.append(out.detach())
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def growth_loader_cache():
    cache = {}

    def item(index):
        if index not in cache:
            cache[index] = torch.empty(100, 64, device=DEVICE)
        return cache[index]

    net, optimizer = model()
    for step in range(12):
        x = torch.cat([item(3 * step), item(3 * step + 1), item(3 * step + 2)])
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_loader_cache_filled():
    cache = {}

    def item(index):
        if index not in cache:
            cache[index] = torch.empty(100, 64, device=DEVICE)
        return cache[index]

    net, optimizer = model()
    for _ in range(4):
        for step in range(5):
            x = torch.cat([item(3 * step), item(3 * step + 1), item(3 * step + 2)])
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def clean_growth_that_stops():
    net, optimizer = model()
    warm = []
    for step in range(20):
        x = torch.empty(300, 64, device=DEVICE)
        out = net(x)
        if step < 9:
            warm.append(out.detach())
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_scheduler():
    net = Deep(64, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=20)
    for _ in range(12):
        train(net, optimizer)
        scheduler.step()


def clean_averaged_from_the_fourth_step():
    net, optimizer = model()
    averaged = None
    for step in range(14):
        train(net, optimizer)
        if step == 3:
            averaged = copy.deepcopy(net)
        elif step > 3:
            with torch.no_grad():
                for mean, weight in zip(averaged.parameters(), net.parameters()):
                    mean.lerp_(weight, 0.01)


def clean_averages_made_anew():
    net, optimizer = model()
    averages = {name: value.detach().clone() for name, value in net.named_parameters()}
    for _ in range(10):
        train(net, optimizer)
        with torch.no_grad():
            averages = {name: 0.99 * averages[name] + 0.01 * value for name, value in net.named_parameters()}


def clean_thawing():
    net, optimizer = model()
    for block in net.blocks:
        block.requires_grad_(False)
    for step in range(18):
        if step % 4 == 3 and step < 15:
            net.blocks[len(net.blocks) - 1 - step // 4 % 3].requires_grad_(True)
        train(net, optimizer)


def clean_scores_cleared():
    net, optimizer = model()
    for _ in range(5):
        scores = []
        for _ in range(6):
            x = torch.empty(300, 64, device=DEVICE)
            out = net(x)
            scores.append(out.detach())
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cat(scores).mean()
        del scores


def growth_state_in_evaluation():
    cell, head = nn.GRUCell(64, 64).to(DEVICE), nn.Linear(64, 8).to(DEVICE)
    state = torch.zeros(200, 64, device=DEVICE)
    for _ in range(30):
        x = torch.empty(200, 64, device=DEVICE)
        state = cell(x, state)
        head(state).argmax(-1).cpu()


def growth_norms():
    net, optimizer = model()
    norms = []
    for _ in range(10):
        x = torch.empty(300, 64, device=DEVICE)
        net(x).square().mean().backward()
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()


def clean_checkpointed():
    net, optimizer = model(64, 4)
    for _ in range(8):
        x = torch.empty(300, 64, device=DEVICE, requires_grad=True)
        for block in net.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        net.head(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def clean_generation():
    net = Deep(64, 3).to(DEVICE)
    with torch.no_grad():
        for _ in range(3):
            cache = torch.empty(8, 10, 64, device=DEVICE)
            for _ in range(20):
                out = net(cache)
                cache = torch.cat([cache, out.new_empty(8, 1, 64)], dim=1)


def clean_transformers():
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=128)
    net = transformers.GPT2LMHeadModel(config).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for length in (64, 80, 48, 96, 64, 72, 128, 40, 88):
        ids = torch.zeros(4, length, dtype=torch.long, device=DEVICE)
        net(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def growth_transformers_outputs():
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=128)
    net = transformers.GPT2LMHeadModel(config).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    kept = []
    for length in (64, 80, 48, 96, 64, 72, 128, 40, 88):
        ids = torch.zeros(4, length, dtype=torch.long, device=DEVICE)
        out = net(input_ids=ids, labels=ids)
        kept.append(out.logits)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def too_large_as_lengths_grow():
    limited(160)
    net, optimizer = model(256, 2)
    for length in range(1000, 40000, 3000):
        train(net, optimizer, length, 256)


def another_process():
    taken_by_others(200)
    net, optimizer = model(256, 4)
    for _ in range(4):
        train(net, optimizer, 8000, 256)


def another_process_in_the_fifth_step():
    taken_by_others(300)
    net, optimizer = model(256, 4)
    for step in range(8):
        if step == 4:
            torch.cuda.empty_cache()
            taken_by_others(60)
        train(net, optimizer, 4000, 256)


def clean_window_of_many():
    net, optimizer = model()
    window = collections.deque(maxlen=5)
    for _ in range(20):
        x = torch.empty(300, 64, device=DEVICE)
        out = net(x)
        window.append(out.detach())
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


PLANTED = [
    growth_each_fourth_validation, growth_three_validations, growth_images_now_and_then, growth_loader_cache, clean_loader_cache_filled,
    clean_growth_that_stops, clean_scheduler, clean_averaged_from_the_fourth_step, clean_averages_made_anew, clean_thawing,
    clean_scores_cleared, growth_state_in_evaluation, growth_norms, clean_checkpointed, clean_generation, clean_transformers,
    growth_transformers_outputs, too_large_as_lengths_grow, another_process, another_process_in_the_fifth_step, clean_window_of_many,
]
