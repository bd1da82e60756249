"""Folders of a client's own data, in each of the forms that a node may have them."""

import io
import struct

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def digits():
    """Scikit-learn's digits: uint8 images (N, 8, 8) and labels (N,)."""
    bunch = load_digits()
    return (bunch.images * 15).astype(np.uint8), bunch.target


def write_images(folder, pixels, labels):
    for place, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / str(label) / f"{place:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def write_idx(folder, pixels, labels, name="train"):
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        content = header + array.astype(np.uint8).tobytes()
        (folder / f"{name}-{kind}-ubyte").write_bytes(content)
    return folder


def write_parquet(folder, pixels, labels, name="train"):
    import datasets

    def encoded(image):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    folder.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_dict(
        {"image": [encoded(image) for image in pixels], "label": labels.tolist()},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    table.to_parquet(folder / f"{name}.parquet")
    return folder


def write_csv(folder, rows, labels, names, file="rows.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join((*names, "label"))]
    lines += [",".join(map(str, (*row, label))) for row, label in zip(rows, labels, strict=True)]
    (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def nodes_of(folders, **more):
    """Node configs, one for each folder."""
    total = len(folders)
    return [
        {"partition-id": i, "num-partitions": total, "data-path": str(folder), **more}
        for i, folder in enumerate(folders)
    ]
