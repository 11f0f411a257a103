"""Train Quill, the model shipped with pagedlab, and write everything that ships beside its weights.

Five and a half minutes on one H200, after ``prepare_corpus.py`` has made the documents::

    python docs/model/train_quill.py .corpus/documents.jsonl pagedlab/model/weights/quill

Two minutes without a GPU show that all of it works, with a model that has learnt nothing::

    python docs/model/train_quill.py .corpus/documents.jsonl /tmp/quill --steps 3 --batch-size 2 --no-compile

Written: ``model.safetensors`` (float16: more precise than bfloat16 for numbers of this size), ``config.json``,
``training.json`` (hyperparameters, machine, loss curve, samples) and ``common_words.txt`` (the 2,000 commonest words of
the text, against which ``tests/model`` checks what the model writes; it belongs there).

Two things here are not in every training script. The corpus is small for the compute, so the text is seen many times:
dropout on both branches of every layer, and weight decay, keep the model from learning it by heart, and the weights
kept are those of the best validation loss. And a learner will type anything, also bytes that occur nowhere in the
text: so some inputs get a short stretch of random bytes, which the model never has to predict, only to carry on after.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import json
import math
import platform
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from safetensors.torch import save_file
from torch import Tensor, nn

from pagedlab.model.config import DecoderConfig
from pagedlab.model.decoder import Decoder, DenseAttention
from pagedlab.model.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
CONFIG = DecoderConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=192,
    intermediate_size=480,
    num_hidden_layers=5,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    eos_token_id=TOKENIZER.eos_token_id,
    bos_token_id=TOKENIZER.bos_token_id,
)
VALIDATION_SHARE = 0.05
EVALUATIONS = 40  # spread evenly over the run
PROMPTS = ("ROMEO.\n", "To be, or not to be", "In the beginning", "Please explain what a GPU is.\n")
IGNORED = -100  # a target that no loss is taken of: cross_entropy's own default


def main() -> None:
    """Train and write the results."""
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    documents = [json.loads(line)["text"] for line in args.documents.read_text(encoding="ascii").splitlines()]
    train_documents, validation_documents = split(documents, args.seed)
    train, validation = join(train_documents).to(device), join(validation_documents).to(device)
    print(f"{len(train):,} training tokens, {len(validation):,} validation tokens, {device}", flush=True)

    decoder = Decoder(CONFIG).to(device)
    initialise(decoder)
    add_dropout(decoder, args.dropout)
    result = fit(decoder, train, validation, args)

    args.output.mkdir(parents=True, exist_ok=True)
    save_file({n: t.half().contiguous() for n, t in decoder.checkpoint().items()}, args.output / "model.safetensors")
    (args.output / "config.json").write_text(json.dumps(CONFIG.to_dict(), indent=2) + "\n", encoding="utf-8")
    (args.output / "common_words.txt").write_text("\n".join(common_words(documents)) + "\n", encoding="ascii")

    decoder.load_weights(
        {n: t.half().float() for n, t in decoder.checkpoint().items()}
    )  # as whoever loads it will see it
    shipped_loss = evaluate(decoder.eval(), validation, args.batch_size)
    record = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name()
        if device.type == "cuda"
        else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in decoder.parameters()),
        "train_tokens": len(train),
        "validation_tokens": len(validation),
        "hyperparameters": {name: value for name, value in vars(args).items() if not isinstance(value, Path)},
        "shipped_validation_loss": {"nats_per_byte": shipped_loss, "bits_per_byte": shipped_loss / math.log(2)},
        **result,
        "samples": [sample(decoder, prompt, t) for prompt in PROMPTS for t in (0.0, 0.8)],
    }
    (args.output / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in record.items() if k not in ("curve", "samples")}, indent=1))
    for text in record["samples"]:
        print("-" * 80, text["text"], sep="\n")


def parse_args() -> argparse.Namespace:
    """Read the command line; the defaults made the shipped weights."""
    parser = argparse.ArgumentParser(description="Train Quill.")
    parser.add_argument("documents", type=Path, help="documents.jsonl of prepare_corpus.py")
    parser.add_argument("output", type=Path, help="folder for the results")
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--warmup-steps", type=int, default=400)
    parser.add_argument(
        "--batch-size", type=int, default=64, help=f"sequences of {CONFIG.max_position_embeddings} tokens"
    )
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.25, help="share of sequences with a stretch of random bytes")
    parser.add_argument("--seed", type=int, default=1623)
    parser.add_argument("--max-seconds", type=float, default=3600.0, help="stop here and keep the best so far")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


# --- the text ---------------------------------------------------------------------------------------------------


def split(documents: list[str], seed: int) -> tuple[list[str], list[str]]:
    """Set whole documents aside for validation."""
    shuffled = documents.copy()
    random.Random(seed).shuffle(shuffled)
    count = max(1, round(len(shuffled) * VALIDATION_SHARE))
    return shuffled[count:], shuffled[:count]


def join(documents: list[str]) -> Tensor:
    """One long row of ids ``[num_tokens]``: every document starts with ``<|endoftext|>``, and the last ends with it."""
    ids = [token_id for text in documents for token_id in TOKENIZER.encode(text, add_bos=True)]
    return torch.tensor([*ids, TOKENIZER.eos_token_id], dtype=torch.int64)


def batches(tokens: Tensor, batch_size: int, noise: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw windows at random places, for ever: inputs and targets ``[batch_size * length]``."""
    generator = torch.Generator(tokens.device).manual_seed(seed)
    draw: dict[str, Any] = {"generator": generator, "device": tokens.device}
    length = CONFIG.max_position_embeddings
    place = torch.arange(length + 1, device=tokens.device)
    while True:
        starts = torch.randint(len(tokens) - length, (batch_size, 1), **draw)
        window = tokens[starts + place]  # [batch_size, length + 1]
        noise_start = torch.randint(length, (batch_size, 1), **draw)
        noise_length = torch.randint(1, 32, (batch_size, 1), **draw) * (torch.rand((batch_size, 1), **draw) < noise)
        noisy = (place >= noise_start) & (place < noise_start + noise_length)
        inputs = torch.where(noisy, torch.randint(256, window.shape, **draw), window)[:, :-1]
        targets = window.masked_fill(noisy, IGNORED)[:, 1:]
        yield inputs.flatten(), targets.flatten()


