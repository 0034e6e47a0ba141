"""TensorFlow for reading data: imported when first used, silent, and off the accelerators.

Every use in the project is `tf = tensorflow()` inside a function: importing a module never loads TensorFlow.
"""

import os
from functools import cache
from typing import Any


def keep_tensorflow_quiet() -> None:
    """It must not report on itself, whichever library imports it in this process and those that it starts."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@cache
def tensorflow() -> Any:
    """The module. It must not take the memory of the GPU that jax trains on."""
    keep_tensorflow_quiet()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    return tf
