"""Published CDE layouts: recorded cases, and cases made by the slow reference where nobody recorded any."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vicinal.encoder import published
from vicinal.encoder.contextual import TwoStage
from vicinal.errors import InputError, ModelError

TESTS = Path(__file__).parent.parent
RECORDED = sorted((TESTS / "data" / "cde").glob("*.safetensors"))
DIM, HEADS, WORDS, LAYERS, INNER, DOCUMENTS, COLON = 16, 4, 60, 3, 24, 5, 7


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_of_tests", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


reference = module(TESTS / "encoder" / "cde_reference.py")
script = module(TESTS / "reference_cde.py")

BACKBONES: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "num_attention_heads": HEADS, "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1},
    "nomic": {"model_type": "nomic_bert", "n_head": HEADS, "n_positions": 128, "rotary_emb_base": 1000, "n_embd": DIM},
    "modern": {
        "model_type": "modernbert",
        "num_attention_heads": HEADS,
        "norm_eps": 1e-5,
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "hidden_activation": "gelu",
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "two vectors per document": {"tokens_per_document": 2},
    "three vectors per document, most of them of nothing": {"tokens_per_document": 3, "tokens": 3},
    "padding that does not divide": {"tokens_per_document": 2, "tokens": 3},
    "context pooled": {"pool_context": True},
    "instruction left out": {"instruction_end": COLON},
    "context pooled, instruction left out": {"pool_context": True, "instruction_end": COLON},
    "the other head": {"other_head": True},
    "neither null nor soft prompt": {"bare": True},
    "a shallow first stage": {"first_layers": 1},
}


def state_of(family: str, documents: Any, first_layers: int = LAYERS, bare: bool = False) -> dict[str, Tensor]:
    """Random weights in the published layout."""
    draw = torch.Generator().manual_seed(3)
    state: dict[str, Tensor] = {}

    def put(name: str, *shape: int, scale: float = 0.3, one: bool = False) -> None:
        state[name] = torch.randn(*shape, generator=draw) * scale + (1.0 if one else 0.0)

    def norm(name: str, bias: bool = True) -> None:
        put(f"{name}.weight", DIM, scale=0.1, one=True)
        if bias:
            put(f"{name}.bias", DIM, scale=0.1)

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        put(f"{name}.weight", rows, columns)
        if bias:
            put(f"{name}.bias", rows)

    for stage, layers in (("first_stage_model.embedder", first_layers), ("second_stage_model.backbone", LAYERS)):
        if family == "modern":
            put(f"{stage}.embeddings.tok_embeddings.weight", WORDS, DIM, scale=1)
            norm(f"{stage}.embeddings.norm", bias=False)
            norm(f"{stage}.final_norm", bias=False)
        else:
            put(f"{stage}.embeddings.word_embeddings.weight", WORDS, DIM, scale=1)
            put(f"{stage}.embeddings.token_type_embeddings.weight", 2, DIM)
            norm(f"{stage}.emb_ln" if family == "nomic" else f"{stage}.embeddings.LayerNorm")
        if family == "bert":
            put(f"{stage}.embeddings.position_embeddings.weight", 48, DIM)
            linear(f"{stage}.pooler.dense", DIM, DIM)
        for layer in range(layers):
            if family == "bert":
                at = f"{stage}.encoder.layer.{layer}"
                for part in ("query", "key", "value"):
                    linear(f"{at}.attention.self.{part}", DIM, DIM)
                linear(f"{at}.attention.output.dense", DIM, DIM)
                linear(f"{at}.intermediate.dense", INNER, DIM)
                linear(f"{at}.output.dense", DIM, INNER)
                norm(f"{at}.attention.output.LayerNorm")
                norm(f"{at}.output.LayerNorm")
            elif family == "nomic":
                at = f"{stage}.encoder.layers.{layer}"
                linear(f"{at}.attn.Wqkv", 3 * DIM, DIM, bias=False)
                linear(f"{at}.attn.out_proj", DIM, DIM, bias=False)
                for part in ("fc11", "fc12"):
                    linear(f"{at}.mlp.{part}", INNER, DIM, bias=False)
                linear(f"{at}.mlp.fc2", DIM, INNER, bias=False)
                norm(f"{at}.norm1")
                norm(f"{at}.norm2")
            else:
                at = f"{stage}.layers.{layer}"
                if layer:
                    norm(f"{at}.attn_norm", bias=False)
                norm(f"{at}.mlp_norm", bias=False)
                linear(f"{at}.attn.Wqkv", 3 * DIM, DIM, bias=False)
                linear(f"{at}.attn.Wo", DIM, DIM, bias=False)
                linear(f"{at}.mlp.Wi", 2 * INNER, DIM, bias=False)
                linear(f"{at}.mlp.Wo", DIM, INNER, bias=False)
    linear("first_stage_model.mlp.0", DIM, DIM)
    linear("first_stage_model.mlp.2", DIM, DIM)
    linear("second_stage_model.output_projection.0", DIM, DIM)
    linear("second_stage_model.output_projection.2", DIM, DIM)
    if not bare:
        linear("second_stage_model.prompt_projection.0", DIM, DIM)
        linear("second_stage_model.prompt_projection.2", 8 * DIM, DIM)
        put("second_stage_model.sequence_dropout_null_embedding", DIM)
    return state


def inputs(tokens: int = 9) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(5)

    def texts(rows: int, longest: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(8, WORDS, (rows, longest), generator=draw)
        lengths = torch.randint(1, longest + 1, (rows, 1), generator=draw)
        lengths[0] = longest
        mask = (torch.arange(longest)[None] < lengths).long()
        return ids * mask, mask

    ids, mask = texts(4, 11)
    ids[0, 3], ids[0, 6], ids[1, 0] = COLON, COLON, COLON  # one instruction, and one that is none: at the start
    context_ids, context_mask = texts(DOCUMENTS, tokens)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "context_input_ids": context_ids,
        "context_attention_mask": context_mask,
        "context_permutation": torch.randperm(DOCUMENTS, generator=draw),
        "reordered_input_ids": ids[:1].flip(1),
    }


def made(family: str, variant: dict[str, Any], path: Path) -> Path:
    """A case of the recorded format, made by the slow reference."""
    variant = dict(variant)
    state = state_of(family, None, variant.pop("first_layers", LAYERS), variant.pop("bare", False))
    given = inputs(variant.pop("tokens", 9))
    residual = (family != "nomic") ^ variant.pop("other_head", False)
    sizes = reference.Sizes(
        heads=HEADS, documents=DOCUMENTS, residual=residual, window=4, global_every=2,
        epsilon=1e-5 if family == "modern" else 1e-12, **variant,
    )  # fmt: skip
    found = reference.outputs(state, sizes, given)
    tensors = {f"state.{name}": tensor for name, tensor in state.items()}
    tensors |= {f"in.{name}": tensor for name, tensor in given.items()}
    tensors |= {f"out.{name}": tensor.detach() for name, tensor in found.items()}
    tensors |= {f"grad.{name}": tensor for name, tensor in reference.gradients(state, sizes, given).items()}
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)
    about = {
        "cde_config": {
            "transductive_corpus_size": DOCUMENTS,
            "transductive_tokens_per_document": sizes.tokens_per_document,
            "transductive_sequence_dropout_prob": 0.1,
            "disable_transductive_rotary_embedding": True,
            "pool_ignore_contextual_tokens": not sizes.pool_context,
            "pool_ignore_instruction_tokens": sizes.instruction_end is not None,
        },
        "backbone_config": {**BACKBONES[family], "local_attention": 4},
        "pool_instruction_end_id": COLON,
        "residual_head": residual,
    }
    path.with_suffix(".json").write_text(json.dumps(about), encoding="utf-8")
    return path


def agrees(found: dict[str, dict[str, float]]) -> None:
    outputs, gradients = found["outputs"], found["gradients"]
    assert max(outputs.values()) <= 1e-5, max(outputs, key=outputs.__getitem__)
    assert max(gradients.values()) <= 1e-4, max(gradients, key=gradients.__getitem__)


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_recorded_cases_agree(path: Path) -> None:
    found = script.main(path)
    names = {name for name in load_file(path) if name.startswith(("out.", "grad."))} - {"out.short_context"}
    assert {f"out.{name}" for name in found["outputs"]} | {f"grad.{name}" for name in found["gradients"]} == names
    agrees(found)


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_the_slow_reference_agrees_with_recorded_cases(path: Path) -> None:
    """So that the cases it makes may be believed."""
    tensors, about = load_file(path), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    case = {kind: {n.removeprefix(f"{kind}."): t for n, t in tensors.items() if n.startswith(f"{kind}.")} for kind in
            ("state", "in", "out", "grad")}  # fmt: skip
    epsilon = 1e-5 if about["residual_head"] else 1e-12
    sizes = reference.Sizes(heads=4, documents=6, residual=about["residual_head"], epsilon=epsilon)
    found = reference.outputs(case["state"], sizes, case["in"])
    for name in set(case["out"]) - {"short_context"}:
        wrong = (found[name].detach() - case["out"][name]).abs()
        if name.endswith(".hidden"):
            wrong = wrong[case["in"]["context_attention_mask" if name.startswith("first") else "attention_mask"].bool()]
        assert float(wrong.max()) < 1e-5, name
    gradients = reference.gradients(case["state"], sizes, case["in"])
    assert set(gradients) == set(case["grad"])
    for name, recorded in case["grad"].items():
        assert float((gradients[name] - recorded).norm() / recorded.norm()) < 1e-5, name


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("family", BACKBONES)
def test_made_cases_agree(family: str, variant: dict[str, Any], tmp_path: Path) -> None:
    agrees(script.main(made(family, variant, tmp_path / "case.safetensors")))


def test_the_script_ends_with_one_json_object(tmp_path: Path) -> None:
    run = [sys.executable, str(TESTS / "reference_cde.py"), str(RECORDED[0])]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(json.loads(lines[-1])) == {"outputs", "gradients"}


def folder_of(path: Path, case: Path) -> TwoStage:
    """Lay a recorded case out as a published folder, and load it."""
    about = json.loads(case.with_suffix(".json").read_text(encoding="utf-8"))
    state = {n.removeprefix("state."): t for n, t in load_file(case).items() if n.startswith("state.")}
    save_file(state, path / "model.safetensors")
    config = {**about["cde_config"], "backbone_config": about["backbone_config"]}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return published.load(path)


@pytest.mark.parametrize("case", RECORDED, ids=[path.stem for path in RECORDED])
def test_a_folder_loads_and_its_weights_come_back(case: Path, tmp_path: Path) -> None:
    model = folder_of(tmp_path, case)
    state = {n.removeprefix("state."): t for n, t in load_file(case).items() if n.startswith("state.")}
    back = published.published(model.state_dict(), published.family_of(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_another_number_of_context_vectors_is_refused_unless_asked_for(tmp_path: Path) -> None:
    model = folder_of(tmp_path, RECORDED[0])
    with pytest.raises(InputError, match="4 context vectors were given, this encoder is made for 6"):
        model.prepare(torch.zeros(4, 32))
    with pytest.raises(InputError, match="surplus='drop'"):
        model.prepare(torch.zeros(9, 32))
    slots = torch.randn(9, 32)
    assert torch.equal(model.prepare(slots, surplus="drop"), slots[:6])  # type: ignore[arg-type]


@torch.no_grad()
def test_order_matters_where_it_says_so(tmp_path: Path) -> None:
    for case in RECORDED:
        (tmp_path / case.stem).mkdir()
        model, given = folder_of(tmp_path / case.stem, case), load_file(case)
        slots = given["out.first_stage"]
        ids, mask = given["in.input_ids"], given["in.attention_mask"]
        straight, turned = (model(ids, mask, model.prepare(order)) for order in (slots, slots.flip(0)))
        assert model.config.order_matters is (case.stem == "modernbert")
        assert torch.allclose(straight, turned, atol=1e-5) is not model.config.order_matters


def test_what_is_no_checkpoint_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        published.load(tmp_path)
    state = state_of("bert", None)
    config = {"transductive_corpus_size": DOCUMENTS}
    with pytest.raises(ModelError, match="of no family"):
        published.from_state({"a": torch.zeros(1)}, config, {})
    with pytest.raises(ModelError, match="transductive_corpus_size"):
        published.from_state(state, {}, BACKBONES["bert"])
    with pytest.raises(ModelError, match=r"second_stage_model\.surprise"):
        published.from_state({**state, "second_stage_model.surprise": torch.zeros(1)}, config, BACKBONES["bert"])
    lacking = {name: tensor for name, tensor in state.items() if "output_projection.0" not in name}
    with pytest.raises(ModelError, match=r"lacks 2 weights"):
        published.from_state(lacking, config, BACKBONES["bert"])
    with pytest.raises(ModelError, match="token id of ':'"):
        published.from_state(state, {**config, "pool_ignore_instruction_tokens": True}, BACKBONES["bert"])


def test_a_checkpoint_without_null_embedding_cannot_be_asked_without_context() -> None:
    model = published.from_state(
        state_of("nomic", None, bare=True), {"transductive_corpus_size": DOCUMENTS}, BACKBONES["nomic"]
    )
    with pytest.raises(InputError, match="no null embedding"):
        model.null_slots(DOCUMENTS)


def test_tied_token_tables_are_one() -> None:
    state = state_of("bert", None)
    name = "embeddings.word_embeddings.weight"
    state[published.FIRST + name] = state[published.SECOND + name]
    config = {"transductive_corpus_size": DOCUMENTS, "transductive_tie_token_embeddings": True}
    for given in (state, {n: t for n, t in state.items() if n != published.FIRST + name}):
        model = published.from_state(given, config, BACKBONES["bert"])
        assert model.first.get_input_embeddings() is model.second.get_input_embeddings()
        assert torch.equal(model.first.get_input_embeddings().weight, state[published.SECOND + name])
