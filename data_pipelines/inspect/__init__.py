"""Show windows of a corpus: `inspect_window` from Python, `python -m data_pipelines.inspect` from a shell."""
