"""Make the tiny encoder that ships for tests and docs: `python tests/make_tiny.py FOLDER`.

A BERT of two narrow layers with random weights and byte-pair tokens learnt from the demo's contract clauses. Random,
but not useless: its layers add little to the token's own random vector, so that texts which share tokens are near each
other. The same bytes come out every time, on every machine with the same versions of the libraries.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

# Before tokenizers counts pairs: the order of ties must not depend on threads.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers

CORPUS = Path(__file__).parent.parent / "examples" / "legal-summ" / "corpus.jsonl.gz"
TOKENS, DIM, LAYERS, HEADS, INNER, POSITIONS, GROUP = 1024, 64, 2, 2, 128, 512, 64


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=TOKENS,
        special_tokens=["[PAD]", "[CLS]", "[SEP]"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKC(), tokenizers.normalizers.Lowercase()]
    )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)

    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": TOKENS,
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 1,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8", newline="\n")

    random = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}

    def matrix(name: str, rows: int, columns: int, deviation: float) -> None:
        values = torch.randn(rows, columns, generator=random) * deviation
        scale = values.unflatten(1, (-1, GROUP)).abs().amax(dim=2) / 127
        weights[f"{name}.int8"] = (
            (values.unflatten(1, (-1, GROUP)) / scale[..., None]).round().flatten(1).to(torch.int8)
        )
        weights[f"{name}.scale"] = scale

    def linear(name: str, rows: int, columns: int) -> None:
        matrix(f"{name}.weight", rows, columns, 0.05)
        weights[f"{name}.bias"] = torch.zeros(rows)

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = torch.ones(DIM), torch.zeros(DIM)

    matrix("embeddings.word_embeddings.weight", TOKENS, DIM, 1.0)
    matrix("embeddings.position_embeddings.weight", POSITIONS, DIM, 0.05)
    matrix("embeddings.token_type_embeddings.weight", 1, DIM, 0.05)
    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        here = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{here}.attention.self.{part}", DIM, DIM)
        linear(f"{here}.attention.output.dense", DIM, DIM)
        norm(f"{here}.attention.output.LayerNorm")
        linear(f"{here}.intermediate.dense", INNER, DIM)
        linear(f"{here}.output.dense", DIM, INNER)
        norm(f"{here}.output.LayerNorm")
    save_file(weights, folder / "model.int8.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    make(Path(sys.argv[1]))
