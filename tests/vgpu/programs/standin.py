"""Stand-ins for downloads: a tokenizer of whole words and a folder with random weights of a configuration."""
import os, tempfile
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def tokenizer(size=8000):
    names = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", ":"]
    words = names + [f"w{i}" for i in range(size - len(names))]
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t = PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=2048)
    t.chat_template = "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' </s> ' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
    return t


def texts(rows, low, high, size=8000, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [" ".join(f"w{i}" for i in torch.randint(0, size - 10, (int(torch.randint(low, high + 1, (1,), generator=g)),), generator=g).tolist()) for _ in range(rows)]


def checkpoint(model, tokens=None):
    """A folder as if downloaded."""
    folder = tempfile.mkdtemp(prefix="checkpoint-")
    model.save_pretrained(folder)
    if tokens is not None: tokens.save_pretrained(folder)
    return folder
