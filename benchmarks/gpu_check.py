"""Proves that training, slicing and aggregation on a GPU agree with the CPU, and measures speed.

    benchmarks/gpu_check.sh [--device cpu|cuda]

Needs PyTorch and NumPy; images are synthetic, 3x32x32 in 10 classes. Without a CUDA device it does
the same on the CPU at a small size, which keeps the script itself correct.

1. A few SGD steps of the slice of every width, with and without normalisation, TF32 off: the CPU
   beside a plain double-precision loop on tensors cut out of the full state dict, the GPU beside
   the CPU. The distance is relative to the length of the update; the loss agrees as closely.
2. The average of the four slices beside NumPy's masked average; what no slice holds keeps its bits.
3. Examples per second by width and precision, and seconds of a round of the papers' size.
4. Where Flower is installed: `fedhet run` on the CPU and on the device draws the same cohorts,
   widths and batches.

The exit status is 1 when a comparison fails.
"""

import argparse
import sys
from collections.abc import Mapping
from importlib.util import find_spec

import gpu_runs
import gpu_speed
import numpy as np
import torch
from gpu_task import FULL, SMALL, Bench, Trained
from numpy.typing import NDArray

from fedhet_app.submodel.aggregation import Update, aggregate
from fedhet_app.submodel.layout import unflatten

WIDTHS = (1.0, 0.75, 0.5, 0.25)
NORMS = ("gn", "none")
# At full size float32 and double precision lie up to 2e-4 apart after three steps, bfloat16 and
# float32 up to 0.09; TF32 has three bits more than bfloat16 and would miss the first limit.
TOLERANCE = 2e-3
BF16_TOLERANCE = 0.2
AVERAGE_TOLERANCE = 1e-5  # the average is rounded to float32 once, the update is small

Floats = NDArray[np.floating]


class Report:
    """Prints each comparison and keeps the names of those that failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def check(self, name: str, distance: float, limit: float) -> None:
        """Hold a distance against its limit; a NaN fails."""
        passed = distance <= limit
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {distance:.1e}, limit {limit:g}", flush=True)
        if not passed:
            self.failed.append(name)


def distance(ours: Floats, theirs: Floats, start: Floats) -> float:
    """Return how far two results of training lie apart, relative to the length of the update."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - start))


def joined(arrays: Mapping[str, Floats], names: Mapping[str, Floats]) -> Floats:
    """Return the named arrays as one vector."""
    return np.concatenate([arrays[name].ravel() for name in names])


def check_slice(bench: Bench, width: float, device: str, report: Report) -> Trained:
    """Train one slice in every way, compare, and return what the device made of it."""
    case, start = f"norm {bench.norm}, width {width:g}:", bench.start(width)
    kept = bench.load(width, device).numpy()
    report.check(f"{case} bits lost on {device}", float((kept != start).sum()), 0.0)
    cpu, plain = bench.train(width, "cpu"), bench.train_plain(width)
    layout = bench.slicer.layout(width)
    ours, before = unflatten(layout, cpu.vector), unflatten(layout, start)
    apart = distance(joined(ours, ours), joined(plain, ours), joined(before, ours))
    report.check(f"{case} CPU and double precision", apart, TOLERANCE)
    there = bench.train(width, device)
    apart = distance(there.vector, cpu.vector, start)
    report.check(f"{case} {device} and CPU", apart, TOLERANCE)
    apart = abs(there.loss - cpu.loss) / cpu.loss
    report.check(f"{case} loss on {device} and CPU", apart, TOLERANCE)
    half = bench.train(width, device, precision="bf16")
    apart = distance(half.vector, there.vector, start)
    report.check(f"{case} bf16 and fp32 on {device}", apart, BF16_TOLERANCE)
    return there


def check_average(bench: Bench, slices: Mapping[float, Trained], report: Report) -> None:
    """Compare the average of slices with a masked average of arrays of full size."""
    updates = [
        Update(index=bench.slicer.index(width), values=trained.vector, weight=10.0 + number)
        for number, (width, trained) in enumerate(slices.items())
    ]
    dense = np.ma.array(np.zeros((len(updates), bench.slicer.size)), mask=True)
    for row, update in zip(dense, updates, strict=True):
        row[slice(None) if update.index is None else update.index] = update.values
    expected = np.ma.average(dense, axis=0, weights=[update.weight for update in updates])
    vector = aggregate(bench.vector, updates).vector
    apart = distance(vector, np.asarray(expected), bench.vector)
    report.check(f"norm {bench.norm}: average of slices", apart, AVERAGE_TOLERANCE)
    narrow = aggregate(bench.vector, updates[-1:]).vector
    touched = narrow != bench.vector
    touched[updates[-1].index] = False
    report.check(f"norm {bench.norm}: bits changed outside", float(touched.sum()), 0.0)


def main() -> None:
    """Run all parts; exit with status 1 when a comparison failed."""
    parser = argparse.ArgumentParser(description="The GPU beside the CPU.")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="by default cuda where it is")
    device = parser.parse_args().device or ("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU: the CPU, small sizes"
    print(f"PyTorch {torch.__version__}, {name}", flush=True)
    if device == "cpu":
        torch.set_num_threads(1)
    report, sizes = Report(), FULL if device == "cuda" else SMALL
    benches = [Bench(sizes, norm) for norm in NORMS]
    with gpu_speed.full_float32():
        for bench in benches:
            slices = {width: check_slice(bench, width, device, report) for width in WIDTHS}
            check_average(bench, slices, report)
    gpu_speed.show(benches[0], WIDTHS, device)
    if find_spec("flwr"):
        gpu_runs.check(device, report.check)
    else:
        print("Flower is not installed: no run of the app")
    print(f"{len(report.failed)} comparisons failed {report.failed or ''}")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
