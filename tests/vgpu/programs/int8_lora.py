"""A model loaded in int8 (LLM.int8) with LoRA on its attention, Lion in 8 bit."""
import bitsandbytes as bnb, torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, OPTConfig, OPTForCausalLM
from measure import arguments, mark
from standin import checkpoint

args = arguments(batch=4)
folder = checkpoint(OPTForCausalLM(OPTConfig(vocab_size=16000, hidden_size=1024, ffn_dim=4096, num_hidden_layers=8, num_attention_heads=16, word_embed_proj_dim=1024)).half())
model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map={"": 0})
mark("model")
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
optimizer = bnb.optim.Lion8bit(model.parameters(), lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(3, 16000, (args.batch, 256), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16): loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
