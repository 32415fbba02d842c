"""QLoRA by hand: nf4 with double quantisation, prepare_model_for_kbit_training, paged 8-bit AdamW of bitsandbytes."""
import bitsandbytes as bnb, torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from measure import arguments, mark
from standin import checkpoint

args = arguments(batch=4)
folder = checkpoint(LlamaForCausalLM(LlamaConfig(vocab_size=16000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=10, num_attention_heads=16, num_key_value_heads=4)).to(torch.bfloat16))
four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=four, device_map="auto")
mark("model")
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = bnb.optim.PagedAdamW8bit(model.parameters(), lr=2e-4)
for step in range(args.steps):
    ids = torch.randint(3, 16000, (args.batch, 512), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