def common_words(documents: list[str]) -> list[str]:
    """The 2,000 commonest words of the text, in lower case, commonest first."""
    counts = collections.Counter(word for text in documents for word in re.findall(r"[a-z']+", text.lower()))
    return [word for word, _ in counts.most_common(2000)]


# --- the model --------------------------------------------------------------------------------------------------


@torch.no_grad()
def initialise(decoder: Decoder) -> None:
    """Normal weights; those that add to the residual stream smaller, the more layers add to it."""
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 2:
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * CONFIG.num_hidden_layers) if adds else 1))


def add_dropout(decoder: Decoder, rate: float) -> None:
    """Drop what a branch adds to the residual stream: from outside, since only training needs it."""

    def drop(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        return F.dropout(output, rate, module.training)

    for layer in decoder.model.layers:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            layer.get_submodule(name).register_forward_hook(drop)


def loss_of(decoder: Decoder, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats; in bfloat16 where there is a GPU."""
    length = CONFIG.max_position_embeddings
    num_sequences = len(inputs) // length
    positions = torch.arange(length, device=inputs.device).repeat(num_sequences)
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=inputs.is_cuda):
        hidden = decoder(inputs, positions, DenseAttention(num_sequences))
        logits = decoder.compute_logits(hidden)
    return F.cross_entropy(logits, targets, ignore_index=IGNORED)


@torch.no_grad()
def evaluate(decoder: Decoder, tokens: Tensor, batch_size: int) -> float:
    """Mean loss over all whole windows of ``tokens``, end to end."""
    length = CONFIG.max_position_embeddings
    whole = (len(tokens) - 1) // length * length
    chunk = batch_size * length
    pairs = zip(torch.split(tokens[:whole], chunk), torch.split(tokens[1 : whole + 1], chunk), strict=True)
    return sum(loss_of(decoder, inputs, targets).item() * len(inputs) for inputs, targets in pairs) / whole


def fit(decoder: Decoder, train: Tensor, validation: Tensor, args: argparse.Namespace) -> dict[str, Any]:
    """Train; leave the best weights in ``decoder``; return the curve and where its best point was."""
    matrices = [p for p in decoder.parameters() if p.ndim == 2]
    vectors = [p for p in decoder.parameters() if p.ndim == 1]  # norms are not decayed
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=train.is_cuda,
    )
    step_loss = torch.compile(loss_of, dynamic=False) if args.compile else loss_of
    data = batches(train, args.batch_size, args.noise, args.seed)
    every = max(1, args.steps // EVALUATIONS)
    curve: list[dict[str, float]] = []
    best = math.inf
    best_weights = {name: tensor.clone() for name, tensor in decoder.checkpoint().items()}
    running = torch.zeros((), device=train.device)
    start = time.perf_counter()

    for step in range(1, args.steps + 1):
        rate = learning_rate(step, args)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = step_loss(decoder.train(), *next(data))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running += loss.detach()

        if step % every and step != args.steps:
            continue
        point = {
            "step": step,
            "train_loss": running.item() / (step - (curve[-1]["step"] if curve else 0)),
            "validation_loss": evaluate(decoder.eval(), validation, args.batch_size),
            "learning_rate": rate,
            "seconds": round(time.perf_counter() - start, 1),
        }
        running.zero_()
        curve.append(point)
        print(json.dumps(point), flush=True)
        if point["validation_loss"] < best:
            best = point["validation_loss"]
            best_weights = {name: tensor.clone() for name, tensor in decoder.checkpoint().items()}
        if point["seconds"] > args.max_seconds:
            print("out of time", flush=True)
            break

    decoder.load_weights(best_weights)
    return {
        "best_step": min(curve, key=lambda point: point["validation_loss"])["step"],
        "tokens_seen": curve[-1]["step"] * args.batch_size * CONFIG.max_position_embeddings,
        "curve": curve,
    }


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to nothing."""
    done = (step - args.warmup_steps) / max(1, args.steps - args.warmup_steps)
    share: float = step / args.warmup_steps if done < 0 else (1 + math.cos(math.pi * done)) / 2
    return share * float(args.learning_rate)


@torch.no_grad()
def sample(decoder: Decoder, prompt: str, temperature: float, max_tokens: int = 300) -> dict[str, Any]:
    """Continue a prompt, recomputing everything for every token: slow, and needs no engine."""
    device = decoder.lm_head.weight.device
    generator = torch.Generator(device).manual_seed(0)
    ids = TOKENIZER.encode(prompt)
    for _ in range(max_tokens):
        hidden = decoder(torch.tensor(ids, device=device), torch.arange(len(ids), device=device), DenseAttention(1))
        logits = decoder.compute_logits(hidden[-1])
        if temperature:
            token_id = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
        else:
            token_id = int(logits.argmax())
        if token_id == TOKENIZER.eos_token_id:
            break
        ids.append(token_id)
    return {"prompt": prompt, "temperature": temperature, "text": TOKENIZER.decode(ids)}


if __name__ == "__main__":
    main()
