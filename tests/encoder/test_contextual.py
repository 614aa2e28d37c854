"""The laws of the two-stage encoder, for every family of backbones and both modes of attention."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vicinal.encoder import contextual, prefix
from vicinal.encoder.backbone import FAMILIES
from vicinal.encoder.contextual import ContextualConfig, TwoStage, padded, segment_means, toy_backbone
from vicinal.encoder.pooling import POOLINGS
from vicinal.encoder.prefix import ContextCache
from vicinal.errors import InputError

ROTARY = ("nomic_bert", "modernbert")
MODES = ("one-way", "two-way")
TEXTS = [[1, 5, 9, 30, 11, 12, 8, 17, 21, 2], [1, 9, 2], [1, 7, 8, 9, 10, 2], [1, 33, 2], [1, 6, 2, 4, 12, 31, 2]]
CONTEXT = [[1, 4, 5, 2], [1, 8, 8, 9, 20, 2], [1, 13, 2], [1, 22, 23, 24, 2], [1, 31, 2], [1, 19, 7, 2, 3]]


def made(family: str, attention: str = "one-way", layers: int = 3, **other: Any) -> TwoStage:
    """A random encoder whose layers all have a say."""
    torch.manual_seed(0)
    special: dict[str, Any] = {"local_attention": 4} if family == "modernbert" else {}
    backbone = toy_backbone(family, num_hidden_layers=layers, initializer_range=0.3, hidden_size=16, **special)
    config = ContextualConfig(attention=attention, soft_tokens=2, first_layers=1, **other)  # type: ignore[arg-type]
    model = TwoStage.start(backbone, config)
    with torch.no_grad():
        for module in (model.to_context, model.soft, model.head):
            for weight in [] if module is None else module.parameters():
                weight.normal_(std=0.4)
    return model.eval()


def context_of(model: TwoStage) -> Tensor:
    return model.embed_context(*padded(CONTEXT))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def close(one: Tensor, other: Tensor, family: str = "bert") -> None:
    assert one.shape == other.shape
    assert float((one - other).detach().abs().max()) <= (1e-4 if family in ROTARY else 1e-5)


@torch.no_grad()
def test_null_context_is_the_model_without_context(family: str) -> None:
    model = made(family)
    plain = getattr(transformers, FAMILIES[family])(toy_backbone(family, **_sizes(model)))
    plain.load_state_dict(model.second.state_dict(), strict=False)
    plain.eval()
    for text, vector in zip(TEXTS, model.encode(TEXTS, model.prepare(None)), strict=True):
        close(plain(input_ids=torch.tensor([text])).last_hidden_state.mean(dim=1)[0], vector, family)
    assert model.prepare(torch.empty(0, model.dim)) is None
    assert model.null_slots(6) is None


def _sizes(model: TwoStage) -> dict[str, Any]:
    given = model.second.config
    sizes = {name: getattr(given, name) for name in ("hidden_size", "num_hidden_layers")}
    return {**sizes, "local_attention": 4} if given.model_type == "modernbert" else sizes


@torch.no_grad()
def test_null_slots_are_attended_to_in_two_way_mode(family: str) -> None:
    model = made(family, "two-way")
    some, more = (model.encode(TEXTS, model.null_slots(count)) for count in (2, 5))
    assert not torch.allclose(some, more, atol=1e-4)


@torch.no_grad()
def test_context_says_something(family: str, mode: str) -> None:
    model = made(family, mode)
    prefix = model.prepare(context_of(model))
    other = model.prepare(context_of(model)[:3])
    assert not torch.allclose(model.encode(TEXTS, prefix), model.encode(TEXTS, other), atol=1e-3)


@torch.no_grad()
def test_permuting_the_context_changes_nothing(family: str, mode: str) -> None:
    model, order = made(family, mode), torch.tensor([3, 0, 5, 1, 4, 2])
    vectors = context_of(model)
    close(model.encode(TEXTS, model.prepare(vectors)), model.encode(TEXTS, model.prepare(vectors[order])), family)


@torch.no_grad()
def test_one_by_one_is_a_batch_is_a_shuffled_batch_is_a_padded_one(family: str, mode: str) -> None:
    model, order = made(family, mode), [4, 2, 0, 3, 1]
    prefix = model.prepare(context_of(model))
    batch = model.encode(TEXTS, prefix)
    close(torch.cat([model.encode([text], prefix) for text in TEXTS]), batch, family)
    close(model.encode([TEXTS[i] for i in order], prefix), batch[order], family)
    ids, mask = padded(TEXTS)
    close(model(ids, mask, prefix), batch, family)
    wider = [torch.nn.functional.pad(tensor, (0, 7)) for tensor in (ids, mask)]
    close(model(*wider, prefix), batch, family)


@torch.no_grad()
@pytest.mark.parametrize("parts", [1, 3])
def test_padding_changes_no_context_vector(family: str, parts: int) -> None:
    model = made(family, tokens_per_document=parts)
    alone = torch.cat([model.embed_context(*padded([text])) for text in CONTEXT])
    assert alone.shape == (len(CONTEXT), parts, model.dim)
    close(alone, context_of(model), family)


def recomputed(model: TwoStage, vectors: Tensor, texts: list[list[int]]) -> Tensor:
    """One-way attention without a cache: one pass over [context | soft prompt | text], masked, by transformers' own."""
    ids, mask = padded(texts)
    second, width = model.second, vectors.shape[0] * vectors.shape[1] + model.config.soft_tokens
    front = torch.cat([vectors.reshape(1, -1, model.dim), *model._soft(1)], dim=1).expand(len(ids), -1, -1)
    embedded = torch.cat([front, second.get_input_embeddings()(ids)], dim=1)
    places = torch.cat([torch.zeros(width, dtype=torch.long), torch.arange(ids.shape[1])])
    total = len(places)
    in_text = torch.arange(total) >= width
    sees = (in_text[:, None] | ~in_text[None, :]) & torch.cat([torch.ones(len(ids), width), mask], dim=1)[
        :, None, :
    ].bool()
    sees = sees[:, None] | torch.eye(total, dtype=torch.bool)
    near = (torch.arange(total)[:, None] - torch.arange(total)[None, :]).abs() <= 2
    local = sees & (near | ~in_text[:, None] | ~in_text[None, :])
    masks: Any = (
        {"full_attention": sees, "sliding_attention": local} if second.config.model_type == "modernbert" else sees
    )
    second.set_attn_implementation("sdpa")
    output = second(
        inputs_embeds=embedded,
        attention_mask=masks,
        position_ids=(places + contextual.uncounted(second.config) + 1)[None],
    )
    second.set_attn_implementation("vicinal_context")
    return model._headed(contextual.masked_mean(output.last_hidden_state[:, width:], mask))


