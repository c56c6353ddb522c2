"""Small data sets in the published files' formats, for distlab_course.data's tests."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import pickle
import struct
import tarfile
import threading
from pathlib import Path

import numpy as np

CIFAR_BATCHES = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)


def idx_bytes(array):
    """An array of unsigned bytes as an idx file, as MNIST's are."""
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.tobytes()
    )


def write_mnist(root, train=12, test=5, size=28):
    """Write MNIST's four files under root/MNIST/raw; return {stem: (images, labels)}."""
    folder = Path(root) / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    written = {}
    for stem, n in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (n, size, size), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(idx_bytes(images), mtime=0)
        )
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx_bytes(labels), mtime=0)
        )
        written[stem] = (images, labels)
    return written


def python2_pickle(batch):
    """A pickle whose keys are strings of Python 2, as in CIFAR-10's published files."""
    content = pickle.dumps(batch, protocol=2)
    for key in map(str.encode, batch):
        length = struct.pack("<i", len(key))
        content = content.replace(b"X" + length + key, b"T" + length + key)
    return content


def write_cifar(root, per_batch=3):
    """CIFAR-10's archive in `root`; returns {batch: (rows, labels)} of what is in it."""
    rng = np.random.default_rng(1)
    written = {}
    with tarfile.open(Path(root) / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name in CIFAR_BATCHES:
            rows = rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
            labels = [int(label) for label in rng.integers(0, 10, per_batch)]
            written[name] = (rows, labels)
            content = python2_pickle({"labels": labels, "data": rows})
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return written


def md5(path):
    return hashlib.md5(Path(path).read_bytes()).hexdigest()


@contextlib.contextmanager
def serving(folder):
    """The address at which a thread of this process serves a folder's files over HTTP."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
