"""Keys that define which events a batch holds; they may change between epochs, not inside one."""

from typing import Final

ORDER_KEYS: Final = (
    "data.batch_size", "data.cache_precision", "data.chunksize", "data.num_shards", "data.shuffle", "data.drop_last",
    "data.exclude", "data.fiducial", "training.seed", "training.grad_accum_steps",
)  # fmt: skip