@torch.no_grad()
def test_cached_context_is_recomputed_context(family: str) -> None:
    model = made(family, head="residual")
    vectors = context_of(model)
    cache = model.prepare(vectors)
    assert isinstance(cache, ContextCache) and cache.slots == len(CONTEXT) + model.config.soft_tokens
    expected = recomputed(model, vectors, TEXTS)
    close(model.encode(TEXTS, cache), expected, family)
    close(model(*padded(TEXTS), cache), expected, family)


@torch.no_grad()
def test_cached_context_is_recomputed_context_after_save_and_load(family: str, tmp_path: Path) -> None:
    model, again = made(family), made(family)
    for weight in again.parameters():
        weight.zero_()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(
        model.encode(TEXTS, model.prepare(context_of(model))), again.encode(TEXTS, again.prepare(context_of(again)))
    )


@torch.no_grad()
def test_bf16_stays_near(family: str, mode: str) -> None:
    """The stated tolerance of these toys, whose vectors have 16 dimensions: cosine 0.999 to fp32, padded or not."""
    model = made(family, mode)
    exact = model.encode(TEXTS, model.prepare(context_of(model)))
    model = model.to(torch.bfloat16)
    prefix = model.prepare(context_of(model))
    if isinstance(prefix, ContextCache):
        assert {states.dtype for states in prefix.states} == {torch.bfloat16}
    for vectors in (model.encode(TEXTS, prefix), model(*padded(TEXTS), prefix)):
        assert float(cosine_similarity(vectors.float(), exact).min()) >= 0.999


def test_threads_share_a_cache(family: str) -> None:
    model = made(family)
    with torch.no_grad():
        caches = [model.prepare(context_of(model)[:count]) for count in (2, 4, 6)]
        expected = [model.encode(TEXTS, cache) for cache in caches]

    def encode(which: int) -> Tensor:
        with torch.no_grad():
            return model.encode(TEXTS, caches[which])

    def encode_alone(place: int) -> Tensor:
        with torch.inference_mode():
            return model.encode([TEXTS[place]], caches[2])

    with ThreadPoolExecutor(4) as pool:
        for which, vectors in zip([0, 1, 2] * 4, pool.map(encode, [0, 1, 2] * 4), strict=True):
            assert torch.equal(vectors, expected[which])
        alone = [*range(len(TEXTS))] * 20
        for place, vectors in zip(alone, pool.map(encode_alone, alone), strict=True):
            close(vectors, expected[2][place : place + 1], family)


