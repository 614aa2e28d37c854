"""Encoding on a CPU against sentence-transformers, both in one run: `python benchmarks/encoding.py`.

Prints one JSON line. The same texts, the same weights and the same limit go to sentence-transformers as it comes
(fp32, batches of 32 sorted by length) and to Vicinal in fp32 and in `auto`, in turn, `--rounds` times; a ratio is the
median over rounds. Texts are documents and queries, mixed, of the demo's collection and, where the test data is
(CONTRIBUTING.md), of four more. Fails where fp32 vectors differ by more than 1e-4, or where a folder that
sentence-transformers saved is read otherwise than by itself: every family, pooling, prompts, projection, lower case,
limit.

On a machine that does other work as well, `--threads 1` counts the process's own CPU time, which waiting does not
enter.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it remarks that a pooler, which nobody asks, has no weights

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

import vicinal
from vicinal.encoder.backbone import read_weights

MODEL = "granite-embedding-30m-english"
TOLERANCE = 1e-4
ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("VICINAL_TEST_DATA", ROOT.parent / "shared")) / "data" / "collections"
COLLECTIONS = (ROOT / "examples" / "legal-summ", *(SHARED / name for name in ("cranfield", "cosqa", "cisi", "scifact")))
BIAS = 0.1  # given to every bias of a random model, which would be zero and hide a mistake

Vectors = npt.NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    torch.set_num_threads(asked.threads)
    clock = time.process_time if asked.threads == 1 else time.perf_counter

    texts = real_texts(asked.texts)
    with tempfile.TemporaryDirectory() as folder:
        folders_read_alike = compare_folders(Path(folder))
        theirs = SentenceTransformer(str(unpacked(Path(folder) / MODEL)), device="cpu")
    theirs.max_seq_length = asked.max_tokens
    ours = {
        name: vicinal.load(MODEL, precision=name, max_document_tokens=asked.max_tokens) for name in ("fp32", "auto")
    }
    arms: dict[str, Callable[[], Vectors]] = {
        "sentence_transformers": lambda: unit(theirs.encode_document(texts)),
        "fp32": lambda: ours["fp32"].encode_documents(texts).dense,
        "auto": lambda: ours["auto"].encode_documents(texts).dense,
    }
    vectors, seconds = measure(arms, asked.rounds, clock)
    reference = seconds["sentence_transformers"]
    tokens = sum(map(len, ours["fp32"]._tokenizers["document"].read(texts).ids))
    difference = float(np.abs(vectors["fp32"] - vectors["sentence_transformers"]).max())
    result = {
        "benchmark": "encoding",
        "ratio_fp32": median_ratio(reference, seconds["fp32"]),
        "ratio_auto": median_ratio(reference, seconds["auto"]),
        "largest_difference": difference,
        "lowest_cosine_auto": float((vectors["auto"] * vectors["sentence_transformers"]).sum(axis=1).min()),
        "folders_read_alike": folders_read_alike,
        "precision_auto": ours["auto"].precision,
        "model": MODEL,
        "texts": len(texts),
        "tokens": tokens,
        "max_tokens": asked.max_tokens,
        "tokens_per_second": {name: round(tokens / statistics.median(times)) for name, times in seconds.items()},
        "seconds": {name: [round(value, 2) for value in times] for name, times in seconds.items()},
        "clock": "CPU time of the process" if clock is time.process_time else "wall",
        "threads": asked.threads,
        "cpu": processor(),
        "load": [round(value, 1) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "collections": [path.name for path in COLLECTIONS if path.is_dir()],
        "versions": {name: version(name) for name in ("torch", "transformers", "tokenizers", "sentence-transformers")},
    }
    print(json.dumps(result))
    assert difference < TOLERANCE, f"fp32 vectors differ by {difference}"


def real_texts(count: int) -> list[str]:
    """Documents and queries, three to one, as many from each collection that is there."""
    chosen, draw = [], random.Random(0)
    present = [vicinal.Collection.read(path) for path in COLLECTIONS if path.is_dir()]
    for collection in present:
        documents, queries = [document.content for document in collection.corpus], list(collection.queries.values())
        for part, share in ((documents, 0.75), (queries, 0.25)):
            chosen += draw.sample(part, min(len(part), round(count * share / len(present))))
    draw.shuffle(chosen)
    return chosen


def unpacked(folder: Path) -> Path:
    """The shipped model as an ordinary folder that sentence-transformers reads."""
    source = next(model.folder for model in vicinal.encoder.shipped() if model.name == MODEL)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.int8.safetensors"))
    save_file(read_weights(source), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def measure(
    arms: dict[str, Callable[[], Vectors]], rounds: int, clock: Callable[[], float]
) -> tuple[dict[str, Vectors], dict[str, list[float]]]:
    """Every arm once per round, after a round that does not count."""
    vectors, seconds = {name: arm() for name, arm in arms.items()}, {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            start = clock()
            arm()
            seconds[name].append(clock() - start)
    return vectors, seconds


def median_ratio(reference: Sequence[float], times: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(reference, times, strict=True)), 2)


def unit(vectors: Vectors) -> Vectors:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compare_folders(scratch: Path) -> int:
    """Folders that sentence-transformers saves, read by both; the number of them."""
    source, families = unpacked(scratch / "source"), small_models()
    texts = [*real_texts(40), "", "  spaces  ", "CAPITALS and Ünïcödé", "a <pad> in the middle", "word " * 400]
    count = 0
    for family, model in families.items():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0 if parameter.mean() > 0.5 else 0.0, BIAS)
        model.save_pretrained(scratch / family)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / name, scratch / family)
        for pooling in ("cls", "mean", "lasttoken"):
            modules = [Transformer(str(scratch / family), do_lower_case=pooling == "mean"), Pooling(32, pooling)]
            if pooling == "cls":
                modules += [Dense(32, 24), Dense(24, 16, bias=False, activation_function=torch.nn.Identity())]
            saved = SentenceTransformer(
                modules=[*modules, Normalize()],
                device="cpu",
                prompts={"query": "search: ", "document": "text: "} if pooling == "lasttoken" else {"other": "other: "},
                default_prompt_name="other" if pooling == "cls" else None,
            )
            saved.max_seq_length = 100
            folder = scratch / f"{family}-{pooling}"
            saved.save(str(folder), create_model_card=False)
            ours = vicinal.load(folder, precision="fp32")
            for theirs, mine in (
                (saved.encode_document(texts), ours.encode_documents(texts).dense),
                (saved.encode_query(texts), ours.encode_queries(texts).dense),
            ):
                difference = float(np.abs(unit(theirs) - mine).max())
                assert difference < TOLERANCE, f"{folder.name} differs by {difference}"
            count += 1
    return count


def small_models() -> dict[str, torch.nn.Module]:
    """A random model of every family, over the start model's tokens."""
    torch.manual_seed(0)
    size = {
        "vocab_size": 50265,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "pad_token_id": 1,
        "initializer_range": 0.3,
    }
    modern = {"local_attention": 16, "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
    return {
        "bert": transformers.BertModel(transformers.BertConfig(**size)),
        "roberta": transformers.RobertaModel(transformers.RobertaConfig(**size, max_position_embeddings=514)),
        "xlm-roberta": transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**size, max_position_embeddings=514)),
        "modernbert": transformers.ModernBertModel(transformers.ModernBertConfig(**size, **modern)),
        "nomic_bert": transformers.NomicBertModel(transformers.NomicBertConfig(**size)),
    }


def processor() -> str:
    known = getattr(torch.cpu, "get_capabilities", dict)()
    return f"{known.get('cpu_name', 'unknown')}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


if __name__ == "__main__":
    main()
