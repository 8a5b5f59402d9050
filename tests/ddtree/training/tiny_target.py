"""A tiny random target as a folder that any loader takes: numbers are its words."""

from __future__ import annotations

from pathlib import Path

from tiny_models import BASE, VOCAB, twins
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

FLAGS = {
    "answers": 24,
    "held_out": 4,
    "layers": 1,
    "slot_intermediate_size": 32,
    "vocabulary": 128,
    "frequent": 64,
    "anchors": 16,
    "documents": 2,
    "max_tokens": 64,
    "warm_up": 5,
}
"""Settings under which every stage takes moments."""


def save_target(folder: Path) -> Path:
    model = twins("llama", BASE)[1]
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(VOCAB)}, unk_token="<0>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<0>", eos_token="<2>", bos_token="<1>"
    ).save_pretrained(folder)
    return folder
