"""Contexts: which documents are chosen, what is frozen, what is refused."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vicinal.context import CHOICES, POOL, Context, Request, choose, draw, source_of
from vicinal.corpus import Corpus
from vicinal.documents import Document
from vicinal.errors import InputError
from vicinal.vectors import unit

CORPUS = [Document(f"d{n}", text=f"text {n}") for n in range(300)]


def embed(texts: Sequence[str]) -> torch.Tensor:
    """A direction that the text's number alone decides."""
    return torch.stack(
        [torch.randn(8, generator=torch.Generator().manual_seed(int(text.split()[-1]))) for text in texts]
    )


def context(corpus: Sequence[Document] = CORPUS, **asked: object) -> Context:
    return Context.of(corpus, embed, encoder="an encoder", **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_order_of_the_corpus_changes_nothing_to_the_bit(choice: str) -> None:
    shuffled = random.Random(0).sample(CORPUS, len(CORPUS))
    one, two = context(size=16, choice=choice), context(shuffled, size=16, choice=choice)
    assert (one.ids, one.fingerprint) == (two.ids, two.fingerprint)
    assert torch.equal(one.vectors, two.vectors)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("size", [1, 7, 299, 300, 5000])
def test_a_context_has_as_many_documents_as_were_asked_for_and_never_one_twice(choice: str, size: int) -> None:
    made = context(size=size, choice=choice)
    assert len(made) == len(set(made.ids)) == min(size, len(CORPUS)) == len(made.vectors)
    assert made.describe()["size"] == size, "what was asked for is kept, so that fewer can be said"


@pytest.mark.parametrize("choice", CHOICES)
def test_empty_documents_are_never_chosen_and_a_corpus_of_them_gives_an_empty_context(choice: str) -> None:
    empty = [Document(f"e{n}", text=" ") for n in range(50)]
    assert all(id.startswith("d") for id in context([*empty, *CORPUS], size=300, choice=choice).ids)
    assert len(context(empty, choice=choice)) == 0
    assert len(context([], choice=choice)) == 0


def test_a_draw_is_uniform() -> None:
    times = [0] * 40
    for seed in range(400):
        for document in draw(CORPUS[:40], 10, seed):
            times[int(document.id[1:])] += 1
    assert sum(times) == 4000
    assert max(abs(count - 100) for count in times) < 40  # 4.6 standard deviations of a fair one


def test_a_few_documents_more_or_fewer_change_few_of_those_drawn() -> None:
    grown = [*CORPUS, *(Document(f"new{n}", text="text 1") for n in range(30))]
    before, after = set(context(size=100).ids), set(context(grown, size=100).ids)
    assert 70 <= len(before & after) < 100


def test_another_seed_draws_other_documents() -> None:
    assert set(context(size=20, seed=1).ids) != set(context(size=20, seed=2).ids)


def test_choosing_is_what_it_says_on_two_clusters_and_an_outlier() -> None:
    generator = torch.Generator().manual_seed(0)
    big = torch.tensor([1.0, 0.0, 0.0]) + 0.05 * torch.randn(80, 3, generator=generator)
    small = torch.tensor([0.0, 1.0, 0.0]) + 0.05 * torch.randn(19, 3, generator=generator)
    rows = unit(torch.cat([big, small, torch.tensor([[0.0, 0.0, -1.0]])]))
    kinds = {
        choice: sorted(0 if row < 80 else 1 if row < 99 else 2 for row in choose(rows, 3, choice))
        for choice in CHOICES[1:]
    }
    assert kinds == {"coverage": [0, 1, 2], "medoids": [0, 1, 2], "density": [0, 0, 1]}


def test_herding_estimates_the_mean_better_than_a_draw_of_the_same_size() -> None:
    rows = unit(embed([f"text {n}" for n in range(300)]))
    mean = rows.mean(dim=0)
    herded = (rows[choose(rows, 16, "density")].mean(dim=0) - mean).norm()
    drawn = [(rows[torch.randperm(300)[:16]].mean(dim=0) - mean).norm() for _ in range(20)]
    assert herded < 0.5 * min(drawn)


def test_no_more_than_a_pool_is_embedded_however_large_the_corpus() -> None:
    asked: list[int] = []

    def counting(texts: Sequence[str]) -> torch.Tensor:
        asked.append(len(texts))
        return embed(texts)

    corpus = [Document(str(n), text=f"text {n}") for n in range(POOL + 500)]
    Context.of(corpus, counting, encoder="e", size=4, choice="density")
    assert asked == [POOL], "what was chosen is not embedded again"
    asked.clear()
    large = Context.of(corpus, counting, encoder="e", size=POOL, choice="coverage")
    assert asked == [len(corpus)] and large.ids != Context.of(corpus, embed, encoder="e", size=POOL).ids


def test_the_fingerprint_tells_everything_apart_that_went_in() -> None:
    made = context(size=8)
    others = [
        Context.of(CORPUS, embed, encoder="another", size=8),
        context(size=9),
        context(size=8, seed=1),
        context(size=8, choice="density"),
        context([dataclasses.replace(d, text=d.text + " ") for d in CORPUS], size=8),  # stripped: the same content
        context([dataclasses.replace(d, title="a title") for d in CORPUS], size=8),
    ]
    differ = [other != made for other in others]
    assert differ == [True, True, True, True, False, True]
    moved = dataclasses.replace(made, vectors=made.vectors + 1e-6)
    assert moved.fingerprint == made.fingerprint, "what arithmetic made of it does not count"


def test_a_saved_context_is_the_same_to_the_bit(tmp_path: Path) -> None:
    made = context(size=8, choice="medoids", seed=3)
    made.save(tmp_path / "c.safetensors")
    loaded = Context.load(tmp_path / "c.safetensors")
    assert loaded == made
    assert (loaded.ids, loaded.request) == (made.ids, Request(8, "medoids", 3))
    assert torch.equal(loaded.vectors, made.vectors)
    made.save(tmp_path / "again.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_an_empty_context_can_be_saved(tmp_path: Path) -> None:
    made = context([])
    made.save(tmp_path / "c.safetensors")
    assert Context.load(tmp_path / "c.safetensors") == made


def test_whatever_byte_of_a_saved_context_is_changed_it_is_refused_or_the_same(tmp_path: Path) -> None:
    made = context(size=4)
    path = tmp_path / "c.safetensors"
    made.save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            loaded = Context.load(path)
        except InputError as error:
            assert "\n" not in str(error)
        else:  # a byte of white space in the header, say
            assert loaded.fingerprint == made.fingerprint and torch.equal(loaded.vectors, made.vectors)


@pytest.mark.parametrize("change", [('"seed": 0', '"seed": 7'), ('"size": 4', '"size": 9'), ("bf16", "fp32")])
def test_a_saved_context_that_was_edited_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    Context.of(CORPUS, embed, encoder="an encoder", size=4, made={"precision": "bf16"}).save(tmp_path / "c.safetensors")
    with safe_open(tmp_path / "c.safetensors", framework="pt") as opened:
        record, vectors = opened.metadata()["context"], opened.get_tensor("vectors")
    assert change[0] in record
    save_file({"vectors": vectors}, tmp_path / "c.safetensors", {"context": record.replace(*change)})
    with pytest.raises(InputError, match="not as it was saved"):
        Context.load(tmp_path / "c.safetensors")


def test_a_saved_context_whose_vectors_are_no_numbers_is_refused(tmp_path: Path) -> None:
    made = context(size=4)
    dataclasses.replace(made, vectors=made.vectors * torch.nan).save(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match="not as it was saved"):
        Context.load(tmp_path / "c.safetensors")


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 100])
def test_what_is_no_context_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="not a saved context"):
        source_of(str(tmp_path / "c.safetensors"))


def test_a_path_is_a_saved_context_or_a_corpus(tmp_path: Path) -> None:
    context(size=4).save(tmp_path / "c.safetensors")
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "text 1"}', encoding="utf-8")
    assert isinstance(source_of(str(tmp_path / "c.safetensors")), Context)
    assert isinstance(source_of(str(tmp_path / "docs.jsonl")), Corpus)
    with pytest.raises(InputError, match="there is no"):
        source_of(str(tmp_path / "absent.safetensors"))


@pytest.mark.parametrize(
    ("asked", "told"), [({"size": 0}, "0 documents"), ({"choice": "best"}, "best"), ({"seed": -1}, "-1")]
)
def test_what_cannot_be_asked_for_is_refused(asked: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        context(**asked)
