"""Small random models of every family as folders, and what transformers itself computes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert")
TEXTS = (
    "The licensee may not sublicense the software.",
    "cats purr",
    "",
    "Either party may terminate this agreement at any time, with or without cause, upon thirty days' written notice to "
    "the other party, and nothing in this clause shall limit the remedies that the law gives to either of them. " * 2,
    "Ünïcödé, ﬁgures １２３ and 😀 😀",
    "a <pad> in the middle [PAD] of a text",
    "stars shine on warm nights",
)
SIZE = {
    "vocab_size": 400,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class Made:
    """A model's folder, and the transformers module that was saved into it."""

    family: str
    folder: Path
    model: Any

    def states(self, texts: Sequence[str], max_tokens: int = 128) -> list[torch.Tensor]:
        """What transformers computes for a padded batch, the padding cut off again."""
        tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.enable_truncation(max_tokens)
        tokenizer.enable_padding(pad_id=self.model.config.pad_token_id)
        read = tokenizer.encode_batch(list(texts))
        mask = torch.tensor([text.attention_mask for text in read])
        with torch.inference_mode():
            output = self.model(input_ids=torch.tensor([text.ids for text in read]), attention_mask=mask)
        return [states[: int(real.sum())] for states, real in zip(output.last_hidden_state, mask, strict=True)]

    def vectors(self, texts: Sequence[str], pooling: str, max_tokens: int = 128) -> np.ndarray:
        """Those states pooled by the plainest means, and normalised."""
        pool = {"cls": lambda s: s[0], "mean": lambda s: s.mean(dim=0), "lasttoken": lambda s: s[-1]}[pooling]
        pooled = torch.stack([pool(states) for states in self.states(texts, max_tokens)])
        return torch.nn.functional.normalize(pooled, dim=1).numpy()


Make = Callable[..., Made]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These matrices are too small to share out, and on a busy machine threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make a random model of a family; further arguments go into its configuration."""

    def make(family: str, **config: Any) -> Made:
        folder = tmp_path_factory.mktemp(family)
        model = random_model(family, config)
        model.save_pretrained(folder)
        tokenizer_of(family).save(str(folder / "tokenizer.json"))
        return Made(family, folder, model)

    return make


@pytest.fixture(scope="session", params=FAMILIES)
def made(request: pytest.FixtureRequest, make_model: Make) -> Made:
    """A model of each family; tests that change its folder make their own."""
    return make_model(request.param)


@pytest.fixture(scope="session")
def bert(make_model: Make) -> Made:
    return make_model("bert")


def random_model(family: str, config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    size = {**SIZE, **config}
    modern = {"local_attention": 16, "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
    model = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**{"pad_token_id": 0, **size})),
        "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**{"pad_token_id": 1, **size})),
        "xlm-roberta": lambda: transformers.XLMRobertaModel(
            transformers.XLMRobertaConfig(**{"pad_token_id": 1, **size})
        ),
        "modernbert": lambda: transformers.ModernBertModel(
            transformers.ModernBertConfig(**{"pad_token_id": 0, **modern, **size})
        ),
        "nomic_bert": lambda: transformers.NomicBertModel(
            transformers.NomicBertConfig(**{"pad_token_id": 0, **size, "intermediate_size": 256})
        ),
    }[family]()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # biases and norms begin at 0 and 1, and would hide a mistake
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.1)
    return model.eval()


def tokenizer_of(family: str) -> tokenizers.Tokenizer:
    """A tokenizer as a family has it: byte pairs, a unigram model, word pieces. None is learnt: its ties would vary."""
    words = sorted({word for text in TEXTS for word in text.lower().split()})
    letters = sorted(set("".join(words)))
    if family == "roberta":
        special, around = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], [("<s>", 0), ("</s>", 2)]
        tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "er", "on", "th", "the", "Ġthe"]
        merges = [("e", "r"), ("o", "n"), ("t", "h"), ("th", "e"), ("Ġ", "the")]
        tokenizer = tokenizers.Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif family == "xlm-roberta":
        special, around = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], [("<s>", 0), ("</s>", 2)]
        scores = {"▁": -2.0, **dict.fromkeys(letters, -6.0), **{f"▁{word}": -4.0 for word in words}}
        tokens = [(token, 0.0) for token in special] + list(scores.items())
        tokenizer = tokenizers.Tokenizer(models.Unigram(tokens, unk_id=3))
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        special, around = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], [("[CLS]", 2), ("[SEP]", 3)]
        tokens = [*special, *dict.fromkeys([*letters, *(f"##{letter}" for letter in letters), *words])]
        tokenizer = tokenizers.Tokenizer(
            models.WordPiece({token: id for id, token in enumerate(tokens)}, unk_token="[UNK]")
        )
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    assert tokenizer.get_vocab_size() <= SIZE["vocab_size"]
    tokenizer.add_special_tokens(special)
    (first, _), (last, _) = around
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B {last}", special_tokens=around
    )
    return tokenizer
