"""python -m xlnet_jax.plan: a command of xlnet_jax/__main__.py."""

from xlnet_jax.start import start

start("plan", __name__)
