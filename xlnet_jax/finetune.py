"""python -m xlnet_jax.finetune: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("finetune", __name__)
