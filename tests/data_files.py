"""Small data sets in the true formats of the published files, for the tests of distlab_course.data."""

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
from typing import ClassVar

import numpy as np

CIFAR_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def idx_bytes(array):
    """An array of unsigned bytes as an idx file: two zeros, 8, the number of dimensions, each as a big-endian int32."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write_mnist(root, train=12, test=5, size=28):
    """MNIST's four files under root/MNIST/raw; returns {stem: (images, labels)} of what is in them."""
    folder = Path(root) / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    written = {}
    for stem, n in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (n, size, size), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images), mtime=0))
        (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels), mtime=0))
        written[stem] = (images, labels)
    return written


class Python2Pickler(pickle._Pickler):
    """Writes bytes as the strings of Python 2, as the published files of CIFAR-10 have them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes


def python2_pickle(value):
    """A pickle that Python 2 and numpy 1 would have written."""
    stream = io.BytesIO()
    Python2Pickler(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_archive(path, members):
    """An archive with these members, {name: bytes}."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_cifar(root, per_batch=3):
    """CIFAR-10's archive in `root`; returns {batch: (rows, labels)} of what is in it."""
    rng = np.random.default_rng(1)
    written, members = {}, {}
    for name in CIFAR_BATCHES:
        rows = rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        labels = [int(label) for label in rng.integers(0, 10, per_batch)]
        written[name] = (rows, labels)
        batch = {b"batch_label": b"a batch", b"labels": labels, b"data": rows, b"filenames": [b"a.png"] * per_batch}
        members[f"cifar-10-batches-py/{name}"] = python2_pickle(batch)
    write_archive(Path(root) / "cifar-10-python.tar.gz", members)
    return written


def md5(path):
    return hashlib.md5(Path(path).read_bytes()).hexdigest()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, and tells nobody."""

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(folder, handler=Quiet):
    """The address at which a thread of this process serves a folder's files, over HTTP as their publishers do."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
