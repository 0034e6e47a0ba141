"""Turn text into batches: sources -> tokenizer -> corpus of token blocks on disk -> windows, targets, orders."""
