"""Keep libraries quiet. TensorFlow is imported when it is first used, silent and without the accelerators: every use in
the project is `tf = tensorflow()` inside a function. Orbax's log reports all its work and the errors that it raises
as well; what others write to absl's log, which Orbax uses, stays.
"""

import logging
import os
from functools import cache
from typing import Any


def keep_tensorflow_quiet() -> None:
    """Silence TensorFlow's log in this process and in those that it starts, whichever library imports it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")


@cache
def tensorflow() -> Any:
    """Return the module, kept off the GPU, whose memory jax needs."""
    keep_tensorflow_quiet()
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    return tf


def keep_orbax_quiet() -> None:
    """Drop the messages of Orbax from absl's log."""
    logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)
