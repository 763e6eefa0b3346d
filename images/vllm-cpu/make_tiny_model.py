"""Make a tiny random Llama (float32) with a byte tokenizer: make_tiny_model.py FOLDER

It answers nonsense in printable ASCII, the same on every machine: enough to show that prefill, transfer of the KV
cache and decode give the tokens that one engine alone gives.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<pad>")
PRINTABLE_ASCII = 94
"""Tokens of the byte alphabet in its sorted order that are printable ASCII."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_vocabulary() -> dict[str, int]:
    return {text: index for index, text in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL])}


def save_tokenizer(vocabulary: dict[str, int], folder: str) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def save_model(vocabulary: dict[str, int], folder: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        bos_token_id=vocabulary["<s>"],
        eos_token_id=vocabulary["</s>"],
        pad_token_id=vocabulary["<pad>"],
        tie_word_embeddings=False,
        initializer_range=0.3,
        dtype="float32",
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        # Only printable ASCII may win: an answer is as long as asked for, and every token of it is text.
        model.lm_head.weight[PRINTABLE_ASCII:] = 0
    model.save_pretrained(folder)


def main() -> None:
    folder = sys.argv[1]
    vocabulary = byte_vocabulary()
    save_tokenizer(vocabulary, folder)
    save_model(vocabulary, folder)


if __name__ == "__main__":
    main()
