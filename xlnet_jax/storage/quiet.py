"""Import TensorFlow when it is first used, with its log off and without accelerators. Every use in the project is
`tf = tensorflow()` inside a function."""

import os
from functools import cache
from typing import Any


def keep_tensorflow_quiet() -> None:
    """Silence TensorFlow's log in this process and its children, whichever library imports it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@cache
def tensorflow() -> Any:
    """Return the module, without access to GPUs: jax needs their memory."""
    keep_tensorflow_quiet()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    return tf
