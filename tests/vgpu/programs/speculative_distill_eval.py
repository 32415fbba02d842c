"""A draft model distilled from a larger one, then speculative decoding written out with two caches that are cropped after a rejection (as many rounds as values ask for), assisted generation of transformers, contrastive evaluation of perplexity by a sliding window."""
import torch, torch.nn.functional as F
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from measure import arguments, mark
args = arguments(batch=4, steps=3)
target = Qwen3ForCausalLM(Qwen3Config(vocab_size=5000, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2, head_dim=64,
    max_position_embeddings=1024, tie_word_embeddings=True, eos_token_id=None, pad_token_id=0, bos_token_id=1)).to("cuda", torch.bfloat16).eval().requires_grad_(False)
draft = LlamaForCausalLM(LlamaConfig(vocab_size=5000, hidden_size=192, intermediate_size=512, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=1024, eos_token_id=None, pad_token_id=0, bos_token_id=1)).cuda()
opt = torch.optim.AdamW(draft.parameters(), 5e-4)
for step in range(args.steps):
    x = torch.randint(3, 5000, (args.batch, 200), device="cuda")
    with torch.no_grad(): t = target(x, use_cache=False).logits
    with torch.autocast("cuda", dtype=torch.bfloat16): out = draft(x, labels=x, use_cache=False)
    kd = F.kl_div(F.log_softmax(out.logits.float() / 2, -1), F.log_softmax(t.float() / 2, -1), reduction="batchmean", log_target=True) * 4 / 200
    loss = 0.1 * out.loss + kd; loss.backward(); opt.step(); opt.zero_grad(); print(loss.item())
draft.eval().to(torch.bfloat16); mark("distilled")
@torch.no_grad()
def speculative(prompt, new, gamma=4):
    ids, ct, cd = prompt, DynamicCache(), DynamicCache(); rounds = 0
    while ids.shape[1] < prompt.shape[1] + new and rounds < 60:
        cand, q = ids, []
        for _ in range(gamma):
            z = draft(cand[:, cd.get_seq_length():], past_key_values=cd, use_cache=True).logits[:, -1].float().softmax(-1); q.append(z)
            cand = torch.cat([cand, torch.multinomial(z, 1)], 1)
        p = target(cand[:, ct.get_seq_length():], past_key_values=ct, use_cache=True).logits[:, -gamma - 1:].float().softmax(-1); n = 0
        for i in range(gamma):
            tok = cand[0, ids.shape[1] + i]
            if torch.rand(1).item() < (p[0, i, tok] / q[i][0, tok]).item(): n += 1
            else: break
        dist = p[:, n] if n == gamma else torch.clamp(p[:, n] - q[n], min=0); dist = dist if dist.sum() > 0 else p[:, n]
        ids = torch.cat([cand[:, :ids.shape[1] + n], torch.multinomial(dist / dist.sum(-1, keepdim=True), 1)], 1); ct.crop(ids.shape[1] - 1)
        cd.crop(ids.shape[1] - 1); rounds += 1
    return ids, rounds
ids, rounds = speculative(torch.randint(3, 5000, (1, 64), device="cuda"), 24); print(ids.shape[0], rounds); mark("speculative")
with torch.no_grad():
    print(target.generate(torch.randint(3, 5000, (args.batch, 80), device="cuda"), attention_mask=torch.ones(args.batch, 80, dtype=torch.long, device="cuda"), max_new_tokens=20, do_sample=False,
        cache_implementation="static", disable_compile=True).shape)
mark("static"); nll, count, prev = 0.0, 0, 0; text = torch.randint(3, 5000, (1, 900), device="cuda")
for begin in range(0, 900, 128):
    end = min(begin + 256, 900); x = text[:, begin:end]; y = x.clone(); y[:, :-(end - prev)] = -100
    with torch.no_grad(): l = target(x, labels=y, use_cache=False).loss
    k = (y != -100).sum().item() - 1; nll += l * k; count += k; prev = end
    if end == 900: break
print("perplexity", torch.exp(nll / count).item()); mark("perplexity")
