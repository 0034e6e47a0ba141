from tests.xlnet_jax.inference.conftest import causal, checkpoint, model, tokenizer  # noqa: F401
