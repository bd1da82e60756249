#!/usr/bin/env bash
# Agreement with the CPU, then speed, on a CUDA machine: see gpu_check.py. Ends within 8 minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec timeout 480 "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
