"""Turn text into batches: sources -> tokenizer -> corpus of token blocks on disk -> windows, targets, orders."""

from xlnet_jax.storage.import_path import leave_current_folder

leave_current_folder()
