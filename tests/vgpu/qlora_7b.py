"""QLoRA of a Llama of 7 B by Trainer: random weights in nf4, made on the card layer by layer."""
import resource, tempfile, time
began = time.time()
import torch, bitsandbytes as bnb
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
def rss(): return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) / 1024
imported, before = time.time(), rss()
config = LlamaConfig(torch_dtype="bfloat16", use_cache=False)       # 32 layers of 4,096: 6.7 B
with torch.device("meta"): model = LlamaForCausalLM(config).to(torch.bfloat16)
for module in list(model.modules()):
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and child is not model.lm_head:
            new = bnb.nn.Linear4bit(child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta")
            new.weight = bnb.nn.Params4bit(torch.empty(child.weight.shape, dtype=torch.bfloat16, device="cuda"), requires_grad=False, quant_type="nf4").cuda()
            setattr(module, name, new)
for module in model.modules():
    for name, p in list(module.named_parameters(recurse=False)):
        if p.is_meta: setattr(module, name, torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cuda")))
model.model.rotary_emb = type(model.model.rotary_emb)(config).cuda()
model.is_loaded_in_4bit = True
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
class Tokens(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        ids = torch.randint(0, 32000, (1024,)); return dict(input_ids=ids, labels=ids)
Trainer(model, TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=2, max_steps=3, bf16=True, optim="paged_adamw_8bit", report_to=[], save_strategy="no", logging_steps=1), train_dataset=Tokens()).train()
print(f"MEASURED imports {imported - began:.1f} s, {before:.0f} MiB; beside them {time.time() - imported:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before:.0f} MiB at peak", flush=True)