@torch.inference_mode()
def test_one_text_is_the_same_whoever_holds_the_room_behind_the_context(family: str) -> None:
    model = made(family)
    cache = model.prepare(context_of(model))
    assert isinstance(cache, ContextCache)
    for words in (1, prefix.ROOM - 2, prefix.ROOM - 1, 50):
        text = [1, *(3 + word % 30 for word in range(words)), 2]
        kept = [states[:, :, : cache.slots].clone() for states in cache.states]
        free = model.encode([text], cache)
        with cache.lock:
            close(model.encode([text], cache), free, family)
        close(model.encode([text, text], cache), free.expand(2, -1), family)
        assert all(torch.equal(a[:, :, : cache.slots], b) for a, b in zip(cache.states, kept, strict=True))


def test_gradients_through_the_cache_are_those_without_it(family: str) -> None:
    model = made(family).double()
    texts = [text for text in TEXTS if len(text) > 3]
    weights = [weight for name, weight in model.named_parameters() if name != "null"]
    found = []
    for way in (
        lambda vectors: model(*padded(texts), model.prepare(vectors)),
        lambda vectors: model.encode(texts, model.prepare(vectors)),
        lambda vectors: recomputed(model, vectors, texts),
    ):
        loss = (way(context_of(model)) * torch.linspace(-1, 1, 16, dtype=torch.double)).sum()
        found.append(torch.autograd.grad(loss, weights, allow_unused=True))
    for padded_way, packed_way, expected in zip(*found, strict=True):
        for ours in (padded_way, packed_way):
            assert (ours is None) == (expected is None)
            assert ours is None or torch.allclose(
                ours, expected, atol=1e-5 if family == "modernbert" else 1e-9
            )  # it rotates in 32 bit
    reached = {
        name for (name, _), grad in zip(_but_null(model), found[0], strict=True) if grad is not None and grad.any()
    }
    assert any(name.startswith("first.") for name in reached)
    assert {"to_context.0.weight", "soft.0.weight"} <= reached


def _but_null(model: TwoStage) -> list[tuple[str, Tensor]]:
    return [(name, weight) for name, weight in model.named_parameters() if name != "null"]


def test_gradients_are_those_of_finite_differences(family: str, mode: str) -> None:
    model = made(family, mode, layers=2, head="residual").double()
    ids, mask = padded(TEXTS[1:4])
    vectors = context_of(model)[:3].detach().requires_grad_()
    tolerance = (
        {"eps": 1e-3, "atol": 2e-3, "rtol": 1e-2} if family == "modernbert" else {"atol": 1e-6}
    )  # rotates in 32 bit
    assert torch.autograd.gradcheck(lambda given: model(ids, mask, model.prepare(given)), vectors, **tolerance)


