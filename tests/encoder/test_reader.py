"""Encoders that attend to their context: folders, binding, laws, and all that is built on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vicinal
from vicinal import Corpus, Encoder, Index
from vicinal.context import Context
from vicinal.documents import Document
from vicinal.encoder import own
from vicinal.encoder.backbone import FAMILIES
from vicinal.encoder.contextual import ContextualConfig, TwoStage, padded, toy_backbone
from vicinal.encoder.effect import INERT, effect
from vicinal.encoder.folder import find
from vicinal.encoder.lane import Lane
from vicinal.encoder.prefix import ROOM
from vicinal.errors import IndexRefused, InputError, ModelError
from vicinal.evaluation import Collection, evaluate
from vicinal.evaluation.run import Shown
from vicinal.vectors import final

CASES = Path(__file__).parent.parent / "data" / "cde"
TINY = find("tiny").folder
WORDS = ("notice", "fees", "data", "law", "rent", "cats", "stars", "night")
DOCUMENTS = [Document(f"d{n}", text=f"{WORDS[n % 8]} of {WORDS[n // 8 % 8]}, clause {n}") for n in range(64)]
TEXTS = ["the notice", "fees and data " * 9, "a", "law, rent: and the stars at night", "cats"]


def made(family: str = "bert", attention: str = "one-way", **other: Any) -> TwoStage:
    """A random model whose layers all have a say."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": 1024, "hidden_size": 16, "initializer_range": 0.3}
    if family == "modernbert":
        sizes["local_attention"] = 4
    layout: dict[str, Any] = {"first_layers": 1, "soft_tokens": 2} if attention != "none" else {}
    config = ContextualConfig(attention=attention, **layout, **other)  # type: ignore[arg-type]
    model = TwoStage.start(toy_backbone(family, **sizes), config)
    if model.lane is not None:
        model.lane = Lane(gamma=0.3, halfway=2.0)
    if model.to_context is None:
        return model.eval()
    with torch.no_grad():
        for weight in [*model.to_context.parameters(), *(model.soft or model.to_context).parameters()]:
            weight.normal_(std=0.4)
    return model.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of such models, each written once."""
    known: dict[str, Path] = {}

    def folder(*asked: str, **other: Any) -> Path:
        key = repr((asked, other))
        if key not in known:
            known[key] = tmp_path_factory.mktemp("models") / "toy"
            own.save(made(*asked, **other), known[key], like=TINY)
        return known[key]

    return folder


@pytest.fixture
def toy(folders: Callable[..., Path]) -> Encoder:
    return vicinal.load(folders(), precision="fp32")


@pytest.fixture(params=["one-way", "two-way"])
def reader(request: pytest.FixtureRequest, folders: Callable[..., Path]) -> Encoder:
    encoder = vicinal.load(folders("bert", request.param), precision="fp32")
    return encoder.with_context(encoder.context(DOCUMENTS, size=6))


def published(folder: Path, case: str, **changes: Any) -> Path:
    """A recorded case as the folder of a published checkpoint, with a tokenizer of as few tokens."""
    about = json.loads((CASES / f"{case}.json").read_text("utf-8"))
    folder.mkdir()
    flags = {"pool_ignore_instruction_tokens": False}
    config = {**about["cde_config"], **flags, "backbone_config": about["backbone_config"], **changes}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    state = load_file(CASES / f"{case}.safetensors")
    save_file(
        {n.removeprefix("state."): t for n, t in state.items() if n.startswith("state.")}, folder / "model.safetensors"
    )
    tokenizer = json.loads((TINY / "tokenizer.json").read_text("utf-8"))
    model = tokenizer["model"]
    model["vocab"] = {token: id for token, id in model["vocab"].items() if id < 97}
    parts = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    fits = [one in model["vocab"] and two in model["vocab"] and one + two in model["vocab"] for one, two in parts]
    model["merges"] = [pair for pair, keep in zip(model["merges"], fits, strict=True) if keep]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    return folder


def vectors(encoder: Encoder, texts: list[str] = TEXTS) -> np.ndarray:
    return encoder.encode_documents(texts).dense


# -- folders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [False, True])
def test_a_saved_model_is_the_same_bit_for_bit(family: str, share: bool, tmp_path: Path) -> None:
    model = made(family, share_tokens=share, head="residual", tokens_per_document=2)
    own.save(model, tmp_path, like=TINY)
    again = own.load(tmp_path)
    assert again.config == model.config
    assert list(again.state_dict()) == list(model.state_dict())
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in model.state_dict().items())
    tables = [
        name
        for name in load_file(tmp_path / "model.safetensors")
        if name.endswith(("word_embeddings.weight", "tok_embeddings.weight"))
    ]
    assert len(tables) == (1 if share else 2)
    ids, mask = torch.tensor([[1, 9, 4, 2]]), torch.ones(1, 4, dtype=torch.long)
    with torch.no_grad():
        assert torch.equal(*(m(ids, mask, m.prepare(m.embed_context(ids, mask))) for m in (model, again)))
    assert (again.first.get_input_embeddings() is again.second.get_input_embeddings()) is share


def test_saving_keeps_prompts_limits_and_the_tokenizer(folders: Callable[..., Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(folders(), base)
    (base / "config_sentence_transformers.json").write_text('{"prompts": {"query": "ask: "}}', "utf-8")
    (base / "sentence_bert_config.json").write_text('{"max_seq_length": 20}', "utf-8")
    own.save(made(), tmp_path / "again", like=base)
    one, two = vicinal.load(base), vicinal.load(tmp_path / "again")
    assert one.max_document_tokens == two.max_document_tokens == 20
    assert [e._tokenizers["query"].prompt for e in (one, two)] == ["ask: "] * 2
    assert one.fingerprint == vicinal.load(base).fingerprint != vicinal.load(folders()).fingerprint


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda config: config.pop(name)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_without("format"), "format"),
        (_without("contextual"), "lacks contextual"),
        (_without("second"), "lacks second"),
        (lambda c: c.update(second=[]), "lacks second"),
        (lambda c: c["contextual"].update(soft_token=2), "soft_tokens"),
        (lambda c: c["contextual"].update(soft_tokens="2"), "config.json"),
        (lambda c: c["contextual"].update(soft_tokens=1 << 30), "soft"),
        (lambda c: c["contextual"].update(first_layers=7), "first_layers"),
        (lambda c: c["second"].update(model_type="gpt2"), "gpt2"),
        (lambda c: c["second"].update(hidden_size=1 << 20), "weight"),
        (lambda c: c["second"].update(num_hidden_layers=1 << 20), "layers"),
        (lambda c: c["second"].update(num_hidden_layers=3), "weight second"),
        (lambda c: c["second"].update(vocab_size=1 << 40), "weight second"),
        (lambda c: c["second"].update(num_attention_heads=7), "config.json"),
    ],
)
def test_a_hostile_configuration_is_refused_in_one_sentence(
    damage: Callable[[dict[str, Any]], Any], told: str, folders: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(folders(), tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))
    damage(config)
    (tmp_path / "m" / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match=told) as refused:
        vicinal.load(tmp_path / "m")
    assert "\n" not in str(refused.value)


def test_hostile_weights_are_refused_in_one_sentence(folders: Callable[..., Path], tmp_path: Path) -> None:
    whole = load_file(folders() / "model.safetensors")
    name = "second.embeddings.LayerNorm.weight"
    for changed, told in [
        ({name: torch.full((16,), torch.nan)}, "NaN"),
        ({name: torch.ones(17)}, "LayerNorm"),
        ({name: torch.ones(16, dtype=torch.int64)}, "LayerNorm"),
        ({"more": torch.ones(1)}, "more"),
    ]:
        shutil.copytree(folders(), tmp_path / "m", dirs_exist_ok=True)
        save_file(whole | changed, tmp_path / "m" / "model.safetensors")
        with pytest.raises(ModelError, match=told):
            vicinal.load(tmp_path / "m")
    save_file({key: tensor for key, tensor in whole.items() if key != name}, tmp_path / "m" / "model.safetensors")
    with pytest.raises(ModelError, match="absent"):
        vicinal.load(tmp_path / "m")
    data = (folders() / "model.safetensors").read_bytes()
    (tmp_path / "m" / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="damaged"):
        vicinal.load(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled"):
        vicinal.load(tmp_path / "m")
    with pytest.raises(ModelError, match="pools by mean"):
        vicinal.load(folders(), pooling="cls")


# -- binding --------------------------------------------------------------------------------------------------------


def test_unbound_it_refuses_and_null_is_asked_for_by_name(toy: Encoder) -> None:
    for attempt in (lambda: toy.encode_queries(["a"]), lambda: toy.encode_raw(["a"], "document")):
        with pytest.raises(InputError, match="without_context"):
            attempt()
    assert vectors(toy.without_context()).shape == (5, 16)
    assert toy.bound is None


def test_null_in_one_way_mode_is_the_model_without_context(toy: Encoder, tmp_path: Path) -> None:
    model = made()
    plain = tmp_path / "plain"
    model.second.save_pretrained(plain)
    shutil.copy(TINY / "tokenizer.json", plain)
    expected = vectors(vicinal.load(plain, precision="fp32"))
    np.testing.assert_allclose(vectors(toy.without_context()), expected, atol=1e-6)
    np.testing.assert_array_equal(vectors(toy.with_context(toy.context([]))), vectors(toy.without_context()))


def test_a_context_moves_vectors_and_has_no_lane(reader: Encoder) -> None:
    assert reader.bound is not None and reader.bound.stage is not None
    assert reader.bound.stage.shape == (6, 1, 16)
    assert reader.correction() is None
    other = reader.with_context(reader.context(DOCUMENTS, size=6, seed=1))
    for different in (other, reader.without_context()):
        assert np.abs(vectors(reader) - vectors(different)).max() > 1e-3


def test_cached_is_recomputed_and_a_second_binding_gives_the_same(
    reader: Encoder, folders: Callable[..., Path]
) -> None:
    assert reader.bound is not None
    mode = reader.settings["attention"]
    assert reader.with_context(reader.bound) is reader
    again = vicinal.load(folders("bert", mode), precision="fp32")
    np.testing.assert_array_equal(vectors(again.with_context(reader.bound)), vectors(reader))
    remade = again.with_context(again.context(DOCUMENTS, size=6))
    np.testing.assert_allclose(vectors(remade), vectors(reader), atol=1e-6)
    assert reader.cache_bytes == (2 * 2 * (6 + 2 + ROOM) * 16 * 4 if mode == "one-way" else 6 * 16 * 4)


@pytest.mark.parametrize("attention", ["one-way", "two-way"])
def test_a_trained_lane_stands_beside_attention(folders: Callable[..., Path], attention: str) -> None:
    encoder = vicinal.load(folders("bert", attention, lane=True), precision="bf16")
    assert encoder.lane is not None and encoder.lane.log_gamma.detach() == np.log(0.3)  # not in 16 bit
    context = encoder.context(DOCUMENTS, size=6)
    assert context.stage is not None and context.vectors.shape == (6, 16)
    reader = encoder.with_context(context)
    texts = {document.id: document.content for document in DOCUMENTS}
    behind = reader.encode_raw([texts[id] for id in context.ids], "document").vectors
    np.testing.assert_allclose(context.vectors, behind, atol=1e-6)
    matrix = Lane(gamma=0.3, halfway=2.0).matrix(final(torch.from_numpy(behind), 8)).detach()
    raw = torch.from_numpy(reader.encode_raw(TEXTS, "query").vectors)
    expected = final(raw, 8, matrix).numpy()
    np.testing.assert_allclose(reader.encode_queries(TEXTS, dim=8).dense, expected, atol=1e-5)
    assert np.abs(final(raw, 8).numpy() - expected).max() > 1e-2
    assert reader.without_context().correction() is None


def test_without_attention_an_encoder_is_its_second_stage_and_a_lane(folders: Callable[..., Path]) -> None:
    twin = vicinal.load(folders("bert", "none", lane=True), precision="fp32")
    assert not twin.attends and "attention" not in twin.settings
    model = own.load(folders("bert", "none", lane=True))
    assert model.first is None and [name for name in model.state_dict() if not name.startswith("second.")] == [
        "lane.log_gamma",
        "lane.log_halfway",
    ]
    texts = [[1, 5, 9, 2], [1, 7, 2], [1, *range(20, 50), 2]]
    with torch.inference_mode():
        expected = model(*padded(texts), None)
        torch.testing.assert_close(model.encode(texts, None), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(twin._reader(texts), expected, atol=1e-5, rtol=0)
    context = twin.context(DOCUMENTS, size=6)
    matrix = Lane(gamma=0.3, halfway=2.0).matrix(final(context.vectors)).detach()
    raw = torch.from_numpy(twin.encode_raw(TEXTS, "document").vectors)
    np.testing.assert_allclose(vectors(twin.with_context(context)), final(raw, None, matrix), atol=1e-5)
    with pytest.raises(InputError, match="attends to no context"):
        model.embed_context(*padded(texts))


def test_one_by_one_is_a_batch_is_a_shuffled_one(reader: Encoder) -> None:
    batch, order = vectors(reader), [3, 0, 4, 2, 1]
    np.testing.assert_allclose(np.concatenate([vectors(reader, [text]) for text in TEXTS]), batch, atol=1e-5)
    np.testing.assert_allclose(vectors(reader, [TEXTS[i] for i in order]), batch[order], atol=1e-5)


def test_permuting_the_context_changes_nothing(reader: Encoder) -> None:
    context = reader.bound
    assert context is not None and context.stage is not None
    permuted = reader.without_context().with_context(replace(context, stage=context.stage.flip(0)))
    np.testing.assert_allclose(vectors(permuted), vectors(reader), atol=1e-5)
    assert reader.settings["order_matters"] is False


def test_threads_share_a_model_in_many_contexts(toy: Encoder) -> None:
    readers = [toy.with_context(toy.context(DOCUMENTS, size=6, seed=seed)) for seed in range(3)]
    expected = [vectors(each) for each in readers]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(vectors, readers * 8))
    for place, each in enumerate(found):
        np.testing.assert_allclose(each, expected[place % 3], atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_near_fp32(family: str, folders: Callable[..., Path]) -> None:
    both = [vicinal.load(folders(family), precision=precision) for precision in ("fp32", "bf16")]
    one, two = (vectors(e.with_context(e.context(DOCUMENTS, size=6))) for e in both)
    assert (one * two).sum(axis=1).min() >= 0.999


def test_a_context_is_saved_with_what_the_model_attends_to(reader: Encoder, tmp_path: Path) -> None:
    context = reader.bound
    assert context is not None and context.stage is not None
    context.save(tmp_path / "c.safetensors")
    loaded = Context.load(tmp_path / "c.safetensors")
    assert loaded == context
    assert loaded.stage is not None and torch.equal(loaded.stage, context.stage)
    whole = (tmp_path / "c.safetensors").read_bytes()
    (tmp_path / "c.safetensors").write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(InputError, match="not as it was saved"):
        Context.load(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match="no vectors"):
        reader.without_context().with_context(replace(context, stage=None))


def test_of_one_context_with_other_numbers_those_that_are_given_count(reader: Encoder) -> None:
    context = reader.bound
    assert context is not None and context.stage is not None
    other = replace(context, stage=-context.stage)  # as of another token limit, say
    assert other == context
    np.testing.assert_allclose(
        vectors(reader.with_context(other)), vectors(reader.without_context().with_context(other)), atol=1e-6
    )
    assert np.abs(vectors(reader.with_context(other)) - vectors(reader)).max() > 1e-3


@pytest.mark.parametrize("choice", ["medoids", "coverage", "density"])
def test_documents_are_chosen_by_stage_one(choice: str, toy: Encoder) -> None:
    context = toy.context(DOCUMENTS, size=5, choice=choice)
    assert len(context) == 5 and context == toy.context(DOCUMENTS[::-1], size=5, choice=choice)


def test_a_context_of_fewer_documents_than_asked_for_works(toy: Encoder) -> None:
    one = toy.with_context(toy.context(DOCUMENTS[:1], size=50))
    assert one.bound is not None and one.bound.describe()["documents"] == 1
    assert np.isfinite(vectors(one)).all()


# -- published checkpoints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "order_matters"), [("nomic_train", False), ("modernbert", True)])
def test_a_published_folder_loads_and_wants_its_number_of_documents(
    case: str, order_matters: bool, tmp_path: Path
) -> None:
    encoder = vicinal.load(published(tmp_path / case, case), precision="fp32")
    assert encoder.settings["order_matters"] is order_matters
    assert encoder.settings["context_documents"] == 6
    context = encoder.context(DOCUMENTS)
    assert len(context) == 6
    reader = encoder.with_context(context)
    own_vectors, null = vectors(reader), vectors(encoder.without_context())
    assert own_vectors.shape == (5, 32) and np.abs(own_vectors - null).max() > 1e-3
    np.testing.assert_allclose(vectors(reader, TEXTS[:1]), own_vectors[:1], atol=1e-5)
    with pytest.raises(InputError, match="made for contexts of 6 documents, and the corpus has 4"):
        encoder.context(DOCUMENTS[:4])
    with pytest.raises(InputError, match="leave the size out"):
        encoder.context(DOCUMENTS, size=9)


@pytest.mark.parametrize(
    "changes",
    [
        {"transductive_corpus_size": "six"},
        {"transductive_corpus_size": 0},
        {"transductive_corpus_size": None},
        {"transductive_tokens_per_document": []},
        {"backbone_config": "nomic"},
        {"backbone_config": {"n_head": 7}},
        {"transductive_sequence_dropout_prob": 3},
        {"pooling_strategy": "last"},
        {"max_seq_length": "x"},
    ],
)
def test_a_hostile_published_folder_is_refused_in_one_sentence(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = published(tmp_path / "m", "nomic_train", **changes)
    if "max_seq_length" in changes:  # no limit that could be kept
        assert vicinal.load(folder).max_document_tokens == 128
        return
    with pytest.raises(ModelError) as refused:
        vicinal.load(folder)
    assert "\n" not in str(refused.value)


def test_a_published_folder_without_a_null_embedding_has_no_null(tmp_path: Path) -> None:
    folder = published(tmp_path / "m", "nomic_train", transductive_sequence_dropout_prob=0.0)
    state = load_file(folder / "model.safetensors")
    del state["second_stage_model.sequence_dropout_null_embedding"]
    save_file(state, folder / "model.safetensors")
    encoder = vicinal.load(folder, precision="fp32")
    with pytest.raises(InputError, match="no null embedding"):
        encoder.without_context()
    reader = encoder.with_context(encoder.context(DOCUMENTS))
    with Index.build(tmp_path / "i.vicinal", reader, Corpus.read(DOCUMENTS)) as index:
        assert index.context is not None and index.context["effect"] is None
        assert len(index.search("the notice")) == 10


def test_instructions_are_left_out_where_a_published_folder_says_so(tmp_path: Path) -> None:
    folder = published(tmp_path / "m", "nomic_train", pool_ignore_instruction_tokens=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    encoder = vicinal.load(folder, precision="fp32")
    ids = [id for token, id in tokenizer["model"]["vocab"].items() if ":" in token]
    assert encoder._reader.config.instruction_end in ids  # type: ignore[union-attr]


# -- index, evaluation, effect ----------------------------------------------------------------------------------------


def test_an_index_is_built_and_asked_in_its_context(reader: Encoder, tmp_path: Path) -> None:
    corpus, unbound = Corpus.read(DOCUMENTS), vicinal.load(reader.source, precision="fp32")
    with Index.build(tmp_path / "i.vicinal", reader, corpus) as index:
        before = index.search("cats of the night", k=7)
        expected = (
            vectors(reader, [d.content for d in DOCUMENTS]) @ reader.encode_queries(["cats of the night"]).dense[0]
        )
        assert abs(before[0].score - expected.max()) < 1e-3
        assert index.context is not None
        assert index.context["attention"] == {"cache_bytes": reader.cache_bytes, "order_matters": False}
        assert index.info()["context"] == index.context
    for given in (None, unbound, reader, unbound.without_context()):
        with Index.open(tmp_path / "i.vicinal", given) as again:
            assert again.search("cats of the night", k=7) == before
    other = reader.with_context(reader.context(DOCUMENTS, size=6, seed=1))
    with pytest.raises(IndexRefused, match="another context"):
        Index.open(tmp_path / "i.vicinal", other)
    with pytest.raises(InputError, match="without_context"):
        Index.build(tmp_path / "j.vicinal", unbound, corpus)
    assert not (tmp_path / "j.vicinal").exists()


def test_an_index_without_context_is_asked_without(toy: Encoder, tmp_path: Path) -> None:
    with Index.build(tmp_path / "i.vicinal", toy.without_context(), Corpus.read(DOCUMENTS)) as index:
        before = index.search("cats")
        assert index.context is None
    with Index.open(tmp_path / "i.vicinal", toy) as again:
        assert again.search("cats") == before


def test_binding_is_done_once_per_index(toy: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.build(
        tmp_path / "i.vicinal", toy.with_context(toy.context(DOCUMENTS, size=6)), Corpus.read(DOCUMENTS)
    ).close()
    prepared: list[object] = []
    prepare = TwoStage.prepare
    monkeypatch.setattr(TwoStage, "prepare", lambda *given: prepared.append(1) or prepare(*given))  # type: ignore[func-returns-value]
    with Index.open(tmp_path / "i.vicinal", toy) as index:
        for query in ("cats", "stars", "law"):
            index.search(query)
    assert len(prepared) == 1


def test_evaluation_encodes_once_per_context_and_keeps_contexts_apart(
    reader: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = {"q1": "cats of the night", "q2": "law of rent"}
    judgments = {"q1": {"d5": 1}, "q2": {"d3": 1}}
    collection = Collection("c", Corpus.read(DOCUMENTS), queries, judgments, {}, "test")
    unbound = vicinal.load(reader.source, precision="fp32")
    contexts = (Shown("own", size=6), Shown("null"))
    once = len(DOCUMENTS) + len(queries)
    asked: list[int] = []
    encode = Encoder.encode_raw

    def counting(encoder: Encoder, texts: Any, *options: Any, **named: Any) -> Any:
        asked.append(len(texts))
        return encode(encoder, texts, *options, **named)

    monkeypatch.setattr(Encoder, "encode_raw", counting)
    modes = ["dense", "dense+bm25"]
    first = evaluate(collection, unbound, modes, contexts=contexts, seeds=2, cache=tmp_path)
    assert first.counts["encoded"] == 3 * once == sum(asked)
    again = evaluate(collection, unbound, modes, contexts=contexts, seeds=2, cache=tmp_path)
    assert again.counts["encoded"] == 0
    assert again.as_json()["contexts"] == first.as_json()["contexts"]
    for shown, encoder in (("own", reader), ("null", unbound.without_context())):
        (tmp_path / shown).mkdir()
        alone = evaluate(
            collection, unbound, ["dense"], contexts=[replace(contexts[0], name=shown)], cache=tmp_path / shown
        )
        scores = (
            encoder.encode_queries(list(queries.values())).dense @ vectors(encoder, [d.content for d in DOCUMENTS]).T
        )
        ranks = [int((row > row[n]).sum()) for row, n in zip(scores, (5, 3), strict=True)]
        found = alone.modes["dense"].per_query["MRR@10"]
        assert list(found.values()) == pytest.approx([1 / (rank + 1) if rank < 10 else 0 for rank in ranks])


def test_an_inert_context_is_detected(tmp_path: Path) -> None:
    model = made()
    with torch.no_grad():
        for weight in model.to_context[2].parameters():
            weight.zero_()  # every context looks the same
    own.save(model, tmp_path / "m", like=TINY)
    encoder = vicinal.load(tmp_path / "m", precision="fp32")
    mine, other = (encoder.with_context(encoder.context(DOCUMENTS, size=6, seed=seed)) for seed in (0, 1))
    assert effect(mine, other, documents=DOCUMENTS)["top10"] >= INERT
    with Index.build(tmp_path / "i.vicinal", mine, Corpus.read(DOCUMENTS)) as index:
        assert index.against(Corpus.read(DOCUMENTS[:32]))["top10"] >= INERT


def test_a_context_that_says_something_is_not_inert(reader: Encoder) -> None:
    assert effect(reader, documents=DOCUMENTS)["top10"] < INERT
    assert effect(reader, reader, documents=DOCUMENTS) == {"documents": 64, "cosine": 1.0, "top10": 1.0}
