"""The CDE reference a second time, slowly: plain torch, one text at a time, from CDE_SPEC.md alone.

It shares nothing with the package. Two recorded cases (tests/data/cde) check it; then it makes cases that nobody
recorded: BERT with absolute positions, several vectors per context document, context pooled, instructions left out.

A state in the published layout enters, with sizes by the names of `Sizes`; `outputs` gives what a recorded case holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FIRST, SECOND = "first_stage_model.embedder.", "second_stage_model.backbone."


@dataclass(frozen=True)
class Sizes:
    """What the weights' shapes do not tell."""

    heads: int
    documents: int
    tokens_per_document: int = 1
    residual: bool = False
    pool_context: bool = False
    instruction_end: int | None = None
    position_free: bool = True  # NomicBERT only
    epsilon: float = 1e-12
    base: float = 1000.0  # NomicBERT
    global_base: float = 160_000.0  # ModernBERT
    local_base: float = 10_000.0
    window: int = 8
    global_every: int = 3


def family(state: Mapping[str, Tensor]) -> str:
    if SECOND + "emb_ln.weight" in state:
        return "nomic"
    return "modern" if SECOND + "embeddings.tok_embeddings.weight" in state else "bert"


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.pow(2).mean(dim=-1, keepdim=True) + epsilon) * weight
    return scaled if bias is None else scaled + bias


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """(heads, tokens, width), halves paired: not interleaved."""
    half = x.shape[-1] // 2
    angles = positions[:, None] / base ** (torch.arange(half) / half)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], dim=-1)


def attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """(heads, tokens, width) each -> (tokens, dim); `hidden` (tokens, tokens) is who is not seen."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    # Who sees nobody sees all alike: the least number, added to a score, leaves nothing of it but its gradient.
    alike = scores - scores.detach()
    scores = torch.where(hidden.all(dim=1, keepdim=True), alike, scores.masked_fill(hidden, -math.inf))
    return (scores.softmax(dim=-1) @ v).transpose(0, 1).flatten(1)


def apart(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(1, (heads, -1)).transpose(0, 1)


class Backbone:
    """One stage's transformer on one sequence: `embeddings` as the model itself makes them, `run` on given ones."""

    def __init__(self, state: Mapping[str, Tensor], stage: str, sizes: Sizes) -> None:
        self.w = {name.removeprefix(stage): tensor for name, tensor in state.items() if name.startswith(stage)}
        self.kind, self.sizes = family(state), sizes

    def bare(self, ids: Tensor) -> Tensor:
        """What `E2.embeddings(ids)` returns."""
        if self.kind == "nomic":
            return (
                self.w["embeddings.word_embeddings.weight"][ids] + self.w["embeddings.token_type_embeddings.weight"][0]
            )
        if self.kind == "modern":
            return self._norm(self.w["embeddings.tok_embeddings.weight"][ids], "embeddings.norm")
        return self._placed(self.w["embeddings.word_embeddings.weight"][ids])

    def again(self, x: Tensor) -> Tensor:
        """What the model does to `inputs_embeds`."""
        if self.kind == "nomic":
            return self._norm(x, "emb_ln")
        return self._norm(x, "embeddings.norm") if self.kind == "modern" else self._placed(x)

    def own(self, ids: Tensor) -> Tensor:
        """What enters the layers when the model is given ids: stage one."""
        return self.again(self.bare(ids)) if self.kind == "nomic" else self.bare(ids)

    def run(self, x: Tensor, real: Tensor, positions: Tensor) -> Tensor:
        """(tokens, dim) behind the embeddings -> the last states."""
        hidden = ~real.bool()[None, :].expand(len(x), -1)
        layer = 0
        while f"{self._at(layer)}.{self._mark()}" in self.w:
            x = getattr(self, f"_{self.kind}")(x, hidden, positions, layer)
            layer += 1
        return self._norm(x, "final_norm") if self.kind == "modern" else x

    def _mark(self) -> str:
        return {"nomic": "attn.Wqkv.weight", "modern": "attn.Wqkv.weight", "bert": "attention.self.query.weight"}[
            self.kind
        ]

    def _at(self, layer: int) -> str:
        return {"nomic": "encoder.layers.", "modern": "layers.", "bert": "encoder.layer."}[self.kind] + str(layer)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return norm(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"), self.sizes.epsilon)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.w[f"{name}.weight"].T
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def _placed(self, x: Tensor) -> Tensor:
        x = (
            x
            + self.w["embeddings.position_embeddings.weight"][: len(x)]
            + self.w["embeddings.token_type_embeddings.weight"][0]
        )
        return self._norm(x, "embeddings.LayerNorm")

    def _nomic(self, x: Tensor, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        at, heads = self._at(layer), self.sizes.heads
        q, k, v = (apart(part, heads) for part in self._linear(x, f"{at}.attn.Wqkv").chunk(3, dim=1))
        q, k = rotate(q, positions, self.sizes.base), rotate(k, positions, self.sizes.base)
        x = self._norm(x + self._linear(attention(q, k, v, hidden), f"{at}.attn.out_proj"), f"{at}.norm1")
        gate = self._linear(x, f"{at}.mlp.fc12")
        inner = self._linear(x, f"{at}.mlp.fc11") * gate / (1 + torch.exp(-gate))
        return self._norm(x + self._linear(inner, f"{at}.mlp.fc2"), f"{at}.norm2")

    def _modern(self, x: Tensor, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        at, sizes = self._at(layer), self.sizes
        everywhere = layer % sizes.global_every == 0
        base = sizes.global_base if everywhere else sizes.local_base
        if not everywhere:
            place = torch.arange(len(x))
            hidden = hidden | ((place[:, None] - place[None, :]).abs() > sizes.window // 2)
        inner = x if layer == 0 else self._norm(x, f"{at}.attn_norm")
        q, k, v = (apart(part, sizes.heads) for part in self._linear(inner, f"{at}.attn.Wqkv").chunk(3, dim=1))
        x = x + self._linear(
            attention(rotate(q, positions, base), rotate(k, positions, base), v, hidden), f"{at}.attn.Wo"
        )
        half, gate = self._linear(self._norm(x, f"{at}.mlp_norm"), f"{at}.mlp.Wi").chunk(2, dim=1)
        return x + self._linear(gelu(half) * gate, f"{at}.mlp.Wo")

    def _bert(self, x: Tensor, hidden: Tensor, positions: Tensor, layer: int) -> Tensor:
        at, heads = self._at(layer), self.sizes.heads
        q, k, v = (apart(self._linear(x, f"{at}.attention.self.{part}"), heads) for part in ("query", "key", "value"))
        answer = self._linear(attention(q, k, v, hidden), f"{at}.attention.output.dense")
        x = self._norm(x + answer, f"{at}.attention.output.LayerNorm")
        inner = self._linear(gelu(self._linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        return self._norm(x + inner, f"{at}.output.LayerNorm")


class Reference:
    """Both stages; texts and documents go through one by one, with their padding."""

    def __init__(self, state: Mapping[str, Tensor], sizes: Sizes) -> None:
        self.state, self.sizes = state, sizes
        self.one, self.two = Backbone(state, FIRST, sizes), Backbone(state, SECOND, sizes)

    def _mlp(self, x: Tensor, name: str, activation: str) -> Tensor:
        inner = x @ self.state[f"{name}.0.weight"].T + self.state[f"{name}.0.bias"]
        inner = gelu(inner) if activation == "gelu" else inner.clamp(min=0)
        return inner @ self.state[f"{name}.2.weight"].T + self.state[f"{name}.2.bias"]

    def first_hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        return torch.stack([self.one.run(self.one.own(row), real, places) for row, real in zip(ids, mask, strict=True)])

    def first(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(documents, dim), or (documents, T, dim) where T > 1."""
        pooled, parts = [], self.sizes.tokens_per_document
        for states, real in zip(self.first_hidden(ids, mask), mask, strict=True):
            short = -len(states) % parts
            states = torch.cat([states, torch.zeros(short, states.shape[1])])
            real = torch.cat([real, torch.zeros(short, dtype=real.dtype)])
            whole = states.mean(dim=0)
            for some, those in zip(states.chunk(parts), real.chunk(parts), strict=True):
                pooled.append(some[those.bool()].mean(dim=0) if those.any() else whole)
        out = self._mlp(torch.stack(pooled), "first_stage_model.mlp", "gelu")
        return out if parts == 1 else out.unflatten(0, (-1, parts))

    def prefix(self, context: Tensor) -> Tensor:
        """[context | soft prompt]: more vectors than C are cut."""
        slots = context.reshape(-1, context.shape[-1])[: self.sizes.documents * self.sizes.tokens_per_document]
        if "second_stage_model.prompt_projection.0.weight" not in self.state:
            return slots
        soft = self._mlp(torch.ones(slots.shape[1]), "second_stage_model.prompt_projection", "relu")
        return torch.cat([slots, soft.view(-1, slots.shape[1])])

    def second(self, ids: Tensor, mask: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors, and the states as a recorded case has them."""
        prefix = self.prefix(context)
        width, vectors, hidden = len(prefix), [], []
        for row, real in zip(ids, mask, strict=True):
            joined = self.two.again(torch.cat([prefix, self.two.bare(row)]))
            everyone = torch.cat([torch.ones(width, dtype=real.dtype), real])
            positions = torch.arange(len(joined))
            if self.two.kind == "nomic" and self.sizes.position_free:
                positions[: self.sizes.documents * self.sizes.tokens_per_document] = 0
            states = self.two.run(joined, everyone, positions)
            keep = everyone.clone()
            if self.sizes.instruction_end is not None:
                ends = [
                    place
                    for place, token in enumerate(row.tolist())
                    if place > 0 and token == self.sizes.instruction_end
                ]
                if ends:
                    keep[width : width + ends[0] + 1] = 0
            if not self.sizes.pool_context:
                keep[:width] = 0
            pooled = (states * keep[:, None]).sum(dim=0) / keep.sum().clamp(min=1)
            out = self._mlp(pooled, "second_stage_model.output_projection", "relu")
            vectors.append(out + pooled if self.sizes.residual else out)
            hidden.append(states if self.sizes.pool_context else states[width:])
        return torch.stack(vectors), torch.stack(hidden)


def outputs(state: Mapping[str, Tensor], sizes: Sizes, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a recorded case holds under `out.`; `end_to_end` keeps its graph."""
    model = Reference(state, sizes)
    ids, mask = given["input_ids"], given["attention_mask"]
    context = model.first(given["context_input_ids"], given["context_attention_mask"])
    vectors, hidden = model.second(ids, mask, context)
    order = given["context_permutation"]
    found = {
        "first_stage": context,
        "first_stage.hidden": model.first_hidden(given["context_input_ids"], given["context_attention_mask"]),
        "soft_prompt": model.prefix(context).expand(len(ids), -1, -1),
        "end_to_end": vectors,
        "second_stage": vectors,
        "second_stage.hidden": hidden,
        "second_stage.normalized": vectors / vectors.norm(dim=1, keepdim=True),
        "context_permuted": model.second(ids, mask, context[order])[0],
        "reordered_text": model.second(
            given["reordered_input_ids"], torch.ones_like(given["reordered_input_ids"]), context
        )[0],
        "extra_context": model.second(ids, mask, torch.cat([context, context.flip(0)]))[0],
    }
    null = state.get("second_stage_model.sequence_dropout_null_embedding")
    if null is not None:
        found["null_context"] = model.second(ids, mask, null.expand(context.shape))[0]
    wider = torch.cat([ids, torch.zeros(len(ids), 3, dtype=ids.dtype)], dim=1)
    found["pad_extended"] = model.second(
        wider, torch.cat([mask, torch.zeros(len(ids), 3, dtype=mask.dtype)], dim=1), context
    )[0]
    return found


def gradients(state: Mapping[str, Tensor], sizes: Sizes, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of <y, linspace(-1, 1)>, y = end_to_end."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
    model = Reference(leaves, sizes)
    context = model.first(given["context_input_ids"], given["context_attention_mask"])
    vectors, _ = model.second(given["input_ids"], given["attention_mask"], context)
    (vectors * torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view_as(vectors)).sum().backward()
    found = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    for name, grad in found.items():
        if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")):
            grad[0] = 0  # token tables are made with a padding row, which learns nothing (assumption for NomicBERT)
    return found
