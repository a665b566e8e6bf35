"""mosaicml-streaming's MDSWriter, a document in each sample, tiktoken; a writer is one process.

Called as `python tokenize_streaming.py CORPUS.parquet VOCABULARY OUT`.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow.parquet as pq
import tiktoken
from streaming import MDSWriter


def main(corpus: str, out: str) -> None:
    encoding = tiktoken.get_encoding("r50k_base")
    with MDSWriter(out=f"{out}/tokens", columns={"tokens": "bytes"}) as writer:
        for batch in pq.ParquetFile(corpus).iter_batches(columns=["text"]):
            for text in batch.column("text").to_pylist():
                ids = encoding.encode_ordinary(text)
                ids.append(encoding.eot_token)
                writer.write({"tokens": np.array(ids, dtype=np.uint16).tobytes()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