def test_sequence_dropout_is_per_text_in_two_way_mode_and_per_batch_in_one_way_mode(family: str) -> None:
    torch.manual_seed(1)
    same = padded([TEXTS[0]] * 6)
    for mode, differs in (("two-way", True), ("one-way", False)):
        model = made(family, mode, sequence_dropout=0.5, context_dropout=0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        vectors = context_of(model).detach()
        model.train()
        prefix = model.prepare(vectors)
        drawn = model(*same, prefix)
        assert (float((drawn - drawn[:1]).abs().max().detach()) > 1e-3) is differs
        another = model(*same, model.prepare(vectors))
        assert not torch.allclose(drawn, another, atol=1e-3)


def test_dropping_every_slot_gives_null_slots(family: str) -> None:
    model = made(family, "two-way", sequence_dropout=1.0, context_dropout=0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ids, mask = padded(TEXTS)
    dropped = model.train()(ids, mask, model.prepare(context_of(model)))
    close(dropped, model(ids, mask, model.null_slots(len(CONTEXT))), family)
    dropped.sum().backward()
    assert model.null is not None and model.null.grad is not None and bool(model.null.grad.any())


def test_context_dropout_is_the_null_context(mode: str) -> None:
    model = made("bert", mode, context_dropout=1.0)
    vectors = context_of(model)
    assert model.prepare(vectors) is not None
    prefix = model.train().prepare(vectors)
    if mode == "one-way":
        assert prefix is None
    else:
        assert isinstance(prefix, Tensor) and model.null is not None
        assert torch.equal(prefix, model.null.expand(len(CONTEXT), -1))


def test_null_is_drawn_in_training_only(mode: str) -> None:
    model = made("bert", mode, sequence_dropout=1.0, context_dropout=1.0)
    vectors = context_of(model)
    ids, mask = padded(TEXTS)
    assert torch.equal(model(ids, mask, model.prepare(vectors)), model(ids, mask, model.prepare(vectors)))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_poolings_agree_padded_and_not(family: str, pooling: str) -> None:
    model = made(family, pooling=pooling, instruction_end=12)
    prefix = model.prepare(context_of(model))
    close(model(*padded(TEXTS), prefix), model.encode(TEXTS, prefix), family)


@torch.no_grad()
def test_an_instruction_is_left_out_of_pooling_and_still_read(mode: str) -> None:
    whole, rest = (made("bert", mode, instruction_end=end) for end in (None, 11))
    prefix = whole.prepare(context_of(whole))
    ids, mask = padded([TEXTS[0]])
    states, _ = whole.states(ids, mask, prefix)
    close(rest(ids, mask, prefix), states[:, 5:].mean(dim=1))  # token 11 stands at place 4
    close(rest.encode([TEXTS[0]], prefix), states[:, 5:].mean(dim=1))


def test_stages_may_share_their_token_table(family: str) -> None:
    model = made(family, share_tokens=True)
    assert model.first.get_input_embeddings() is model.second.get_input_embeddings()
    assert len(contextual.layers_of(model.first)) == 1 and len(contextual.layers_of(model.second)) == 3
    with pytest.raises(InputError, match="first_layers is 7, but the backbone has 2"):
        TwoStage.start(toy_backbone(family), ContextualConfig(first_layers=7))


@torch.no_grad()
def test_a_fresh_residual_head_changes_nothing(family: str) -> None:
    torch.manual_seed(0)
    model = TwoStage.start(toy_backbone(family), ContextualConfig(head="residual")).eval()
    states, lengths = contextual.Backbone.around(model.second).states(TEXTS)
    close(model.encode(TEXTS, None), POOLINGS["mean"](states, lengths))


@torch.no_grad()
def test_both_stages_start_from_given_weights() -> None:
    given = made("bert").second.state_dict()
    model = TwoStage.start(
        toy_backbone("bert", num_hidden_layers=3, hidden_size=16), ContextualConfig(first_layers=2), given
    )
    for stage in (model.first, model.second):
        assert all(torch.equal(tensor, given[name]) for name, tensor in stage.state_dict().items())


def test_too_many_positions_are_refused() -> None:
    config = ContextualConfig(attention="two-way", published=True, position_free=False, documents=60)
    model = TwoStage.start(toy_backbone("bert"), config).eval()
    with pytest.raises(InputError, match="take 70 positions, the model has 64"):
        model(*padded(TEXTS), model.prepare(torch.zeros(60, 8)))


@torch.no_grad()
def test_a_free_context_takes_no_positions(mode: str) -> None:
    model = made("bert", mode)
    assert model(*padded(TEXTS), model.prepare(torch.randn(200, 16))).isfinite().all()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"attention": "both"}, "attention is 'both': expected one of one-way, two-way"),
        ({"sequence_dropout": 1.5}, "expected a probability"),
        ({"tokens_per_document": 0}, "expected at least 1"),
        ({"null_embedding": False}, "needs a null embedding"),
        ({"published": True}, "is two-way and made for a number of documents"),
        ({"position_free": False}, "in the published layout only"),
        ({"pool_context": True}, "pool_context needs two-way attention"),
        ({"poling": "cls"}, "did you mean 'pooling'"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ContextualConfig.from_dict(given)


def test_every_field_is_read() -> None:
    source = Path(contextual.__file__).read_text(encoding="utf-8")
    for field in fields(ContextualConfig):
        assert f"config.{field.name}" in source or f"self.{field.name}" in source, field.name


def test_the_wrong_kind_of_prefix_is_refused() -> None:
    one, two = made("bert"), made("bert", "two-way")
    with pytest.raises(InputError, match="takes what prepare"):
        one(*padded(TEXTS), torch.zeros(3, 16))
    with pytest.raises(InputError, match="needs slots"):
        two(*padded(TEXTS), None)
    with pytest.raises(InputError, match="null_slots"):
        two.prepare(None)
    with pytest.raises(InputError, match="16"):
        one.prepare(torch.zeros(3, 8))


def test_segments_without_tokens_take_the_mean_of_the_whole() -> None:
    states = torch.arange(12.0).view(1, 6, 2)
    one = torch.tensor([[1, 0, 0, 0, 0, 0]])
    assert segment_means(states, one, 3).tolist() == [[[0.0, 1.0]] * 3]
    assert segment_means(states, torch.ones_like(one), 3)[0].tolist() == [[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]
    assert replace(ContextualConfig(), documents=4, tokens_per_document=3).slots == 12
