"""How fast a device trains the CNN: examples per second by width, seconds of a whole round."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from gpu_task import LR, SEED, Bench

from fedhet_app.seeding import rng_for
from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.submodel.flat import FlatModule
from fedhet_app.training import local_sgd

WARM_UP_STEPS = 5
# Ten clients in the shares of the default capacity-probs.
TIERS = (0.25,) * 3 + (0.5,) * 4 + (0.75,) * 2 + (1.0,)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to multiply: ``tf32`` leaves PyTorch's own setting, which uses it in convolutions."""

    name: str
    precision: str
    tf32: bool


CPU_MODES = (
    Mode(name="fp32", precision="fp32", tf32=True),
    Mode(name="bf16", precision="bf16", tf32=True),
)
CUDA_MODES = (
    Mode(name="fp32 without TF32", precision="fp32", tf32=False),
    Mode(name="fp32 as PyTorch sets it", precision="fp32", tf32=True),
    Mode(name="bf16", precision="bf16", tf32=True),
)


@contextmanager
def full_float32() -> Iterator[None]:
    """Switch TF32 off for the block."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def show(bench: Bench, widths: tuple[float, ...], device: str) -> None:
    """Print examples per second by width and mode, and seconds of one round by mode."""
    sizes, modes = bench.sizes, CPU_MODES if device == "cpu" else CUDA_MODES
    print(f"\n{sizes.preset} CNN, norm {bench.norm}, batch {sizes.batch}: examples per second")
    for width in widths:
        speeds = (
            f"{mode.name} {_examples_per_second(bench, width, device, mode):,.0f}" for mode in modes
        )
        print(f"width {width:g}: {', '.join(speeds)}", flush=True)
    for mode in modes:
        seconds, steps = _round_seconds(bench, device, mode)
        print(
            f"round, {mode.name}: {seconds:.2f} s for {len(TIERS)} clients of mixed width, one "
            f"after the other, {sizes.client_examples} examples, {sizes.epochs} epochs: "
            f"{steps} steps, {1000 * seconds / steps:.2f} ms each",
            flush=True,
        )


def _examples_per_second(bench: Bench, width: float, device: str, mode: Mode) -> float:
    model = bench.load(width, device)
    _seconds(bench, model, device, mode, local_steps=WARM_UP_STEPS)
    seconds, _ = _seconds(bench, model, device, mode, local_steps=bench.sizes.timed_steps)
    return bench.sizes.timed_steps * bench.sizes.batch / seconds


def _seconds(
    bench: Bench, model: FlatModule, device: str, mode: Mode, *, client: int = 0, **length: int
) -> tuple[float, int]:
    """Return seconds and steps of local training, which ends by waiting for the device."""
    images, began = bench.images(device), time.perf_counter()
    with nullcontext() if mode.tf32 else full_float32():
        result = local_sgd(
            model,
            images,
            bench.rows(client),
            config=bench.config(mode.precision, **length),
            lr=LR,
            rng=rng_for(SEED, "shuffle", client, 1),
        )
    return time.perf_counter() - began, result.steps


def _round_seconds(bench: Bench, device: str, mode: Mode) -> tuple[float, int]:
    """Return seconds and steps of one round: cut, load, train, fetch, average."""
    models = {width: bench.load(width, device) for width in TIERS}
    began, total, updates = time.perf_counter(), 0, []
    for client, width in enumerate(TIERS):
        models[width].load(bench.start(width))
        length = {"client": client, "local_epochs": bench.sizes.epochs}
        _, steps = _seconds(bench, models[width], device, mode, **length)
        index, values = bench.slicer.index(width), models[width].numpy()
        updates.append(Update(index=index, values=values, weight=float(len(bench.rows(client)))))
        total += steps
    aggregate(bench.vector, updates)
    return time.perf_counter() - began, total
