"""TensorFlow for reading data: imported when first used, silent, and off the accelerators.

Every use in the project is `tf = tensorflow()` inside a function: importing a module never loads TensorFlow.
"""

import os
from functools import cache
from typing import Any


@cache
def tensorflow() -> Any:
    """The module. It must not take the memory of the GPU that jax trains on, nor report on itself."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    return tf
