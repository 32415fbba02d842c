"""accelerate's complete_nlp_example.py in short, under find_executable_batch_size on a card whose memory is shared (a fraction for this process): gather_for_metrics, state saved and loaded, skip_first_batches, EMA by hand, gradient accumulation by the context manager."""
import tempfile, torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size, set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup
from measure import arguments, mark
args = arguments(batch=64, steps=4)
torch.cuda.set_per_process_memory_fraction(2.5 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
rows = [dict(input_ids=torch.randint(0, 5000, (int(n),)), label=int(n) % 2) for n in torch.randint(90, 200, (600,), generator=torch.Generator().manual_seed(2))]
def collate(x):
    return dict(input_ids=torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in x], batch_first=True), attention_mask=torch.nn.utils.rnn.pad_sequence([torch.ones(len(r["input_ids"]),
        dtype=torch.long) for r in x], batch_first=True), labels=torch.tensor([r["label"] for r in x]))
def training_function():
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2, project_dir=tempfile.mkdtemp())
    @find_executable_batch_size(starting_batch_size=4 * args.batch)
    def inner_training_loop(batch_size):
        accelerator.free_memory(); print("batch size", batch_size); set_seed(1)
        model = BertForSequenceClassification(BertConfig(vocab_size=5000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536, num_labels=2)).to(accelerator.device)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-4)
        train, valid = DataLoader(rows[:520], shuffle=True, collate_fn=collate, batch_size=batch_size, drop_last=True), DataLoader(rows[520:], collate_fn=collate, batch_size=batch_size)
        plan = get_linear_schedule_with_warmup(optimizer, 1, 20)
        model, optimizer, train, valid, plan = accelerator.prepare(model, optimizer, train, valid, plan)
        done, folder = 0, tempfile.mkdtemp()
        for epoch in range(3):
            model.train(); total_loss = 0
            for step, batch in enumerate(accelerator.skip_first_batches(train, 1) if epoch == 1 else train):
                with accelerator.accumulate(model):
                    out = model(**batch); total_loss += out.loss.detach().float(); accelerator.backward(out.loss); optimizer.step(); plan.step(); optimizer.zero_grad()
                done += accelerator.sync_gradients
                if done >= args.steps: break
            model.eval(); right = 0
            for batch in valid:
                with torch.no_grad(): out = model(**batch)
                p, r = accelerator.gather_for_metrics((out.logits.argmax(dim=-1), batch["labels"])); right += (p == r).sum().item()
            accelerator.save_state(folder); accelerator.load_state(folder); mark(f"epoch{epoch}", found=batch_size)
            if done >= args.steps: break
    inner_training_loop()
training_function()
