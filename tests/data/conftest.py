import gzip
import io
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

REAL_DATA = os.environ.get("FEDHET_DATA", "")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Each test starts with an empty cache and no data but its own."""
    monkeypatch.setenv("FEDHET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDHET_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def real_data(monkeypatch):
    if not REAL_DATA:
        pytest.skip("needs real data: set FEDHET_DATA")
    monkeypatch.setenv("FEDHET_DATA", REAL_DATA)
    return Path(REAL_DATA)


@pytest.fixture
def write_idx():
    def write(path, array):
        content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        content += array.astype(np.uint8).tobytes()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    return write


@pytest.fixture
def png():
    def encode(pixels, mode=None, form="PNG", **options):
        image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
        buffer = io.BytesIO()
        (image.convert(mode) if mode else image).save(buffer, format=form, **options)
        return {"bytes": buffer.getvalue(), "path": None}

    return encode


@pytest.fixture
def write_parquet():
    """Write columns as the hub does, with the types of ``datasets`` in the file."""

    def write(path, columns, **types):
        import datasets

        table = datasets.Dataset.from_dict(columns)
        features = table.features.copy()
        features.update(types)
        path.parent.mkdir(parents=True, exist_ok=True)
        table.cast(datasets.Features(features)).to_parquet(path)

    return write


@pytest.fixture
def make_images():
    def make(count, *shape, seed=0):
        return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)

    return make
