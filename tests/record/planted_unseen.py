"""Loops for `planted.py` that were written and recorded before the rules in force, and judged once, at the end."""

import collections
import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from planted import DEVICE, Deep, Net, limited
from planted_attacks import taken_by_others


def sgd(net, momentum=0.9):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)


def update(loss, optimizer):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def growth_each_fifth_input_unseen():
    net = Deep(96, 2).to(DEVICE)
    optimizer = sgd(net)
    shown = []
    for step in range(40):
        x = torch.empty(250, 96, device=DEVICE)
        if step % 5 == 0:
            shown.append(x)
        update(net(x).square().mean(), optimizer)


def growth_closures_unseen():
    net = Net(128, 3).to(DEVICE)
    optimizer = sgd(net)
    later = []
    for _ in range(11):
        x = torch.empty(300, 128, device=DEVICE)
        out = net(x)
        error = (out - x).abs()
        later.append(lambda error=error: error.max())
        update(error.mean(), optimizer)


def growth_epochs_best_weights_unseen():
    net = Net(128, 3).to(DEVICE)
    optimizer = sgd(net)
    saved = []
    for _ in range(8):
        for _ in range(5):
            x = torch.empty(300, 128, device=DEVICE)
            update(net(x).square().mean(), optimizer)
        saved.append(copy.deepcopy(net.state_dict()))


def growth_policy_unseen():
    policy = Net(64, 2).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters())
    chances = []
    for _ in range(9):
        for _ in range(4):
            x = torch.empty(32, 64, device=DEVICE)
            chances.append(policy(x).log_softmax(-1)[:, 0])
        loss = -torch.stack(chances[-4:]).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()


def clean_policy_cleared_unseen():
    policy = Net(64, 2).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters())
    for _ in range(9):
        chances = []
        for _ in range(4):
            x = torch.empty(32, 64, device=DEVICE)
            chances.append(policy(x).log_softmax(-1)[:, 0])
        update(-torch.stack(chances).sum(), optimizer)


def clean_ring_unseen():
    net = Deep(64, 2).to(DEVICE)
    optimizer = sgd(net)
    ring = collections.deque(maxlen=3)
    for _ in range(16):
        ring.append(torch.empty(200, 64, device=DEVICE))
        update(net(torch.cat(list(ring))).square().mean(), optimizer)


def clean_tables_by_length_unseen():
    net = Deep(64, 2).to(DEVICE)
    optimizer = sgd(net)
    tables = {}
    for length in [100, 140, 120, 180, 160] * 5:
        x = torch.empty(8, length, 64, device=DEVICE)
        if length not in tables:
            tables[length] = torch.empty(length, 64, device=DEVICE)
        update(net(x + tables[length]).square().mean(), optimizer)


def clean_averaged_model_unseen():
    net = Deep(64, 2).to(DEVICE)
    optimizer = sgd(net)
    averaged = torch.optim.swa_utils.AveragedModel(net)
    for step in range(16):
        x = torch.empty(200, 64, device=DEVICE)
        update(net(x).square().mean(), optimizer)
        if step >= 6:
            averaged.update_parameters(net)


def clean_adversaries_unseen():
    maker, judge = Net(64, 3).to(DEVICE), Deep(64, 1).to(DEVICE)
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(10):
        for _ in range(2):
            with torch.no_grad():
                made = maker(torch.empty(200, 64, device=DEVICE))
            update(judge(made).mean() - judge(torch.empty(200, 64, device=DEVICE)).mean(), of_judge)
        update(-judge(maker(torch.empty(200, 64, device=DEVICE))).mean(), of_maker)
        of_judge.zero_grad()


def clean_micro_steps_checkpointed_unseen():
    net = Deep(64, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(7):
        for _ in range(3):
            x = torch.empty(150, 64, device=DEVICE, requires_grad=True)
            for block in net.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            net.head(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def too_large_long_one_unseen():
    limited(150)
    net = Deep(128, 4).to(DEVICE)
    optimizer = sgd(net)
    for length in [2000, 1500, 2400, 1800, 2200, 1700, 2600, 9000, 2000]:
        update(net(torch.empty(length, 128, device=DEVICE)).square().mean(), optimizer)


def too_large_in_the_optimizer_unseen():
    limited(190)
    net = Net(1024, 12).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(5):
        update(net(torch.empty(64, 1024, device=DEVICE)).square().mean(), optimizer)


def another_process_in_backward_unseen():
    taken_by_others(150)
    net = Deep(256, 3).to(DEVICE)
    optimizer = sgd(net)
    for _ in range(5):
        update(net(torch.empty(7000, 256, device=DEVICE)).square().mean(), optimizer)


def growth_teacher_unseen():
    teacher, student = Deep(64, 3).to(DEVICE), Net(64, 2).to(DEVICE)
    head = nn.Linear(64, 10).to(DEVICE)
    optimizer = torch.optim.Adam([*student.parameters(), *head.parameters()])
    known = {}
    for step in range(10):
        x = torch.empty(400, 64, device=DEVICE)
        with torch.no_grad():
            known[step] = teacher(x)
        update((head(student(x)) - known[step]).square().mean(), optimizer)


def clean_generate_unseen():
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=128)
    net = transformers.GPT2LMHeadModel(config).to(DEVICE).eval()
    for _ in range(4):
        ids = torch.ones(4, 12, dtype=torch.long, device=DEVICE)
        with torch.no_grad():
            cache = None
            for _ in range(16):
                out = net(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, ids = out.past_key_values, torch.ones(4, 1, dtype=torch.long, device=DEVICE)
        del out, cache


def fragmentation_by_growing_caches_unseen():
    limited(330)
    net = Net(256, 2).to(DEVICE)
    kept = [None] * 12
    with torch.no_grad():
        for step in range(400):
            kept[step * 7 % 12] = None
            kept[step * 7 % 12] = torch.empty(4000 + 83 * step, 256, device=DEVICE)
            net(torch.empty(500, 256, device=DEVICE))


PLANTED = [
    growth_each_fifth_input_unseen, growth_closures_unseen, growth_epochs_best_weights_unseen, growth_policy_unseen,
    clean_policy_cleared_unseen, clean_ring_unseen, clean_tables_by_length_unseen, clean_averaged_model_unseen, clean_adversaries_unseen,
    clean_micro_steps_checkpointed_unseen, too_large_long_one_unseen, too_large_in_the_optimizer_unseen,
    another_process_in_backward_unseen, growth_teacher_unseen, clean_generate_unseen, fragmentation_by_growing_caches_unseen,
]
